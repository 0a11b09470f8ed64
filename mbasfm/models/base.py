"""What a depth model and a matcher are: small protocols, and the values they hand over."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float32, Int64, UInt8

from mbasfm.io.images import Photo

RGB = UInt8[np.ndarray, "H W 3"]
AnyRGB = UInt8[np.ndarray, "_ _ 3"]
"""One of several images, of different sizes."""


@dataclass(frozen=True)
class DepthEstimate:
    """A depth map that spans the whole image, at whatever resolution the model has."""

    values: Float32[np.ndarray, "h w"]
    """Depth along the optical axis, or disparity; NaN where the model says nothing."""
    is_disparity: bool
    is_metric: bool
    focal_px: float | None = None
    """Of the upright original, where the model knows it (from a point map: `mbasfm.intrinsics.focal_from_points`)."""
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


@runtime_checkable
class DepthModel(Protocol):
    """Estimates depth from one photograph."""

    licence: str
    key: str
    """Name, version and options: equal keys give equal results, so it is part of the cache's key."""

    @staticmethod
    def missing() -> str:
        """What has to be installed or fetched before it can run; empty if nothing."""
        ...

    def estimate(self, photo: Photo, image: RGB) -> DepthEstimate:
        """Depth of an upright image."""
        ...


@runtime_checkable
class Matcher(Protocol):
    """Describes images one by one, then matches pairs of descriptions."""

    licence: str
    key: str

    @staticmethod
    def missing() -> str:
        """As for a depth model."""
        ...

    def describe(self, photo: Photo, image: RGB) -> Features:
        """Features of an upright image."""
        ...

    def match(self, first: Features, second: Features) -> Matches:
        """Matches of two descriptions."""
        ...


@runtime_checkable
class ImageMatcher(Protocol):
    """Matches pairs of images without features of its own: keypoints follow from what it finds in all pairs."""

    licence: str
    key: str

    @staticmethod
    def missing() -> str:
        """As for a depth model."""
        ...

    def match_images(self, first: AnyRGB, second: AnyRGB) -> PixelMatches:
        """Matches of two images; at best, pixels of the first are the same ones in all of its pairs."""
        ...
