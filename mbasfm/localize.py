"""Re-localization: poses of new photographs in the world of a map, with the help of each other or one at a time."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from jaxtyping import Int64, UInt8

from mbasfm.config import LocalizeConfig
from mbasfm.errors import InputError
from mbasfm.io.files import Cache
from mbasfm.io.images import find_photos, write_image
from mbasfm.localization.map_source import choose_photos, read_map
from mbasfm.localization.match_queries import Query, match_each_other, match_queries
from mbasfm.localization.prepared_map import PreparedMap, prepare
from mbasfm.localization.register import Known, Registered, Settings, register
from mbasfm.localization.result import Localization, Located
from mbasfm.localization.starts import unknown_of, with_focals
from mbasfm.matching.observe import load_depth, load_matchers
from mbasfm.models.base import looking_in
from mbasfm.runtime.parallel import one_core
from mbasfm.runtime.progress import Progress, active_progress, stage
from mbasfm.sfm.inputs import cameras_alone, input_photos
from mbasfm.sfm.intrinsics import known_intrinsics, lenses_of
from mbasfm.types.cameras import Lens
from mbasfm.types.observations import Photo

CACHE_FOLDER = "cache"
RGB = UInt8[np.ndarray, "H W 3"]


@dataclass(frozen=True)
class Map:
    """A map in memory, ready for queries."""

    prepared: PreparedMap
    config: LocalizeConfig
    cache: Cache

    @staticmethod
    @one_core()
    def load(
        folder: Path | str,
        config: LocalizeConfig | None = None,
        cache: Path | str | None = None,
        names: Sequence[str] | None = None,
        progress: Progress | None = None,
    ) -> "Map":
        """Read a map and prepare it, or find it prepared in the cache (by default inside the folder).

        ``folder``: a scene of `mba sfm`, a COLMAP model with its images, or images with gt.json. ``names``: of the
        photographs that are the map, if not all are.
        """
        config, progress = config or LocalizeConfig(), progress or Progress()
        source = read_map(Path(folder), names)
        store = Cache(_writable(Path(cache) if cache is not None else Path(folder) / CACHE_FOLDER))
        with progress.active(), store.active(), looking_in(config.weights, config.models_path):
            matchers = load_matchers(config.matcher)
            is_own = source.depth is not None and config.depth == "auto"
            depth_model = None if is_own else partial(load_depth, config.depth)
            return Map(prepare(source, matchers, depth_model, config.max_error_px, config.seed), config, store)

    def localize(self, image: Path | str | RGB) -> Located:
        """Pose of one photograph, a file or upright pixels."""
        if isinstance(image, np.ndarray):
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "image.png"
                write_image(path, image)
                return self.localize(path)
        photos = _read_one(Path(image))
        return self.localize_photos(photos, Cache(None), Progress()).queries[0]

    def localize_photos(self, photos: Sequence[Photo], cache: Cache, progress: Progress) -> Localization:
        """Poses of several photographs, together unless the settings say otherwise."""
        return Localization(
            self.place(photos, cache, progress).located, {"stages": progress.stages, "notes": progress.notes}
        )

    @one_core()
    def place(self, photos: Sequence[Photo], cache: Cache, progress: Progress) -> "Placement":
        """The same with the matches that led there."""
        with progress.active(), cache.active():
            return self._place(photos)

    def _place(self, photos: Sequence[Photo]) -> "Placement":
        prepared, config = self.prepared, self.config
        with stage("matching") as facts:
            lenses, is_known = _lenses(photos, config)
            queries = match_queries(prepared, photos, lenses, config.map_neighbours, config.max_error_px)
            facts.update(queries=len(queries), verified=sum(query.num_verified > 0 for query in queries))
        with stage("between") as facts:
            links = {} if config.independent else match_each_other(prepared, queries, config.query_neighbours)
            facts["pairs"] = len(links)
        with stage("register") as facts:
            lenses = with_focals(prepared, queries, lenses)
            unknowns = [unknown_of(prepared, *item) for item in zip(queries, lenses, is_known, strict=True)]
            known = Known(prepared.cameras, prepared.keypoints)
            found = register(known, unknowns, links, Settings(config.samples_per_edge, config.seed))
            located = tuple(_located(*item) for item in zip(queries, lenses, found, strict=True))
            facts["localized"] = sum(item.localized for item in located)
        return Placement(queries, links, located)


@dataclass(frozen=True)
class Placement:
    """Queries, matches between them by their numbers, and what became of each."""

    queries: list[Query]
    links: dict[tuple[int, int], Int64[np.ndarray, "_ 2"]]
    located: tuple[Located, ...]


@dataclass(frozen=True)
class Names:
    """Photographs that are the map, and those to be localized; None: all of the folder."""

    map: Sequence[str] | None = None
    queries: Sequence[str] | None = None


ALL = Names()


def relocalize(
    folder: Path | str,
    queries: Path | str,
    output: Path | str | None = None,
    config: LocalizeConfig | None = None,
    cache: Path | str | None = None,
    names: Names = ALL,
) -> Localization:
    """Poses of the photographs of a folder (or list file) in the world of a map; written to ``output`` if given."""
    config, progress = config or LocalizeConfig(), active_progress()
    with progress.active():
        found, _ = input_photos(Path(queries), config.masks)
    photos = choose_photos(found, names.queries, Path(queries))
    if not photos:
        raise InputError(f"{queries}: no usable photograph to localize")
    chart = Map.load(folder, config, cache, names.map, progress)
    result = chart.localize_photos(photos, chart.cache, progress)
    if output is not None:
        result.save(Path(output))
    return result


def _writable(folder: Path) -> Path:
    """The folder, made if it does not exist: better now than after minutes of preparing a map."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        raise InputError(
            f"{folder}: the prepared map cannot be kept there ({error}); choose another --cache"
        ) from error


def _read_one(path: Path) -> tuple[Photo, ...]:
    with tempfile.TemporaryDirectory() as folder:
        single = Path(folder) / "one.txt"
        single.write_text(str(path.resolve()), encoding="utf-8")
        photos, skipped = find_photos(single)
    if not photos:
        raise InputError(f"{path}: {skipped[0].reason}")
    return photos


# ----------------------------------------------------------------------------------------------------------------
# Intrinsics of the queries


def _lenses(photos: Sequence[Photo], config: LocalizeConfig) -> tuple[list[Lens], list[bool]]:
    """Lenses, with NaN where the focal length is not known, and whether the user gave them."""
    given = cameras_alone(photos, config.cameras, config.focal)
    start = known_intrinsics(photos, given, config.intrinsics)
    if bool(start.intrinsics.fisheye.any()):
        raise InputError("fisheye lenses cannot be localized; undistort the photographs first")
    return lenses_of(start.intrinsics), start.is_known.tolist()


# ----------------------------------------------------------------------------------------------------------------
# From matches to what registration takes


def _located(query: Query, lens: Lens, found: Registered) -> Located:
    return Located(
        name=query.photo.name,
        cam_from_world=found.cam_from_world,
        lens=replace(lens, focal=found.focal_px),
        covariance=found.covariance,
        num_inliers=found.support.num_inliers,
        inlier_share=found.support.inlier_share,
        quarter_turns=query.quarter_turns,
        reason=found.reason,
    )
