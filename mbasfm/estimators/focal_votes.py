"""Initial focal lengths where none are known, by votes of all pairs.

A fundamental matrix becomes an essential one, with two equal singular values, only under the right focal
length, and every verified pair votes for the focal lengths that make it so.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float64, Int64

from mbasfm.types.observations import TwoView

MIN_FOCAL, MAX_FOCAL, NUM_CANDIDATES = 0.3, 6.0, 150
"""Range and number of candidates, in image widths (long side)."""
FALLBACK_FOCAL = 1.2
"""COLMAP's guess, for scenes in which no pair has a vote."""
TOLERANCE = 0.03
"""Relative difference of the singular values at which a pair's vote has fallen to 1/e."""
MAX_VOTES = 100
"""Inliers beyond this number make a fundamental matrix hardly more reliable."""
ROUNDS = 8
STARTS = (0.6, 0.9, 1.4, 2.2, 3.5)
"""Starts of the search if cameras differ [image widths]: changing one camera at a time ends in local optima."""
CANDIDATES = np.geomspace(MIN_FOCAL, MAX_FOCAL, NUM_CANDIDATES)
FACTORS = np.geomspace(0.5, 2.0, 121)


def search_focal(
    views: Sequence[TwoView],
    sizes: Int64[np.ndarray, "N 2"],
    group: Int64[np.ndarray, " N"],
    known_px: Float64[np.ndarray, " N"],
) -> tuple[Float64[np.ndarray, " N"], Bool[np.ndarray, " N"]]:
    """Focal length of every frame [px] and whether any pair spoke for it; ``known_px`` is NaN where unknown.

    The principal point is taken as the image's middle. Frames of a group share the focal length in pixels.
    """
    long_side = sizes.max(1).astype(np.float64)
    usable = [view for view in views if not view.is_planar]
    focal = np.where(np.isnan(known_px), FALLBACK_FOCAL * long_side, known_px)
    spoken = ~np.isnan(known_px)
    unknown = [number for number in np.unique(group) if np.isnan(known_px[group == number]).all()]
    if not usable or not unknown:
        return focal, spoken
    is_free = np.isin(group, unknown)
    starts = STARTS if len(unknown) > 1 else STARTS[:1]
    found = [_climb(usable, sizes, group, np.where(is_free, s * long_side, focal), is_free) for s in starts]
    focal = max(found, key=lambda trial: float(_votes(usable, sizes, trial[:, None])[0]))
    heard = is_free & np.isin(group, group[np.array([(view.i, view.j) for view in usable])])
    if heard.any():
        # A camera without pairs gets the field of view of the others.
        common = np.median((focal / long_side)[heard])
        focal = np.where(is_free & ~heard, common * long_side, focal)
    return focal, spoken | heard


def _climb(
    views: Sequence[TwoView],
    sizes: Int64[np.ndarray, "N 2"],
    group: Int64[np.ndarray, " N"],
    focal: Float64[np.ndarray, " N"],
    is_free: Bool[np.ndarray, " N"],
) -> Float64[np.ndarray, " N"]:
    """Focal lengths with more votes, by turns: each camera for itself, then one factor for all."""
    long_side = sizes.max(1)
    for _ in range(ROUNDS):
        before = focal
        for number in np.unique(group[is_free]):
            mine = group == number
            touching = [view for view in views if mine[view.i] or mine[view.j]]
            if touching:
                trial = np.where(mine[:, None], CANDIDATES * long_side[:, None], focal[:, None])
                focal = np.where(mine, _peak(CANDIDATES, _votes(touching, sizes, trial)) * long_side, focal)
        trial = np.where(is_free[:, None], FACTORS * focal[:, None], focal[:, None])
        focal = np.where(is_free, _peak(FACTORS, _votes(views, sizes, trial)) * focal, focal)
        if np.allclose(before, focal, rtol=1e-3):
            break
    return focal


def _votes(
    views: Sequence[TwoView], sizes: Int64[np.ndarray, "N 2"], trial: Float64[np.ndarray, "N F"]
) -> Float64[np.ndarray, " F"]:
    """Sum of the pairs' votes if frames had each of the trial focal lengths [px]."""
    ends = np.array([(view.i, view.j) for view in views])
    matrices = np.stack([view.fundamental for view in views])[:, None]
    left, right = (_matrices(trial[ends[:, end]], sizes[ends[:, end]] / 2) for end in (1, 0))
    essential = left.swapaxes(-1, -2) @ matrices @ right
    gram = essential @ essential.swapaxes(-1, -2)
    # Singular values s, t, 0 without a decomposition: trace(E E^T) = s^2 + t^2 and |E E^T|^2 = s^4 + t^4.
    total, fourth = np.trace(gram, axis1=-2, axis2=-1), (gram * gram).sum((-1, -2))
    evenness = np.sqrt(np.clip(2 * (1 - fourth / total**2), 1e-12, 1))  # 2 s t / (s^2 + t^2)
    ratio = (1 - np.sqrt(1 - evenness**2)) / evenness  # t / s
    strength = np.minimum([view.num_inliers for view in views], MAX_VOTES)
    return (strength[:, None] * np.exp((ratio - 1) / TOLERANCE)).sum(0)


def _matrices(focal: Float64[np.ndarray, "P F"], center: Float64[np.ndarray, "P 2"]) -> Float64[np.ndarray, "P F 3 3"]:
    matrices = np.zeros((*focal.shape, 3, 3))
    matrices[..., 0, 0] = matrices[..., 1, 1] = focal
    matrices[..., :2, 2] = center[:, None]
    matrices[..., 2, 2] = 1
    return matrices


def _peak(candidates: Float64[np.ndarray, " F"], votes: Float64[np.ndarray, " F"]) -> float:
    """The candidate with most votes, between grid points by a parabola in log focal."""
    top = int(votes.argmax())
    if top in (0, len(votes) - 1):
        return float(candidates[top])
    left, middle, right = votes[top - 1 : top + 2]
    bend = left - 2 * middle + right
    offset = 0.5 * (left - right) / bend if bend < 0 else 0.0
    return float(candidates[top] * (candidates[1] / candidates[0]) ** offset)
