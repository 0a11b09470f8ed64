"""Starts that are worth adjusting: given cameras, frames placed one after the other, and all pairs at once.

All pairs at once: averaged rotations, lengths from depth, and positions from directions with lengths, which is linear,
without scale drift, even along a straight line.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64

from mbasfm.config import Tree
from mbasfm.sfm.start.averaging import (
    MIN_PARALLAX_DEG,
    Edges,
    FrameGraph,
    average_positions,
    average_rotations,
    solve_blocks,
)
from mbasfm.sfm.start.initialize import initialize_cameras
from mbasfm.sfm.start.lengths import Lengths, PairDepths, depths_of_pairs, measure_lengths, scales_at
from mbasfm.types.cameras import Cameras, Intrinsics
from mbasfm.types.observations import Keypoints, TwoView

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


def global_start(
    views: Sequence[TwoView],
    keypoints: Sequence[Keypoints],
    intrinsics: Intrinsics,
    is_disparity: Bool[torch.Tensor, " N"],
) -> Cameras:
    """Cameras that agree best with all pairs and all depth maps together.

    The first frame of every component is at the origin, and mean depth is that of the maps. Where maps carry no
    information on lengths, positions follow from directions alone.
    """
    num_frames, kind = len(keypoints), is_disparity.numpy()
    rotation = average_rotations(views, num_frames)
    depths = depths_of_pairs(views, Edges(views, keypoints, intrinsics))
    lengths = measure_lengths(depths, kind)
    label = FrameGraph.build(depths.ends, num_frames).label
    told = _is_told(depths, lengths, label)
    centers = positions_with_lengths(views, rotation, depths, lengths)
    if not told.all():
        centers = np.where(told[:, None], centers, average_positions(views, rotation))
    log_scale, centers = _in_unit_of_depth(scales_at(depths, lengths, centers, kind), centers, label)
    scale = np.exp(np.where(kind, log_scale, -log_scale))
    pose = np.concatenate([rotation, -rotation @ centers[..., None]], -1)
    shift = torch.from_numpy(scale * lengths.shift)
    return Cameras(torch.from_numpy(pose), intrinsics, torch.from_numpy(scale), shift, is_disparity)


def _is_told(depths: PairDepths, lengths: Lengths, label: Int64[np.ndarray, " N"]) -> Bool[np.ndarray, " N"]:
    """Whether depth determines the lengths of a frame's component: maps of more than one value, all in one unit."""
    known = np.isfinite(depths.raw)
    high, low = (f(depths.raw, axis=1, where=known, initial=i) for f, i in ((np.max, -np.inf), (np.min, np.inf)))
    is_varied = np.isin(label, label[depths.frame[high > low]])
    units = np.unique(np.stack([label, lengths.part], 1)[lengths.part >= 0], axis=0)[:, 0]
    has_one_unit = np.bincount(units, minlength=len(label))[label] == 1
    is_lonely = ~np.isin(np.arange(len(label)), depths.ends)
    return (is_varied & has_one_unit) | is_lonely


def _in_unit_of_depth(
    log_scale: Float64[np.ndarray, " N"], centers: Float64[np.ndarray, "N 3"], label: Int64[np.ndarray, " N"]
) -> tuple[Float64[np.ndarray, " N"], Float64[np.ndarray, "N 3"]]:
    """Scales and centres, every component as large as its maps say on average, which replaces unknown scales."""
    known = np.isfinite(log_scale)
    middle = np.zeros(len(log_scale))
    for part in np.unique(label[known]).tolist():
        middle[label == part] = np.median(log_scale[known & (label == part)])
    return np.where(known, log_scale - middle, 0.0), centers * np.exp(middle)[:, None]


def start_cameras(
    views: Sequence[TwoView],
    keypoints: Sequence[Keypoints],
    intrinsics: Intrinsics,
    is_disparity: Bool[torch.Tensor, " N"],
    tree: Tree = "consistent",
    given: Mapping[int, Float64[np.ndarray, "3 4"]] | None = None,
) -> tuple[list[Cameras], Bool[torch.Tensor, " N"]]:
    """Candidates, first the one from given poses if there are any, and which frames are placed.

    For the paper's tree there is only one.
    """
    starts, placed = initialize_cameras(views, keypoints, intrinsics, is_disparity, tree, given)
    if tree == "consistent" and views:
        if given:
            starts += initialize_cameras(views, keypoints, intrinsics, is_disparity, tree)[0]
        starts.append(global_start(views, keypoints, intrinsics, is_disparity))
    return starts, placed
