"""Fit of depth maps to a finished model: scale and shift of each, by the points that its photograph sees."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float32, Float64

from mbasfm.objective.distribution import MAD_TO_SIGMA

MIN_POINTS_SCALE = 10
"""Least number of points to change the adjusted correction at all."""
MIN_POINTS_SHIFT = 50
"""Least number of points to fit a shift; with fewer, scale and shift change by one factor."""
MIN_GAIN = 0.95
"""A new shift must bring the median error below this share of what one factor reaches."""
ROUNDS = 20
CAUCHY = 2.385


@dataclass(frozen=True)
class DepthFit:
    """Correction depth = scale D + shift or, for disparity, 1 / depth = scale d + shift."""

    scale: float
    shift: float
    is_disparity: bool

    def depth(self, raw: Float32[np.ndarray, "*s"]) -> Float32[np.ndarray, "*s"]:
        """Depth in the world's unit; NaN where unknown or not positive."""
        value = self.scale * raw.astype(np.float64) + self.shift
        known = (raw > 0) & (value > 0)
        if self.is_disparity:
            known &= np.isfinite(value)  # infinite depth is sky, infinite disparity is invalid
        value = np.where(known, value, np.nan)
        return (1 / value if self.is_disparity else value).astype(np.float32)


def fit_depth(
    raw: Float32[np.ndarray, " M"], depth: Float64[np.ndarray, " M"], adjusted: DepthFit
) -> tuple[DepthFit, float]:
    """Correction of a map whose raw values at points of known depth are given, and its median relative error.

    Cameras move after the corrections were adjusted, so the points have the last word; what they cannot tell
    stays as adjusted. Errors are relative: a metre matters less far away.
    """
    usable = np.isfinite(raw) & (raw > 0) & np.isfinite(depth) & (depth > 0)
    x, wanted = raw[usable].astype(np.float64), depth[usable]
    wanted = 1 / wanted if adjusted.is_disparity else wanted
    value = adjusted.scale * x + adjusted.shift
    good = value > 0
    if good.sum() < MIN_POINTS_SCALE:
        return adjusted, float("nan")
    factor = float(np.median(wanted[good] / value[good]))
    best = (adjusted.scale * factor, adjusted.shift * factor)
    error = _error(x, wanted, *best)
    if len(x) >= MIN_POINTS_SHIFT:
        scale, shift = _fit_line(x, wanted)
        if scale > 0 and _error(x, wanted, scale, shift) < MIN_GAIN * error:
            best, error = (scale, shift), _error(x, wanted, scale, shift)
    return DepthFit(*best, adjusted.is_disparity), error


def is_constant(raw: Float32[np.ndarray, "h w"]) -> bool:
    """Whether a map has no more than one value, so that it tells nothing."""
    known = raw[np.isfinite(raw)]
    return known.size == 0 or bool(known.min() == known.max())


def _error(x: Float64[np.ndarray, " M"], wanted: Float64[np.ndarray, " M"], scale: float, shift: float) -> float:
    return float(np.median(np.abs((scale * x + shift) / wanted - 1)))


def _fit_line(x: Float64[np.ndarray, " M"], wanted: Float64[np.ndarray, " M"]) -> tuple[float, float]:
    """Scale and shift with the smallest relative errors, by Cauchy weights at the scale of the errors themselves."""
    rows = np.column_stack([x, np.ones_like(x)]) / wanted[:, None]
    solution = _median_line(x, wanted)
    for _ in range(ROUNDS):
        errors = rows @ solution - 1
        sigma = max(MAD_TO_SIGMA * float(np.median(np.abs(errors))), 1e-9)
        root = 1 / np.sqrt(1 + (errors / (CAUCHY * sigma)) ** 2)
        solution = np.linalg.lstsq(rows * root[:, None], root, rcond=None)[0]
    return float(solution[0]), float(solution[1])


def _median_line(x: Float64[np.ndarray, " M"], wanted: Float64[np.ndarray, " M"]) -> Float64[np.ndarray, "2"]:
    """Initial line that wrong raw values cannot pull: the median slope of pairs that are half the points apart."""
    order = np.argsort(x, kind="stable")
    half = len(x) // 2
    near, far = order[:half], order[half : 2 * half]
    apart = x[far] > x[near]
    if not apart.any():
        return np.array([0.0, float(np.median(wanted))])
    slope = np.median((wanted[far] - wanted[near])[apart] / (x[far] - x[near])[apart])
    return np.array([slope, np.median(wanted - slope * x)])


def depth_edges(depth: Float32[np.ndarray, "h w"], max_jump: float) -> Bool[np.ndarray, "h w"]:
    """Pixels beside which depth jumps by more than a share of itself, or is unknown."""
    edge = ~np.isfinite(depth)
    for axis in (0, 1):
        near, far = (np.moveaxis(depth, axis, 0)[part] for part in (slice(None, -1), slice(1, None)))
        with np.errstate(invalid="ignore"):  # the sky is infinitely far; NaN is not smooth
            smooth = np.abs(near - far) <= max_jump * np.minimum(near, far)
        view = np.moveaxis(edge, axis, 0)
        view[:-1] |= ~smooth
        view[1:] |= ~smooth
    return edge
