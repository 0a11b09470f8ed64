"""Protocols of depth models and matchers. The values they return are in types."""

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
        """What has to be installed or fetched before it can run; empty if nothing."""
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
        """What has to be installed or fetched before it can run; empty if nothing."""
        ...

    def match_images(self, first: AnyRGB, second: AnyRGB) -> PixelMatches:
        """Matches of two images; ideally at the same pixels of the first in all of its pairs."""
        ...
