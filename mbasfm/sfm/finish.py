"""The end of a reconstruction: polish, a second attempt for left-out photographs, and the world that was asked for."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pycolmap
import torch
from jaxtyping import Bool, Float, Int64

from mbasfm.adjust.adjust import Adjustment
from mbasfm.adjust.pose_priors import PosePriors, anchor
from mbasfm.config import BENT, LensKind
from mbasfm.geometry.rigid import camera_centers
from mbasfm.geometry.similarity import Pairs, Similarity, find_up, is_line, robust_similarity, turn_to_z
from mbasfm.polish.colmap_mapper import Freedom
from mbasfm.polish.place_by_points import RegisteredFrame, place_by_points
from mbasfm.polish.polish import WORSE, Polished, PolishSettings, match_along_lines, polish, triangulate
from mbasfm.runtime.parallel import alone
from mbasfm.runtime.progress import say, stage
from mbasfm.scene.reconstruction import Reconstruction, color_points
from mbasfm.sfm.adjustment import Solved, component_row, find_reasons, has_parallax, image_rows
from mbasfm.sfm.inputs import World
from mbasfm.sfm.intrinsics import StartIntrinsics, lenses_of
from mbasfm.sfm.pairs.pose_graph import find_components, pose_graph
from mbasfm.types.cameras import Cameras
from mbasfm.types.observations import Observations, TwoView
from mbasfm.types.outcome import ImageRow, NotPolished, Reason, RunReport, Sigma

MANY_SHARE = 4
"""Least number of photographs of a camera whose principal point and radial term are refined."""
AGREES = 0.5
"""Least weight of a camera that counts as agreeing."""


@dataclass(frozen=True)
class Finishing:
    """Settings for finishing components, named and explained as in the configuration."""

    polish: bool = True
    lens: LensKind = "auto"
    max_error_px: float = 3.0
    tracks_per_frame: int = 1000
    seed: int = 0


def finish(solved: Solved, priors: PosePriors | None, how: Finishing) -> Reconstruction:
    """Reconstruction with polished components, second attempts for left-out frames, and an outcome per photograph."""
    observations, graph = solved.observations, solved.graph
    adjustment = None if solved.placed is None else solved.placed.adjustment
    count = len(observations.photos)
    reasons = find_reasons(count, graph, adjustment)
    kept = [view for view in graph.views if reasons[view.i] is None and reasons[view.j] is None]
    if adjustment is not None and priors is not None:
        adjustment = anchored(adjustment, torch.from_numpy(find_components(kept, count)), priors)
    cameras = adjustment.cameras if adjustment is not None else _no_cameras(solved.start, observations)
    with stage("polish") as facts:
        finished, cameras = _finish_components(solved, kept, cameras, priors, how)
        facts["components"] = [component_row(item) for item in finished]
    with stage("retry") as facts:
        added, cameras = _second_chances(observations, finished, cameras)
        facts["placed"] = len({second.frame for second in added})
        more = [*kept, *(view for second in added for view in second.views)]
        if added:
            cameras = _settled(solved, more, cameras)
        if how.polish:
            near = observations.descriptors, how.max_error_px
            more = match_along_lines(more, cameras, observations.keypoints, *near)
        facts["matches"] = sum(view.num_inliers for view in more) - sum(view.num_inliers for view in kept)
        if facts["matches"] or added:
            kept = more
            finished, cameras = _finish_components(solved, kept, cameras, priors, how)
            facts["components"] = [component_row(item) for item in finished]
    for item in finished:
        color_points(item.model, observations.colors)
    component = find_components(kept, count)
    names = tuple(photo.name for photo in observations.photos)
    registered, numbers = torch.from_numpy(component >= 0), torch.from_numpy(component)
    rows = image_rows(observations, component, reasons, adjustment)
    report = RunReport(rows, tuple(component_row(item) for item in finished), graph.kept_apart, graph.lookalikes)
    _tell(rows, len(finished))
    models = tuple(item.model for item in finished)
    return Reconstruction(names, pose_graph(kept), cameras, registered, numbers, models, report)


def _settled(solved: Solved, views: Sequence[TwoView], cameras: Cameras) -> Cameras:
    """Cameras adjusted once more with photographs that were added, unless third views speak against it.

    One process does it, as the others have left.
    """
    if solved.settle is None:
        return cameras
    with alone():
        settled = solved.settle(views, cameras).adjustment.cameras
    return cameras if solved.held.error_px(settled) > WORSE * solved.held.error_px(cameras) else settled


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
    solved: Solved, views: Sequence[TwoView], cameras: Cameras, priors: PosePriors | None, how: Finishing
) -> tuple[list[Polished], Cameras]:
    """Polished components, largest first, and their cameras."""
    component = find_components(views, len(solved.observations.photos))
    finished: list[Polished] = []
    for number in range(int(component.max(initial=-1)) + 1):
        frames = np.flatnonzero(component == number).tolist()
        mine = None if priors is None else priors.of(torch.from_numpy(component == number))
        settings = _settings(solved, frames, mine, how)
        finished.append(_finish_component(solved.observations, views, cameras, frames, settings))
        cameras = finished[-1].cameras
    return finished, cameras


def _settings(
    solved: Solved, frames: list[int], priors: PosePriors | None, how: Finishing
) -> PolishSettings | NotPolished:
    """Settings of polish for a component, or why there is none.

    Where all intrinsics are known, points have nothing to add to anchors that have settled.
    """
    start = solved.start
    known = bool(start.is_known[frames].all())
    if not how.polish:
        return NotPolished.SWITCHED_OFF
    if known and solved.settle is not None:
        return NotPolished.NOTHING_TO_ADD
    shared = bool((torch.bincount(start.intrinsics.group)[start.intrinsics.group[frames]] >= MANY_SHARE).all())
    lens = shared if how.lens == "auto" else how.lens in BENT
    is_free = not known and lens
    freedom = Freedom(focal=not known, lens=is_free, model=how.lens if is_free else "auto")
    return PolishSettings(freedom, solved.held, how.tracks_per_frame, how.seed, priors)


def _finish_component(
    observations: Observations,
    views: Sequence[TwoView],
    cameras: Cameras,
    frames: list[int],
    settings: PolishSettings | NotPolished,
) -> Polished:
    names = [photo.name for photo in observations.photos]
    if isinstance(settings, PolishSettings):
        return polish(names, frames, cameras, views, observations.keypoints, settings)
    model = triangulate(names, frames, cameras, views, observations.keypoints)
    return Polished(model, cameras, Reason(settings), (float("nan"), float("nan")))


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


def align_world(result: Reconstruction, world: World | None) -> Reconstruction:
    """Reconstruction in the wanted world; a component that shares too few cameras with it stays where it is."""
    if world is None:
        return result
    rows, facts_of = result.report.images, []
    cameras, models = result.cameras, [copy.deepcopy(model) for model in result.models]
    with stage("align") as facts:
        for number, model in enumerate(models):
            chosen = result.component == number
            fit = _fit(cameras.cam_from_world, chosen, world)
            facts_of.append({"component": number, "aligned": fit is not None} | (fit.facts if fit else {}))
            if fit is None:
                say(f"component {number} shares too few cameras with the wanted world; it stays in its own")
                continue
            cameras = fit.new_from_old.cameras(cameras, chosen)
            move_model(model, fit.new_from_old)
            rows = _with_scaled_spreads(rows, number, float(fit.new_from_old.scale))
        facts["aligned"] = sum(row["aligned"] for row in facts_of)
    facts_of_world = {"frame": world.frame, **world.facts, "components": facts_of}
    report = replace(result.report, images=rows, world=facts_of_world)
    return replace(result, cameras=cameras, models=tuple(models), report=report)


def move_model(model: pycolmap.Reconstruction, new_from_old: Similarity) -> None:
    """Transform poses and points of a COLMAP model, in place."""
    rotation = pycolmap.Rotation3d(new_from_old.rigid[:, :3].numpy())
    model.transform(pycolmap.Sim3d(float(new_from_old.scale), rotation, new_from_old.rigid[:, 3].numpy()))


@dataclass(frozen=True)
class _Fit:
    new_from_old: Similarity
    facts: dict[str, Any]


def _level(cam_from_world: Float[torch.Tensor, "M 3 4"]) -> _Fit:
    """Rotation of the world that makes z point up; origin and size stay."""
    up = find_up(cam_from_world[..., :3].mT)
    roll = torch.asin((cam_from_world[..., 0, :3] @ up).clamp(-1, 1)).abs().rad2deg()
    turn = Similarity.build(1.0, turn_to_z(up), torch.zeros(3, dtype=torch.float64))
    return _Fit(turn, {"scale": 1.0, "images": len(roll), "median_roll_deg": float(roll.median())})


def _fit(cam_from_world: Float[torch.Tensor, "N 3 4"], chosen: Bool[torch.Tensor, " N"], world: World) -> _Fit | None:
    if world.frame == "up":
        return _level(cam_from_world[chosen])
    if world.priors is not None:
        return _to_priors(cam_from_world, world.priors.of(chosen))
    frames = [frame for frame in world.positions if chosen[frame]]
    if len(frames) < world.min_cameras:
        return None
    source, target = cam_from_world[frames], torch.stack([world.positions[frame] for frame in frames])
    if world.poses:
        pairs = Pairs.of_poses(source, torch.stack([world.poses[frame] for frame in frames]))
    else:
        pairs = _with_up(camera_centers(source), target, cam_from_world[chosen])
    if bool((pairs.source - pairs.source[0]).norm(dim=-1).max() == 0):
        return None
    new_from_old, weight = robust_similarity(pairs)
    return _Fit(new_from_old, _facts(new_from_old, weight, pairs))


def _to_priors(cam_from_world: Float[torch.Tensor, "N 3 4"], priors: PosePriors | None) -> _Fit | None:
    if priors is None:
        return None
    new_from_old, weight = priors.similarity(cam_from_world)
    pairs = priors.pairs(cam_from_world)
    return _Fit(new_from_old, _facts(new_from_old, weight, pairs))


def _facts(new_from_old: Similarity, weight: Float[torch.Tensor, " M"], pairs: Pairs) -> dict[str, Any]:
    error = (new_from_old.points(pairs.source) - pairs.target).norm(dim=-1)
    return {
        "scale": float(new_from_old.scale),
        "images": len(weight),
        "agreeing": int((weight > AGREES).sum()),
        "median_error": float(error.median()),
    }


def _with_up(
    source: Float[torch.Tensor, "M 3"], target: Float[torch.Tensor, "M 3"], all_poses: Float[torch.Tensor, "P 3 4"]
) -> Pairs:
    """Pairs of positions, with the up direction added if they lie on a line, which leaves the turn about it open."""
    if not is_line(source):
        return Pairs(source, target)
    axes = torch.zeros(len(source), 3, 3, dtype=torch.float64)
    axes[..., 0] = find_up(all_poses[..., :3].mT)
    level = torch.zeros_like(axes)
    level[:, 2, 0] = 1
    return Pairs(source, target, axes, level)


def _with_scaled_spreads(rows: Sequence[ImageRow], component: int, scale: float) -> tuple[ImageRow, ...]:
    """Rows with standard deviations of positions scaled along with the world."""

    def scaled(sigma: Sigma) -> Sigma:
        return replace(sigma, translation=tuple(None if x is None else scale * x for x in sigma.translation))

    return tuple(
        replace(row, sigma=scaled(row.sigma)) if row.component == component and row.sigma is not None else row
        for row in rows
    )
