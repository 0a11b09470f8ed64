"""The task of re-localization: ours against a classical pipeline made of pycolmap's parts, on the same matches.

The classical pipeline gets points of the map by triangulation from the known poses or lifts keypoints by the same depth
maps, and finds each query's pose by RANSAC and refinement at one of two thresholds.
"""

import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pycolmap
from jaxtyping import Float64

from mbasfm.bench.jobs import Job
from mbasfm.bench.tasks.base import Outcome, stage_seconds
from mbasfm.config import LocalizeConfig
from mbasfm.datasets.base import DatasetScene
from mbasfm.datasets.registry import open_dataset
from mbasfm.errors import InputError
from mbasfm.estimators.absolute import Sightings
from mbasfm.evaluation.protocols import find_protocol
from mbasfm.evaluation.score_files import errors_by_name, score_poses
from mbasfm.io.files import Cache
from mbasfm.io.images import find_photos
from mbasfm.localization.map_source import POSE_FILES, read_map
from mbasfm.localization.match_queries import match_queries
from mbasfm.localization.prepared_map import triangulate_map
from mbasfm.localize import Map
from mbasfm.runtime.progress import Progress
from mbasfm.sfm.inputs import cameras_alone
from mbasfm.sfm.intrinsics import known_intrinsics, lenses_of
from mbasfm.types.cameras import Lens
from mbasfm.types.observations import Photo

Poses = dict[str, Float64[np.ndarray, "3 4"]]
SENSOR = "files:{depth}"
"""Depth setting with which the map has its sensor's depth; otherwise it has none, and a model is used."""
THRESHOLDS_PX = (4.0, 12.0)
"""Thresholds of the classical pipeline's RANSAC; the second is the default of pycolmap and usual pipelines."""
MIN_POINTS = 4


@dataclass(frozen=True)
class Assignment:
    """Input of a method: a folder with the map, the queries, and settings."""

    map: Path
    photos: tuple[Photo, ...]
    config: LocalizeConfig
    cache: Path
    progress: Progress

    def load_map(self) -> Map:
        """The map, prepared now or found in the cache."""
        return Map.load(self.map, self.config, self.cache, progress=self.progress)


Found = tuple[Poses, dict[str, float]]
"""Poses of localized queries, and measures besides those of the protocol."""


class Relocalization:
    """Poses of queries in the world of a map; a query without a pose counts as wrong."""

    @property
    def methods(self) -> tuple[str, ...]:
        """Ours jointly, one by one, and one by one from file to pose; variants of the classical pipeline."""
        return tuple(METHODS)

    def run(self, job: Job, work: Path, cache: Path) -> Outcome:
        """Run one method and score it."""
        dataset = open_dataset(job.dataset, Path(job.data))
        scene = dataset.load(job.scene)
        queries = scene.queries
        calibration = queries.calibration() if job.intrinsics == "known" else {}
        strangers = {f"strangers/{number:03d}_{Path(path).name}": path for number, path in enumerate(job.strangers)}
        if calibration and strangers:
            known = _calibrations((dataset.load(name) for name in dataset.scenes()), set(job.strangers))
            calibration |= {name: known[path] for name, path in strangers.items()}
        files = {name: queries.images / name for name in queries.names}
        _link(work / "queries", files | {name: Path(path) for name, path in strangers.items()})
        photos, _ = find_photos(work / "queries")
        settings = dict(job.settings)
        wants_sensor = settings.get("depth") == SENSOR
        if wants_sensor:
            del settings["depth"]
        if calibration:
            (work / "cameras.json").write_text(json.dumps({"images": calibration}))
            settings["cameras"] = str(work / "cameras.json")
        config = LocalizeConfig(**{"intrinsics": scene.grouping, "seed": job.seed} | settings)
        _write_map(work / "map", scene.map)
        if wants_sensor:
            (work / "map" / "depth").symlink_to(_depth_folder(scene.map, cache).resolve())
        progress = Progress()
        poses, more = METHODS[job.method](Assignment(work / "map", photos, config, cache / "ours", progress))
        return _outcome(job, queries, poses, stage_seconds(progress, job, cache), more)

    def failed(self, job: Job) -> Outcome:
        """Outcome in which no query has a pose."""
        return _outcome(job, open_dataset(job.dataset, Path(job.data)).load(job.scene).queries, {}, {}, {})


def _outcome(
    job: Job, queries: DatasetScene, poses: Poses, stages: dict[str, float], more: dict[str, float]
) -> Outcome:
    score = score_poses(poses, queries.names, queries.cam_from_world, find_protocol(job.protocol))
    errors = errors_by_name(poses, queries.names, queries.cam_from_world)
    counts = (score.num_images, score.num_registered, score.num_pairs, score.num_strangers)
    return Outcome(score.measures | more, stages, *counts, score.curve, errors)


# ----------------------------------------------------------------------------------------------------------------
# Folders as `mba localize` takes them


def _link(folder: Path, files: Mapping[str, Path]) -> None:
    for name, path in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).symlink_to(path.resolve())


def _write_map(folder: Path, scene: DatasetScene) -> None:
    _link(folder / "images", {name: scene.images / name for name in scene.names})
    rows = {
        name: camera | {"R": pose[:, :3].tolist(), "t": pose[:, 3].tolist()}
        for (name, camera), pose in zip(scene.calibration().items(), scene.cam_from_world, strict=True)
    }
    (folder / POSE_FILES[0]).write_text(json.dumps({"images": rows}))


def _depth_folder(scene: DatasetScene, cache: Path) -> Path:
    """Folder of the dataset's depth, or one with the maps computed from it."""
    if scene.depth is not None:
        return scene.depth
    if scene.read_depth is None:
        raise InputError(f"{scene.name}: the dataset has no sensor depth of the map")
    folder = cache / "depth" / scene.name
    for name in scene.names:
        path = folder / f"{name}.npy"
        if not path.is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.with_suffix(".part").open("wb") as file:
                np.save(file, scene.read_depth(name))
            path.with_suffix(".part").replace(path)
    return folder


def _calibrations(scenes: Iterable[DatasetScene], paths: set[str]) -> dict[str, dict[str, Any]]:
    """Intrinsics of images of other scenes, by path."""
    found: dict[str, dict[str, Any]] = {}
    for scene in scenes:
        names = {str((scene.images / name).resolve()): name for name in scene.names}
        mine = [path for path in names if path in paths]
        if mine:
            calibration = scene.only([names[path] for path in mine]).calibration()
            found |= {path: calibration[names[path]] for path in mine}
    return found


# ----------------------------------------------------------------------------------------------------------------
# Ours


def run_ours(assignment: Assignment, independent: bool) -> Found:
    """All queries together, or each as if there were no others; features and matches may come from the cache."""
    chart = assignment.load_map()
    chart = replace(chart, config=replace(chart.config, independent=independent))
    located = chart.localize_photos(assignment.photos, chart.cache, assignment.progress).queries
    return {query.name: query.cam_from_world for query in located if query.cam_from_world is not None}, {}


def run_resident(assignment: Assignment) -> Found:
    """Poses of one photograph after the other in a map in memory, everything from file to pose included."""
    chart = assignment.load_map()
    poses: Poses = {}
    seconds = []
    with assignment.progress.stage("localize"):
        for photo in assignment.photos:
            begin = time.perf_counter()
            located = chart.localize(photo.path)
            seconds.append(time.perf_counter() - begin)
            if located.cam_from_world is not None:
                poses[photo.name] = located.cam_from_world
    return poses, {"median latency s": float(np.median(seconds)), "largest latency s": max(seconds)}


# ----------------------------------------------------------------------------------------------------------------
# The classical pipeline


def run_classical(assignment: Assignment, triangulated: bool, threshold_px: float) -> Found:
    """Poses by points from triangulation or depth, with the same features and matches as ours."""
    chart, progress, photos = assignment.load_map(), assignment.progress, assignment.photos
    prepared, config = chart.prepared, assignment.config
    given = cameras_alone(photos, config.cameras, config.focal)
    lenses = lenses_of(known_intrinsics(photos, given, config.intrinsics).intrinsics)
    unknown = [photo.name for photo, lens in zip(photos, lenses, strict=True) if not np.isfinite(lens.focal).all()]
    if unknown:
        raise InputError(f"{unknown[0]}: no intrinsics, which the classical pipeline needs; use intrinsics = known")
    with Cache(assignment.cache).active(), progress.stage("matching"):
        queries = match_queries(prepared, photos, lenses, config.map_neighbours, config.max_error_px)
        sightings = [query.sightings(prepared) for query in queries]
    if triangulated:
        with Cache(assignment.cache).active(), progress.stage("map points"):
            source = read_map(assignment.map)
            model = triangulate_map(source, prepared.cameras, prepared.indexes[0], config.max_error_px)
        sightings = [_with_points_of(model, item) for item in sightings]
    with progress.stage("register"):
        poses = [_classical_pose(*item, threshold_px) for item in zip(sightings, lenses, strict=True)]
    return {photo.name: pose for photo, pose in zip(photos, poses, strict=True) if pose is not None}, {}


def _with_points_of(model: pycolmap.Reconstruction, sightings: Sightings) -> Sightings:
    """Sightings with the points of the model's tracks."""
    points = np.full((len(sightings), 3), np.nan)
    for row, (frame, keypoint) in enumerate(zip(sightings.frame, sightings.theirs, strict=True)):
        seen = model.images[frame + 1].points2D
        if keypoint < len(seen) and seen[keypoint].has_point3D():
            points[row] = model.points3D[seen[keypoint].point3D_id].xyz
    return replace(sightings, points=points)


def _classical_pose(sightings: Sightings, lens: Lens, threshold_px: float) -> Float64[np.ndarray, "3 4"] | None:
    """LO-RANSAC and refinement; a keypoint that leads to one point several times counts once."""
    known = sightings.take(sightings.has_point)
    _, first = np.unique(np.column_stack([known.own, known.points]), axis=0, return_index=True)
    known = known.take(first)
    if len(known) < MIN_POINTS:
        return None
    options = pycolmap.AbsolutePoseEstimationOptions()
    options.ransac.max_error, options.ransac.random_seed = threshold_px, 0
    camera: dict[str, Any] = lens.camera()
    found = pycolmap.estimate_and_refine_absolute_pose(known.pixels, known.points, pycolmap.Camera(**camera), options)
    return None if found is None else found["cam_from_world"].matrix()


METHODS: dict[str, Callable[[Assignment], Found]] = {
    "ours": partial(run_ours, independent=False),
    "ours-independent": partial(run_ours, independent=True),
    "ours-resident": run_resident,
}
METHODS |= {
    f"colmap-{kind}-{threshold:g}px": partial(
        run_classical, triangulated=kind == "triangulated", threshold_px=threshold
    )
    for kind in ("lifted", "triangulated")
    for threshold in THRESHOLDS_PX
}
