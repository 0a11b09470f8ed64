"""K correspondences with depth on every edge of the pose graph."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float32, Float64, Int64

from mbasfm.twoview import TwoView
from mbasfm.types import Cameras, Samples


@dataclass(frozen=True)
class Keypoints:
    """Features of one frame, with what the depth map says there."""

    pixels: Float32[np.ndarray, "M 2"]
    raw_depth: Float32[np.ndarray, " M"]
    """Depth or disparity as the model gave it; NaN where it says nothing."""

    def join(self, other: "Keypoints") -> "Keypoints":
        """Keypoints of both, this one's first."""
        return Keypoints(np.concatenate([self.pixels, other.pixels]), np.concatenate([self.raw_depth, other.raw_depth]))


def inverse_depths(keypoints: Sequence[Keypoints], cameras: Cameras) -> list[Float64[np.ndarray, " _"]]:
    """What corrected depth says at the keypoints of every frame; NaN where it says nothing or nothing possible."""
    rows = zip(keypoints, *(column.tolist() for column in (cameras.depth_scale, cameras.depth_shift)), strict=True)
    corrected = [scale * points.raw_depth.astype(np.float64) + shift for points, scale, shift in rows]
    possible = [np.where(values > 0, values, np.nan) for values in corrected]
    is_disparity = cameras.is_disparity.tolist()
    return [values if kept else 1 / values for values, kept in zip(possible, is_disparity, strict=True)]


def gather(values: Sequence[np.ndarray], frame: np.ndarray, index: np.ndarray) -> np.ndarray:
    """Values of some keypoints, given by frame and number in it."""
    offset = np.cumsum([0, *(len(rows) for rows in values)])
    return np.concatenate(values)[offset[frame] + index]


def draw_samples(views: Sequence[TwoView], keypoints: Sequence[Keypoints], samples_per_edge: int, seed: int) -> Samples:
    """Draw with replacement from each edge's verified matches that have depth; edges without any are left out.

    The weights of an edge sum to min(K, distinct matches): thirty matches must not count like three thousand.
    """
    generator = np.random.default_rng(seed)
    edges, data, weight = [], [], []
    for view in views:
        for source, target in ((view.i, view.j), (view.j, view.i)):
            matches = view.matches if source == view.i else view.matches[:, ::-1]
            matches = matches[np.isfinite(keypoints[source].raw_depth[matches[:, 0]])]
            if len(matches) == 0:
                continue
            chosen = matches[_draw(len(matches), samples_per_edge, generator)]
            edges.append((source, target))
            data.append(_rows(chosen, keypoints[source], keypoints[target]))
            weight.append(min(samples_per_edge, len(matches)) / samples_per_edge)
    if not edges:
        return Samples(
            torch.zeros(0, 2, dtype=torch.int64), torch.zeros(0, samples_per_edge, 5), torch.zeros(0, samples_per_edge)
        )
    return Samples(
        edges=torch.tensor(edges, dtype=torch.int64),
        data=torch.from_numpy(np.stack(data)),
        weight=torch.tensor(weight, dtype=torch.float32)[:, None].repeat(1, samples_per_edge),
    )


def _draw(available: int, wanted: int, generator: np.random.Generator) -> Int64[np.ndarray, " K"]:
    """With replacement, but a match is not drawn twice before all others were drawn once."""
    rounds = -(-wanted // available)
    return np.concatenate([generator.permutation(available) for _ in range(rounds)])[:wanted]


def _rows(matches: Int64[np.ndarray, "K 2"], source: Keypoints, target: Keypoints) -> Float32[np.ndarray, "K 5"]:
    first, second = matches.T
    columns = [source.pixels[first], target.pixels[second], source.raw_depth[first][:, None]]
    return np.concatenate(columns, 1).astype(np.float32)
