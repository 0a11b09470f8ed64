"""Two-view geometry of all pairs, and the focal lengths without which there is none."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Bool, Int64

from mbasfm.calibrate import Start, known_intrinsics, lenses_of, with_searched_focal
from mbasfm.config import BENT, Config
from mbasfm.content import Content
from mbasfm.infer import in_parallel, shared_in_parallel
from mbasfm.io.cache import Cache
from mbasfm.twoview import MIN_INLIERS, TwoView, inherit, pack, unpack, verify
from mbasfm.types import Intrinsics
from mbasfm.watch import Watch

MANY_PAIRS = 8
"""So many pairs, those with most matches, judge a lens."""
FISHEYE_FOCAL = 0.5
"""Where the search for a fisheye's focal length begins [long sides]."""
LENS_ROUNDS = {
    True: (((0.5, 0.6, 0.72, 0.86, 1.0, 1.2, 1.44, 1.73), (0.0,)), ((1.0,), (-0.1, -0.05, 0.0, 0.05, 0.1))),
    False: (((1.0,), (-0.45, -0.35, -0.25, -0.15, -0.07, 0.0, 0.07, 0.15)), ((0.8, 0.9, 1.0, 1.1, 1.25), (0.0,))),
}
"""Of a fisheye and of another lens: factors of the focal length and changes of k1 to try from the best so far."""
LAST_ROUNDS = (((0.94, 1.0, 1.06), (0.0,)), ((1.0,), (-0.03, 0.0, 0.03)))


def verify_pairs(content: Content, config: Config, cache: Cache, watch: Watch) -> tuple[Start, list[TwoView]]:
    """Keep the pairs whose matches agree with one relative pose; find focal lengths and lenses on the way."""
    with watch.stage("verify") as facts:
        start = known_intrinsics(content.photos, config, content.depths)
        if config.lens in BENT and not bool(start.is_known.all()):
            start = search_lens(content, _with_focal(content, start, config, cache), config)
        known = ~torch.isnan(start.intrinsics.focal[:, 0])
        found = _Verifier(content, start.intrinsics, config.max_error_px, cache).verify(known.numpy())
        views = [view for view in watch.each(found, len(content.pairs), "verify") if view is not None]
        if not bool(known.all()):
            start = with_searched_focal(start, views)
            found = _Verifier(content, start.intrinsics, config.max_error_px, cache).calibrate(views)
            views = [view for view in watch.each(found, len(views), "calibrate") if view is not None]
        facts.update(pairs=len(views), inliers=sum(view.num_inliers for view in views))
    return start, views


def _with_focal(content: Content, start: Start, config: Config, cache: Cache) -> Start:
    """Some focal length for every frame to begin the search for a lens with."""
    old = start.intrinsics
    known = ~torch.isnan(old.focal[:, 0])
    if bool(known.all()):
        return start
    if config.lens == "fisheye":
        guess = FISHEYE_FOCAL * old.sizes.amax(-1, keepdim=True).double()
        return replace(start, intrinsics=replace(old, focal=torch.where(known[:, None], old.focal, guess)))
    views = _Verifier(content, old, config.max_error_px, cache).verify(known.numpy())
    return with_searched_focal(start, [view for view in views if view is not None])


def search_lens(content: Content, start: Start, config: Config) -> Start:
    """The focal length and k1 under which the strongest pairs have most inliers, the same for all that are not given.

    A straight pinhole loses the matches near the border of a lens that bends, and with them what would tell the bend.
    """
    free = ~start.is_known
    order = np.argsort([-len(found) for found in content.matches], kind="stable")
    chosen = [n for n in order.tolist() if bool(free[content.pairs[n]].any())][:MANY_PAIRS]
    pixels = [points.pixels.astype(np.float64) for points in content.keypoints]
    is_rough = bool((start.is_exif | start.is_init | start.is_known).all())

    def inliers(intrinsics: Intrinsics) -> int:
        lenses = lenses_of(intrinsics)

        def count(number: int) -> int:
            i, j = content.pairs[number].tolist()
            ends = (pixels[i], pixels[j]), content.matches[number], (lenses[i], lenses[j])
            view = verify((i, j), *ends, config.max_error_px / 2, True)
            return 0 if view is None else view.num_inliers

        return sum(in_parallel(count, chosen))

    best = start.intrinsics
    for factors, changes in (*LENS_ROUNDS[config.lens == "fisheye"], *LAST_ROUNDS):
        trials = [_changed(best, free, f, change) for f in (factors if not is_rough else (1.0,)) for change in changes]
        best = max(trials, key=inliers)
    return replace(start, intrinsics=best)


def _changed(intrinsics: Intrinsics, free: Bool[torch.Tensor, " N"], factor: float, change: float) -> Intrinsics:
    focal = torch.where(free[:, None], factor * intrinsics.focal, intrinsics.focal)
    distortion = intrinsics.distortion.clone()
    distortion[free, 0] += change
    return replace(intrinsics, focal=focal, distortion=distortion)


class _Verifier:
    """Two-view geometry of all pairs, on all cores, each pair once: what is in the cache is not estimated again."""

    def __init__(self, content: Content, intrinsics: Intrinsics, max_error_px: float, cache: Cache):
        self._content, self._lenses, self._cache = content, lenses_of(intrinsics), cache
        self._pixels = [points.pixels.astype(np.float64) for points in content.keypoints]
        self._digests = [_digest(pixels) for pixels in self._pixels]
        self._max_error_px = max_error_px

    def verify(self, known: Bool[np.ndarray, " N"]) -> Iterator[TwoView | None]:
        """Every pair, by its pose where both focal lengths are known; None where matches are no more than chance."""

        def work(number: int) -> TwoView | None:
            i, j = self._content.pairs[number].tolist()
            return self._verify((i, j), self._content.matches[number], bool(known[i] and known[j]))

        return shared_in_parallel(work, range(len(self._content.pairs)), self._cache)

    def calibrate(self, views: Sequence[TwoView]) -> Iterator[TwoView | None]:
        """Give pairs that were verified without focal length their pose, now that it is known."""

        def work(view: TwoView) -> TwoView | None:
            if not np.isnan(view.j_from_i).any():
                return view
            found = self._verify((view.i, view.j), view.matches, True)
            return None if found is None else inherit(found, view)

        return shared_in_parallel(work, views, self._cache)

    def _verify(self, ends: tuple[int, int], matches: Int64[np.ndarray, "M 2"], calibrated: bool) -> TwoView | None:
        if len(matches) < MIN_INLIERS:
            return None
        (i, j), lenses, pixels = ends, self._lenses, self._pixels

        def compute() -> dict[str, np.ndarray]:
            return pack(verify(ends, (pixels[i], pixels[j]), matches, (lenses[i], lenses[j]), *how))

        how = self._max_error_px, calibrated
        given = [lenses[end].camera() if calibrated else lenses[end].size.tolist() for end in ends]
        key = f"verified-1|{self._digests[i]}|{self._digests[j]}|{_digest(matches)}|{given}|{how}"
        return unpack(ends, self._cache.get(key, compute))


def _digest(array: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
