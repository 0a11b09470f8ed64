"""Keypoints shared between pairs, from matches between pixels of single pairs.

A matcher without features finds pixels of two images, in the next pair others. Those of one image that lie in the same
cell of a fine grid become one keypoint, at their mean by confidence, so that no pixel moves further than the cell is
wide. What lies apart stays apart: joining more would lengthen tracks, but by other points.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float32, Int64
from scipy.spatial import cKDTree

from mbasfm.types.cameras import REFERENCE_LONG_SIDE

CELL_PX = 1.0
"""Width of a cell at a long side of 1024: about the accuracy of such matchers."""


@dataclass(frozen=True)
class End:
    """Pixels of one image in one pair."""

    frame: int
    pixels: Float32[np.ndarray, "M 2"]
    confidence: Float32[np.ndarray, " M"]


def cell_px(size: tuple[int, int]) -> float:
    """Width of a cell in an image of the given width and height."""
    return CELL_PX * max(size) / REFERENCE_LONG_SIDE


def consolidate(
    ends: Sequence[End], sizes: Sequence[tuple[int, int]]
) -> tuple[list[Float32[np.ndarray, "_ 2"]], list[Int64[np.ndarray, " _"]]]:
    """Keypoints of every image, and for every end the keypoint of each of its pixels."""
    keypoints = [np.zeros((0, 2), np.float32)] * len(sizes)
    numbers = [np.zeros(0, np.int64)] * len(ends)
    for frame, size in enumerate(sizes):
        mine = [n for n, end in enumerate(ends) if end.frame == frame]
        if not mine:
            continue
        pixels = np.concatenate([ends[n].pixels for n in mine]).astype(np.float64)
        weight = np.concatenate([ends[n].confidence for n in mine]).astype(np.float64) + 1e-6
        cell = np.floor(pixels / cell_px(size)).astype(np.int64)
        _, number = np.unique(cell, axis=0, return_inverse=True)
        number = number.reshape(-1)
        total = np.bincount(number, weight)
        mean = np.stack([np.bincount(number, weight * pixels[:, axis]) / total for axis in (0, 1)], -1)
        keypoints[frame] = mean.astype(np.float32)
        for n, part in zip(mine, np.split(number, np.cumsum([len(ends[n].pixels) for n in mine])[:-1]), strict=True):
            numbers[n] = part
    return keypoints, numbers


def nearest_keypoints(
    pixels: Float32[np.ndarray, "M 2"], keypoints: Float32[np.ndarray, "K 2"], radius_px: float
) -> Int64[np.ndarray, " M"]:
    """Index of the keypoint at each pixel; -1 where none is near."""
    if len(keypoints) == 0:
        return np.full(len(pixels), -1, np.int64)
    distance, number = cKDTree(keypoints).query(pixels, distance_upper_bound=radius_px)
    return np.where(np.isfinite(distance), number, -1).astype(np.int64)


def one_to_one(indices: Int64[np.ndarray, "M 2"], confidence: Float32[np.ndarray, " M"]) -> Bool[np.ndarray, " M"]:
    """Matches to keep so that no keypoint has two in a pair: the most confident ones."""
    kept = np.argsort(-confidence, kind="stable")
    for side in (0, 1):
        _, first = np.unique(indices[kept, side], return_index=True)
        kept = kept[np.sort(first)]
    chosen = np.zeros(len(indices), dtype=bool)
    chosen[kept] = True
    return chosen
