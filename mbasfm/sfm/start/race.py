"""The race of several starts: all are adjusted, and points that two frames triangulate and a third one sees decide.

Pairs alone cannot tell the relative lengths of baselines, and depth would judge its own result. A point that two
frames triangulate must appear in the third where it was observed there. Frames of the winner that most of their pairs
contradict are astray, and placed again by the rest.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from mbasfm.adjust.adjust import Adjustment
from mbasfm.geometry.camera import line_distances_px, triangulated_inverse_depth, unit_rays
from mbasfm.geometry.rigid import compose, invert
from mbasfm.geometry.subsets import lots, places
from mbasfm.polish.polish import connect, is_doubled
from mbasfm.runtime.parallel import from_main
from mbasfm.sfm.pairs.pose_graph import find_components
from mbasfm.sfm.start.initialize import initialize_cameras
from mbasfm.types.cameras import Cameras
from mbasfm.types.observations import Keypoints, TwoView

PER_FRAME = 200
"""Largest number of points that each frame checks."""
MIN_TRANSFERS = 30
"""Least number of checks in a component; with fewer it is undecided."""
DOUBT = 2.0
"""Standard deviations of the mean gain over frames by which a candidate must be better than another."""
LIMITS_PX = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
"""Limits of the error; the score is the mean share of points within them [px at a long side of 1024]."""
MOST = 0.5
"""Share of matches above which a pair contradicts, and of pairs above which a frame is astray."""
MANY_PAIRS = 5_000
"""Number of pairs beyond which adjustment takes so long that only the most promising start is adjusted."""
AdjustStart = Callable[[int, Cameras], Adjustment]
"""Function that adjusts cameras; the number identifies the start."""


@dataclass(frozen=True)
class Transfers:
    """Tracks in three frames: two triangulate, the third checks."""

    frames: Int64[Tensor, "T 3"]
    """Frames, first the one that checks."""
    pixels: Float64[Tensor, "T 3 2"]


def find_transfers(views: Sequence[TwoView], keypoints: Sequence[Keypoints], seed: int) -> Transfers:
    """Transfers that check each observation of a track over three or more frames once, from two others drawn by lot.

    Tracks with two places in one frame are wrong somewhere and left out.
    """
    frame, track, size = connect(views, keypoints)
    pixels = np.concatenate([points.pixels for points in keypoints]).astype(np.float64)
    number = np.flatnonzero(size[track] >= 3)
    number = number[~is_doubled(frame, track)[track[number]]]
    number = number[np.lexsort([lots(seed, 2, frame[number], places(pixels[number])), track[number]])]
    _, begin, count = np.unique(track[number], return_index=True, return_counts=True)
    begin, count = np.repeat(begin, count), np.repeat(count, count)
    place = np.arange(len(number)) - begin
    triple = np.stack([number[begin + (place + step) % count] for step in range(3)], 1)
    kept = triple[_first_of_each(frame[triple[:, 0]], lots(seed, 3, frame[number], places(pixels[number])))]
    return Transfers(torch.from_numpy(frame[kept]), torch.from_numpy(pixels[kept]))


def transfer_errors_px(cameras: Cameras, transfers: Transfers) -> Float[Tensor, " T"]:
    """Distance of each observation from its transferred point [px at a long side of 1024]; infinite behind the camera.

    Inverse depth in the second frame, at least 0, is that with which the point comes nearest to its match in the third.
    """
    seen, near, far = transfers.frames.unbind(1)
    rays = unit_rays(transfers.pixels, cameras.intrinsics, transfers.frames)
    world_from_near = invert(cameras.cam_from_world[near])
    far_from_near, seen_from_near = (compose(cameras.cam_from_world[k], world_from_near) for k in (far, seen))
    inverse_depth = triangulated_inverse_depth(far_from_near, rays[:, 1:2], rays[:, 2:])[:, 0].clamp_min(0.0)
    point = (seen_from_near[..., :3] @ rays[:, 1, :, None])[..., 0] + inverse_depth[:, None] * seen_from_near[..., 3]
    error = (point[:, :2] / point[:, 2:] - rays[:, 0, :2]).norm(dim=-1) * cameras.intrinsics.reference_focal[seen]
    return error.where((point[:, 2] > 0) & error.isfinite(), torch.full_like(error, torch.inf))


def agreement(cameras: Cameras, transfers: Transfers) -> Float64[np.ndarray, " N"]:
    """Share of each frame's points within the limits, averaged over the limits, in [0, 1]; NaN without points."""
    error = transfer_errors_px(cameras, transfers)
    within = (error[:, None] <= torch.tensor(LIMITS_PX)).double().mean(1).numpy()
    seen = transfers.frames[:, 0].numpy()
    count = np.bincount(seen, minlength=cameras.num_frames)
    total = np.bincount(seen, within, minlength=cameras.num_frames)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def choose(
    candidates: Sequence[Cameras], transfers: Transfers, component: Int64[np.ndarray, " N"], otherwise: int
) -> Int64[np.ndarray, " N"]:
    """Number of the best candidate for each frame's component; a later one must be better beyond doubt.

    It is ``otherwise`` in components where hardly any track has three frames.
    """
    scores = np.stack([agreement(cameras, transfers) for cameras in candidates])
    asked = np.bincount(transfers.frames[:, 0].numpy(), minlength=len(component))
    chosen = np.full(len(component), otherwise)
    for part in np.unique(component[component >= 0]).tolist():
        mine = component == part
        if asked[mine].sum() >= MIN_TRANSFERS:
            chosen[mine] = _winner(scores[:, mine & (asked > 0)])
    return chosen


def _winner(scores: Float64[np.ndarray, "C F"]) -> int:
    """Candidate that frames agree with most; a later one wins only beyond doubt, by gains of single frames."""
    best = 0
    for number in range(1, len(scores)):
        gain = scores[number] - scores[best]
        if gain.mean() > DOUBT * gain.std(ddof=1) / np.sqrt(len(gain)):
            best = number
    return best


def mix(candidates: Sequence[Cameras], chosen: Int64[np.ndarray, " N"]) -> Cameras:
    """Cameras of each frame from its chosen candidate; lenses are those of the first."""
    rows, number = torch.arange(len(chosen)), torch.from_numpy(chosen)

    def take(values: Sequence[Tensor]) -> Tensor:
        return torch.stack(list(values))[number, rows]

    return replace(
        candidates[0],
        cam_from_world=take([cameras.cam_from_world for cameras in candidates]),
        depth_scale=take([cameras.depth_scale for cameras in candidates]),
        depth_shift=take([cameras.depth_shift for cameras in candidates]),
    )


def _first_of_each(group: Int64[np.ndarray, " M"], lot: Float64[np.ndarray, " M"]) -> Int64[np.ndarray, " K"]:
    """Rows with the smallest lots of each group, at most PER_FRAME."""
    order = np.lexsort([lot, group])
    begin = np.searchsorted(group[order], group[order])
    return np.sort(order[np.arange(len(order)) - begin < PER_FRAME])


def find_astray(
    cameras: Cameras, views: Sequence[TwoView], keypoints: Sequence[Keypoints], limit_px: float
) -> Bool[np.ndarray, " N"]:
    """Frames that contradict most of their pairs: most matches are further than the limit from their epipolar lines.

    The worst frame is removed first, with its pairs, so that its neighbours are not blamed for it.
    """
    ends = np.array([(view.i, view.j) for view in views]).reshape(-1, 2)
    against = np.array([_share_beyond(cameras, view, keypoints, limit_px) > MOST for view in views])
    astray = np.zeros(cameras.num_frames, dtype=bool)
    while True:
        left = ~astray[ends].any(1)
        total, bad = (np.bincount(ends[rows].ravel(), minlength=len(astray)) for rows in (left, left & against))
        share = bad / np.maximum(total, 1)
        if share.max(initial=0.0) <= MOST:
            return astray
        astray[np.lexsort([-bad, -share])[0]] = True


def place_again(
    cameras: Cameras, views: Sequence[TwoView], keypoints: Sequence[Keypoints], astray: Bool[np.ndarray, " N"]
) -> Cameras:
    """Cameras with stray frames placed again by their pairs with the others."""
    rest = {frame: cameras.cam_from_world[frame].numpy() for frame in np.flatnonzero(~astray).tolist()}
    (placed, *_), _ = initialize_cameras(views, keypoints, cameras.intrinsics, cameras.is_disparity, given=rest)
    return mix([cameras, placed], astray.astype(np.int64))


def _share_beyond(cameras: Cameras, view: TwoView, keypoints: Sequence[Keypoints], limit_px: float) -> float:
    first, second = view.matches.T
    pixels = keypoints[view.i].pixels[first], keypoints[view.j].pixels[second]
    distance = line_distances_px(cameras, (view.i, view.j), pixels)
    return float(np.mean(~(distance <= limit_px)))


@dataclass(frozen=True)
class Judge:
    """Evidence by which candidates are judged."""

    views: Sequence[TwoView]
    keypoints: Sequence[Keypoints]
    transfers: Transfers
    component: Int64[np.ndarray, " N"]
    limit_px: float
    """Largest distance of a verified match to its epipolar line."""

    @staticmethod
    def build(views: Sequence[TwoView], keypoints: Sequence[Keypoints], limit_px: float, seed: int) -> "Judge":
        """Judge with the tracks of three frames and the connected components."""
        transfers = find_transfers(views, keypoints, seed)
        return Judge(views, keypoints, transfers, find_components(views, len(keypoints)), limit_px)

    def choose(self, candidates: Sequence[Cameras], otherwise: int = 0) -> Int64[np.ndarray, " N"]:
        """Number of the best candidate for each frame, the same throughout a component and on all processes."""
        return from_main(lambda: choose(candidates, self.transfers, self.component, otherwise))


def adjust_best(starts: Sequence[Cameras], run: AdjustStart, judge: Judge | None) -> tuple[Cameras, Adjustment]:
    """Best start and its adjustment; without a judge, those of the first.

    Where components differ in which start is best, their best starts are adjusted together. Then frames that contradict
    most of their pairs are placed again, once.
    """
    if judge is None:
        return starts[0], run(0, starts[0])
    if len(judge.views) > MANY_PAIRS:
        starts = [mix(starts, judge.choose(starts))]
    ends = [run(number, cameras) for number, cameras in enumerate(starts)]
    chosen = _best_ends(ends, judge)
    if (chosen == chosen[0]).all():
        best = starts[int(chosen[0])], ends[int(chosen[0])]
    else:
        mixed = mix(starts, chosen)
        best = mixed, run(len(starts), mixed)
    return _without_astray(*best, lambda cameras: run(len(starts) + 1, cameras), judge)


def _without_astray(
    start: Cameras, end: Adjustment, run: Callable[[Cameras], Adjustment], judge: Judge
) -> tuple[Cameras, Adjustment]:
    """The better of an end and of another adjustment whose start has stray frames placed again."""
    found = from_main(lambda: find_astray(end.cameras, judge.views, judge.keypoints, judge.limit_px))
    if not found.any() or 2 * found.sum() > (judge.component >= 0).sum():
        return start, end
    again = from_main(lambda: place_again(end.cameras, judge.views, judge.keypoints, found))
    ends = [end, run(again)]
    wins = _best_ends(ends, judge)[found] == 1
    return (again, ends[1]) if wins.mean() > 0.5 else (start, end)


def _best_ends(ends: Sequence[Adjustment], judge: Judge) -> Int64[np.ndarray, " N"]:
    """Number of the best end for each frame; by the score of adjustment where no tracks of three frames decide."""
    by_score = int(np.argmax([score_of(end) for end in ends]))
    return judge.choose([end.cameras for end in ends], by_score)


def score_of(adjustment: Adjustment) -> float:
    """Final score of an adjustment; higher is better."""
    return adjustment.steps[-1][1].score if adjustment.steps else float("-inf")
