"""Registration of queries in a map: a start for each from its points, then adjustment with the map held.

Where depth adds no more error than matches and the map's poses have anyway, as a sensor's does, the paper's residual is
used: matches and depth count alike. Where it is rough, the residual is split at the epipolar line. Which of the two it
is, is measured at the start.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from mbasfm.adjust.adjust import Adjustment, adjust
from mbasfm.adjust.stage import FINE, SPLIT, Stage, annealed
from mbasfm.estimators.absolute import LIMITS_PX, Sightings, Support, best_pose, residuals_px, support_of
from mbasfm.geometry.camera import line_distances_px
from mbasfm.objective.isotropic import isotropic
from mbasfm.objective.residual_kind import NO_INTRINSICS, stream
from mbasfm.objective.split import split
from mbasfm.sfm.samples import draw_samples
from mbasfm.types.cameras import Cameras, Fixed, Intrinsics, Lens
from mbasfm.types.observations import Keypoints, Samples, TwoView
from mbasfm.types.outcome import NoPose, Reason

AGREES_PX = 30.0
"""Largest error, at the start, of a match that takes part in the adjustment [px at a long side of 1024]."""
ROUGH_FACTOR = 3.0
"""Factor on the distance from epipolar lines that matches without a point may have."""
MAX_STRETCH = 3.0
"""Stretch of residuals along the epipolar line beyond which depth is rough."""
LOG_FOCAL_SIGMA = 0.05
"""Log standard deviation of free focal lengths, which come from metadata or from the points themselves."""
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
    max_error_px: float = 3.0
    seed: int = 0


Links = Mapping[tuple[int, int], Int64[np.ndarray, "_ 2"]]
"""Matches between queries, by their numbers."""


def register(known: Known, unknowns: Sequence[Unknown], links: Links, settings: Settings) -> list[Registered]:
    """Poses of all queries at once; those that the map alone cannot place get a second chance through the others."""
    results = _register(known, unknowns, links, settings)
    placed = {n: pose for n, r in enumerate(results) if (pose := r.cam_from_world) is not None}
    seen = {n: _inherited(unknowns[n], pose) for n, pose in placed.items()}
    rows = {n: known.cameras.num_frames + place for place, n in enumerate(placed)}
    wider = {n: _with_links(unknowns[n], n, links, seen, rows) for n in range(len(unknowns)) if n not in placed}
    wider = {n: item for n, item in wider.items() if len(item.sightings) > len(unknowns[n].sightings)}
    if wider:
        larger = _extended(known, [unknowns[n] for n in placed], list(placed.values()), list(seen.values()))
        for n, result in zip(wider, _register(larger, list(wider.values()), {}, settings), strict=True):
            results[n] = result
    return results


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


def _register(known: Known, unknowns: Sequence[Unknown], links: Links, settings: Settings) -> list[Registered]:
    starts = [best_pose(item.sightings, item.lens, item.starts) for item in unknowns]
    good = {
        number: pose
        for number, (pose, item) in enumerate(zip(starts, unknowns, strict=True))
        if pose is not None and not _doubt(support_of(pose, item.sightings, item.lens, LIMITS_PX[-1]))
    }
    results = [_failed(item, pose) for item, pose in zip(unknowns, starts, strict=True)]
    if not good:
        return results
    problem = _Problem(known, [unknowns[number] for number in good], list(good.values()), settings)
    place = {number: place for place, number in enumerate(good)}
    chosen = {(place[a], place[b]): matches for (a, b), matches in links.items() if a in good and b in good}
    adjustment, first = problem.adjust(chosen)
    for number, pose in good.items():
        results[number] = _judge(unknowns[number], pose, adjustment, first + place[number])
    return results


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


def _judge(item: Unknown, start: np.ndarray, adjustment: Adjustment, row: int) -> Registered:
    """The adjusted pose, or the start where adjustment lost support; none if neither has enough."""
    cameras = adjustment.cameras
    lens = replace(item.lens, focal=cameras.intrinsics.focal[row].numpy())
    pose, covariance = cameras.cam_from_world[row].numpy(), adjustment.pose_covariance[row].numpy()
    support = support_of(pose, item.sightings, lens, LIMITS_PX[-1])
    before = support_of(start, item.sightings, item.lens, LIMITS_PX[-1])
    if not adjustment.registered[row] or support.num_inliers < 0.8 * before.num_inliers:
        pose, support, lens = start, before, item.lens
    reason = _doubt(support)
    return Registered(pose if reason is None else None, lens.focal, covariance, support, reason)


class _Problem:
    """Adjustment of queries with the frames of the map that they agree with."""

    def __init__(self, known: Known, items: Sequence[Unknown], starts: Sequence[np.ndarray], settings: Settings):
        self._known, self._items, self._starts, self._settings = known, items, starts, settings
        matches = [self._agreeing(item, pose) for item, pose in zip(items, starts, strict=True)]
        self._frames = sorted({frame for found in matches for frame in found})
        self._row = {frame: row for row, frame in enumerate(self._frames)}
        first = len(self._frames)
        self._views = [
            TwoView.of_matches(self._row[frame], first + place, pairs)
            for place, found in enumerate(matches)
            for frame, pairs in found.items()
        ]

    def adjust(self, links: Links) -> tuple[Adjustment, int]:
        """Adjusted cameras, and the row of the first query."""
        first, cameras, seed = len(self._frames), self._cameras(), self._settings.seed
        nothing = [Keypoints(item.pixels, np.full(len(item.pixels), np.nan, np.float32)) for item in self._items]
        frames = [self._known.keypoints[frame] for frame in self._frames]
        most = min(self._settings.samples_per_edge, max(view.num_inliers for view in self._views))
        samples = draw_samples(self._views, [*frames, *nothing], most, seed)
        if links:
            items = zip(self._items, self._starts, strict=True)
            inherited = [_inherited(item, pose).keypoints for item, pose in items]
            between = self._between(links, cameras, first, [np.isfinite(item.raw_depth) for item in inherited])
            more = draw_samples(between, [*frames, *inherited], most, seed + 1)
            samples = Samples(*(torch.cat(pair) for pair in zip(_columns(samples), _columns(more), strict=True)))
        is_query = torch.arange(cameras.num_frames) >= first
        holds = torch.tensor([True] * first + [item.holds_focal for item in self._items])
        one = torch.ones_like(is_query)
        fixed = Fixed(pose=~is_query, focal=holds, radial=one, scale=one, shift=one)
        return adjust(cameras, samples, _stages(cameras, samples), fixed), first

    def _cameras(self) -> Cameras:
        held = self._known.cameras
        poses = [held.cam_from_world[self._frames], torch.from_numpy(np.stack(self._starts))]
        intrinsics = join_intrinsics(held.intrinsics, self._frames, [item.lens for item in self._items])
        return Cameras.with_depth_as_given(torch.cat(poses), intrinsics)

    def _agreeing(self, item: Unknown, pose: np.ndarray) -> dict[int, Int64[np.ndarray, "_ 2"]]:
        """Matches (map's keypoint, query's keypoint) that the start agrees with, by frame."""
        near = residuals_px(pose, item.sightings, item.lens) < AGREES_PX
        found = {}
        for frame in np.unique(item.sightings.frame[near]).tolist():
            chosen = near & (item.sightings.frame == frame)
            found[frame] = np.column_stack([item.sightings.theirs[chosen], item.sightings.own[chosen]])
        return found

    def _between(self, links: Links, cameras: Cameras, first: int, has_depth: list[np.ndarray]) -> list[TwoView]:
        """Matches between queries that lie near the epipolar lines of their starts and add information.

        Matches whose keypoints are both matched with the map, or neither, add nothing.
        """
        views = []
        for (a, b), matches in links.items():
            ends = first + a, first + b
            pixels = self._items[a].pixels[matches[:, 0]], self._items[b].pixels[matches[:, 1]]
            near = line_distances_px(cameras, ends, pixels) < ROUGH_FACTOR * self._settings.max_error_px
            near &= has_depth[a][matches[:, 0]] ^ has_depth[b][matches[:, 1]]
            if near.any():
                views.append(TwoView.of_matches(*ends, matches[near]))
        return views


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


def _stages(cameras: Cameras, samples: Samples) -> tuple[Stage, ...]:
    """The paper's residual where depth adds no more error than matches and poses have at the start, else the split."""
    stages = annealed(FINE) if stretch(cameras, samples) < MAX_STRETCH else (SPLIT,)
    return tuple(replace(stage, priors=replace(stage.priors, log_focal=LOG_FOCAL_SIGMA)) for stage in stages)


def stretch(cameras: Cameras, samples: Samples) -> float:
    """Median length of residuals over the median of their part across the epipolar line; 1.75 if they are isotropic."""
    whole, across = [], []
    depth_error = torch.tensor(0.1, dtype=samples.dtype)
    for _, block in stream(cameras, samples, NO_INTRINSICS):
        whole.append(isotropic(block).squared.sqrt().flatten())
        across.append(split(block, 1.0, depth_error.expand(len(block.raw), 1)).across.abs().flatten())
    return float(torch.cat(whole).nanmedian() / torch.cat(across).nanmedian().clamp_min(1e-6))


def _columns(samples: Samples) -> tuple[Tensor, Tensor, Tensor]:
    return samples.edges, samples.data, samples.weight


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
