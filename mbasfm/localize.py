"""Re-localization: poses of new photographs in the world of a map, all at once or one at a time."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from jaxtyping import Int64, UInt8

from mbasfm.absolute import estimate_focal, pose_from_pair, with_focal
from mbasfm.calibrate import known_intrinsics, lenses_of
from mbasfm.config import LocalizeConfig
from mbasfm.errors import InputError
from mbasfm.infer import match_pairs
from mbasfm.intrinsics import FALLBACK_FOCAL
from mbasfm.io.cache import Cache
from mbasfm.io.images import Photo, find_photos, write_image
from mbasfm.io.masks import with_masks
from mbasfm.localization import Localization, Located
from mbasfm.mapping import PreparedMap, prepare
from mbasfm.mapsource import choose_photos, read_map
from mbasfm.models.base import ImageMatcher
from mbasfm.pairs import aggregate, retrieval_pairs
from mbasfm.queries import Query, lens_of, match_queries
from mbasfm.registration import Known, Registered, Settings, Unknown, register
from mbasfm.threads import one_core
from mbasfm.twoview import Lens
from mbasfm.watch import Watch

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
        watch: Watch | None = None,
    ) -> "Map":
        """Read a map and prepare it, or find it prepared in the cache (by default inside the folder).

        ``folder``: a scene of `mba sfm`, a COLMAP model with its images, or images with gt.json. ``names``: of the
        photographs that are the map, if not all are.
        """
        config, watch = config or LocalizeConfig(), watch or Watch()
        source = read_map(Path(folder), names)
        store = Cache(_writable(Path(cache) if cache is not None else Path(folder) / CACHE_FOLDER))
        return Map(prepare(source, config.common(), store, watch), config, store)

    def localize(self, image: Path | str | RGB) -> Located:
        """Pose of one photograph, a file or upright pixels."""
        if isinstance(image, np.ndarray):
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "image.png"
                write_image(path, image)
                return self.localize(path)
        photos = _read_one(Path(image))
        return self.localize_photos(photos, Cache(None), Watch()).queries[0]

    def localize_photos(self, photos: Sequence[Photo], cache: Cache, watch: Watch) -> Localization:
        """Poses of several photographs, together unless the settings say otherwise."""
        return Localization(self.place(photos, cache, watch).located, {"stages": watch.stages, "notes": watch.notes})

    @one_core()
    def place(self, photos: Sequence[Photo], cache: Cache, watch: Watch) -> "Placement":
        """The same with the matches that led there."""
        prepared, config = self.prepared, self.config
        with watch.stage("matching") as facts:
            lenses, is_known = _lenses(photos, config)
            queries = match_queries(prepared, photos, lenses, config, cache)
            facts.update(queries=len(queries), verified=sum(query.num_verified > 0 for query in queries))
        with watch.stage("between") as facts:
            links = {} if config.independent else _links(prepared, queries, config, cache)
            facts["pairs"] = len(links)
        with watch.stage("register") as facts:
            lenses = _with_focals(prepared, queries, lenses)
            unknowns = [_unknown(prepared, *item) for item in zip(queries, lenses, is_known, strict=True)]
            known = Known(prepared.cameras, prepared.keypoints)
            settings = Settings(config.samples_per_edge, config.max_error_px, config.seed)
            if config.independent:
                found = [register(known, [item], {}, settings)[0] for item in unknowns]
            else:
                found = register(known, unknowns, links, settings)
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
    watch: Watch | None = None,
) -> Localization:
    """Poses of the photographs of a folder (or list file) in the world of a map; written to ``output`` if given."""
    config, watch = config or LocalizeConfig(), watch or Watch()
    found, skipped = find_photos(Path(queries))
    for item in skipped:
        watch.say(f"skipped {item.name}: {item.reason}")
    photos = with_masks(choose_photos(found, names.queries, Path(queries)), _path(config.masks))
    if not photos:
        raise InputError(f"{queries}: no usable photograph to localize")
    chart = Map.load(folder, config, cache, names.map, watch)
    result = chart.localize_photos(photos, chart.cache, watch)
    if output is not None:
        result.save(Path(output))
    return result


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)


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
    start = known_intrinsics(photos, config.common())
    if bool(start.intrinsics.fisheye.any()):
        raise InputError("fisheye lenses cannot be localized; undistort the photographs first")
    return lenses_of(start.intrinsics), start.is_known.tolist()


def _with_focals(prepared: PreparedMap, queries: Sequence[Query], lenses: Sequence[Lens]) -> list[Lens]:
    """Fill in focal lengths by the points that queries see; a query that cannot tell has that of the others."""
    missing = [n for n, lens in enumerate(lenses) if not np.isfinite(lens.focal).all()]
    found = {n: estimate_focal(queries[n].sightings(prepared), lenses[n]) for n in missing}
    shares = [focal / float(lenses[n].size.max()) for n, focal in found.items() if np.isfinite(focal)]
    usual = float(np.median(shares)) if shares else FALLBACK_FOCAL
    filled = list(lenses)
    for n in missing:
        focal = found[n] if np.isfinite(found[n]) else usual * float(lenses[n].size.max())
        filled[n] = with_focal(lenses[n], focal)
    return filled


# ----------------------------------------------------------------------------------------------------------------
# From matches to what registration takes


def _unknown(prepared: PreparedMap, query: Query, lens: Lens, is_known: bool) -> Unknown:
    """A query with the starts that its verified pairs suggest."""
    starts = []
    for frame, view in zip(query.frames, query.views, strict=True):
        if np.isfinite(view.j_from_i).all():
            keypoints = prepared.keypoints[frame]
            pixels = keypoints.pixels.astype(np.float64), query.pixels.astype(np.float64)
            placed = prepared.cameras.cam_from_world[frame].numpy()
            depth = keypoints.raw_depth.astype(np.float64)
            pose = pose_from_pair(view, pixels, (lens_of(prepared, frame), lens), depth, placed)
            starts += [] if pose is None else [pose]
    return Unknown(query.pixels, query.sightings(prepared), lens, tuple(starts), is_known)


def _links(
    prepared: PreparedMap, queries: Sequence[Query], config: LocalizeConfig, cache: Cache
) -> dict[tuple[int, int], Int64[np.ndarray, "_ 2"]]:
    """Matches between queries that look alike, by the first matcher, if it has features."""
    index = prepared.indexes[0]
    features = [query.features[0] for query in queries]
    if len(queries) < 2 or config.query_neighbours == 0 or not index.words.size:
        return {}
    if isinstance(index.matcher, ImageMatcher):
        return {}  # keypoints of queries are where they match the map
    vectors = aggregate([item.descriptors for item in features if item is not None], index.words)
    pairs = retrieval_pairs(vectors, config.query_neighbours)
    photos = [
        replace(query.photo, digest=f"{query.photo.digest}|{query.quarter_turns}")
        if query.quarter_turns
        else query.photo
        for query in queries
    ]
    found = match_pairs(pairs, [item for item in features if item is not None], photos, index.matcher, cache)
    links = {}
    for (a, b), (indices, _) in zip(pairs.tolist(), found, strict=True):
        usable = queries[a].usable[0][indices[:, 0]] & queries[b].usable[0][indices[:, 1]]
        links[a, b] = indices[usable]
    return links


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
