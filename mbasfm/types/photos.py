"""Photographs, and what depth models and matchers find in them."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float32, Int64, UInt8

RGB = UInt8[np.ndarray, "H W 3"]
AnyRGB = UInt8[np.ndarray, "_ _ 3"]
"""RGB image of any size."""


@dataclass(frozen=True)
class Photo:
    """One usable photograph."""

    name: str
    """Path relative to the folder, with forward slashes, never leading out of it: the name in all outputs."""
    path: Path
    width: int
    """Width of the upright image [px]."""
    height: int
    exif_focal_px: float | None
    """Focal length from the metadata [px]; None if they give no usable one."""
    device: str
    """Maker, model and lens according to the metadata; empty if unknown."""
    digest: str
    """SHA-256 of the file: the identity of the photograph in the cache."""
    mask: Path | None = None
    """Image that is black where the photograph is to be ignored."""
    gps: tuple[float, float, float | None] | None = None
    """Latitude, longitude [deg] and altitude [m] from the metadata."""


@dataclass(frozen=True)
class SkippedFile:
    """A file that was left out, and why."""

    name: str
    reason: str


@dataclass(frozen=True)
class DepthEstimate:
    """A depth map that spans the whole image, at whatever resolution the model has."""

    values: Float32[np.ndarray, "h w"]
    """Depth along the optical axis, or disparity; NaN where unknown."""
    is_disparity: bool
    is_metric: bool
    focal_px: float | None = None
    """Focal length of the upright original, if known to the model (from points: `geometry.focal.focal_from_points`)."""
    confidence: Float32[np.ndarray, "h w"] | None = None
    """Confidence in [0, 1], if the model gives one; comparable within one map only."""


@dataclass(frozen=True)
class Features:
    """What a matcher keeps of one image."""

    pixels: Float32[np.ndarray, "M 2"]
    """Positions [px of the upright original]; the centre of the first pixel is (0.5, 0.5)."""
    descriptors: Float32[np.ndarray, "M C"]
    """Descriptors of unit length."""
    name: str = ""
    """Name of the photograph, for matchers that look pairs up instead of comparing descriptors."""
    size: tuple[int, int] = (0, 0)
    """Width and height of the upright original [px], for matchers that need relative positions; 0 if unknown."""


@dataclass(frozen=True)
class Matches:
    """Pairs of features of two images."""

    indices: Int64[np.ndarray, "M 2"]
    confidence: Float32[np.ndarray, " M"]
    """Confidence of each match, in [0, 1]."""


@dataclass(frozen=True)
class PixelMatches:
    """Matching pixels of two images."""

    pixels_i: Float32[np.ndarray, "M 2"]
    """Positions [px of the image as given]; the centre of the first pixel is (0.5, 0.5)."""
    pixels_j: Float32[np.ndarray, "M 2"]
    confidence: Float32[np.ndarray, " M"]
    """Confidence of each match, in [0, 1]."""
