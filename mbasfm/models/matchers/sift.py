"""SIFT by OpenCV with mutual nearest neighbours: no weights, no GPU, sub-pixel."""

from collections.abc import Sequence
from typing import Any

import cv2
import numpy as np
from jaxtyping import Float32, UInt8

from mbasfm.models.base import Matcher
from mbasfm.models.matchers.mutual_nearest import mutual_nearest
from mbasfm.types.observations import RGB, Features, Matches, Photo

MAX_FEATURES = 8192
MAX_SIDE_PX = 3200
"""Larger images are shrunk for detection; pixels are given in the original."""
CONTRAST = 0.0067
"""COLMAP's peak threshold in OpenCV's unit: OpenCV divides by the layers of an octave."""
MIN_FEATURES, LOWER_CONTRASTS = 1500, (1.0, 0.5, 0.25)
"""Where fewer features are found, weaker ones are added: these factors on the contrast are tried in turn."""
RATIO = 0.8
OPENCV_SHIFT_PX = 0.5
"""OpenCV has the first pixel's centre at (0, 0)."""


class SiftMatcher(Matcher):
    """RootSIFT with ratio and mutual check."""

    name = "sift"
    licence = "Apache-2.0"
    key = f"sift-3-{MAX_FEATURES}-{MAX_SIDE_PX}-{CONTRAST}-{MIN_FEATURES}-{RATIO}"

    def __init__(self, argument: str = ""):
        del argument

    def describe(self, photo: Photo, image: RGB) -> Features:
        """Keypoints with RootSIFT descriptors."""
        del photo
        grey = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)
        scale = min(1.0, MAX_SIDE_PX / max(grey.shape))
        if scale < 1:
            grey = cv2.resize(grey, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
        keypoints, descriptors = _detect(grey)
        if descriptors is None:
            return Features(np.zeros((0, 2), np.float32), np.zeros((0, 128), np.float32))
        pixels = np.array([point.pt for point in keypoints], dtype=np.float32) + OPENCV_SHIFT_PX
        roots = np.sqrt(descriptors / np.maximum(descriptors.sum(1, keepdims=True), 1e-12))
        return Features(pixels / np.float32(scale), roots.astype(np.float32))

    def match(self, first: Features, second: Features) -> Matches:
        """Mutual nearest neighbours that are clearly nearer than the second nearest."""
        return mutual_nearest(first.descriptors, second.descriptors, RATIO)


def _detect(grey: UInt8[np.ndarray, "H W"]) -> tuple[Sequence[Any], Float32[np.ndarray, "M 128"] | None]:
    """OpenCV's keypoints and descriptors; without precise upscaling they would be a quarter of a pixel off."""
    for factor in LOWER_CONTRASTS:
        contrast = 3 * CONTRAST * factor
        detector = cv2.SIFT.create(nfeatures=MAX_FEATURES, contrastThreshold=contrast, enable_precise_upscale=True)
        keypoints = detector.detect(grey, None)
        if len(keypoints) >= MIN_FEATURES:
            break
    return detector.compute(grey, keypoints) if keypoints else ((), None)
