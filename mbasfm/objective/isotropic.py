"""The paper's residual, the distance of projection and match: residual, rows, frozen loss, curvature,
first-order loss."""

from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mbasfm.objective.edge_block import (
    FRAME_COLUMNS,
    Block,
    Columns,
    Prediction,
    blocks,
    dot,
    empty_rows,
    fill_depth,
    fill_reprojection,
    gram,
    predict,
)
from mbasfm.objective.losses import (
    Binning,
    Distribution,
    WeightTable,
    add_bins,
    curvature_table,
    distribution_from_counts,
    fit_weights,
    score_sum,
    score_table,
    surrogate_loss,
)
from mbasfm.objective.reference import isotropic_residuals
from mbasfm.objective.residual_kind import (
    DEPTH_VOTES,
    NO_INTRINSICS,
    BlockLoss,
    GramSink,
    LossShape,
    WithoutLatents,
    frozen_loss,
    look_up,
    source_mass,
    stream,
)
from mbasfm.runtime.parallel import Share, deal
from mbasfm.types.cameras import Cameras
from mbasfm.types.observations import Samples, SampleSource


@dataclass(frozen=True)
class FrozenIsotropic:
    """The loss fitted to the residuals at the start of a step."""

    table: WeightTable
    gain: Float[Tensor, " G"]
    """Factor on each group's loss that makes the sum over stars comparable with a sum over samples."""


@dataclass(frozen=True)
class IsotropicForm(WithoutLatents):
    """The paper's residual: one distribution over the graph (fine) or one per star (coarse)."""

    can_be_per_star: ClassVar[bool] = True
    needs_depth: ClassVar[bool] = True
    statistics_types: ClassVar[tuple[type, ...]] = ()
    samples: SampleSource
    num_frames: int
    binning: Binning
    loss: str
    per_star: bool
    share: Share = field(repr=False)

    @staticmethod
    def build(samples: SampleSource, num_frames: int, shape: LossShape) -> "IsotropicForm":
        """Form whose processes share the work: whole stars, or edges at random."""
        share = deal(blocks(samples), at_random=not shape.per_star)
        return IsotropicForm(samples, num_frames, shape.binning, shape.loss, shape.per_star, share)

    @property
    def _num_groups(self) -> int:
        return self.num_frames if self.per_star else 1

    def start(self, cameras: Cameras) -> FrozenIsotropic:
        """The loss at the first cameras."""
        return self.freeze(self.measure(cameras, None)[1])

    def measure(self, cameras: Cameras, frozen: FrozenIsotropic | None) -> tuple[float, Float[Tensor, "G T1"]]:
        """Loss under the frozen tables (0 without) and the histogram of the residuals."""
        total = torch.zeros((), dtype=torch.float64)
        counts = torch.zeros(self._num_groups, self.binning.num_bins + 1, dtype=torch.float64)
        for chunk, block in stream(cameras, self.samples, NO_INTRINSICS, self.share):
            squared = isotropic(block).squared
            index, group = self.binning.index(squared.sqrt()), self._group(chunk)
            add_bins(counts, index, block.weight, group)
            if frozen is not None:
                total += frozen_loss(frozen.table, frozen.gain, index, group, squared, block.weight)
        self.share.total(total, counts)
        return float(total), counts

    def freeze(self, counts: Float[Tensor, "G T1"]) -> FrozenIsotropic:
        """Loss fitted to the histogram (coarse: |R_i| counts only residuals below tau_max)."""
        distribution = distribution_from_counts(self.binning, counts)
        gain = torch.ones(1, dtype=torch.float64)
        if self.per_star:
            inside = distribution.counts.sum(-1)
            distribution = Distribution(self.binning, distribution.counts, inside)
            occupied = inside > 0
            # eqn:coarse_ba averages over stars; times the number of samples, priors keep their meaning.
            gain = inside.sum() / (occupied.sum().clamp_min(1) * inside.clamp_min(1e-30)) * occupied
        return FrozenIsotropic(fit_weights(distribution, self.loss, dimension=2), gain)

    def linearize(self, cameras: Cameras, frozen: FrozenIsotropic, columns: Columns, sink: GramSink) -> float:
        """Hand the Gram matrices of this process's edges to ``sink``; returns the loss of all edges."""
        total = torch.zeros((), dtype=torch.float64)
        for chunk, block in stream(cameras, self.samples, columns, self.share):
            parts = isotropic(block)
            index, group = self.binning.index(parts.squared.sqrt()), self._group(chunk)
            total += frozen_loss(frozen.table, frozen.gain, index, group, parts.squared, block.weight)
            weight = look_up(frozen.table, frozen.gain, index, group, block.raw.dtype) * block.weight
            sink.add(chunk, gram(isotropic_rows(block, parts, weight.sqrt_())))
        self.share.total(total)
        return float(total)

    def distribution(self, counts: Float[Tensor, "G T1"]) -> Distribution:
        """The distribution over the whole graph, for reports."""
        return distribution_from_counts(self.binning, counts.sum(0, keepdim=True))

    def curvature(self, frozen: FrozenIsotropic) -> tuple[FrozenIsotropic, FrozenIsotropic]:
        """Losses whose normal equations are the positive and the negated negative curvature."""
        positive, negative = (replace(frozen, table=curvature_table(frozen.table, 2, sign)) for sign in (1.0, -1.0))
        return positive, negative

    def squared_gradients(self, frozen: FrozenIsotropic) -> FrozenIsotropic:
        """Loss whose normal equations are the sum of squared gradients, as if a frame had DEPTH_VOTES samples."""
        mass = source_mass(self.samples, self.num_frames)
        inflation = (mass / DEPTH_VOTES).clamp_min(1)
        inflation = inflation if self.per_star else inflation[mass > 0].mean()[None]
        return replace(frozen, table=score_table(frozen.table, 2), gain=frozen.gain.square() * inflation)

    def first_order_loss(self, cameras: Cameras) -> BlockLoss:
        """Loss of eqn:fine_forward or, per star, of eqn:coarse_ba, where every star counts the same."""
        distribution, share = self._shares(self._count(cameras))
        table = None if self.loss == "mba" else fit_weights(distribution, self.loss, dimension=2)

        def block_loss(cameras: Cameras, rows: Samples, chunk: slice) -> tuple[Tensor, float]:
            residuals, star = isotropic_residuals(cameras, rows), self._group(chunk)
            values = surrogate_loss(residuals, distribution, star) if table is None else table.loss(residuals, star)
            part = share if star is None else share[star, None]
            loss = (values * (rows.weight * part).to(residuals)).sum()
            return loss, score_sum(residuals, self.binning.tau_max)

        return block_loss

    def _count(self, cameras: Cameras) -> Float[Tensor, "G T1"]:
        """Histogram of the residuals of objective/reference.py, which the first-order loss differentiates."""
        counts = torch.zeros(self._num_groups, self.binning.num_bins + 1, dtype=torch.float64)
        with torch.no_grad():
            for chunk in self.share.blocks:
                rows = self.samples.rows(chunk)
                add_bins(
                    counts, self.binning.index(isotropic_residuals(cameras, rows)), rows.weight, self._group(chunk)
                )
        self.share.total(counts)
        return counts

    def _shares(self, counts: Float[Tensor, "G T1"]) -> tuple[Distribution, Float[Tensor, " G"]]:
        """Distribution of each group, and the weight of its samples in a mean over samples or over stars."""
        distribution = distribution_from_counts(self.binning, counts)
        if not self.per_star:
            return distribution, 1 / self.samples.edge_mass().sum()[None]
        inside = distribution.counts.sum(-1)
        share = 1 / (inside.clamp_min(1e-30) * (inside > 0).sum().clamp_min(1))
        return Distribution(self.binning, distribution.counts, inside), share

    @staticmethod
    def agreeing(block: Block, limit_px: float) -> Bool[Tensor, "e K"]:
        """Samples in front of the camera whose projection is within the limit of the match."""
        return isotropic(block).squared < limit_px**2

    @staticmethod
    def chance_share(limit_px: float) -> float:
        """Zero: hardly any wrong match comes near a point by chance."""
        return 0.0

    def _group(self, chunk: slice) -> Int[Tensor, " e"] | None:
        return self.samples.edges[chunk, 0] if self.per_star else None


@dataclass(frozen=True)
class Isotropic:
    """Residual vectors of a block."""

    prediction: Prediction
    error: Float[Tensor, "e 2 K"]
    squared: Float[Tensor, "e K"]
    """Squared length; infinite behind the camera."""


def isotropic(block: Block) -> Isotropic:
    """Residual vectors of eqn:residual_2d for a block."""
    prediction = predict(block)
    error = prediction.pixel - block.target
    return Isotropic(prediction, error, dot(error, error).masked_fill_(prediction.behind, torch.inf))


def isotropic_rows(block: Block, parts: Isotropic, root_weight: Float[Tensor, "e K"]) -> Float[Tensor, "e C1 2 K"]:
    """Both components of the residual vectors with their derivatives, scaled by the root of the weight."""
    prediction, step, root = parts.prediction, block.step, root_weight[:, None]
    rows = empty_rows(block)
    place = prediction.inverse_z, prediction.rho * prediction.inverse_z
    fill_reprojection(rows, block, prediction.pixel, place, root_weight, FRAME_COLUMNS)
    by_rho = step[:, :2] - prediction.pixel * step[:, 2:]
    fill_depth(rows, by_rho.mul_(prediction.inverse_z[:, None]).mul_(root), prediction)
    torch.mul(parts.error, root, out=rows[:, -1])
    return rows
