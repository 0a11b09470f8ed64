"""Aligned depth maps: exact as npz, as 16-bit images for nerfstudio, and as inverse depth for 3D Gaussian splatting."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath

import cv2
import numpy as np
from jaxtyping import Float32, UInt16

from mbasfm.errors import InputError
from mbasfm.io.arrays import read_arrays

LARGEST = 65535
STEPS = 65536
"""Divisor of the 16-bit values in 3D Gaussian splatting."""
MILLI = 1e-3
"""Default unit of nerfstudio's depth images."""
MIN_STEPS, FULL_STEPS = 200, 1000
"""Steps of the median depth: below the first, the default unit is too coarse; another unit reaches the second."""
NEAR = 0.999
"""Quantile of inverse depth that must fit into an image."""


def stems_of(names: Iterable[str]) -> dict[str, str]:
    """Names without their extension, unless that makes two the same."""
    names = list(names)
    bare = [str(PurePosixPath(name).with_suffix("")) for name in names]
    count = Counter(bare)
    return {name: name if count[stem] > 1 else stem for name, stem in zip(names, bare, strict=True)}


def write_depth(path: Path, depth: Float32[np.ndarray, "h w"]) -> None:
    """Write depth in the world's unit, NaN where unknown."""
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, depth=depth)


def read_depth(path: Path) -> Float32[np.ndarray, "h w"]:
    """Depth map that ``write_depth`` wrote."""
    depth = read_arrays(path).get("depth")
    if depth is None or depth.ndim != 2 or depth.size == 0 or depth.dtype != np.float32:
        raise InputError(f"{path}: not a depth map of this program; run mba sfm again")
    return depth


def thinned(depth: Float32[np.ndarray, "h w"], count: int) -> Float32[np.ndarray, " _"]:
    """At most ``count`` of the known values, evenly spaced."""
    known = depth[np.isfinite(depth)]
    if len(known) <= count:
        return known
    return known[np.linspace(0, len(known) - 1, count).round().astype(np.int64)]


def depth_unit(depths: Sequence[Float32[np.ndarray, "..."]]) -> float:
    """World units per step of a 16-bit image: a thousandth where suitable, else another power of ten.

    The median of all depths decides: maps of disparity end far beyond what can be seen.
    """
    known = np.concatenate([depth[np.isfinite(depth)] for depth in depths])
    middle = float(np.median(known)) if known.size else 1.0
    if MIN_STEPS * MILLI <= middle < 10 * FULL_STEPS * MILLI:
        return MILLI
    return float(f"1e{math.floor(math.log10(middle / FULL_STEPS))}")


def depth_image(depth: Float32[np.ndarray, "h w"], unit: float) -> UInt16[np.ndarray, "h w"]:
    """Depth in steps of a unit; 0 where it is unknown or does not fit."""
    steps = np.round(depth.astype(np.float64) / unit)
    return np.where((steps >= 1) & (steps <= LARGEST), steps, 0).astype(np.uint16)


def inverse_scale(depths: Sequence[Float32[np.ndarray, "..."]]) -> float:
    """Common factor of all inverse depth images: 3D Gaussian splatting distrusts images with an unusual one."""
    inverse = np.concatenate([1 / depth[np.isfinite(depth)] for depth in depths])
    return float(np.quantile(inverse, NEAR)) * STEPS / LARGEST if inverse.size else 1.0


def inverse_image(depth: Float32[np.ndarray, "h w"], scale: float) -> UInt16[np.ndarray, "h w"]:
    """Inverse depth = value / 65536 * scale; what is nearer than that allows is capped, 0 is far or unknown."""
    steps = np.round(STEPS / (scale * depth.astype(np.float64)))
    return np.where(np.isnan(steps), 0, np.clip(steps, 0, LARGEST)).astype(np.uint16)


def write_16_bit(path: Path, values: UInt16[np.ndarray, "h w"]) -> None:
    """Write a 16-bit PNG."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(cv2.imencode(".png", values)[1].tobytes())
