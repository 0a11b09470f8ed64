"""A finished scene with more photographs: they are localized in it, and what is seen by either is triangulated anew."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from mbasfm.adjust.diagnosis import inlier_limit_px
from mbasfm.config import Config, localizing, stages_of
from mbasfm.errors import InputError
from mbasfm.io.files import Cache
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
from mbasfm.matching.observe import load_depth
from mbasfm.models.base import looking_in
from mbasfm.polish.polish import Polished, triangulate
from mbasfm.report.record import record, write_page
from mbasfm.runtime.parallel import one_core
from mbasfm.runtime.progress import Progress, stage
from mbasfm.scene.reconstruction import (
    Reconstruction,
    check_room,
    color_points,
    refuse_overwriting,
    spread_of,
    write_scene,
)
from mbasfm.scene.report_file import write_report_json
from mbasfm.sfm.adjustment import Run, component_row, residual_curves
from mbasfm.sfm.inputs import held_cameras, input_photos
from mbasfm.sfm.intrinsics import StartIntrinsics
from mbasfm.sfm.pairs.pose_graph import pose_graph
from mbasfm.types.cameras import Cameras
from mbasfm.types.observations import DepthEstimate, Keypoints, Observations, Photo, TwoView
from mbasfm.types.outcome import ImageRow, NotPolished, Reason, RunReport


@one_core()
def extend(
    scene: Path, photos: Path, output: Path, config: Config, cache: Path | None = None, progress: Progress | None = None
) -> Reconstruction:
    """Write a scene that holds the photographs of an older one, where they were, and new ones beside them."""
    progress, folder = progress or Progress(), output / "cache" if cache is None else cache
    with progress.active(), Cache(folder).active(), looking_in(config.weights, config.models_path):
        return _extend(scene, photos, output, config, folder, progress)


def _extend(
    scene: Path, photos: Path, output: Path, config: Config, folder: Path, progress: Progress
) -> Reconstruction:
    found, skipped = input_photos(photos, config.masks)
    source = read_map(scene)
    everything = (*source.photos, *found)
    _refuse_doubles(source, found)
    if output.resolve() == scene.resolve():
        raise InputError(f"{scene} stays as it is; choose another --output for the larger scene")
    held = held_cameras(everything, config.cameras, config.focal)
    refuse_overwriting(output, everything, config.depth, held, config.lens == "pinhole")
    check_room(output, everything)
    chart = Map.load(scene, localizing(config), folder, progress=progress)
    placement = chart.place(found, chart.cache, progress)
    result, observations, views = _join(chart, placement, everything, config.max_error_px)
    depths, model = _depths(source, found, config.depth)
    observations = replace(observations, depths=depths, depth_model=model)
    known = torch.ones(len(everything), dtype=torch.bool)
    start = StartIntrinsics(result.cameras.intrinsics, known, ~known, ~known)
    written = write_scene(result, observations, output)
    residuals = residual_curves(None, result.models, inlier_limit_px(stages_of(config)[-1]))
    run = Run(photos, config, observations, start, views, None, residuals, skipped)
    result = replace(result, report=record(run, result, written, progress.stages, progress.notes))
    write_report_json(result.report, output)
    write_page(result.report, written.models, output)
    return result


def _join(
    chart: Map, placement: Placement, photos: tuple[Photo, ...], max_error_px: float
) -> tuple[Reconstruction, Observations, list[TwoView]]:
    """One model of old and new photographs, with the points that all their matches triangulate."""
    prepared = chart.prepared
    cameras, names = _cameras(prepared, placement), tuple(photo.name for photo in photos)
    registered = torch.tensor([True] * prepared.num_frames + [item.localized for item in placement.located])
    with stage("triangulate") as facts:
        new = [Keypoints(q.pixels, np.full(len(q.pixels), np.nan, np.float32)) for q in placement.queries]
        keypoints = [*prepared.keypoints, *new]
        views = map_views(prepared.photos, cameras, prepared.indexes[0], max_error_px)
        views += _new_views(placement, prepared.num_frames, keypoints, cameras, POSE_SLACK * max_error_px)
        frames = torch.nonzero(registered).flatten().tolist()
        model = triangulate(names, frames, cameras, views, keypoints)
        colors = colors_of(photos, [item.pixels for item in keypoints])
        color_points(model, colors)
        facts.update(images=model.num_images(), points=model.num_points3D())
    pairs = np.array([(view.i, view.j) for view in views], np.int64).reshape(-1, 2)
    observations = Observations(photos, [], keypoints, colors, pairs, [view.matches for view in views])
    component = torch.where(registered, 0, -1)
    located = [None] * prepared.num_frames + [*placement.located]
    item = Polished(model, cameras, Reason(NotPolished.HELD), (math.nan, math.nan))
    report = RunReport(tuple(_row(*item) for item in zip(photos, located, strict=True)), (component_row(item),))
    result = Reconstruction(names, pose_graph(views), cameras, registered, component, (model,), report)
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


def _depths(source: MapSource, photos: Sequence[Photo], depth: str) -> tuple[list[DepthEstimate], str]:
    """The older scene's maps, as far as it has them, and the depth model's for new photographs; and its key."""
    old = given_depths(source) if source.depth is not None else [NO_DEPTH] * len(source.photos)
    model = load_depth(depth)
    return [*old, *depths_of(photos, model)], model.key


def _row(photo: Photo, item: Located | None) -> ImageRow:
    """What became of a photograph; None: it was there before."""
    row = ImageRow(photo.name, str(photo.path.absolute()), component=0)
    if item is None:
        return row
    if not item.localized:
        return replace(row, component=-1, reason=item.reason)
    return replace(row, inlier_share=item.inlier_share, sigma=spread_of(item.covariance))
