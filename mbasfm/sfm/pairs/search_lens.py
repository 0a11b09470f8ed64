"""The lens under which the strongest pairs have most inliers."""

from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Bool

from mbasfm.config import LensKind
from mbasfm.estimators.two_view import verify
from mbasfm.runtime.parallel import in_parallel
from mbasfm.sfm.starting_intrinsics import StartIntrinsics, lenses_of
from mbasfm.types.cameras import Intrinsics
from mbasfm.types.observations import Observations

MANY_PAIRS = 8
"""So many pairs, those with most matches, judge a lens."""
LENS_ROUNDS = {
    True: (((0.5, 0.6, 0.72, 0.86, 1.0, 1.2, 1.44, 1.73), (0.0,)), ((1.0,), (-0.1, -0.05, 0.0, 0.05, 0.1))),
    False: (((1.0,), (-0.45, -0.35, -0.25, -0.15, -0.07, 0.0, 0.07, 0.15)), ((0.8, 0.9, 1.0, 1.1, 1.25), (0.0,))),
}
"""Of a fisheye and of another lens: factors of the focal length and changes of k1 to try from the best so far."""
LAST_ROUNDS = (((0.94, 1.0, 1.06), (0.0,)), ((1.0,), (-0.03, 0.0, 0.03)))


def search_lens(
    observations: Observations, start: StartIntrinsics, lens: LensKind, max_error_px: float
) -> StartIntrinsics:
    """The focal length and k1 under which the strongest pairs have most inliers, the same for all that are not given.

    A straight pinhole loses the matches near the border of a lens that bends, and with them what would tell the bend.
    """
    free = ~start.is_known
    order = np.argsort([-len(found) for found in observations.matches], kind="stable")
    chosen = [n for n in order.tolist() if bool(free[observations.pairs[n]].any())][:MANY_PAIRS]
    pixels = [points.pixels.astype(np.float64) for points in observations.keypoints]
    is_rough = start.is_told

    def inliers(intrinsics: Intrinsics) -> int:
        lenses = lenses_of(intrinsics)

        def count(number: int) -> int:
            i, j = observations.pairs[number].tolist()
            ends = (pixels[i], pixels[j]), observations.matches[number], (lenses[i], lenses[j])
            view = verify((i, j), *ends, max_error_px / 2, True)
            return 0 if view is None else view.num_inliers

        return sum(in_parallel(count, chosen))

    best = start.intrinsics
    for factors, changes in (*LENS_ROUNDS[lens == "fisheye"], *LAST_ROUNDS):
        trials = [_changed(best, free, f, change) for f in (factors if not is_rough else (1.0,)) for change in changes]
        best = max(trials, key=inliers)
    return replace(start, intrinsics=best)


def _changed(intrinsics: Intrinsics, free: Bool[torch.Tensor, " N"], factor: float, change: float) -> Intrinsics:
    focal = torch.where(free[:, None], factor * intrinsics.focal, intrinsics.focal)
    distortion = intrinsics.distortion.clone()
    distortion[free, 0] += change
    return replace(intrinsics, focal=focal, distortion=distortion)
