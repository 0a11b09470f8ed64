"""A kind of residual with unknowns of its own: all matches from one frame are off by a common way along x.

Least squares, without any robustness: small enough to be compared with the same problem in which those unknowns stand
beside the cameras'.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mbasfm.objective.edge_block import Block, Columns, blocks, dot, gram
from mbasfm.objective.isotropic import Isotropic, IsotropicForm, isotropic, isotropic_rows
from mbasfm.objective.losses import Binning, Distribution, add_bins, distribution_from_counts
from mbasfm.objective.reference import edge_rays
from mbasfm.objective.residual_kind import NO_INTRINSICS, BlockLoss, GramSink, LossShape, StarGram, stream
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


DEPTH_COLUMNS = (6, 7)
"""Columns of log alpha and beta in the rows of an edge."""


def error_vectors(cameras: Cameras, samples: Samples) -> Float[Tensor, "E K 2"]:
    """Readable residuals without offset, all in front of the camera."""
    rays = edge_rays(cameras, samples)
    points = rays.start + rays.inverse_depth[..., None] * rays.step
    return points[..., :2] / points[..., 2:] - rays.target


@dataclass(frozen=True)
class OffsetForm:
    """Projection minus match minus the offset of the source frame."""

    can_be_per_star: ClassVar[bool] = False
    needs_depth: ClassVar[bool] = True
    statistics_types: ClassVar[tuple[type, ...]] = (OffsetStatistics,)
    samples: SampleSource
    num_frames: int
    binning: Binning
    share: Share

    @staticmethod
    def build(samples: SampleSource, num_frames: int, shape: LossShape) -> "OffsetForm":
        return OffsetForm(samples, num_frames, shape.binning, deal(blocks(samples), at_random=False))

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
        """The offsets follow the cameras at once: they are means."""
        best = self.start(cameras)
        total = torch.zeros((), dtype=torch.float64)
        counts = torch.zeros(1, self.binning.num_bins + 1, dtype=torch.float64)
        for chunk, block in stream(cameras, self.samples, NO_INTRINSICS, self.share):
            squared = self._residuals(block, chunk, best).squared
            total += 0.5 * (squared * block.weight).sum()
            add_bins(counts, self.binning.index(squared.sqrt()), block.weight)
        self.share.total(total, counts)
        return float(total), OffsetStatistics(best.offset_px, counts)

    def freeze(self, statistics: OffsetStatistics) -> FrozenOffset:
        return FrozenOffset(statistics.offset_px)

    def rescaled(self, statistics: OffsetStatistics, growth: Float[Tensor, " N"]) -> OffsetStatistics:
        """Offsets are in pixels."""
        return statistics

    def linearize(self, cameras: Cameras, frozen: FrozenOffset, columns: Columns, sink: GramSink) -> float:
        total = torch.zeros((), dtype=torch.float64)
        for chunk, block in stream(cameras, self.samples, columns, self.share):
            parts = self._residuals(block, chunk, frozen)
            total += 0.5 * (parts.squared * block.weight).sum()
            root = block.weight.sqrt()
            rows = isotropic_rows(block, parts, root)
            coupling, grams = -(rows[:, :, 0] * root[:, None]).sum(-1), gram(rows)
            for source in self.samples.edges[chunk, 0].unique():
                mine = self.samples.edges[chunk, 0] == source
                targets = self.samples.edges[chunk][mine, 1]
                matrix = star_matrix(grams[mine], coupling[mine], block.weight[mine].sum())
                sink.add_star(StarGram(int(source), targets, matrix))
        self.share.total(total)
        return float(total)

    def coupled_frames(self) -> Int[Tensor, "P 2"]:
        """All frames that are matched from the same one."""
        i, j = self.samples.edges.unbind(-1)
        stars = [torch.combinations(j[i == frame]) for frame in i.unique()]
        return torch.cat(stars)

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


def star_matrix(
    grams: Float[Tensor, "D C1 C1"], coupling: Float[Tensor, "D C1"], curvature: Float[Tensor, ""]
) -> Float[Tensor, "W W"]:
    """Normal equations of a star: its edges share the columns of depth and the residual; the offset couples all."""
    count, num_columns = grams.shape[:2]
    own = [column for column in range(num_columns - 1) if column not in DEPTH_COLUMNS]
    width = count * len(own)
    matrix, coupled = (
        torch.zeros(width + 3, width + 3, dtype=torch.float64),
        torch.zeros(width + 3, dtype=torch.float64),
    )
    for number in range(count):
        place = [number * len(own) + k for k in range(len(own))] + [width, width + 1, width + 2]
        columns = [*own, *DEPTH_COLUMNS, num_columns - 1]
        matrix[torch.tensor(place)[:, None], place] += grams[number][torch.tensor(columns)[:, None], columns]
        coupled[place] += coupling[number, columns]
    return matrix - torch.outer(coupled, coupled) / curvature
