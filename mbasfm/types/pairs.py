"""Keypoints of frames, verified pairs of frames, and the graph that pairs make."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Float32, Float64, Int, Int64
from torch import Tensor


@dataclass(frozen=True)
class Keypoints:
    """Features of one frame, with the depth map's values there."""

    pixels: Float32[np.ndarray, "M 2"]
    raw_depth: Float32[np.ndarray, " M"]
    """Depth or disparity as the model gave it; NaN where unknown."""

    def join(self, other: "Keypoints") -> "Keypoints":
        """Keypoints of both, own ones first."""
        return Keypoints(np.concatenate([self.pixels, other.pixels]), np.concatenate([self.raw_depth, other.raw_depth]))


@dataclass(frozen=True)
class TwoView:
    """A verified pair of frames i < j."""

    i: int
    j: int
    matches: Int64[np.ndarray, "M 2"]
    """Features of i and j that agree with the pose (or with the fundamental matrix)."""
    j_from_i: Float64[np.ndarray, "3 4"]
    """Translation of unit length; NaN while the focal length is unknown."""
    fundamental: Float64[np.ndarray, "3 3"]
    """x_j^T F x_i = 0 in pixels."""
    is_planar: bool
    """Whether one homography explains nearly all inliers: a plane, or a camera that only turned."""
    log10_false_alarms: float
    inlier_ratio: float
    """Share of the pair's matches that agree; where few do, the pose is often wrong however many they are."""
    covisibility: tuple[float, float]
    """Share of the frame's textured area that the other sees, for i and for j."""
    rival: Float64[np.ndarray, "3 4"] | None = None
    """Alternative to j_from_i: two poses explain the image of one plane equally well."""

    @staticmethod
    def of_matches(i: int, j: int, matches: Int64[np.ndarray, "M 2"], inlier_ratio: float = 1.0) -> "TwoView":
        """A pair of which only the matches count: no pose was estimated, and the identity stands in for it."""
        return TwoView(i, j, matches, np.eye(4)[:3], np.eye(3), False, 0.0, inlier_ratio, (1.0, 1.0))

    @property
    def num_inliers(self) -> int:
        """Number of matches that agree."""
        return len(self.matches)

    @property
    def strength(self) -> float:
        """Reliability of the pose: many inliers count little among many more outliers."""
        return self.num_inliers * self.inlier_ratio**2


@dataclass(frozen=True)
class PoseGraph:
    """Which frames see which. Both directions of a pair are edges."""

    edges: Int[Tensor, "E 2"]
    """Directed edges i -> j."""
    covisibility: Float[Tensor, " E"]
    """Share of frame i's pixels that are seen by frame j."""
