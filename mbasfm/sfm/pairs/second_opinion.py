"""Another pose for pairs that depth speaks against: the one that depth suggests, if matches agree with it as well."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64

from mbasfm.estimators.lifted_pose import with_lifted_pose
from mbasfm.estimators.two_view import LN_10
from mbasfm.runtime.parallel import in_parallel
from mbasfm.sfm.intrinsics import lenses_of
from mbasfm.sfm.pairs.judge import PRIOR, TWIN_LOG10, DepthWitness, depth_log_ratio
from mbasfm.types.cameras import Intrinsics
from mbasfm.types.observations import Observations, TwoView

ENOUGH = 0.8
"""Share of the former pose's inliers with which another may be right. Set on tum_fr3_cabinet58, where 23 of the 35
pairs that have it become right and 3 stay so; with 0.7 it is 27 and 3 of 48, with 0.9 19 and 3 of 27."""
DOUBT_LOG10 = 0.25
"""How much depth must speak against a pair to be asked for another pose."""
USUAL_SHIFT = 0.5
"""What is added to disparity before it is inverted [medians], as zero is not infinitely far in networks' maps. Any
number from 0.25 to 1 leads to the same poses there, mostly within a degree."""


class SecondOpinion:
    """All that is needed to find another pose of a pair."""

    def __init__(self, observations: Observations, intrinsics: Intrinsics, max_error_px: float):
        self._lenses, self._max_error_px = lenses_of(intrinsics), max_error_px
        self._pixels = [points.pixels.astype(np.float64) for points in observations.keypoints]
        self._inverse = [_inverse_depth(observations, frame) for frame in range(len(self._pixels))]
        pairs = map(tuple, observations.pairs.tolist())
        self._matches = dict(zip(pairs, observations.matches, strict=True))

    def ask(self, views: Sequence[TwoView], witness: DepthWitness) -> list[TwoView]:
        """Pairs, some with another pose: depth makes it far more likely, and hardly fewer matches agree with it.

        Where the two poses of a plane compete, these are left to decide.
        """
        before = depth_log_ratio(witness.ask(views), PRIOR) / LN_10
        against = np.flatnonzero(before < -DOUBT_LOG10).tolist()
        doubted = [number for number in against if views[number].rival is None]
        found = zip(doubted, in_parallel(lambda number: self._find(views[number]), doubted), strict=True)
        others = {number: other for number, other in found if other is not None}
        after = depth_log_ratio(witness.ask(list(others.values())), PRIOR) / LN_10
        settled = list(views)
        for (number, other), likely in zip(others.items(), after.tolist(), strict=True):
            if likely - before[number] > TWIN_LOG10:
                settled[number] = other
        return settled

    def _find(self, view: TwoView) -> TwoView | None:
        ends = view.i, view.j
        pixels, lenses = (self._pixels[view.i], self._pixels[view.j]), (self._lenses[view.i], self._lenses[view.j])
        depth, matches = (self._inverse[view.i], self._inverse[view.j]), self._matches[ends]
        other = with_lifted_pose(view, pixels, depth, matches, lenses, self._max_error_px)
        return other if other is not None and other.num_inliers >= ENOUGH * view.num_inliers else None


def _inverse_depth(observations: Observations, frame: int) -> Float64[np.ndarray, " M"]:
    """Inverse depth at a frame's keypoints, in a unit of its own; NaN where unknown."""
    raw = observations.keypoints[frame].raw_depth.astype(np.float64)
    raw = np.where(raw > 0, raw, np.nan)
    if not observations.depths[frame].is_disparity:
        return 1 / raw
    known = raw[np.isfinite(raw)]
    return raw + USUAL_SHIFT * float(np.median(known)) if len(known) else raw
