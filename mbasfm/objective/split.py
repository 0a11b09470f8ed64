"""The residual split at the epipolar line: residual, rows, frozen losses, noise, curvature, first-order loss."""

from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mbasfm.objective.edge_block import (
    Block,
    Columns,
    blocks,
    gram,
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
    signed_loss,
)
from mbasfm.objective.reference import FIRST_NOISE, RATIO_BINNING, NoiseScale, estimate_noise, split_residuals
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
from mbasfm.objective.split_rows import split, split_rows
from mbasfm.runtime.parallel import Share, deal
from mbasfm.types.cameras import REFERENCE_LONG_SIDE, Cameras
from mbasfm.types.observations import Samples, SampleSource

ALONG_BINNING = Binning(tau_max=20.0, num_bins=100, log_scale=0.3)
"""Bins of the whitened along-residual, in units of its expected size."""


@dataclass(frozen=True)
class SplitStatistics:
    """Histograms of both parts, and of the relative depth error per frame."""

    noise: NoiseScale
    """Noise with which they were measured."""
    across: Float[Tensor, "1 T1"]
    along: Float[Tensor, "1 T2"]
    ratio: Float[Tensor, "N R"]


@dataclass(frozen=True)
class FrozenSplit:
    """Losses of both parts, fitted at the start of a step."""

    noise: NoiseScale
    next_noise: NoiseScale
    across: WeightTable
    along: WeightTable
    gate: WeightTable
    """Weight across over its peak: how far a match is trusted when it votes along."""


@dataclass(frozen=True)
class SplitForm(WithoutLatents):
    """The residual split at the epipolar line, with a distribution for each part over the graph."""

    can_be_per_star: ClassVar[bool] = False
    needs_depth: ClassVar[bool] = True
    statistics_types: ClassVar[tuple[type, ...]] = (SplitStatistics, NoiseScale)
    samples: SampleSource
    num_frames: int
    binning: Binning
    loss: str
    share: Share = field(repr=False)
    across_share: Float[Tensor, "E 1"] = field(repr=False)
    """Factor of 1/2 where the opposite edge exists: the same match must not count twice."""
    along_share: Float[Tensor, "E 1"] = field(repr=False)
    """Factor gamma: DEPTH_VOTES over the samples of the source frame, at most 1."""
    scratch: dict[int, tuple[Tensor, Tensor]] = field(repr=False)
    """Two arrays of each block, by its first edge, written by linearize and read by measure: the square of the expected
    size of along-residuals at the step's start, and their votes, small for mismatches and frames with many samples."""

    @staticmethod
    def build(samples: SampleSource, num_frames: int, shape: LossShape) -> "SplitForm":
        """Form on the given samples; one distribution per star has been refused before."""
        i, j = samples.edges.unbind(-1)
        both = torch.isin(i * num_frames + j, j * num_frames + i)
        along = (DEPTH_VOTES / source_mass(samples, num_frames).clamp_min(1e-30)).clamp_max(1)[i]
        across = torch.where(both, 0.5, 1.0)
        shares = across[:, None].to(samples.dtype), along[:, None].to(samples.dtype)
        share = deal(blocks(samples), at_random=True)
        return SplitForm(samples, num_frames, shape.binning, shape.loss, share, *shares, {})

    def start(self, cameras: Cameras) -> FrozenSplit:
        """Loss at the first cameras: one round to learn the noise, one with it."""
        common = torch.full((self.num_frames,), FIRST_NOISE[1], dtype=torch.float64)
        first = self.freeze(self.statistics(cameras, NoiseScale(FIRST_NOISE[0], common)))
        return self.freeze(self.statistics(cameras, first.next_noise))

    def statistics(self, cameras: Cameras, noise: NoiseScale) -> SplitStatistics:
        """Histograms for a given noise."""
        return self._measure(cameras, noise, None)[1]

    def measure(self, cameras: Cameras, frozen: FrozenSplit) -> tuple[float, SplitStatistics]:
        """Loss under the frozen tables and the histograms, the latter with the newest noise estimate."""
        return self._measure(cameras, frozen.next_noise, frozen)

    def _measure(
        self, cameras: Cameras, noise: NoiseScale, frozen: FrozenSplit | None
    ) -> tuple[float, SplitStatistics]:
        depth_error = noise.depth[:, None].to(self.samples.dtype)
        total = torch.zeros((), dtype=torch.float64)
        across = torch.zeros(1, self.binning.num_bins + 1, dtype=torch.float64)
        along = torch.zeros(1, ALONG_BINNING.num_bins + 1, dtype=torch.float64)
        ratio = torch.zeros(self.num_frames, RATIO_BINNING.num_bins + 1, dtype=torch.float64)
        for chunk, block in stream(cameras, self.samples, NO_INTRINSICS, self.share):
            source = self.samples.edges[chunk, 0]
            parts = split(block, noise.match_px, depth_error[source])
            size = parts.along.abs().masked_fill_(parts.prediction.behind, torch.inf)
            index = self.binning.index(parts.across.abs())
            add_bins(across, index, block.weight)
            likely = block.weight * (parts.across.abs() < 3 * noise.match_px)
            eta = ALONG_BINNING.index(size * parts.spread_squared.rsqrt())
            add_bins(along, eta, likely)
            tells = likely * (parts.slope * depth_error[source] > noise.match_px)
            add_bins(ratio, RATIO_BINNING.index(size / parts.slope), tells, source)
            if frozen is not None:
                total += self._across_loss(frozen, block, parts.across, index, chunk)
                total += self._along_loss(frozen, block, size, chunk)
        self.share.total(total, across, along, ratio)
        return float(total), SplitStatistics(noise, across, along, ratio)

    def _across_loss(self, frozen: FrozenSplit, block: Block, across: Tensor, index: Tensor, chunk: slice) -> float:
        weight = block.weight * self.across_share[chunk]
        return frozen_loss(frozen.across, None, index, None, across.square(), weight)

    def _along_loss(self, frozen: FrozenSplit, block: Block, size: Tensor, chunk: slice) -> float:
        spread_squared, vote = self.scratch[chunk.start]
        eta_squared = size.square() / spread_squared
        index = ALONG_BINNING.index(eta_squared.sqrt())
        return frozen_loss(frozen.along, None, index, None, eta_squared, block.weight * vote)

    def freeze(self, statistics: SplitStatistics) -> FrozenSplit:
        """Losses fitted to both parts; the noise estimate of these histograms is used from the next measurement on."""
        across = distribution_from_counts(self.binning, statistics.across)
        along = distribution_from_counts(ALONG_BINNING, statistics.along)
        table = fit_weights(across, self.loss, dimension=1)
        gate = replace(table, weight=table.weight / table.weight.amax().clamp_min(1e-30))
        return FrozenSplit(
            statistics.noise,
            estimate_noise(across, distribution_from_counts(RATIO_BINNING, statistics.ratio)),
            table,
            fit_weights(along, self.loss, dimension=1),
            gate,
        )

    def linearize(self, cameras: Cameras, frozen: FrozenSplit, columns: Columns, sink: GramSink) -> float:
        """Hand the Gram matrices of this process's edges to ``sink``; returns the loss of all edges.

        Stores spread and vote of each sample.
        """
        depth_error = frozen.noise.depth[:, None].to(self.samples.dtype)
        total = torch.zeros((), dtype=torch.float64)
        for chunk, block in stream(cameras, self.samples, columns, self.share):
            parts = split(block, frozen.noise.match_px, depth_error[self.samples.edges[chunk, 0]])
            index, dtype = self.binning.index(parts.across.abs()), block.raw.dtype
            across_weight = look_up(frozen.across, None, index, None, dtype)
            # A mismatch must not vote along; a wrong depth may well be a good match, so never the reverse.
            vote = look_up(frozen.gate, None, index, None, dtype) * self.along_share[chunk]
            self.scratch[chunk.start] = parts.spread_squared, vote
            size = parts.along.abs().masked_fill_(parts.prediction.behind, torch.inf)
            total += self._across_loss(frozen, block, parts.across, index, chunk)
            total += self._along_loss(frozen, block, size, chunk)
            eta = ALONG_BINNING.index(size * parts.spread_squared.rsqrt())
            along_weight = look_up(frozen.along, None, eta, None, dtype) * vote / parts.spread_squared
            root_across = (across_weight * self.across_share[chunk] * block.weight).sqrt_()
            root_along = (along_weight * block.weight).sqrt_()
            sink.add(chunk, gram(split_rows(block, parts, root_across, root_along)))
        self.share.total(total)
        return float(total)

    def distribution(self, statistics: SplitStatistics) -> Distribution:
        """The distribution of the across-part, for reports."""
        return distribution_from_counts(self.binning, statistics.across)

    def curvature(self, frozen: FrozenSplit) -> tuple[FrozenSplit, FrozenSplit]:
        """Losses whose normal equations are the positive and the negated negative curvature."""

        def of_sign(sign: float) -> FrozenSplit:
            across, along = (curvature_table(table, 1, sign) for table in (frozen.across, frozen.along))
            return replace(frozen, across=across, along=along)

        return of_sign(1.0), of_sign(-1.0)

    def squared_gradients(self, frozen: FrozenSplit) -> FrozenSplit:
        """Loss whose normal equations are the sum of squared gradients; its weights already contain the votes."""
        return replace(frozen, across=score_table(frozen.across, 1), along=score_table(frozen.along, 1))

    def first_order_loss(self, cameras: Cameras) -> BlockLoss:
        """Loss of both parts; noise, spread and votes are frozen like the distributions."""
        with torch.no_grad():
            frozen = self.start(cameras)
        mass = self.samples.edge_mass().sum()

        def block_loss(cameras: Cameras, rows: Samples, chunk: slice) -> tuple[Tensor, float]:
            parts = split_residuals(cameras, rows, frozen.noise)
            across = signed_loss(frozen.across, parts.across) * self.across_share[chunk]
            index = self.binning.index(parts.across.abs())
            gate = frozen.gate.weight.to(parts.across).flatten()[frozen.gate.slots(index)].view_as(parts.across)
            along = signed_loss(frozen.along, parts.along / parts.spread.detach()) * gate * self.along_share[chunk]
            loss = ((across + along) * (rows.weight / mass).to(parts.across)).sum()
            return loss, score_sum(parts.across.abs(), self.binning.tau_max)

        return block_loss

    @staticmethod
    def agreeing(block: Block, limit_px: float) -> Bool[Tensor, "e K"]:
        """Samples in front of the camera and within the limit of their epipolar line."""
        depth_error = torch.tensor(FIRST_NOISE[1], dtype=block.raw.dtype)
        parts = split(block, FIRST_NOISE[0], depth_error.expand(len(block.raw), 1))
        return (parts.across.abs() < limit_px) & ~parts.prediction.behind

    @staticmethod
    def chance_share(limit_px: float) -> float:
        """Share of wrong matches that come within the limit of a line across the image."""
        return 2 * limit_px / REFERENCE_LONG_SIDE
