"""The nouns of the pipeline, and the conventions everybody follows.

* ``b_from_a`` maps coordinates of frame a to frame b: ``j_from_i = j_from_world @ world_from_i``.
* Camera axes are OpenCV's: x right, y down, z forward. Poses are world-to-camera, as in COLMAP.
* (0, 0) is the image's upper left corner; the centre of the first pixel is (0.5, 0.5).
* Depth is z along the optical axis, not the length of the ray. Angles are radians; names end in ``_deg`` at the edges.
* Axis letters: N frames, E directed edges, K samples per edge, G groups, T bins.
* Cameras are float64. Samples are float32; kernels compute in the samples' precision, sums and solves in float64.

Nouns are frozen: a stage returns a new value (``dataclasses.replace``) and never changes what it was given.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

DISTORTION_NAMES = ("k1", "k2", "p1", "p2")
BLOCK_SAMPLES = 1 << 17
"""Samples per block: large enough to keep threads busy, small enough for the cache."""


@dataclass(frozen=True)
class Frames:
    """What the images are; their pixels stay on disk."""

    names: tuple[str, ...]
    """N paths, relative to the image folder."""
    sizes: Int[Tensor, "N 2"]
    """Width, height [px]."""
    group: Int[Tensor, " N"]
    """Frames with the same number were taken by the same camera."""


@dataclass(frozen=True)
class PoseGraph:
    """Who sees what. Both directions of a pair are edges."""

    edges: Int[Tensor, "E 2"]
    """i -> j."""
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

    @property
    def num_edges(self) -> int:
        """E."""
        return self.data.shape[0]

    @property
    def samples_per_edge(self) -> int:
        """K, the paper's kappa."""
        return self.data.shape[1]

    @property
    def dtype(self) -> torch.dtype:
        """In which kernels compute."""
        return self.data.dtype

    @property
    def block_edges(self) -> int:
        """Edges that are worked on at once."""
        return max(1, BLOCK_SAMPLES // max(1, self.samples_per_edge))

    def rows(self, chunk: slice) -> "Samples":
        """Some edges that follow each other."""
        return Samples(self.edges[chunk], self.data[chunk], self.weight[chunk])

    def select(self, wanted: Bool[Tensor, " E"] | Int[Tensor, " M"]) -> "Samples":
        """Some edges, by a mask or by number."""
        return Samples(self.edges[wanted], self.data[wanted], self.weight[wanted])

    def edge_mass(self) -> Float[Tensor, " E"]:
        """Sum of the weights of each edge."""
        return self.weight.sum(-1).double()


@runtime_checkable
class SampleSource(Protocol):
    """Samples wherever they are: in memory (``Samples``) or on disk; a block of edges is in memory at a time."""

    @property
    def edges(self) -> Int[Tensor, "E 2"]:
        """Always in memory."""

    @property
    def num_edges(self) -> int:
        """E."""

    @property
    def samples_per_edge(self) -> int:
        """K."""

    @property
    def dtype(self) -> torch.dtype:
        """In which kernels compute."""

    @property
    def block_edges(self) -> int:
        """Edges that are worked on at once."""

    def rows(self, chunk: slice) -> Samples:
        """Some edges that follow each other, in memory."""

    def select(self, wanted: Tensor) -> "SampleSource":
        """Some edges, by a mask or by number."""

    def edge_mass(self) -> Float[Tensor, " E"]:
        """Sum of the weights of each edge."""


@dataclass(frozen=True)
class Intrinsics:
    """Pinhole cameras with COLMAP's OPENCV distortion, or its OPENCV_FISHEYE, one row per frame."""

    focal: Float[Tensor, "N 2"]
    """fx, fy [px]. The focal unknown is one factor for both."""
    center: Float[Tensor, "N 2"]
    """cx, cy [px]."""
    distortion: Float[Tensor, "N 4"]
    """k1, k2, p1, p2 (SIMPLE_RADIAL is k1 alone) or, of a fisheye, k1, k2, k3, k4."""
    sizes: Int[Tensor, "N 2"]
    """Width, height [px]."""
    group: Int[Tensor, " N"]
    """Frames of one group share the focal factor and the radial term."""
    is_fisheye: Bool[Tensor, " N"] | None = None
    """None: no frame is."""

    @property
    def fisheye(self) -> Bool[Tensor, " N"]:
        """Which frames are fisheyes."""
        return torch.zeros(len(self.focal), dtype=torch.bool) if self.is_fisheye is None else self.is_fisheye

    @property
    def is_straight(self) -> bool:
        """Whether no lens bends anything."""
        return not bool(self.distortion.any() or self.fisheye.any())

    @staticmethod
    def pinhole(focal: Float[Tensor, " N"], sizes: Int[Tensor, "N 2"], group: Int[Tensor, " N"]) -> "Intrinsics":
        """Square pixels, principal point in the middle, no distortion."""
        focal = focal.double()
        return Intrinsics(
            focal=focal[:, None].expand(-1, 2).clone(),
            center=sizes.double() / 2,
            distortion=torch.zeros(len(focal), 4, dtype=torch.float64),
            sizes=sizes,
            group=group,
            is_fisheye=torch.zeros(len(focal), dtype=torch.bool),
        )


@dataclass(frozen=True)
class Cameras:
    """The unknowns X = (P, K, A) of the paper's Sec. 3.1, one row per frame."""

    cam_from_world: Float[Tensor, "N 3 4"]
    intrinsics: Intrinsics
    depth_scale: Float[Tensor, " N"]
    """alpha."""
    depth_shift: Float[Tensor, " N"]
    """beta."""
    is_disparity: Bool[Tensor, " N"]
    """Depth model of the frame: False, depth = alpha D + beta; True, 1 / depth = alpha d + beta."""

    @property
    def num_frames(self) -> int:
        """N."""
        return self.cam_from_world.shape[0]


@dataclass(frozen=True)
class Fixed:
    """Which unknowns of which frames must not move."""

    pose: Bool[Tensor, " N"]
    focal: Bool[Tensor, " N"]
    """A group's focal is fixed as soon as one of its frames says so."""
    radial: Bool[Tensor, " N"]
    scale: Bool[Tensor, " N"]
    shift: Bool[Tensor, " N"]

    @staticmethod
    def build(
        num_frames: int,
        *,
        pose: bool = False,
        focal: bool = False,
        radial: bool = True,
        scale: bool = False,
        shift: bool = False,
    ) -> "Fixed":
        """The same choice for every frame; by default all is free but the radial term."""
        return Fixed(*(torch.full((num_frames,), value) for value in (pose, focal, radial, scale, shift)))
