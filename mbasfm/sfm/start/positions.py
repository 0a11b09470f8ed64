"""Positions of all cameras from directions with lengths: linear, without scale drift, even along a straight line."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64, Int64

from mbasfm.sfm.start.averaging import FrameGraph, solve_blocks
from mbasfm.sfm.start.directed_pair import MIN_PARALLAX_DEG
from mbasfm.sfm.start.lengths import Lengths, PairDepths
from mbasfm.types.pairs import TwoView

ROUNDS = 20
"""Rounds of each of three passes: least unsquared deviations, twice, then without outliers."""
OUTLIER = 3.0
"""Standard deviations at which a pair loses its influence, in the last rounds."""
SMALLEST = 1e-3
"""Residual below which an absolute value becomes a parabola [standard deviations]."""
MAX_FACTOR = 1000.0
"""Largest factor between actual and expected errors, either way."""
MANY_LOOPS = 10
"""Number of independent loops of pairs above which they say more about errors than expectation. Set after one look
at agreement in third views, on bags of five photographs of castle, which have three."""
LOOSE = 10.0
"""Standard deviation of the logarithm of an unknown length."""


def positions_with_lengths(
    views: Sequence[TwoView], rotation: Float64[np.ndarray, "N 3 3"], depths: PairDepths, lengths: Lengths
) -> Float64[np.ndarray, "N 3"]:
    """Camera centres with centre_j - centre_i = b d for every pair; the first frame of each component is at the origin.

    Least unsquared deviations first, which are convex, so that the start does not matter; then outliers are cut off.
    Errors are relative to the length; how precise directions and lengths are, each kind by itself, follows from how
    well they agree. Cameras of pairs without parallax are pulled together.
    """
    graph = FrameGraph.build(depths.ends, len(rotation))
    line = _lines(views, rotation, depths.ends)
    length, across, along = _expectations(depths, lengths, graph)
    target = np.where(depths.moved, length, 0.0)[:, None] * line
    outer = line[:, :, None] * line[:, None, :]
    loops = int(depths.moved.sum()) - len(graph.free)
    centers, factor = np.zeros((len(rotation), 3)), (1.0, 1.0)
    for number in range(3 * ROUNDS):
        rest = centers[depths.ends[:, 1]] - centers[depths.ends[:, 0]] - target
        beside, ahead = _errors(rest, line, across, along)
        if number in (ROUNDS, 2 * ROUNDS):
            factor = _typical(beside[depths.moved], loops), _typical(ahead[depths.moved], loops)
        error = np.hypot(beside / factor[0], ahead / factor[1])
        pull = 1 / np.maximum(error, SMALLEST) if number < 2 * ROUNDS else 1 / (1 + (error / OUTLIER) ** 2) ** 2
        inverse_squares = [(f * sigma[:, None, None]) ** -2 for f, sigma in zip(factor, (across, along), strict=True)]
        precision = (np.eye(3) - outer) * inverse_squares[0] + outer * inverse_squares[1]
        block = (pull if number else np.ones_like(pull))[:, None, None] * precision
        centers = solve_blocks(graph, block, np.einsum("pij,pj->pi", block, target), centers)
    return centers


def _errors(rest: np.ndarray, line: np.ndarray, across: np.ndarray, along: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Errors across and along the baselines, relative to the expected ones."""
    ahead = (rest * line).sum(1)
    return np.linalg.norm(rest - ahead[:, None] * line, axis=1) / across, np.abs(ahead) / along


def _typical(errors: Float64[np.ndarray, " P"], loops: int) -> float:
    """Typical error relative to the expected one; 1 where hardly any loop of pairs could show it."""
    if loops <= 0:
        return 1.0
    found = np.clip(np.quantile(errors, 0.75), 1 / MAX_FACTOR, MAX_FACTOR)
    return float(found ** (loops / (loops + MANY_LOOPS)))


def _lines(
    views: Sequence[TwoView], rotation: Float64[np.ndarray, "N 3 3"], ends: Int64[np.ndarray, "P 2"]
) -> Float64[np.ndarray, "P 3"]:
    """Directions from the first camera to the second, in world axes."""
    # The translation of j_from_i points from centre j to centre i, in the frame of j.
    return -np.einsum("pji,pj->pi", rotation[ends[:, 1]], np.stack([view.j_from_i[:, 3] for view in views]))


def _expectations(depths: PairDepths, lengths: Lengths, graph: FrameGraph) -> tuple[np.ndarray, ...]:
    """Length of each baseline, and its expected error across and along it, in the unit of depth.

    An error of the rotation moves the images of points as a translation would: over parallax, a share of the length.
    No baseline is shorter than parallax times distance; one that seems to be is wrong, and must not seem precise too.
    """
    distance = np.exp(-_fill(lengths.log_nearness, graph.label))[depths.ends].mean(1)
    apparent = np.deg2rad(depths.parallax_deg) * distance
    length = np.exp(np.where(np.isfinite(lengths.log_baseline), lengths.log_baseline, np.log(apparent + 1e-12)))
    share = depths.error_deg / np.maximum(depths.parallax_deg, 1e-9)
    unit = np.maximum(length, apparent)
    across = unit * np.minimum(share, 1.0)
    unsure = np.where(np.isfinite(lengths.log_baseline), lengths.spread, LOOSE)
    along = unit * np.hypot(np.minimum(share, 1.0), unsure)
    still = np.deg2rad(np.maximum(depths.error_deg, MIN_PARALLAX_DEG)) * distance
    return length, np.where(depths.moved, across, still), np.where(depths.moved, along, still)


def _fill(values: Float64[np.ndarray, " N"], label: Int64[np.ndarray, " N"]) -> Float64[np.ndarray, " N"]:
    """Values with missing ones replaced by the median of their component, or 0."""
    filled = values.copy()
    for part in np.unique(label[~np.isfinite(values)]).tolist():
        mine = label == part
        known = values[mine & np.isfinite(values)]
        filled[mine & ~np.isfinite(values)] = np.median(known) if len(known) else 0.0
    return filled
