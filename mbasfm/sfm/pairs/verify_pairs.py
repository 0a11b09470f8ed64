"""Two-view geometry of all pairs, and the focal lengths without which there is none."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Bool, Int64

from mbasfm.config import BENT, LensKind
from mbasfm.estimators.two_view import FEWEST_INLIERS, inherit, pack, propose, stands_alone, unpack
from mbasfm.io.cache import active_cache
from mbasfm.matching.inference import shared_in_parallel
from mbasfm.runtime.progress import each
from mbasfm.sfm.pairs.search_lens import search_lens
from mbasfm.sfm.starting_intrinsics import StartIntrinsics, lenses_of, with_searched_focal
from mbasfm.types.cameras import Intrinsics
from mbasfm.types.observations import Observations
from mbasfm.types.pairs import TwoView

FISHEYE_FOCAL = 0.5
"""Where the search for a fisheye's focal length begins [long sides]."""


def verify_pairs(
    observations: Observations, start: StartIntrinsics, lens: LensKind, max_error_px: float
) -> tuple[StartIntrinsics, list[TwoView]]:
    """Keep the pairs whose matches agree with one relative pose; find focal lengths and lenses on the way.

    Among them are pairs that may agree by chance: they do not stand alone and need a second witness.
    """
    if lens in BENT and not bool(start.is_known.all()):
        start = search_lens(observations, _with_focal(observations, start, lens, max_error_px), lens, max_error_px)
    known = ~torch.isnan(start.intrinsics.focal[:, 0])
    found = _Verifier(observations, start.intrinsics, max_error_px).verify(known.numpy())
    views = [view for view in each(found, len(observations.pairs)) if view is not None]
    if not bool(known.all()):
        start = with_searched_focal(start, [view for view in views if stands_alone(view)])
        found = _Verifier(observations, start.intrinsics, max_error_px).calibrate(views)
        views = [view for view in each(found, len(views)) if view is not None]
    return start, views


def _with_focal(
    observations: Observations, start: StartIntrinsics, lens: LensKind, max_error_px: float
) -> StartIntrinsics:
    """Some focal length for every frame to begin the search for a lens with."""
    old = start.intrinsics
    known = ~torch.isnan(old.focal[:, 0])
    if bool(known.all()):
        return start
    if lens == "fisheye":
        guess = FISHEYE_FOCAL * old.sizes.amax(-1, keepdim=True).double()
        return replace(start, intrinsics=replace(old, focal=torch.where(known[:, None], old.focal, guess)))
    views = _Verifier(observations, old, max_error_px).verify(known.numpy())
    return with_searched_focal(start, [view for view in views if view is not None and stands_alone(view)])


class _Verifier:
    """Two-view geometry of all pairs, on all cores, each pair once: what is in the cache is not estimated again."""

    def __init__(self, observations: Observations, intrinsics: Intrinsics, max_error_px: float):
        self._observations, self._lenses, self._cache = observations, lenses_of(intrinsics), active_cache()
        self._pixels = [points.pixels.astype(np.float64) for points in observations.keypoints]
        self._digests = [_digest(pixels) for pixels in self._pixels]
        self._max_error_px = max_error_px

    def verify(self, known: Bool[np.ndarray, " N"]) -> Iterator[TwoView | None]:
        """Every pair, by its pose where both focal lengths are known; None where matches are no more than chance."""

        def work(number: int) -> TwoView | None:
            i, j = self._observations.pairs[number].tolist()
            return self._verify((i, j), self._observations.matches[number], bool(known[i] and known[j]))

        return shared_in_parallel(work, range(len(self._observations.pairs)))

    def calibrate(self, views: Sequence[TwoView]) -> Iterator[TwoView | None]:
        """Give pairs that were verified without focal length their pose, now that it is known."""

        def work(view: TwoView) -> TwoView | None:
            if not np.isnan(view.j_from_i).any():
                return view
            found = self._verify((view.i, view.j), view.matches, True)
            return None if found is None else inherit(found, view)

        return shared_in_parallel(work, views)

    def _verify(self, ends: tuple[int, int], matches: Int64[np.ndarray, "M 2"], calibrated: bool) -> TwoView | None:
        if len(matches) < FEWEST_INLIERS:
            return None
        (i, j), lenses, pixels = ends, self._lenses, self._pixels

        def compute() -> dict[str, np.ndarray]:
            return pack(propose(ends, (pixels[i], pixels[j]), matches, (lenses[i], lenses[j]), *how))

        how = self._max_error_px, calibrated
        given = [lenses[end].camera() if calibrated else lenses[end].size.tolist() for end in ends]
        key = f"verified-2|{self._digests[i]}|{self._digests[j]}|{_digest(matches)}|{given}|{how}"
        return unpack(ends, self._cache.get(key, compute))


def _digest(array: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
