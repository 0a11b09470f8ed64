"""Photographs, and what depth models and matchers say about them."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float32, Int64, UInt8

RGB = UInt8[np.ndarray, "H W 3"]
AnyRGB = UInt8[np.ndarray, "_ _ 3"]
"""One of several images, of different sizes."""


@dataclass(frozen=True)
class Photo:
    """One usable photograph."""

    name: str
    """Path relative to the folder, with forward slashes, never leading out of it: the name in all outputs."""
    path: Path
    width: int
    """Upright [px]."""
    height: int
    exif_focal_px: float | None
    """From the metadata, None where it says nothing usable."""
    device: str
    """Maker, model and lens as the metadata name them; empty where it does not."""
    digest: str
    """SHA-256 of the file: the identity of the photograph in the cache."""
    mask: Path | None = None
    """Picture that is black where the photograph is to be ignored."""
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
    """Depth along the optical axis, or disparity; NaN where the model says nothing."""
    is_disparity: bool
    is_metric: bool
    focal_px: float | None = None
    """Of the upright original, where the model knows it (from a point map: `geometry.focal.focal_from_points`)."""
    confidence: Float32[np.ndarray, "h w"] | None = None
    """How sure the model is, in [0, 1], where it says so; comparable within one map only."""


@dataclass(frozen=True)
class Features:
    """What a matcher keeps of one image."""

    pixels: Float32[np.ndarray, "M 2"]
    """First pixel's centre at (0.5, 0.5) [px of the upright original]."""
    descriptors: Float32[np.ndarray, "M C"]
    """Unit length."""
    name: str = ""
    """Of the photograph, for matchers that look pairs up instead of comparing descriptors."""
    size: tuple[int, int] = (0, 0)
    """Width and height of the upright original [px], for matchers that need pixels relative to it; 0 is unknown."""


@dataclass(frozen=True)
class Matches:
    """Pairs of features of two images."""

    indices: Int64[np.ndarray, "M 2"]
    confidence: Float32[np.ndarray, " M"]
    """In [0, 1]."""


@dataclass(frozen=True)
class PixelMatches:
    """Pixels of two images that show the same."""

    pixels_i: Float32[np.ndarray, "M 2"]
    """First pixel's centre at (0.5, 0.5) [px of the image as it was given]."""
    pixels_j: Float32[np.ndarray, "M 2"]
    confidence: Float32[np.ndarray, " M"]
    """In [0, 1]."""
