"""The two residual forms as the second-order solver sees them: statistics, frozen loss, linearisation.

A form measures residuals (histograms, and the loss under what was frozen before), freezes the loss that those
histograms define, and linearises it. All three stream over blocks of edges.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mbasfm.distributed import Share, deal
from mbasfm.kernels import (
    Block,
    Columns,
    blocks,
    isotropic,
    load_block,
    split,
)
from mbasfm.objective import (
    Binning,
    Distribution,
    WeightTable,
    add_bins,
    distribution_from_counts,
    fit_weights,
    robust_sigma,
)
from mbasfm.residuals import NoiseScale
from mbasfm.rows import gram, isotropic_rows, split_rows
from mbasfm.types import Cameras, SampleSource

NO_INTRINSICS = Columns(focal=False, radial=False)
ALONG_BINNING = Binning(tau_max=20.0, num_bins=100, log_scale=0.3)
"""Of the whitened along-residual, in units of its expected size."""
RATIO_BINNING = Binning(tau_max=2.0, num_bins=80, log_scale=0.01)
"""Of |along| / slope: the relative depth error of a sample."""
FIRST_NOISE = (1.0, 0.1)
"""Match [px] and relative depth error assumed before anything was measured."""
DEPTH_ERROR_RANGE = (0.01, 0.5)
MATCH_ERROR_RANGE_PX = (0.05, 10.0)
SHRINKAGE_SAMPLES = 20.0
"""A frame's own depth error counts like the common one when it rests on so many samples."""
DEPTH_VOTES = 8.0
"""Depth errors of one frame are correlated: all its along-residuals together weigh like so many independent ones.

Chosen on made-up scenes, checked on others (benchmarks/covariance.py): 8 and 20 give better poses than 64, and only
with 8 the covariance holds the truth about as often as it says."""

GramSink = Callable[[slice, Float[Tensor, "e C1 C1"]], None]


@dataclass(frozen=True)
class FrozenIsotropic:
    """The loss fitted to the residuals at the start of a step."""

    table: WeightTable
    gain: Float[Tensor, " G"]
    """Factor of each group's loss: makes the sum over stars comparable with a sum over samples."""


@dataclass(frozen=True)
class IsotropicForm:
    """The paper's residual: one distribution over the graph (fine) or one per star (coarse)."""

    samples: SampleSource
    num_frames: int
    binning: Binning
    loss: str
    per_star: bool
    share: Share = field(repr=False)

    @staticmethod
    def build(samples: SampleSource, num_frames: int, binning: Binning, loss: str, per_star: bool) -> "IsotropicForm":
        """Processes share the work: whole stars, or edges at random."""
        share = deal(blocks(samples), at_random=not per_star)
        return IsotropicForm(samples, num_frames, binning, loss, per_star, share)

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
        """Fit the loss to the histogram (coarse: |R_i| counts only residuals below tau_max)."""
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
            sink(chunk, gram(isotropic_rows(block, parts, weight.sqrt_())))
        self.share.total(total)
        return float(total)

    def distribution(self, counts: Float[Tensor, "G T1"]) -> Distribution:
        """The distribution over the whole graph, for reports."""
        return distribution_from_counts(self.binning, counts.sum(0, keepdim=True))

    def _group(self, chunk: slice) -> Int[Tensor, " e"] | None:
        return self.samples.edges[chunk, 0] if self.per_star else None


@dataclass(frozen=True)
class SplitStatistics:
    """Histograms of both parts, and of the relative depth error per frame."""

    noise: NoiseScale
    """With which they were measured."""
    across: Float[Tensor, "1 T1"]
    along: Float[Tensor, "1 T2"]
    ratio: Float[Tensor, "N R"]


@dataclass(frozen=True)
class FrozenSplit:
    """Both losses as fitted at the start of a step."""

    noise: NoiseScale
    next_noise: NoiseScale
    across: WeightTable
    along: WeightTable
    gate: WeightTable
    """Weight across over its peak: how much a match is believed when it votes along."""


@dataclass(frozen=True)
class SplitForm:
    """The residual split at the epipolar line, with a distribution for each part over the graph."""

    samples: SampleSource
    num_frames: int
    binning: Binning
    loss: str
    share: Share = field(repr=False)
    across_share: Float[Tensor, "E 1"] = field(repr=False)
    """1/2 where the opposite edge exists: the same match must not count twice."""
    along_share: Float[Tensor, "E 1"] = field(repr=False)
    """gamma: DEPTH_VOTES over the samples of the source frame, at most 1."""
    scratch: dict[int, tuple[Tensor, Tensor]] = field(repr=False)
    """Of each block, by its first edge, written by linearize and read by measure: the square of the expected size of
    along-residuals at the step's start, and their votes, small for mismatches and for frames with many samples."""

    @staticmethod
    def build(samples: SampleSource, num_frames: int, binning: Binning, loss: str) -> "SplitForm":
        """Count directions and samples of each frame."""
        i, j = samples.edges.unbind(-1)
        both = torch.isin(i * num_frames + j, j * num_frames + i)
        along = (DEPTH_VOTES / source_mass(samples, num_frames).clamp_min(1e-30)).clamp_max(1)[i]
        across = torch.where(both, 0.5, 1.0)
        shares = across[:, None].to(samples.dtype), along[:, None].to(samples.dtype)
        share = deal(blocks(samples), at_random=True)
        return SplitForm(samples, num_frames, binning, loss, share, *shares, {})

    def start(self, cameras: Cameras) -> FrozenSplit:
        """The loss at the first cameras: one round to learn the noise, one with it."""
        common = torch.full((self.num_frames,), FIRST_NOISE[1], dtype=torch.float64)
        first = self.freeze(self.statistics(cameras, NoiseScale(FIRST_NOISE[0], common)))
        return self.freeze(self.statistics(cameras, first.next_noise))

    def statistics(self, cameras: Cameras, noise: NoiseScale) -> SplitStatistics:
        """Histograms, with a given noise."""
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
        """Fit both losses; the noise estimate of these histograms is used from the next measurement on."""
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

        Notes spread and vote of each sample.
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
            sink(chunk, gram(split_rows(block, parts, root_across, root_along)))
        self.share.total(total)
        return float(total)

    def distribution(self, statistics: SplitStatistics) -> Distribution:
        """The distribution of the across-part, for reports."""
        return distribution_from_counts(self.binning, statistics.across)


@runtime_checkable
class Form(Protocol):
    """What the solver needs of a form; statistics and frozen losses are the form's own business."""

    @property
    def share(self) -> Share:
        """Which blocks of edges this process computes."""

    def start(self, cameras: Cameras) -> Any:
        """The frozen loss at the first cameras."""

    def measure(self, cameras: Cameras, frozen: Any) -> tuple[float, Any]:
        """Loss under what is frozen, and the statistics of the residuals."""

    def freeze(self, statistics: Any) -> Any:
        """The loss that statistics define."""

    def linearize(self, cameras: Cameras, frozen: Any, columns: Columns, sink: GramSink) -> float:
        """Gram matrices of this process's edges into ``sink``; returns the loss of all."""
        ...

    def distribution(self, statistics: Any) -> Distribution:
        """The residual distribution over the whole graph."""
        ...


def source_mass(samples: SampleSource, num_frames: int) -> Float[Tensor, " N"]:
    """Mass of the samples that each frame is the source of."""
    mass = torch.zeros(num_frames, dtype=torch.float64)
    return mass.index_add_(0, samples.edges[:, 0], samples.edge_mass())


def stream(
    cameras: Cameras, samples: SampleSource, columns: Columns, share: Share | None = None
) -> Iterator[tuple[slice, Block]]:
    """Blocks of edges, all or this process's share, in their fixed order, so that sums are reproducible."""
    for chunk in blocks(samples) if share is None else share.blocks:
        yield chunk, load_block(cameras, samples.rows(chunk), columns)


def look_up(
    table: WeightTable,
    gain: Tensor | None,
    index: Int[Tensor, "e K"],
    group: Int[Tensor, " e"] | None,
    dtype: torch.dtype,
) -> Float[Tensor, "e K"]:
    """Weight of each residual from its bin."""
    table, gain, group = _present(table, gain, group)
    weight = table.weight if gain is None else table.weight * gain[:, None]
    return weight.to(dtype).view(-1).index_select(0, table.slots(index, group)).view(index.shape)


def _present(
    table: WeightTable, gain: Tensor | None, group: Int[Tensor, " e"] | None
) -> tuple[WeightTable, Tensor | None, Int[Tensor, " e"] | None]:
    """Of many groups those that occur in a block, numbered anew: its cost must not depend on all others."""
    if group is None:
        return table, gain, None
    present, number = group.unique(return_inverse=True)
    few = replace(table, weight=table.weight[present], offset=table.offset[present])
    return few, None if gain is None else gain[present], number


def frozen_loss(
    table: WeightTable,
    gain: Tensor | None,
    index: Int[Tensor, "e K"],
    group: Int[Tensor, " e"] | None,
    squared: Float[Tensor, "e K"],
    weight: Float[Tensor, "e K"],
) -> float:
    """Weighted sum of the frozen, saturating loss."""
    table, gain, group = _present(table, gain, group)
    slots = table.slots(index, group)
    factor, offset = 0.5 * table.weight, table.offset
    if gain is not None:
        factor, offset = factor * gain[:, None], offset * gain[:, None]
    dtype = squared.dtype
    bounded = squared.clamp_max(table.binning.tau_max**2)  # beyond it the factor is 0, and 0 * inf is NaN
    curve = factor.to(dtype).view(-1).index_select(0, slots).view(index.shape)
    level = offset.to(dtype).view(-1).index_select(0, slots).view(index.shape)
    return float((torch.addcmul(level, curve, bounded) * weight).sum(dtype=torch.float64))


def estimate_noise(across: Distribution, ratio: Distribution) -> NoiseScale:
    """Match noise from the across-part; depth noise per frame, shrunk to the common one where samples are few."""
    match_px = float(robust_sigma(across, dimension=1)[0].clamp(*MATCH_ERROR_RANGE_PX))
    pooled = Distribution(ratio.binning, ratio.counts.sum(0, keepdim=True), ratio.total.sum(0, keepdim=True))
    if float(pooled.total[0]) < 1:
        return NoiseScale(match_px, torch.full((len(ratio.total),), 0.1, dtype=torch.float64))
    common, own = robust_sigma(pooled, dimension=1), robust_sigma(ratio, dimension=1)
    trust = ratio.total / (ratio.total + SHRINKAGE_SAMPLES)
    return NoiseScale(match_px, torch.exp(torch.lerp(common.log(), own.log(), trust)).clamp(*DEPTH_ERROR_RANGE))
