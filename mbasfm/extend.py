"""A finished scene with more photographs: they are localized in it, and what is seen by either is triangulated anew."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mbasfm.config import Config, localizing
from mbasfm.errors import InputError
from mbasfm.io.cache import Cache
from mbasfm.io.images import find_photos
from mbasfm.io.masks import with_masks
from mbasfm.localization.map_source import MapSource, read_map
from mbasfm.localization.prepared_map import (
    NO_DEPTH,
    POSE_SLACK,
    PreparedMap,
    depths_of,
    given_depths,
    map_views,
    posed_view,
)
from mbasfm.localization.register import join_intrinsics
from mbasfm.localization.result import Located
from mbasfm.localize import Map, Placement
from mbasfm.matching.inference import colors_of
from mbasfm.matching.observe import Observations, load_models
from mbasfm.polish.polish import triangulate
from mbasfm.report.page_data import write_report
from mbasfm.report.record import record
from mbasfm.runtime.progress import Progress
from mbasfm.runtime.threads import one_core
from mbasfm.scene.preflight import check_room, refuse_overwriting
from mbasfm.scene.reconstruction import Reconstruction, color_points, spread_of
from mbasfm.scene.write import write_scene
from mbasfm.sfm.outcome import Run
from mbasfm.sfm.pairs.pose_graph import pose_graph
from mbasfm.sfm.starting_intrinsics import StartIntrinsics
from mbasfm.types.cameras import Cameras
from mbasfm.types.pairs import Keypoints, TwoView
from mbasfm.types.photos import DepthEstimate, Photo


@one_core()
def extend(
    scene: Path, photos: Path, output: Path, config: Config, cache: Path | None = None, progress: Progress | None = None
) -> Reconstruction:
    """Write a scene that holds the photographs of an older one, where they were, and new ones beside them."""
    progress, folder = progress or Progress(), output / "cache" if cache is None else cache
    found, skipped = find_photos(photos)
    found = with_masks(found, None if config.masks is None else Path(config.masks))
    source = read_map(scene)
    everything = (*source.photos, *found)
    _refuse_doubles(source, found)
    if output.resolve() == scene.resolve():
        raise InputError(f"{scene} stays as it is; choose another --output for the larger scene")
    refuse_overwriting(output, everything, config)
    check_room(output, everything)
    chart = Map.load(scene, localizing(config), folder, progress=progress)
    placement = chart.place(found, chart.cache, progress)
    result, observations, views = _join(chart, placement, everything, config, progress)
    observations = replace(observations, depths=_depths(source, found, config, chart.cache, progress))
    result.report["skipped"] = [{"name": item.name, "reason": item.reason} for item in skipped]
    result.report.update(stages=progress.stages, notes=progress.notes)
    known = torch.ones(len(everything), dtype=torch.bool)
    start = StartIntrinsics(result.cameras.intrinsics, known, ~known, ~known)
    result.report.update(record(Run(photos, config, observations, start, views, None), result))
    write_scene(result, observations, output, progress)
    write_report(output)
    return result


def _join(
    chart: Map, placement: Placement, photos: tuple[Photo, ...], config: Config, progress: Progress
) -> tuple[Reconstruction, Observations, list[TwoView]]:
    """One model of old and new photographs, with the points that all their matches triangulate."""
    prepared = chart.prepared
    cameras, names = _cameras(prepared, placement), tuple(photo.name for photo in photos)
    registered = torch.tensor([True] * prepared.num_frames + [item.localized for item in placement.located])
    with progress.stage("triangulate") as facts:
        new = [Keypoints(q.pixels, np.full(len(q.pixels), np.nan, np.float32)) for q in placement.queries]
        keypoints = [*prepared.keypoints, *new]
        views = map_views(prepared.photos, cameras, prepared.indexes[0], config, chart.cache, progress)
        views += _new_views(placement, prepared.num_frames, keypoints, cameras, POSE_SLACK * config.max_error_px)
        frames = torch.nonzero(registered).flatten().tolist()
        model = triangulate(names, frames, cameras, views, keypoints)
        colors = colors_of(photos, [item.pixels for item in keypoints])
        color_points(model, colors)
        facts.update(images=model.num_images(), points=model.num_points3D())
    pairs = np.array([(view.i, view.j) for view in views], np.int64).reshape(-1, 2)
    observations = Observations(photos, [], keypoints, colors, pairs, [view.matches for view in views])
    component = torch.where(registered, 0, -1)
    rows = [_row(*item) for item in zip(photos, [None] * prepared.num_frames + [*placement.located], strict=True)]
    result = Reconstruction(names, pose_graph(views), cameras, registered, component, (model,), {"images": rows})
    return result, observations, views


def _refuse_doubles(source: MapSource, photos: Sequence[Photo]) -> None:
    if not photos:
        raise InputError("no usable photograph to add")
    old = {photo.name for photo in source.photos}
    twice = next((photo.name for photo in photos if photo.name in old), None)
    if twice is not None:
        raise InputError(f"{source.folder} has a photograph {twice} already; rename the new one or leave it out")


def _cameras(prepared: PreparedMap, placement: Placement) -> Cameras:
    """Those of the map, bit for bit, and of the new photographs; the origin where there is no pose."""
    old, nowhere = prepared.cameras, np.eye(4)[:3]
    new = [nowhere if item.cam_from_world is None else item.cam_from_world for item in placement.located]
    pose = torch.cat([old.cam_from_world, torch.from_numpy(np.stack(new))])
    lenses = [item.lens for item in placement.located]
    intrinsics = join_intrinsics(old.intrinsics, range(old.num_frames), lenses)
    return Cameras.with_depth_as_given(pose, intrinsics)


def _new_views(
    placement: Placement, first: int, keypoints: Sequence[Keypoints], cameras: Cameras, max_error_px: float
) -> Iterator[TwoView]:
    """Matches of new photographs with old ones, and between new ones, that agree with the poses."""
    placed = [number for number, item in enumerate(placement.located) if item.localized]
    pairs = {
        (frame, first + number): np.ascontiguousarray(matches[:, ::-1])
        for number in placed
        for frame, matches in placement.queries[number].matches.items()
    }
    between = {(a, b): matches for (a, b), matches in placement.links.items() if a in placed and b in placed}
    pairs |= {(first + a, first + b): matches for (a, b), matches in between.items()}
    views = (posed_view(ends, matches, keypoints, cameras, max_error_px) for ends, matches in pairs.items())
    return (view for view in views if view is not None)


def _depths(
    source: MapSource, photos: Sequence[Photo], config: Config, cache: Cache, progress: Progress
) -> list[DepthEstimate]:
    """The older scene's maps, as far as it has them, and the depth model's for new photographs."""
    old = given_depths(source, cache) if source.depth is not None else [NO_DEPTH] * len(source.photos)
    (model,) = load_models("depth", config, progress)
    return [*old, *depths_of(photos, model, cache)]


def _row(photo: Photo, item: Located | None) -> dict[str, Any]:
    """What became of a photograph; None: it was there before."""
    is_placed = item is None or item.localized
    row: dict[str, Any] = {
        "name": photo.name,
        "source": str(photo.path.absolute()),
        "status": "registered" if is_placed else "not registered",
        "component": 0 if is_placed else -1,
        "reason": "" if item is None else item.reason,
    }
    if item is not None and item.localized:
        row |= {"inlier_share": item.inlier_share, "sigma": spread_of(item.covariance)}
    return row
