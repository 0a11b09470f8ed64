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
