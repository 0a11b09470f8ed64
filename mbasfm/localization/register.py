"""Registration of queries in a map: a start for each from its points, then adjustment with the map held.

Keypoints of the map are anchors whose depth is a prior of measured spread; keypoints of queries are anchors without
depth, which the frames of the map see.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from mbasfm.adjust.adjust import Adjustment, adjust
from mbasfm.adjust.stage import ANCHORED, Priors
from mbasfm.estimators.absolute import LIMITS_PX, Sightings, Support, best_pose, residuals_px, support_of
from mbasfm.localization.anchors import anchor_matches
from mbasfm.types.cameras import Cameras, Fixed, Intrinsics, Lens
from mbasfm.types.observations import Keypoints, TwoView
from mbasfm.types.outcome import NoPose, Reason

AGREES_PX = 30.0
"""Largest error, at the start, of a match that takes part in the adjustment [px at a long side of 1024]."""
FEW_KEYPOINTS = 100
"""Number of keypoints that agree with the map below which other queries help to place one."""
STAGE = replace(ANCHORED, restarts=0, priors=Priors(log_focal=0.05))
"""Stage of the adjustment. Free focal lengths come from metadata or from the points themselves, so that they are nearly
right; a frame that nothing agrees with is not localized, and not started again elsewhere."""
MIN_INLIERS = 12
MAX_LOG10_FALSE_ALARMS = -6.0
MIN_INLIER_SHARE = 0.05
"""Least share of inliers among a query's matched keypoints."""


@dataclass(frozen=True)
class Known:
    """Frames of the map, which are held."""

    cameras: Cameras
    keypoints: Sequence[Keypoints]
    """Keypoints with depth in the world's unit."""


@dataclass(frozen=True)
class Unknown:
    """A query before registration."""

    pixels: np.ndarray
    """Keypoints (A, 2)."""
    sightings: Sightings
    lens: Lens
    starts: tuple[np.ndarray, ...] = ()
    """Poses to try besides those that the points suggest."""
    holds_focal: bool = True


@dataclass(frozen=True)
class Registered:
    """Pose of a query and its reliability."""

    cam_from_world: Float64[np.ndarray, "3 4"] | None
    """Pose; None if none was found."""
    focal_px: Float64[np.ndarray, " 2"]
    covariance: Float64[np.ndarray, "6 6"]
    support: Support
    reason: Reason[NoPose] | None
    """Why the query is not localized; None if it is."""


NOTHING = Support(0, 0, 0.0)
NO_COVARIANCE = np.full((6, 6), np.nan)


@dataclass(frozen=True)
class Settings:
    """Settings of registration, as in LocalizeConfig."""

    samples_per_edge: int = 400
    seed: int = 0


Links = Mapping[tuple[int, int], Int64[np.ndarray, "_ 2"]]
"""Matches between queries, by their numbers."""


def register(known: Known, unknowns: Sequence[Unknown], links: Links, settings: Settings) -> list[Registered]:
    """Poses of all queries: each by the map, and those that it holds badly or not at all by the others as well."""
    results = [_register(known, item, settings) for item in unknowns]
    placed = {n: pose for n, r in enumerate(results) if (pose := r.cam_from_world) is not None and not _is_weak(r)}
    seen = {n: _inherited(unknowns[n], pose) for n, pose in placed.items()}
    rows = {n: known.cameras.num_frames + place for place, n in enumerate(placed)}
    wider = {n: _with_links(unknowns[n], n, links, seen, rows) for n in range(len(unknowns)) if n not in placed}
    wider = {n: item for n, item in wider.items() if len(item.sightings) > len(unknowns[n].sightings)}
    if wider:
        larger = _extended(known, [unknowns[n] for n in placed], list(placed.values()), list(seen.values()))
        for n, item in wider.items():
            again = _register(larger, item, settings)
            results[n] = results[n] if again.cam_from_world is None else again
    return results


def _is_weak(result: Registered) -> bool:
    return result.support.num_inliers < FEW_KEYPOINTS


def _with_links(
    item: Unknown, number: int, links: Links, seen: Mapping[int, "Inherited"], rows: Mapping[int, int]
) -> Unknown:
    """A query with its matches to placed queries besides those with the map."""
    parts = [item.sightings]
    for pair, matches in links.items():
        if number in pair and (other := pair[1 - pair.index(number)]) in seen:
            own, theirs = matches.T if pair[0] == number else matches.T[::-1]
            points, pixels = seen[other].points[theirs], item.pixels[own].astype(np.float64)
            found = Sightings(own, np.full(len(own), rows[other]), theirs, pixels, points)
            parts.append(found.take(found.has_point))
    columns = zip(*(vars(part).values() for part in parts), strict=True)
    return replace(item, sightings=Sightings(*(np.concatenate(column) for column in columns)))


def _extended(
    known: Known, items: Sequence[Unknown], poses: Sequence[np.ndarray], seen: "Sequence[Inherited]"
) -> Known:
    """The map with placed queries as further frames."""
    held = known.cameras
    intrinsics = join_intrinsics(held.intrinsics, range(held.num_frames), [item.lens for item in items])
    pose = torch.cat([held.cam_from_world, torch.from_numpy(np.stack(poses))])
    return Known(Cameras.with_depth_as_given(pose, intrinsics), [*known.keypoints, *(item.keypoints for item in seen)])


def _register(known: Known, item: Unknown, settings: Settings) -> Registered:
    start = best_pose(item.sightings, item.lens, item.starts)
    if start is None or _doubt(support_of(start, item.sightings, item.lens, LIMITS_PX[-1])):
        return _failed(item, start)
    return _judge(item, start, _adjust(known, item, start, settings))


def _doubt(support: Support) -> Reason[NoPose] | None:
    """Reason why the support is insufficient; None if it is not."""
    if support.num_keypoints == 0:
        return Reason(NoPose.NO_MAP_POINT)
    counts = support.num_inliers, support.num_keypoints
    if support.num_inliers < MIN_INLIERS or support.inlier_share < MIN_INLIER_SHARE:
        return Reason(NoPose.FEW_KEYPOINTS_AGREE, counts)
    return Reason(NoPose.CHANCE, counts) if support.log10_false_alarms > MAX_LOG10_FALSE_ALARMS else None


def _failed(item: Unknown, pose: np.ndarray | None) -> Registered:
    support = NOTHING if pose is None else support_of(pose, item.sightings, item.lens, LIMITS_PX[-1])
    num_points = int(item.sightings.has_point.sum())
    reason = _doubt(support) if pose is not None else Reason(NoPose.NO_POSE_FITS, (num_points,))
    return Registered(None, item.lens.focal, NO_COVARIANCE, support, reason)


def _judge(item: Unknown, start: np.ndarray, adjustment: Adjustment) -> Registered:
    """The adjusted pose, or the start where adjustment lost support; none if neither has enough."""
    cameras = adjustment.cameras
    lens = replace(item.lens, focal=cameras.intrinsics.focal[-1].numpy())
    pose, covariance = cameras.cam_from_world[-1].numpy(), adjustment.pose_covariance[-1].numpy()
    support = support_of(pose, item.sightings, lens, LIMITS_PX[-1])
    before = support_of(start, item.sightings, item.lens, LIMITS_PX[-1])
    if not adjustment.registered[-1] or support.num_inliers < 0.8 * before.num_inliers:
        pose, support, lens = start, before, item.lens
    reason = _doubt(support)
    return Registered(pose if reason is None else None, lens.focal, covariance, support, reason)


def _adjust(known: Known, item: Unknown, start: np.ndarray, settings: Settings) -> Adjustment:
    """Adjustment of a query, the last frame, with the frames of the map that it agrees with, which are held."""
    matches = _agreeing(item, start)
    frames, query = list(matches), len(matches)
    views = [TwoView.of_matches(row, query, pairs) for row, pairs in enumerate(matches.values())]
    nothing = Keypoints(item.pixels, np.full(len(item.pixels), np.nan, np.float32))
    keypoints = [*(known.keypoints[frame] for frame in frames), nothing]
    held = known.cameras
    poses = torch.cat([held.cam_from_world[frames], torch.from_numpy(start)[None]])
    cameras = Cameras.with_depth_as_given(poses, join_intrinsics(held.intrinsics, frames, [item.lens]))
    one = torch.ones(query + 1, dtype=torch.bool)
    is_query = torch.arange(query + 1) == query
    fixed = Fixed(pose=~is_query, focal=~is_query | item.holds_focal, radial=one, scale=one, shift=one)
    return adjust(cameras, anchor_matches(views, keypoints, settings.samples_per_edge, settings.seed), STAGE, fixed)


def _agreeing(item: Unknown, pose: np.ndarray) -> dict[int, Int64[np.ndarray, "_ 2"]]:
    """Matches (map's keypoint, query's keypoint) that the start agrees with, by frame."""
    near = item.sightings.take(residuals_px(pose, item.sightings, item.lens) < AGREES_PX)
    pairs = np.column_stack([near.theirs, near.own])
    return {frame: pairs[near.frame == frame] for frame in np.unique(near.frame).tolist()}


@dataclass(frozen=True)
class Inherited:
    """Points of the map that a placed query's keypoints show."""

    keypoints: Keypoints
    """Keypoints with the depth of their points; NaN without a point."""
    points: Float64[np.ndarray, "A 3"]


def _inherited(item: Unknown, pose: Float64[np.ndarray, "3 4"]) -> Inherited:
    """Depth and place of the points that a query's keypoints agree with, the median by depth of several."""
    near = item.sightings.take(residuals_px(pose, item.sightings, item.lens) < AGREES_PX)
    depth = near.points @ pose[2, :3] + pose[2, 3]
    order = np.lexsort((depth, near.own))
    keypoint, begin, count = np.unique(near.own[order], return_index=True, return_counts=True)
    middle = order[begin + count // 2]
    raw, points = np.full(len(item.pixels), np.nan, np.float32), np.full((len(item.pixels), 3), np.nan)
    raw[keypoint], points[keypoint] = depth[middle], near.points[middle]
    return Inherited(Keypoints(item.pixels, raw), points)


def join_intrinsics(held: Intrinsics, frames: Sequence[int], lenses: Sequence[Lens]) -> Intrinsics:
    """Intrinsics of some frames of the map, then of the queries, each of which is a camera of its own."""

    def column(old: Tensor, new: Sequence[np.ndarray]) -> Tensor:
        return torch.cat([old[list(frames)], torch.from_numpy(np.stack(new)).to(old)])

    group = torch.arange(len(lenses)) + int(held.group.max()) + 1
    return Intrinsics(
        column(held.focal, [lens.focal for lens in lenses]),
        column(held.center, [lens.center for lens in lenses]),
        column(held.distortion, [lens.distortion for lens in lenses]),
        column(held.sizes, [lens.size for lens in lenses]),
        torch.cat([held.group[list(frames)], group]),
    )
