"""Protocols of depth models and matchers: what each must and may have. The values they return are in types.

Derive from one of them: what is not required has a default here.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from mbasfm.types.photos import RGB, AnyRGB, DepthEstimate, Features, Matches, Photo, PixelMatches

__all__ = [
    "AnyRGB",
    "DepthEstimate",
    "DepthModel",
    "Features",
    "ImageMatcher",
    "Matcher",
    "Matches",
    "PixelMatches",
    "RGB",
]
"""The values too: adapters of other packages import all of it from here."""


@runtime_checkable
class Model(Protocol):
    """What depth models and matchers have in common."""

    name: str
    licence: str
    key: str
    """Name, version and options: equal keys give equal results, so it is part of the cache's key."""
    download: str = ""
    """Size of the weights; empty if there are none to get."""
    memory: str = ""
    """What it needs on the CPU, where that matters."""
    cpu_seconds: float = 0.0
    """Seconds for one photograph, or for one pair, on two CPU cores; 0 if that is little, or on a GPU."""

    looks_at_images: bool = True
    """False if results are read from files, and so do not change with the image that is given."""

    @classmethod
    def missing(cls) -> str:
        """What has to be installed or fetched before it can run; empty if nothing."""
        return ""


@runtime_checkable
class DepthModel(Model, Protocol):
    """Estimates depth from one photograph."""

    batch_size: int = 1
    """Number of photographs that are best estimated together."""

    @abstractmethod
    def estimate(self, photo: Photo, image: RGB) -> DepthEstimate:
        """Depth of an upright image."""

    def estimate_batch(self, photos: Sequence[Photo], images: Sequence[AnyRGB]) -> list[DepthEstimate]:
        """Depth of several upright images."""
        return [self.estimate(photo, image) for photo, image in zip(photos, images, strict=True)]

    def content_of(self, photo: Photo) -> str:
        """What the depth of a photograph depends on besides the key and its pixels, as text for the cache's key."""
        del photo
        return ""


@runtime_checkable
class Matcher(Model, Protocol):
    """Describes images one by one, then matches pairs of descriptions."""

    @abstractmethod
    def describe(self, photo: Photo, image: RGB) -> Features:
        """Features of an upright image."""

    @abstractmethod
    def match(self, first: Features, second: Features) -> Matches:
        """Matches of two descriptions."""

    def pairs(self) -> list[tuple[str, str]] | None:
        """Names of the photographs of all pairs that it can match; None if it can match any."""
        return None


@runtime_checkable
class ImageMatcher(Model, Protocol):
    """Matches pairs of images without features of its own: keypoints follow from what it finds in all pairs."""

    @abstractmethod
    def match_images(self, first: AnyRGB, second: AnyRGB) -> PixelMatches:
        """Matches of two images; ideally at the same pixels of the first in all of its pairs."""
