"""SIFT by OpenCV with mutual nearest neighbours: no weights, no GPU, sub-pixel."""

import cv2
import numpy as np

from mbasfm.io.images import Photo
from mbasfm.models.base import RGB, Features, Matches

MAX_FEATURES = 8192
MAX_SIDE_PX = 3200
"""Larger images are shrunk for detection; pixels are given in the original."""
CONTRAST = 0.0067
"""COLMAP's peak threshold in OpenCV's unit: OpenCV divides by the layers of an octave."""
RATIO = 0.8
OPENCV_SHIFT_PX = 0.5
"""OpenCV has the first pixel's centre at (0, 0)."""


class SiftMatcher:
    """RootSIFT with ratio and mutual check."""

    licence = "Apache-2.0"
    key = f"sift-1-{MAX_FEATURES}-{MAX_SIDE_PX}-{CONTRAST}-{RATIO}"

    def __init__(self, argument: str = ""):
        del argument

    @staticmethod
    def missing() -> str:
        """OpenCV is always there."""
        return ""

    def describe(self, photo: Photo, image: RGB) -> Features:
        """Keypoints with RootSIFT descriptors, strongest first."""
        del photo
        grey = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)
        scale = min(1.0, MAX_SIDE_PX / max(grey.shape))
        if scale < 1:
            grey = cv2.resize(grey, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
        # Without precise upscaling OpenCV's keypoints are a quarter of a pixel off.
        detector = cv2.SIFT.create(nfeatures=MAX_FEATURES, contrastThreshold=3 * CONTRAST, enable_precise_upscale=True)
        keypoints, descriptors = detector.detectAndCompute(grey, None)
        if descriptors is None:
            return Features(np.zeros((0, 2), np.float32), np.zeros((0, 128), np.float32))
        pixels = np.array([point.pt for point in keypoints], dtype=np.float32) + OPENCV_SHIFT_PX
        roots = np.sqrt(descriptors / np.maximum(descriptors.sum(1, keepdims=True), 1e-12))
        return Features(pixels / np.float32(scale), roots.astype(np.float32))

    def match(self, first: Features, second: Features) -> Matches:
        """Mutual nearest neighbours that are clearly nearer than the second nearest."""
        if min(len(first.pixels), len(second.pixels)) < 2:
            return Matches(np.zeros((0, 2), np.int64), np.zeros(0, np.float32))
        similarity = first.descriptors @ second.descriptors.T
        best = similarity.argmax(1)
        rows = np.arange(len(best))
        mutual = similarity.argmax(0)[best] == rows
        top = similarity[rows, best]
        similarity[rows, best] = -1
        distance, runner_up = (np.sqrt(np.maximum(2 - 2 * value, 0)) for value in (top, similarity.max(1)))
        keep = mutual & (distance < RATIO * runner_up)
        confidence = (1 - distance / np.maximum(runner_up, 1e-12))[keep].astype(np.float32)
        return Matches(np.stack([rows[keep], best[keep]], 1).astype(np.int64), confidence)
