"""The race of several starts: all are adjusted, and points that two frames triangulate and a third one sees decide.

Pairs alone cannot tell the relative lengths of baselines, and depth would judge its own result. A point that two
frames triangulate must appear in the third where it was observed there. Frames of the winner that most of their pairs
contradict are astray, and placed again by the rest.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from mbasfm.adjust.adjust import Adjustment
from mbasfm.geometry.camera import line_distances_px
from mbasfm.polish.tracks import HeldOut, Transfers, transfer_errors_px
from mbasfm.runtime.parallel import from_main
from mbasfm.sfm.pairs.pose_graph import find_components
from mbasfm.sfm.start.initialize import initialize_cameras
from mbasfm.types.cameras import Cameras
from mbasfm.types.observations import Keypoints, TwoView

MIN_TRANSFERS = 30
"""Least number of checks in a component; with fewer it is undecided."""
LEAST_GAIN = 5e-4
"""Mean gain by which a later candidate must be better than an earlier one."""
LIMITS_PX = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
"""Limits of the error; the score is the mean share of points within them [px at a long side of 1024]."""
MOST = 0.5
"""Share of matches above which a pair contradicts, and of pairs above which a frame is astray."""
MANY_PAIRS = 5_000
"""Number of pairs beyond which adjustment takes so long that only the most promising start is adjusted."""
AdjustStart = Callable[[int, Cameras, int], Adjustment]
"""Function that adjusts cameras, given a number that identifies the run, and which of several ways to take."""


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
    """Number of the best candidate for each frame's component; a later one must be better by more than rounding.

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
    """Candidate that frames agree with most; an earlier one unless a later is better by more than rounding can tell."""
    mean = scores.mean(1)
    return int(np.flatnonzero(mean >= mean.max() - LEAST_GAIN)[0])


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
    held: HeldOut
    component: Int64[np.ndarray, " N"]
    limit_px: float
    """Largest distance of a verified match to its epipolar line."""

    @staticmethod
    def build(views: Sequence[TwoView], keypoints: Sequence[Keypoints], held: HeldOut, limit_px: float) -> "Judge":
        """Judge of each connected component by the tracks that were held out."""
        return Judge(views, keypoints, held, find_components(views, len(keypoints)), limit_px)

    def choose(self, candidates: Sequence[Cameras], otherwise: int = 0) -> Int64[np.ndarray, " N"]:
        """Number of the best candidate for each frame, the same throughout a component and on all processes."""
        return from_main(lambda: choose(candidates, self.held.transfers, self.component, otherwise))


@dataclass(frozen=True)
class Winner:
    """The best of several adjustments."""

    start: Cameras
    adjustment: Adjustment
    way: int = 0
    """Way of adjustment that was best."""


def adjust_best(starts: Sequence[Cameras], num_ways: int, run: AdjustStart, judge: Judge | None) -> Winner:
    """The best start, adjusted in the best way; without a judge, the first of either.

    Where components differ in which start is best, their best starts are adjusted together, in the way that is best for
    most frames. Then frames that contradict most of their pairs are placed again, once.
    """
    if judge is None:
        return Winner(starts[0], run(0, starts[0], 0))
    if len(judge.views) > MANY_PAIRS:
        starts = [mix(starts, judge.choose(starts))]
    entries = [(cameras, way) for cameras in starts for way in range(num_ways)]
    ends = [run(number, cameras, way) for number, (cameras, way) in enumerate(entries)]
    chosen = _best_ends(ends, judge, num_ways)
    way = int(np.bincount(chosen % num_ways).argmax())
    if (chosen == chosen[0]).all():
        best = Winner(entries[int(chosen[0])][0], ends[int(chosen[0])], way)
    else:
        mixed = mix([cameras for cameras, _ in entries], chosen)
        best = Winner(mixed, run(len(entries), mixed, way), way)
    return _without_astray(best, lambda cameras: run(len(entries) + 1, cameras, way), judge)


def _without_astray(best: Winner, run: Callable[[Cameras], Adjustment], judge: Judge) -> Winner:
    """The better of an end and of another adjustment whose start has stray frames placed again."""
    end = best.adjustment
    found = from_main(lambda: find_astray(end.cameras, judge.views, judge.keypoints, judge.limit_px))
    if not found.any() or 2 * found.sum() > (judge.component >= 0).sum():
        return best
    again = from_main(lambda: place_again(end.cameras, judge.views, judge.keypoints, found))
    ends = [end, run(again)]
    wins = _best_ends(ends, judge)[found] == 1
    return Winner(again, ends[1], best.way) if wins.mean() > 0.5 else best


def _best_ends(ends: Sequence[Adjustment], judge: Judge, num_ways: int = 1) -> Int64[np.ndarray, " N"]:
    """Number of the best end for each frame.

    Where no tracks of three frames decide, it is the one with the best score in the last way, which trusts depth least:
    it then decides nothing but what matches leave open.
    """
    last = range(num_ways - 1, len(ends), num_ways)
    by_score = max(last, key=lambda number: score_of(ends[number]))
    return judge.choose([end.cameras for end in ends], by_score)


def score_of(adjustment: Adjustment) -> float:
    """Final score of an adjustment; higher is better."""
    return adjustment.steps[-1][1].score if adjustment.steps else float("-inf")
