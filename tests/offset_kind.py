"""A kind of residual with unknowns of its own: all matches from one frame are off by a common way along x.

Least squares, without any robustness: small enough to be compared with the same problem in which those unknowns stand
beside the cameras'.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mbasfm.objective.distribution import Binning, Distribution, add_bins, distribution_from_counts
from mbasfm.objective.edge_block import Block, Columns, blocks, dot, gram
from mbasfm.objective.isotropic import Isotropic, IsotropicForm, isotropic, isotropic_rows
from mbasfm.objective.reference import edge_rays
from mbasfm.objective.residual_kind import NO_INTRINSICS, BlockLoss, CrossGram, EdgeStep, GramSink, stream
from mbasfm.runtime.parallel import Share, deal
from mbasfm.types.cameras import Cameras
from mbasfm.types.observations import Samples, SampleSource


@dataclass(frozen=True)
class FrozenOffset:
    """The loss is always the same; only the offsets change."""

    offset_px: Float[Tensor, " N"]


@dataclass(frozen=True)
class OffsetStatistics:
    """Offsets and the histogram of what they leave over."""

    offset_px: Float[Tensor, " N"]
    counts: Float[Tensor, "1 T1"]


@dataclass(frozen=True)
class Eliminated:
    """The rows of the offsets in the normal equations."""

    coupling: Float[Tensor, "E C"]
    """With the columns of each edge of the frame."""
    gradient: Float[Tensor, " N"]
    curvature: Float[Tensor, " N"]


def error_vectors(cameras: Cameras, samples: Samples) -> Float[Tensor, "E K 2"]:
    """Readable residuals without offset, all in front of the camera."""
    rays = edge_rays(cameras, samples)
    points = rays.start + rays.inverse_depth[..., None] * rays.step
    return points[..., :2] / points[..., 2:] - rays.target


@dataclass(frozen=True)
class OffsetForm:
    """Projection minus match minus the offset of the source frame."""

    can_be_per_star: ClassVar[bool] = False
    statistics_types: ClassVar[tuple[type, ...]] = (OffsetStatistics,)
    samples: SampleSource
    num_frames: int
    binning: Binning
    share: Share

    @staticmethod
    def build(samples: SampleSource, num_frames: int, binning: Binning, loss: str, per_star: bool) -> "OffsetForm":
        return OffsetForm(samples, num_frames, binning, deal(blocks(samples), at_random=False))

    def start(self, cameras: Cameras) -> FrozenOffset:
        """The best offsets at these cameras: means."""
        total, mass = torch.zeros(2, self.num_frames, dtype=torch.float64)
        for chunk, block in stream(cameras, self.samples, NO_INTRINSICS, self.share):
            source = self.samples.edges[chunk, 0]
            total.index_add_(0, source, (isotropic(block).error[:, 0] * block.weight).sum(-1))
            mass.index_add_(0, source, block.weight.sum(-1))
        self.share.total(total, mass)
        return FrozenOffset(total / mass.clamp_min(1e-30))

    def measure(self, cameras: Cameras, frozen: FrozenOffset) -> tuple[float, OffsetStatistics]:
        total = torch.zeros((), dtype=torch.float64)
        counts = torch.zeros(1, self.binning.num_bins + 1, dtype=torch.float64)
        for chunk, block in stream(cameras, self.samples, NO_INTRINSICS, self.share):
            squared = self._residuals(block, chunk, frozen).squared
            total += 0.5 * (squared * block.weight).sum()
            add_bins(counts, self.binning.index(squared.sqrt()), block.weight)
        self.share.total(total, counts)
        return float(total), OffsetStatistics(frozen.offset_px, counts)

    def freeze(self, statistics: OffsetStatistics) -> FrozenOffset:
        return FrozenOffset(statistics.offset_px)

    def linearize(
        self, cameras: Cameras, frozen: FrozenOffset, columns: Columns, sink: GramSink
    ) -> tuple[float, Eliminated]:
        total = torch.zeros((), dtype=torch.float64)
        coupling = torch.zeros(self.samples.num_edges, columns.total + 1, dtype=torch.float64)
        curvature = torch.zeros(self.num_frames, dtype=torch.float64)
        for chunk, block in stream(cameras, self.samples, columns, self.share):
            source, parts = self.samples.edges[chunk, 0], self._residuals(block, chunk, frozen)
            total += 0.5 * (parts.squared * block.weight).sum()
            root = block.weight.sqrt()
            rows = isotropic_rows(block, parts, root)
            coupling[chunk] = -(rows[:, :, 0] * root[:, None]).sum(-1)
            curvature.index_add_(0, source, block.weight.sum(-1))
            whitened = coupling[chunk] * curvature[source].rsqrt()[:, None]
            sink(chunk, gram(rows) - whitened[:, :, None] * whitened[:, None], cross_gram(source, whitened, chunk))
        self.share.total(total, coupling, curvature)
        gradient = torch.zeros_like(curvature).index_add_(0, self.samples.edges[:, 0], coupling[:, -1])
        return float(total), Eliminated(coupling[:, :-1], gradient, curvature)

    def coupled_frames(self) -> Int[Tensor, "P 2"]:
        """All frames that are matched from the same one."""
        i, j = self.samples.edges.unbind(-1)
        stars = [torch.combinations(j[i == frame]) for frame in i.unique()]
        return torch.cat(stars)

    def back_substitute(self, frozen: FrozenOffset, eliminated: Eliminated, step: EdgeStep) -> FrozenOffset:
        """Minimise the joint quadratic over the offsets, given the step."""
        gradient = torch.zeros_like(frozen.offset_px)
        for chunk in blocks(self.samples):
            moved = (eliminated.coupling[chunk] * step(chunk)).sum(-1)
            gradient.index_add_(0, self.samples.edges[chunk, 0], moved)
        way = (eliminated.gradient + gradient) / eliminated.curvature.clamp_min(1e-30)
        return FrozenOffset(frozen.offset_px - way)

    def distribution(self, statistics: OffsetStatistics) -> Distribution:
        return distribution_from_counts(self.binning, statistics.counts)

    def curvature(self, frozen: FrozenOffset) -> tuple[FrozenOffset, None]:
        return frozen, None

    def squared_gradients(self, frozen: FrozenOffset) -> FrozenOffset:
        """Of noise with a standard deviation of one pixel."""
        return frozen

    def first_order_loss(self, cameras: Cameras) -> BlockLoss:
        """With the best offsets held: the gradient of the minimum over offsets is the gradient at the minimum."""
        with torch.no_grad():
            offset_px = self.start(cameras).offset_px
        mass = self.samples.edge_mass().sum()

        def block_loss(cameras: Cameras, rows: Samples, chunk: slice) -> tuple[Tensor, float]:
            error = error_vectors(cameras, rows)
            error = error - torch.stack([offset_px, torch.zeros_like(offset_px)], -1)[rows.edges[:, :1]]
            return 0.5 * (error.square().sum(-1) * rows.weight / mass).sum(), 0.0

        return block_loss

    @staticmethod
    def agreeing(block: Block, limit_px: float) -> Bool[Tensor, "e K"]:
        return IsotropicForm.agreeing(block, limit_px)

    @staticmethod
    def chance_share(limit_px: float) -> float:
        return 0.0

    def _residuals(self, block: Block, chunk: slice, frozen: FrozenOffset) -> Isotropic:
        parts = isotropic(block)
        error = parts.error.clone()
        error[:, 0] -= frozen.offset_px[self.samples.edges[chunk, :1]]
        return replace(parts, error=error, squared=dot(error, error))


def cross_gram(source: Int[Tensor, " e"], whitened: Float[Tensor, "e C1"], chunk: slice) -> CrossGram:
    """What the offset of a frame leaves between its edges."""
    first, second = torch.nonzero(torch.triu(source[:, None] == source, 1)).unbind(-1)
    between = -whitened[first][:, :, None] * whitened[second][:, None]
    return CrossGram(first + chunk.start, second + chunk.start, between)
