"""Depth as the second witness of a pair: whether what matches triangulate to is near and far where depth says so.

Only the order counts (Spearman), so that scale, shift and any monotone error of a depth map drop out. What order comes
about by chance is read off these photographs: maps that are shifted and mirrored against the matches keep what all
photographs have in common, such as a ground that is near and below.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float32, Float64, Int64
from scipy.stats import rankdata

from mbasfm.geometry.epipolar import inverse_depth_error, triangulated_inverse_depth
from mbasfm.geometry.raster import values_at
from mbasfm.geometry.rigid import invert
from mbasfm.objective.distribution import MAD_TO_SIGMA
from mbasfm.types.pairs import Keypoints, TwoView
from mbasfm.types.photos import DepthEstimate

SHIFTS = (0.25, 0.375, 0.5, 0.625, 0.75)
MIRRORED_SHIFTS = (0.0, 0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875)
"""By how many widths a map, or its mirror image, is moved sideways to see what chance brings."""
MIN_POINTS, MAX_POINTS = 8, 200
"""Fewer have no order worth the name; more cost time and say the same."""
MATCH_PX = 1.0
"""Error of a match [px at a long side of 1024]."""
MIN_RELIEF = 3.0
"""Spread of triangulated inverse depth from which its order means something, in errors of it."""
MIN_DEPTH_SPREAD = 0.02
"""Relative spread of a depth map at the matches; with less it is flat."""
MAX_CORRELATION = 0.999
SILENT = (np.nan, np.nan, np.nan, np.nan)


@dataclass(frozen=True)
class DepthOrders:
    """Rank correlations of triangulated inverse depth with nearness by the depth map, as Fisher's z.

    One row per pair, one column for i and for j; NaN where depth, or triangulation, says too little.
    """

    found: Float64[np.ndarray, "P 2"]
    chance: Float64[np.ndarray, "P 2"]
    """Mean with maps that were moved."""
    chance_sigma: Float64[np.ndarray, "P 2"]
    error: Float64[np.ndarray, "P 2"]
    """Standard deviation from the number of points alone."""


class DepthWitness:
    """All that is needed to ask depth about a pose of a pair."""

    def __init__(
        self,
        keypoints: Sequence[Keypoints],
        depths: Sequence[DepthEstimate],
        sizes: Int64[np.ndarray, "N 2"],
        rays: Sequence[Float64[np.ndarray, "_ 3"]],
        focal: Float64[np.ndarray, " N"],
    ):
        """Look depth up at all keypoints. Rays have z = 1; focal lengths are those at a long side of 1024."""
        self._nearness = [
            nearness_of(points.pixels, size, depth)
            for points, size, depth in zip(keypoints, sizes, depths, strict=True)
        ]
        self._rays, self._error = rays, MATCH_PX / focal

    def ask(self, views: Sequence[TwoView]) -> DepthOrders:
        """Agreement of depth with the pose of every pair."""
        rows = [self._ask(view) for view in views]
        found, chance, sigma, error = np.array(rows).reshape(-1, 2, 4).transpose(2, 0, 1)
        # The spread over few moved maps is itself uncertain: half of what counts is the usual one.
        variance = sigma**2
        usual = np.nanmedian(variance) if np.isfinite(variance).any() else 1.0
        return DepthOrders(found, chance, np.sqrt((variance + usual) / 2), error)

    def _ask(self, view: TwoView) -> list[tuple[float, float, float, float]]:
        chosen = np.linspace(0, view.num_inliers - 1, min(view.num_inliers, MAX_POINTS)).astype(np.int64)
        first, second = view.matches[chosen].T
        rays_i, rays_j = self._rays[view.i][first], self._rays[view.j][second]
        j_from_i = torch.from_numpy(view.j_from_i)
        seen_in_i = j_from_i, torch.from_numpy(rays_i), torch.from_numpy(rays_j)
        seen_in_j = invert(j_from_i), seen_in_i[2], seen_in_i[1]
        return [
            _compare(seen_in_i, self._error[view.j], self._nearness[view.i][:, first]),
            _compare(seen_in_j, self._error[view.i], self._nearness[view.j][:, second]),
        ]


def _compare(
    seen: tuple[torch.Tensor, torch.Tensor, torch.Tensor], match_error: float, nearness: Float32[np.ndarray, "K M"]
) -> tuple[float, float, float, float]:
    """The order of triangulated depth and of the map, for (other_from_own, own rays, other's rays)."""
    inverse, per_unit = triangulated_inverse_depth(*seen).numpy(), inverse_depth_error(*seen).numpy()
    return compare_orders(inverse, per_unit * match_error, nearness)


def nearness_of(
    pixels: Float32[np.ndarray, "M 2"], size: Int64[np.ndarray, " 2"], depth: DepthEstimate
) -> Float32[np.ndarray, "K M"]:
    """Inverse depth by the map at the pixels, up to a monotone change; further rows are of maps that were moved."""
    x, y = (pixels / size.astype(np.float32)).T
    moved = [x, *((x + shift) % 1 for shift in SHIFTS), *((shift - x) % 1 for shift in MIRRORED_SHIFTS)]
    values = np.stack([values_at(depth.values, np.column_stack([place, y])) for place in moved])
    values = np.where(values > 0, values, np.nan).astype(np.float32)
    return values if depth.is_disparity else 1 / values


def compare_orders(
    inverse: Float64[np.ndarray, " M"], error: Float64[np.ndarray, " M"], nearness: Float32[np.ndarray, "K M"]
) -> tuple[float, float, float, float]:
    """Fisher's z of the rank correlation, mean and spread with moved maps, and error; NaN where nothing can be said."""
    known = np.isfinite(inverse) & np.isfinite(nearness).all(0)
    if known.sum() < MIN_POINTS:
        return SILENT
    inverse, error, nearness = inverse[known], error[known], nearness[:, known]
    far, middle, near = np.quantile(nearness[0], (0.1, 0.5, 0.9))
    relief = MAD_TO_SIGMA * np.median(np.abs(inverse - np.median(inverse)))
    if near - far < MIN_DEPTH_SPREAD * middle or relief < MIN_RELIEF * np.median(np.abs(error)):
        return SILENT
    z = np.arctanh(np.clip(rank_correlations(inverse, nearness), -MAX_CORRELATION, MAX_CORRELATION))
    return float(z[0]), float(z[1:].mean()), float(z[1:].std(ddof=1)), float(1 / np.sqrt(len(inverse) - 3))


def rank_correlations(one: Float64[np.ndarray, " M"], many: Float32[np.ndarray, "K M"]) -> Float64[np.ndarray, " K"]:
    """Spearman's correlation of one series with each of many; zero where a series is constant."""
    first, others = rankdata(one), rankdata(many, axis=1)
    first, others = first - first.mean(), others - others.mean(1, keepdims=True)
    scale = np.linalg.norm(first) * np.linalg.norm(others, axis=1)
    return others @ first / np.maximum(scale, 1e-12)
