"""The end of a reconstruction: polish of every component, and a second attempt for left-out photographs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Int64

from mbasfm.adjust.adjust import Adjustment
from mbasfm.adjust.pose_priors import PosePriors, anchor
from mbasfm.config import BENT, LensKind
from mbasfm.polish.colmap_mapper import Freedom
from mbasfm.polish.guided_matching import match_along_lines
from mbasfm.polish.place_by_points import RegisteredFrame, place_by_points
from mbasfm.polish.polish import Polished, PolishSettings, polish, triangulate
from mbasfm.runtime.progress import say, stage
from mbasfm.scene.reconstruction import Reconstruction, color_points
from mbasfm.sfm.build_graph import Graph
from mbasfm.sfm.outcome import component_row, find_reasons, has_parallax, image_rows
from mbasfm.sfm.pairs.pose_graph import find_components, pose_graph
from mbasfm.sfm.starting_intrinsics import StartIntrinsics, lenses_of
from mbasfm.types.cameras import Cameras
from mbasfm.types.observations import Observations
from mbasfm.types.outcome import ImageRow, NotPolished, Reason, RunReport
from mbasfm.types.pairs import TwoView

MANY_SHARE = 4
"""Least number of photographs of a camera whose principal point and radial term are refined."""


@dataclass(frozen=True)
class Finishing:
    """Settings for finishing components, named and explained as in the configuration."""

    polish: bool = True
    lens: LensKind = "auto"
    max_error_px: float = 3.0
    tracks_per_frame: int = 1000
    seed: int = 0


def finish(
    observations: Observations,
    start: StartIntrinsics,
    graph: Graph,
    adjustment: Adjustment | None,
    priors: PosePriors | None,
    how: Finishing,
) -> Reconstruction:
    """Reconstruction with polished components, second attempts for left-out frames, and an outcome per photograph."""
    count = len(observations.photos)
    reasons = find_reasons(count, graph, adjustment)
    kept = [view for view in graph.views if reasons[view.i] is None and reasons[view.j] is None]
    if adjustment is not None and priors is not None:
        adjustment = anchored(adjustment, torch.from_numpy(find_components(kept, count)), priors)
    cameras = adjustment.cameras if adjustment is not None else _no_cameras(start, observations)
    with stage("polish") as facts:
        finished, cameras = _finish_components(observations, start, kept, cameras, priors, how)
        facts["components"] = [component_row(item) for item in finished]
    with stage("retry") as facts:
        added, cameras = _second_chances(observations, finished, cameras)
        facts["placed"] = len({second.frame for second in added})
        more = _more_views(observations, kept, added, cameras, how) if how.polish or added else kept
        facts["matches"] = sum(view.num_inliers for view in more) - sum(view.num_inliers for view in kept)
        if facts["matches"] or added:
            kept = more
            finished, cameras = _finish_components(observations, start, kept, cameras, priors, how)
            facts["components"] = [component_row(item) for item in finished]
    for item in finished:
        color_points(item.model, observations.colors)
    component = find_components(kept, count)
    names = tuple(photo.name for photo in observations.photos)
    registered, numbers = torch.from_numpy(component >= 0), torch.from_numpy(component)
    rows = image_rows(observations, component, reasons, adjustment)
    report = RunReport(rows, tuple(component_row(item) for item in finished), graph.kept_apart)
    _tell(rows, len(finished))
    models = tuple(item.model for item in finished)
    return Reconstruction(names, pose_graph(kept), cameras, registered, numbers, models, report)


def _tell(rows: Sequence[ImageRow], num_components: int) -> None:
    """Tell the user what to know without reading the report."""
    if num_components > 1:
        say(
            f"The photographs fall into {num_components} groups that nothing connects beyond doubt: sparse/0, the"
            f" largest, to sparse/{num_components - 1}; their scales and positions are unrelated."
        )
    for number in range(num_components):
        members = [row for row in rows if row.component == number]
        if not has_parallax(members):
            say(
                f"There is no parallax in component {number}: the camera turned but did not move. Directions of its"
                f" {len(members)} cameras can be trusted, distances and points cannot."
            )


def _finish_components(
    observations: Observations,
    start: StartIntrinsics,
    views: Sequence[TwoView],
    cameras: Cameras,
    priors: PosePriors | None,
    how: Finishing,
) -> tuple[list[Polished], Cameras]:
    """Polished components, largest first, and their cameras."""
    component = find_components(views, len(observations.photos))
    finished: list[Polished] = []
    for number in range(int(component.max(initial=-1)) + 1):
        frames = np.flatnonzero(component == number).tolist()
        mine = None if priors is None else priors.of(torch.from_numpy(component == number))
        finished.append(_finish_component(observations, views, cameras, frames, _settings(start, frames, mine, how)))
        cameras = finished[-1].cameras
    return finished, cameras


def _settings(
    start: StartIntrinsics, frames: list[int], priors: PosePriors | None, how: Finishing
) -> PolishSettings | None:
    """Settings of polish for a component; None if it is switched off."""
    known = bool(start.is_known[frames].all())
    shared = bool((torch.bincount(start.intrinsics.group)[start.intrinsics.group[frames]] >= MANY_SHARE).all())
    lens = shared if how.lens == "auto" else how.lens in BENT
    is_free = not known and lens
    freedom = Freedom(focal=not known, lens=is_free, model=how.lens if is_free else "auto")
    return PolishSettings(freedom, how.tracks_per_frame, how.seed, priors) if how.polish else None


def _finish_component(
    observations: Observations,
    views: Sequence[TwoView],
    cameras: Cameras,
    frames: list[int],
    settings: PolishSettings | None,
) -> Polished:
    names = [photo.name for photo in observations.photos]
    if settings is not None:
        return polish(names, frames, cameras, views, observations.keypoints, settings)
    model = triangulate(names, frames, cameras, views, observations.keypoints)
    return Polished(model, cameras, Reason(NotPolished.SWITCHED_OFF), (float("nan"), float("nan")))


def anchored(adjustment: Adjustment, component: Int64[torch.Tensor, " N"], priors: PosePriors) -> Adjustment:
    """Adjustment moved to the world of its priors."""
    cameras, growth = anchor(adjustment.cameras, component, priors)
    unit = torch.cat([torch.ones(len(growth), 3), growth[:, None].expand(-1, 3)], -1)
    covariance = unit[:, :, None] * adjustment.pose_covariance * unit[:, None, :]
    return replace(adjustment, cameras=cameras, pose_covariance=covariance)


def _second_chances(
    observations: Observations, finished: Sequence[Polished], cameras: Cameras
) -> tuple[list[RegisteredFrame], Cameras]:
    """Frames that all their matches together place in a component, and the cameras with them."""
    placed = {image_id - 1 for item in finished for image_id in item.model.images}
    lenses, pose = lenses_of(cameras.intrinsics), cameras.cam_from_world.clone()
    added = []
    for frame in sorted(set(range(len(observations.photos))) - placed):
        matches = _matches_of(observations, frame)
        for item in finished:
            second = place_by_points(frame, item.model, matches, observations.keypoints, lenses)
            if second is not None:
                added.append(second)
                pose[frame] = torch.from_numpy(second.cam_from_world)
                break
    return added, replace(cameras, cam_from_world=pose)


def _more_views(
    observations: Observations,
    kept: Sequence[TwoView],
    added: Sequence[RegisteredFrame],
    cameras: Cameras,
    how: Finishing,
) -> list[TwoView]:
    """Pairs, those of added frames, and matches found along the epipolar lines of all."""
    views = [*kept, *(view for second in added for view in second.views)]
    return match_along_lines(views, cameras, observations.keypoints, observations.descriptors, how.max_error_px)


def _matches_of(observations: Observations, frame: int) -> dict[int, Int64[np.ndarray, "M 2"]]:
    """All matches of a frame as (own keypoint, other's keypoint), by the other frame."""
    found = {}
    for number in np.flatnonzero((observations.pairs == frame).any(1)).tolist():
        i, j = observations.pairs[number].tolist()
        found[j if frame == i else i] = (
            observations.matches[number] if frame == i else observations.matches[number][:, ::-1]
        )
    return found


def _no_cameras(start: StartIntrinsics, observations: Observations) -> Cameras:
    count = len(observations.photos)
    pose = torch.eye(4, dtype=torch.float64)[:3].repeat(count, 1, 1)
    return Cameras.with_depth_as_given(pose, start.intrinsics, observations.is_disparity)
