"""What is seen: photographs, what models find in them, verified pairs, and samples of the pose graph's edges."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Float64, Int, Int64, UInt8
from torch import Tensor

from mbasfm.types.outcome import PairChoice, Reason

RGB = UInt8[np.ndarray, "H W 3"]
AnyRGB = UInt8[np.ndarray, "_ _ 3"]
"""RGB image of any size."""
BLOCK_SAMPLES = 1 << 17
"""Samples per block: large enough to keep threads busy, small enough for the cache."""


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
    is_by_depth: bool = False
    """Whether depth has suggested the pose."""

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


@dataclass(frozen=True)
class Samples:
    """The data matrix of the paper's Sec. 3.2: K correspondences with depth on every edge."""

    edges: Int[Tensor, "E 2"]
    data: Float[Tensor, "E K 5"]
    """x_i, y_i, x_j, y_j [px] and the raw depth (or disparity) of the pixel in frame i."""
    weight: Float[Tensor, "E K"]
    """Sums to min(K, distinct matches) on each edge, so that a match drawn often does not count often."""
    anchor: Int[Tensor, "E K"] | None = None
    """Number of the pixel of frame i, the same on all edges of the frame, and ascending from frame to frame; None if
    every sample is a pixel of its own. An edge with more than K matches stands in several rows."""

    @property
    def num_edges(self) -> int:
        """Number of edges, E."""
        return self.data.shape[0]

    @property
    def samples_per_edge(self) -> int:
        """Number of samples per edge: K, the paper's kappa."""
        return self.data.shape[1]

    @property
    def dtype(self) -> torch.dtype:
        """Precision of the kernels."""
        return self.data.dtype

    @property
    def block_edges(self) -> int:
        """Number of edges processed at once."""
        return max(1, BLOCK_SAMPLES // max(1, self.samples_per_edge))

    @property
    def anchors(self) -> Int[Tensor, "E K"]:
        """Number of the pixel of frame i of each sample."""
        return torch.arange(self.weight.numel()).view(self.weight.shape) if self.anchor is None else self.anchor

    @property
    def num_anchors(self) -> int:
        """One more than the largest number of a pixel."""
        return self.weight.numel() if self.anchor is None else int(self.anchor.max()) + 1

    def rows(self, chunk: slice) -> "Samples":
        """Samples of a range of edges."""
        return Samples(self.edges[chunk], self.data[chunk], self.weight[chunk], self.anchors[chunk])

    def select(self, wanted: Bool[Tensor, " E"] | Int[Tensor, " M"]) -> "Samples":
        """Samples of the wanted edges, by mask or index."""
        anchor = None if self.anchor is None else self.anchor[wanted]
        return Samples(self.edges[wanted], self.data[wanted], self.weight[wanted], anchor)

    def edge_mass(self) -> Float[Tensor, " E"]:
        """Sum of the weights of each edge."""
        return self.weight.sum(-1).double()


@runtime_checkable
class SampleSource(Protocol):
    """Samples wherever they are stored: in memory (``Samples``) or on disk, loaded one block of edges at a time."""

    @property
    def edges(self) -> Int[Tensor, "E 2"]:
        """Frames i and j of each edge; always in memory."""

    @property
    def num_edges(self) -> int:
        """Number of edges, E."""

    @property
    def samples_per_edge(self) -> int:
        """Number of samples per edge, K."""

    @property
    def dtype(self) -> torch.dtype:
        """Precision of the kernels."""

    @property
    def block_edges(self) -> int:
        """Number of edges processed at once."""

    @property
    def num_anchors(self) -> int:
        """One more than the largest number of a pixel."""

    def rows(self, chunk: slice) -> Samples:
        """Samples of a range of edges, loaded into memory."""

    def select(self, wanted: Tensor) -> "SampleSource":
        """Samples of the wanted edges, by mask or index."""

    def edge_mass(self) -> Float[Tensor, " E"]:
        """Sum of the weights of each edge."""


@dataclass(frozen=True)
class Observations:
    """Everything that the models found in the photographs."""

    photos: tuple[Photo, ...]
    depths: list[DepthEstimate]
    keypoints: list[Keypoints]
    colors: list[UInt8[np.ndarray, "_ 3"]]
    pairs: Int64[np.ndarray, "P 2"]
    matches: list[Int64[np.ndarray, "_ 2"]]
    descriptors: dict[int, Float32[np.ndarray, "_ C"]] = field(default_factory=dict)
    """Descriptors by the first matcher, for frames with few features: each of their matches is worth looking for."""
    pairs_chosen: Reason[PairChoice] | None = None
    """Why the first matcher was given these pairs; None if they were not chosen."""
    depth_model: str = ""
    """Key of the depth model."""

    @property
    def is_disparity(self) -> Bool[torch.Tensor, " N"]:
        """Which frames have disparity instead of depth."""
        return torch.tensor([depth.is_disparity for depth in self.depths])
