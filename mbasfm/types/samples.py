"""Samples of the pose graph's edges, in memory or on disk."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

BLOCK_SAMPLES = 1 << 17
"""Samples per block: large enough to keep threads busy, small enough for the cache."""


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
