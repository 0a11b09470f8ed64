"""Lengths of all baselines, and scale and shift of all depth maps, from what pairs triangulate.

A pair triangulates inverse depth up to its unknown baseline: rho = b exp(lambda + g), with g the logarithm of inverse
depth according to the map, and lambda that of its unknown scale. The shift of a map is a ratio in which b cancels, so
it is found first, pair by pair. The rest is linear in the logarithms.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float64, Int64

from mbasfm.objective.losses import MAD_TO_SIGMA
from mbasfm.sfm.start.averaging import (
    MIN_PARALLAX_DEG,
    Edge,
    Edges,
    FrameGraph,
    expected_error_deg,
    parallax_deg,
    reverse,
    solve_laplacian,
    triangulate,
)
from mbasfm.types.observations import TwoView

MAX_MATCHES = 200
"""Largest number of matches that measure a pair; more hardly improve medians."""
INDEPENDENT = 20
"""Number of matches beyond which errors of a depth map do not average out, as large parts of it err together."""
SHIFT_PRIOR = 0.2
"""Prior standard deviation of the shift, as a share of the median disparity."""
LEAST_SPREAD = 0.01
"""Least standard deviation of a median of logarithms."""
ROUNDS, SMALLEST = 30, 1e-3
"""Rounds of re-weighting, and where an absolute value becomes a parabola, as a share of its scale."""


@dataclass(frozen=True)
class PairDepths:
    """Depth from all pairs: row p from its first frame, row P + p from its second; NaN where unknown."""

    ends: Int64[np.ndarray, "P 2"]
    triangulated: Float64[np.ndarray, "D M"]
    """Triangulated inverse depth for a baseline of 1."""
    raw: Float64[np.ndarray, "D M"]
    turned_z: Float64[np.ndarray, "P M"]
    """Depth of the first frame's ray in the second under a pure rotation."""
    parallax_deg: Float64[np.ndarray, " P"]
    error_deg: Float64[np.ndarray, " P"]
    """Expected error of rotation and direction."""

    @property
    def frame(self) -> Int64[np.ndarray, " D"]:
        """Frame whose depth each row holds."""
        return self.ends.T.ravel()

    @property
    def moved(self) -> Bool[np.ndarray, " P"]:
        """Whether each pair has enough parallax to triangulate."""
        return self.parallax_deg >= MIN_PARALLAX_DEG


@dataclass(frozen=True)
class Lengths:
    """Depth maps in one unit, and baselines in it."""

    shift: Float64[np.ndarray, " N"]
    """Shift of raw disparity, before it is scaled; 0 for depth."""
    log_scale: Float64[np.ndarray, " N"]
    """Log scale of inverse depth; NaN for frames without depth."""
    log_baseline: Float64[np.ndarray, " P"]
    """Log length of the baseline; NaN where neither frame determines it."""
    spread: Float64[np.ndarray, " P"]
    """Expected error of the log length."""
    log_nearness: Float64[np.ndarray, " N"]
    """Median logarithm of a frame's inverse depth."""
    part: Int64[np.ndarray, " N"]
    """Number of the part with a common unit of length; -1 for frames without depth."""


def depths_of_pairs(views: Sequence[TwoView], edges: Edges) -> PairDepths:
    """Depth triangulated in every pair from both of its ends, under its own pose with a baseline of 1."""
    found = [edges[view.i, view.j] for view in views]
    return PairDepths(
        np.array([(view.i, view.j) for view in views]).reshape(-1, 2),
        _pad([_thin(triangulate(e, e.target_from_source)) for e in (*found, *map(reverse, found))]),
        _pad([_thin(e.raw_source) for e in found] + [_thin(e.raw_target) for e in found]),
        _pad([_thin(_turned_z(edge)) for edge in found]),
        np.array([parallax_deg(edge) if len(edge.raw_source) else 0.0 for edge in found]),
        expected_error_deg(views),
    )


def measure_lengths(depths: PairDepths, is_disparity: Bool[np.ndarray, " N"]) -> Lengths:
    """Shift and scale of every frame's depth and length of every baseline, robustly over all pairs.

    Of an edge's two equations log b = m_i - lambda_i and log b = m_j - lambda_j the least absolute deviations leave
    lambda_i - lambda_j = m_i - m_j, which edges without parallax have too. The median scale is 1.
    """
    shift = fit_shifts(depths, is_disparity)
    log_raw = log_inverse(depths, shift, is_disparity)
    level, sigma = _levels(depths, log_raw)
    with np.errstate(divide="ignore", invalid="ignore"):
        step, step_sigma = _medians(np.diff(_halves(log_raw), axis=0)[0] + np.log(depths.turned_z))
    (level_i, level_j), (sigma_i, sigma_j) = _halves(level), _halves(sigma)
    gap = np.where(depths.moved, level_i - level_j, step)
    spread = np.where(depths.moved, np.hypot(sigma_i, sigma_j), step_sigma)
    scale, part = _solve_differences(depths.ends, gap, spread, len(is_disparity))
    log_baseline, error = _merge(np.stack([level_i, level_j]) - scale[depths.ends.T], np.stack([sigma_i, sigma_j]))
    nearness = _median_of_frames(depths, log_raw, len(scale)) + scale
    return Lengths(shift, scale, np.where(depths.moved, log_baseline, np.nan), error, nearness, part)


def scales_at(
    depths: PairDepths, lengths: Lengths, centers: Float64[np.ndarray, "N 3"], is_disparity: Bool[np.ndarray, " N"]
) -> Float64[np.ndarray, " N"]:
    """Log scales of inverse depth that fit known positions; unchanged where no pair determines them."""
    level, sigma = _levels(depths, log_inverse(depths, lengths.shift, is_disparity))
    with np.errstate(divide="ignore"):
        baseline = np.log(np.linalg.norm(np.diff(centers[depths.ends], axis=1)[:, 0], axis=1))
    vote = np.where(np.tile(depths.moved, 2), level - np.tile(baseline, 2), np.nan)
    found = _weighted_medians(depths.frame, vote, 1 / sigma, len(centers))
    return np.where(np.isfinite(found), found, lengths.log_scale)


def _levels(
    depths: PairDepths, log_raw: Float64[np.ndarray, "D M"]
) -> tuple[Float64[np.ndarray, " D"], Float64[np.ndarray, " D"]]:
    """Median log b + lambda of every row, and its expected error; points behind the camera count as infinitely far."""
    with np.errstate(divide="ignore"):
        return _medians(np.log(np.maximum(depths.triangulated, 0.0)) - log_raw)


def log_inverse(
    depths: PairDepths, shift: Float64[np.ndarray, " N"], is_disparity: Bool[np.ndarray, " N"]
) -> Float64[np.ndarray, "D M"]:
    """Logarithm of inverse depth according to the maps, up to their scales; NaN where there is none."""
    frame = depths.frame
    value = depths.raw + shift[frame, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.log(value) * np.where(is_disparity[frame], 1.0, -1.0)[:, None]
    return np.where(np.isfinite(found), found, np.nan)


# ----------------------------------------------------------------------------------------------------------------
# Shift


def fit_shifts(depths: PairDepths, is_disparity: Bool[np.ndarray, " N"]) -> Float64[np.ndarray, " N"]:
    """Shift of each frame's raw disparity: the median of its pairs' estimates, weighted by their precision.

    A prior of no shift has a vote too. Nine tenths of the points stay in front of the camera.
    """
    frame, count = depths.frame, len(is_disparity)
    usable = np.tile(depths.moved, 2) & is_disparity[frame]
    raw = np.where(usable[:, None] & np.isfinite(depths.raw), depths.raw, np.nan)
    ratio, sigma = _intercepts(raw, depths.triangulated)
    typical, low = (_median_of_frames(depths, _quantile(raw, q)[:, None], count) for q in (0.5, 0.1))
    votes = np.concatenate([ratio, np.zeros(count)])
    weight = 1 / np.concatenate([sigma, SHIFT_PRIOR * np.where(typical > 0, typical, np.inf)])
    found = _weighted_medians(np.concatenate([frame, np.arange(count)]), votes, weight, count)
    return np.where(np.isfinite(found) & (found > -low), found, 0.0)


def _intercepts(
    x: Float64[np.ndarray, "D M"], y: Float64[np.ndarray, "D M"]
) -> tuple[Float64[np.ndarray, " D"], Float64[np.ndarray, " D"]]:
    """B / A and its standard deviation for the lines y = A x + B of least absolute deviation, row by row.

    Errors are half absolute, of matches, and half relative, of depth. Rows whose line does not rise have no vote.
    """
    known = np.isfinite(x) & np.isfinite(y)
    middle = _quantile(np.where(known, x, np.nan), 0.5)
    unit = np.where(known, 1 / (np.abs(x) + np.abs(middle)[:, None]), 0.0)
    x, y = (np.where(known, value, 0.0) * unit for value in (x, y))
    weight = known.astype(np.float64)
    for _ in range(ROUNDS):
        slope, offset, inverse = _solve_lines(x, unit, y, weight)
        error = np.abs(y - slope[:, None] * x - offset[:, None] * unit)
        scale = _quantile(np.where(known, error, np.nan), 0.5)
        weight = known / np.maximum(error, SMALLEST * scale[:, None] + 1e-300)
    _, _, inverse = _solve_lines(x, unit, y, known.astype(np.float64))
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = offset / slope
        toward = np.stack([-ratio / slope, 1 / slope], 1)
        variance = np.einsum("di,dij,dj->d", toward, inverse, toward)
        sigma = MAD_TO_SIGMA * scale * np.sqrt(variance * np.maximum(known.sum(1) / INDEPENDENT, 1))
        least = LEAST_SPREAD * (np.abs(middle) + np.abs(ratio))
    rises = (slope > 0) & np.isfinite(ratio) & np.isfinite(sigma)
    return np.where(rises, ratio, np.nan), np.where(rises, np.maximum(sigma, least), np.inf)


def _solve_lines(x: np.ndarray, one: np.ndarray, y: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, ...]:
    """Slope and offset of y = slope x + offset one, least squares, row by row, and the inverse normal matrix."""
    xx, xo, oo = ((weight * a * b).sum(1) for a, b in ((x, x), (x, one), (one, one)))
    xy, oy = (weight * x * y).sum(1), (weight * one * y).sum(1)
    determinant = xx * oo - xo * xo
    with np.errstate(divide="ignore", invalid="ignore"):
        inverse = np.stack([oo, -xo, -xo, xx], -1).reshape(-1, 2, 2) / determinant[:, None, None]
    inverse = np.where((determinant > 1e-9 * xx * oo)[:, None, None], inverse, np.nan)
    slope, offset = inverse[:, 0, 0] * xy + inverse[:, 0, 1] * oy, inverse[:, 1, 0] * xy + inverse[:, 1, 1] * oy
    return slope, offset, inverse


# ----------------------------------------------------------------------------------------------------------------
# Differences and medians


def _solve_differences(
    ends: Int64[np.ndarray, "P 2"], gap: Float64[np.ndarray, " P"], sigma: Float64[np.ndarray, " P"], num_frames: int
) -> tuple[Float64[np.ndarray, " N"], Int64[np.ndarray, " N"]]:
    """Values with value_i - value_j = gap of least absolute deviation, and the number of each frame's connected part.

    The median of every part is 0. Frames that no known gap reaches have neither value nor part.
    """
    known = np.isfinite(gap) & np.isfinite(sigma)
    ends, gap, sigma = ends[known], gap[known], sigma[known]
    graph = FrameGraph.build(ends, num_frames)
    value = np.zeros(num_frames)
    for number in range(ROUNDS):
        rest = gap - (value[ends[:, 0]] - value[ends[:, 1]])
        weight = 1 / (sigma * np.maximum(np.abs(rest), SMALLEST * sigma)) if number else 1 / sigma**2
        value = value - solve_laplacian(graph, weight, rest[:, None])[:, 0]
    label = graph.label
    middle = np.array([np.median(value[label == part]) for part in range(int(label.max(initial=-1)) + 1)])
    is_tied = np.bincount(ends.ravel(), minlength=num_frames) > 0
    return np.where(is_tied, value - middle[label], np.nan), np.where(is_tied, label, -1)


def _merge(
    estimate: Float64[np.ndarray, "2 P"], sigma: Float64[np.ndarray, "2 P"]
) -> tuple[Float64[np.ndarray, " P"], Float64[np.ndarray, " P"]]:
    """Weighted mean of two estimates, or the only known one, and its expected error."""
    known = np.isfinite(estimate) & np.isfinite(sigma)
    weight = np.where(known, 1 / np.where(known, sigma, 1.0) ** 2, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = (weight * np.where(known, estimate, 0.0)).sum(0) / weight.sum(0)
        error = np.sqrt(1 / weight.sum(0))
    apart = np.where(known.all(0), np.abs(np.diff(estimate, axis=0)[0]) / 2, 0.0)
    return mean, np.hypot(error, apart)


def _weighted_medians(
    group: Int64[np.ndarray, " V"], vote: Float64[np.ndarray, " V"], weight: Float64[np.ndarray, " V"], count: int
) -> Float64[np.ndarray, " G"]:
    """Median of the votes of each group, by weight; NaN for groups without any."""
    known = np.isfinite(vote) & (weight > 0)
    group, vote, weight = group[known], vote[known], weight[known]
    order = np.lexsort([vote, group])
    group, vote, running = group[order], vote[order], np.cumsum(weight[order])
    total = np.bincount(group, weight[order], minlength=count)
    half = np.cumsum(total) - total / 2
    there = np.flatnonzero(np.bincount(group, minlength=count))
    found = np.full(count, np.nan)
    if len(vote):
        found[there] = vote[np.minimum(np.searchsorted(running, half[there]), len(vote) - 1)]
    return found


def _medians(values: Float64[np.ndarray, "D M"]) -> tuple[Float64[np.ndarray, " D"], Float64[np.ndarray, " D"]]:
    """Median of every row, and its expected error; NaN and infinity for rows without values."""
    middle = _quantile(values, 0.5)
    middle = np.where(np.isfinite(middle), middle, np.nan)
    spread = MAD_TO_SIGMA * _quantile(np.abs(values - middle[:, None]), 0.5)
    count = np.clip((~np.isnan(values)).sum(1), 1, INDEPENDENT)
    return middle, np.where(np.isfinite(spread), np.hypot(spread / np.sqrt(count), LEAST_SPREAD), np.inf)


def _quantile(values: Float64[np.ndarray, "D M"], share: float) -> Float64[np.ndarray, " D"]:
    """Quantile of the known values in every row; NaN for rows without values."""
    ranked = np.sort(values, axis=1)  # NaN come last
    place = share * np.maximum((~np.isnan(values)).sum(1) - 1, 0)
    low, high = (np.take_along_axis(ranked, f(place).astype(int)[:, None], 1)[:, 0] for f in (np.floor, np.ceil))
    with np.errstate(invalid="ignore"):
        return low + (place - np.floor(place)) * (high - low)


def _median_of_frames(
    depths: PairDepths, values: Float64[np.ndarray, "D M"], num_frames: int
) -> Float64[np.ndarray, " N"]:
    """Median over each frame of the medians of its rows."""
    rows = _quantile(values, 0.5)
    return _weighted_medians(depths.frame, rows, np.ones(len(rows)), num_frames)


def _halves(rows: np.ndarray) -> np.ndarray:
    """Rows of the first frames above those of the second."""
    return rows.reshape(2, len(rows) // 2, *rows.shape[1:])


def _thin(values: Float64[np.ndarray, " M"]) -> Float64[np.ndarray, " m"]:
    """Evenly spaced values."""
    count = min(len(values), MAX_MATCHES)
    return values[np.arange(count) * len(values) // max(count, 1)]


def _pad(rows: Sequence[Float64[np.ndarray, " _"]]) -> Float64[np.ndarray, "D M"]:
    """Rows padded with NaN to one length."""
    table = np.full((len(rows), max([1, *map(len, rows)])), np.nan)
    for number, row in enumerate(rows):
        table[number, : len(row)] = row
    return table


def _turned_z(edge: Edge) -> Float64[np.ndarray, " M"]:
    return edge.rays_source @ edge.target_from_source[2, :3]
