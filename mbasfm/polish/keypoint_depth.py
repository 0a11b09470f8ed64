"""Corrected depth at keypoints."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64

from mbasfm.types.cameras import Cameras
from mbasfm.types.pairs import Keypoints


def inverse_depths(keypoints: Sequence[Keypoints], cameras: Cameras) -> list[Float64[np.ndarray, " _"]]:
    """Inverse of the corrected depth at the keypoints of every frame; NaN where it is unknown or not positive."""
    rows = zip(keypoints, *(column.tolist() for column in (cameras.depth_scale, cameras.depth_shift)), strict=True)
    corrected = [scale * points.raw_depth.astype(np.float64) + shift for points, scale, shift in rows]
    possible = [np.where(values > 0, values, np.nan) for values in corrected]
    is_disparity = cameras.is_disparity.tolist()
    return [values if kept else 1 / values for values, kept in zip(possible, is_disparity, strict=True)]


def gather(values: Sequence[np.ndarray], frame: np.ndarray, index: np.ndarray) -> np.ndarray:
    """Values of some keypoints, given by frame and index in it."""
    offset = np.cumsum([0, *(len(rows) for rows in values)])
    return np.concatenate(values)[offset[frame] + index]
