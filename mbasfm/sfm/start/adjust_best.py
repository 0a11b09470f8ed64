"""Adjustment of all starts, and the choice of the end that agrees best with points seen in three frames."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64

from mbasfm.adjust.adjust import Adjustment
from mbasfm.runtime.distributed import from_main
from mbasfm.sfm.pairs.pose_graph import find_components
from mbasfm.sfm.start.astray import find_astray, place_again
from mbasfm.sfm.start.race import Transfers, choose, find_transfers, mix
from mbasfm.types.cameras import Cameras
from mbasfm.types.pairs import Keypoints, TwoView

MANY_PAIRS = 5_000
"""Number of pairs beyond which adjustment takes so long that only the most promising start is adjusted."""
AdjustStart = Callable[[int, Cameras], Adjustment]
"""Function that adjusts cameras; the number identifies the start."""


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
