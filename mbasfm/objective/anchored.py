"""The anchored residual: every pixel that was matched has one inverse depth, seen by all frames it was matched to.

An anchor is a pixel of a source frame. Its inverse depth is unknown; the depth map is a prior on it, with a measured
spread and a measured number of votes. It is eliminated from the normal equations in closed form: that is
marginalisation over depth, as the histogram of residuals is over thresholds.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mbasfm.errors import ConfigError, InputError
from mbasfm.objective.anchor_block import (
    AnchorBlock,
    Prior,
    Sight,
    anchor_block,
    factor,
    first_latents,
    latent_system,
    look,
    loss_of,
    nearest,
    refine,
    solve,
    weights_of,
)
from mbasfm.objective.anchor_stars import Star, anchor_rows, reduced_gram, score_gram
from mbasfm.objective.depth_prior import (
    FIRST_SPREAD,
    NEAREST_FAR,
    DepthErrors,
    DepthTrust,
    cells_of,
    inverse_depth_of,
    typical_of,
    usual_of,
    weigh_depth,
)
from mbasfm.objective.edge_block import Block, Columns, blocks, load_block
from mbasfm.objective.losses import (
    Binning,
    Distribution,
    WeightTable,
    add_bins,
    distribution_from_counts,
    fit_weights,
    table_from_weights,
)
from mbasfm.objective.residual_kind import NO_INTRINSICS, Anchoring, BlockLoss, GramSink, LossShape, StarGram
from mbasfm.runtime.parallel import Share, deal
from mbasfm.types.cameras import REFERENCE_LONG_SIDE, Cameras
from mbasfm.types.observations import SampleSource

FIRST_SCALE_PX = 2.0
"""Scale of the Cauchy weights by which the first inverse depths are found."""
FIRST_DEPTH_WEIGHT = 1e-2
"""Weight of relative depth errors then: just enough to hold what matches do not tell."""
FIRST_STEPS, REFINING_STEPS = 8, 2
"""Newton steps on the latent unknowns at the start, and after each step of the cameras."""


@dataclass(frozen=True)
class AnchoredStatistics:
    """Histogram of the residuals, latent unknowns, and what matches alone say about depth."""

    counts: Float[Tensor, "1 T1"]
    latent: Float[Tensor, "L A"]
    """Inverse depth and, where the pixel is free, its offset."""
    error: Float[Tensor, " A"]
    variance: Float[Tensor, " A"]
    unit: Float[Tensor, " A"]
    frozen_unit: Float[Tensor, " A"]
    """Inverse depth that a relative error of 1 means, now and in the loss that was frozen last."""
    trust: DepthTrust
    """How far depth was believed."""
    round: int
    """How often the loss was frozen before."""


@dataclass(frozen=True)
class FrozenAnchored:
    """Loss fitted to the residuals, and how far depth is believed."""

    table: WeightTable
    latent: Float[Tensor, "L A"]
    unit: Float[Tensor, " A"]
    trust: DepthTrust
    round: int = 0


@dataclass(frozen=True)
class TrackScores:
    """Stands for the loss whose normal equations are the sum of squared gradients of tracks."""

    of: FrozenAnchored


@dataclass(frozen=True)
class AnchoredForm:
    """Reprojection of anchors, with one distribution over the graph."""

    can_be_per_star: ClassVar[bool] = False
    needs_depth: ClassVar[bool] = False
    statistics_types: ClassVar[tuple[type, ...]] = (AnchoredStatistics, DepthTrust)
    samples: SampleSource
    num_frames: int
    binning: Binning
    loss: str
    anchoring: Anchoring
    share: Share = field(repr=False)
    frame: Int[Tensor, " A"] = field(repr=False)
    pixel: Float[Tensor, "A 2"] = field(repr=False)
    raw: Float[Tensor, " A"] = field(repr=False)
    """Source frame, pixel and raw depth of every anchor."""
    typical_raw: Float[Tensor, " N"] = field(repr=False)

    @staticmethod
    def build(samples: SampleSource, num_frames: int, shape: LossShape) -> "AnchoredForm":
        """Form on the given samples; processes share whole stars."""
        samples = _by_source(samples)
        share = deal(blocks(samples), at_random=False)
        count = samples.num_anchors
        frame = torch.zeros(count, dtype=torch.long)
        pixel, raw = torch.zeros(count, 2, dtype=samples.dtype), torch.zeros(count, dtype=samples.dtype)
        for chunk in share.blocks:
            rows = samples.rows(chunk)
            seen = rows.weight.reshape(-1) > 0
            number = rows.anchors.reshape(-1)[seen]
            frame[number] = 1 + rows.edges[:, :1].expand_as(rows.anchors).reshape(-1)[seen]
            data = rows.data.reshape(-1, 5)[seen]
            pixel[number], raw[number] = data[:, :2], data[:, 4]
        share.total(frame, pixel, raw)
        # Numbers that nothing observes any more, because edges were left out, belong to the frame before.
        raw, frame = raw.masked_fill(frame == 0, torch.nan), _ascending(frame).clamp_min(1) - 1
        how = shape.binning, shape.loss, shape.anchoring
        typical = typical_of(frame, raw, num_frames)
        return AnchoredForm(samples, num_frames, *how, share, frame, pixel, raw, typical)

    @property
    def num_latents(self) -> int:
        """Number of unknowns of an anchor."""
        return 3 if self.anchoring.free_pixel else 1

    # ------------------------------------------------------------------------------------------------------------
    # Loss

    def start(self, cameras: Cameras) -> FrozenAnchored:
        """Loss at the first cameras: inverse depths that fit matches or the depth map, whichever is better."""
        weight = 1 / (1 + (self.binning.centers() / FIRST_SCALE_PX).square())
        table = table_from_weights(self.binning, weight[None])
        latent = torch.zeros(self.num_latents, len(self.frame), dtype=torch.float64)
        nothing, unit = torch.zeros(len(self.frame), dtype=torch.float64), self._unit(cameras)
        for _, some, anchors in self._stream(cameras, NO_INTRINSICS):
            prior = self._prior(cameras, nothing + FIRST_DEPTH_WEIGHT, unit, some)
            latent[:, some] = first_latents(anchors, prior, table, FIRST_STEPS).double()
        self.share.total(latent)
        blind = DepthTrust(torch.full((self.num_frames,), FIRST_SPREAD, dtype=torch.float64), 1.0, nothing)
        first = self.measure(cameras, FrozenAnchored(table, latent, unit, blind))[1]
        second = self.measure(cameras, self.freeze(first))[1]
        return self.freeze(replace(second, round=0))

    def measure(self, cameras: Cameras, frozen: FrozenAnchored) -> tuple[float, AnchoredStatistics]:
        """Loss under what is frozen, after the latent unknowns have followed the cameras, and the statistics."""
        total = torch.zeros((), dtype=torch.float64)
        counts = torch.zeros(1, self.binning.num_bins + 1, dtype=torch.float64)
        latent = torch.zeros_like(frozen.latent)
        error, variance = torch.zeros(2, len(self.frame), dtype=torch.float64)
        for _, some, anchors in self._stream(cameras, NO_INTRINSICS):
            prior = self._prior(cameras, frozen.trust.weight, frozen.unit, some)
            before = frozen.latent[:, some].to(self.samples.dtype)
            after, sight = refine(anchors, before, prior, frozen.table, REFINING_STEPS)
            total += self._loss(anchors, sight, frozen.table) + prior.loss(after[0])
            self._count(counts, anchors, sight)
            latent[:, some] = after.double()
            error[some], variance[some] = self._depth_errors(anchors, sight, after, prior, frozen.table)
        self.share.total(total, counts, latent, error, variance)
        return float(total), AnchoredStatistics(
            counts, latent, error, variance, self._unit(cameras), frozen.unit, frozen.trust, frozen.round
        )

    def freeze(self, statistics: AnchoredStatistics) -> FrozenAnchored:
        """Loss fitted to the histogram, and depth weighed by what was measured."""
        distribution = distribution_from_counts(self.binning, statistics.counts)
        table = fit_weights(distribution, self.loss, dimension=2)
        # Depth is weighed ever more rarely: an opinion that never settles would move the minimum for ever.
        is_due = statistics.round & (statistics.round - 1) == 0
        trust, unit = statistics.trust, statistics.frozen_unit
        if is_due:
            trust, unit = self._weigh_depth(statistics), statistics.unit
        return FrozenAnchored(table, statistics.latent, unit, trust, statistics.round + 1)

    def rescaled(self, statistics: AnchoredStatistics, growth: Float[Tensor, " N"]) -> AnchoredStatistics:
        """Statistics after the worlds of frames have grown."""
        factor = growth[self.frame]
        latent = torch.cat([statistics.latent[:1] / factor, statistics.latent[1:]])
        units = statistics.unit / factor, statistics.frozen_unit / factor
        return replace(statistics, latent=latent, unit=units[0], frozen_unit=units[1])

    def _weigh_depth(self, statistics: AnchoredStatistics) -> DepthTrust:
        anchoring, trust = self.anchoring, statistics.trust
        if anchoring.prior == "fixed":
            return replace(trust, weight=self.raw.isfinite().double() / anchoring.sigma**2)
        if anchoring.prior == "none":
            return trust
        errors = DepthErrors(self.frame, self._cells, statistics.error, statistics.variance, statistics.unit)
        measured = weigh_depth(errors, trust.spread)
        return replace(measured, weight=anchoring.faith * measured.weight)

    @property
    def _cells(self) -> Int[Tensor, " A"]:
        largest = torch.zeros(self.num_frames, 2, dtype=self.pixel.dtype)
        largest.scatter_reduce_(0, self.frame[:, None].expand_as(self.pixel), self.pixel, "amax")
        return cells_of(self.pixel, largest[self.frame].clamp_min(1))

    def _loss(self, anchors: AnchorBlock, sight: Sight, table: WeightTable) -> float:
        seen = loss_of(table, sight.squared, anchors.weight, anchors.inflation)
        return seen + loss_of(table, sight.host_squared, anchors.host_weight, anchors.host_inflation)

    def _count(self, counts: Float[Tensor, "1 T1"], anchors: AnchorBlock, sight: Sight) -> None:
        add_bins(counts, self.binning.index(sight.squared.sqrt()), anchors.weight)
        if self.anchoring.free_pixel:
            add_bins(counts, self.binning.index(sight.host_squared.sqrt())[None], anchors.host_weight[None])

    def _depth_errors(
        self, anchors: AnchorBlock, sight: Sight, latent: Tensor, prior: Prior, table: WeightTable
    ) -> tuple[Float[Tensor, " A"], Float[Tensor, " A"]]:
        """Relative error of the map by matches alone, and its variance."""
        weight = weights_of(table, sight.squared, anchors.weight)
        host = weights_of(table, sight.host_squared, anchors.host_weight)
        system = latent_system(anchors, sight, weight, host, latent)
        rows = factor(system.curvature)
        step = solve(rows, system.gradient)[0]
        one = [torch.ones_like(step), *(torch.zeros_like(step) for _ in system.gradient[1:])]
        variance = solve(rows, one)[0] * anchors.share / prior.unit.square()
        error = (latent[0] - step - prior.rho) / prior.unit
        has_depth = prior.is_known & (variance > 0)
        return error.double().masked_fill(~has_depth, torch.nan), variance.double()

    # ------------------------------------------------------------------------------------------------------------
    # Normal equations

    def linearize(
        self, cameras: Cameras, frozen: "FrozenAnchored | TrackScores", columns: Columns, sink: GramSink
    ) -> float:
        """Hand the normal equations of this process's stars to ``sink``; returns the loss of all."""
        gram_of, frozen = (score_gram, frozen.of) if isinstance(frozen, TrackScores) else (reduced_gram, frozen)
        total = torch.zeros((), dtype=torch.float64)
        for chunk, some, anchors in self._stream(cameras, columns):
            prior = self._prior(cameras, frozen.trust.weight, frozen.unit, some)
            latent = frozen.latent[:, some].to(self.samples.dtype)
            sight = look(anchors, latent)
            total += self._loss(anchors, sight, frozen.table) + prior.loss(latent[0])
            rows = anchor_rows(anchors, sight, latent, prior, frozen.table)
            for star in self._stars(chunk, anchors):
                sink.add_star(StarGram(star.source, star.targets, gram_of(rows, star)))
        self.share.total(total)
        return float(total)

    def _stars(self, chunk: slice, anchors: AnchorBlock) -> Iterator[Star]:
        """Stars of a block."""
        source, target = self.samples.edges[chunk].unbind(-1)
        number = anchors.anchor.view(len(source), -1)
        for low, high in _star_borders(source):
            targets, place = target[low:high].unique(return_inverse=True)
            first, last = torch.aminmax(number[low:high])
            yield Star(int(source[low]), targets, slice(low, high), place, slice(int(first), int(last) + 1))

    def coupled_frames(self) -> Int[Tensor, "P 2"]:
        """All pairs of frames that observe anchors of one frame."""
        source, target = self.samples.edges.unbind(-1)
        stars = [torch.combinations(target[low:high].unique()) for low, high in _star_borders(source)]
        return torch.unique(torch.cat(stars), dim=0)

    def distribution(self, statistics: AnchoredStatistics) -> Distribution:
        """Distribution of the residuals."""
        return distribution_from_counts(self.binning, statistics.counts)

    def curvature(self, frozen: FrozenAnchored) -> tuple[FrozenAnchored, None]:
        """The loss itself: elimination needs positive weights, so that of the majoriser stands in for its curvature."""
        return frozen, None

    def squared_gradients(self, frozen: FrozenAnchored) -> "TrackScores":
        """Loss whose normal equations are the sum of squared gradients, each of all observations of an anchor."""
        return TrackScores(frozen)

    def first_order_loss(self, cameras: Cameras) -> BlockLoss:
        """None: latent unknowns would have to descend as well."""
        raise ConfigError("the solver adam descends on the paper's residual only; anchors need the solver lm")

    @staticmethod
    def agreeing(block: Block, limit_px: float) -> Bool[Tensor, "e K"]:
        """Samples within the limit of what the match allows for some inverse depth."""
        return nearest(block).squared < limit_px**2

    @staticmethod
    def chance_share(limit_px: float) -> float:
        """Share of wrong matches that come within the limit of a line across the image."""
        return 2 * limit_px / REFERENCE_LONG_SIDE

    # ------------------------------------------------------------------------------------------------------------
    # Anchors and their depth

    def _stream(self, cameras: Cameras, columns: Columns) -> Iterator[tuple[slice, slice, AnchorBlock]]:
        """Blocks of this process with the range of their anchors."""
        for chunk in self.share.blocks:
            rows = self.samples.rows(chunk)
            anchors = anchor_block(load_block(cameras, rows, columns), rows.anchors, self.anchoring.free_pixel)
            first = int(rows.anchors.min())
            yield chunk, slice(first, first + anchors.num_anchors), anchors

    def _unit(self, cameras: Cameras) -> Float[Tensor, " A"]:
        """Inverse depth that a relative error of 1 means: the map's, but not much less than usual in its frame."""
        correction = cameras.depth_scale, cameras.depth_shift, cameras.is_disparity
        rho, _, _, known = inverse_depth_of(self.raw.double(), *(values[self.frame] for values in correction))
        usual = usual_of(self.typical_raw, *correction)[self.frame]
        return rho.maximum(NEAREST_FAR * usual).where(known, usual)

    def _prior(self, cameras: Cameras, weight: Float[Tensor, " A"], unit: Float[Tensor, " A"], some: slice) -> Prior:
        """What the depth maps say about some anchors."""
        correction = cameras.depth_scale, cameras.depth_shift, cameras.is_disparity
        frame, raw = self.frame[some], self.raw[some].double()
        rho, by_scale, by_shift, known = inverse_depth_of(raw, *(values[frame] for values in correction))
        dtype = self.samples.dtype
        weight = (weight[some] * known).to(dtype)
        return Prior(rho.to(dtype), unit[some].to(dtype), weight, by_scale.to(dtype), by_shift.to(dtype), known)


def _by_source(samples: SampleSource) -> SampleSource:
    """The samples with the edges of every frame together, as they are drawn."""
    source = samples.edges[:, 0]
    return samples if bool((source.diff() >= 0).all()) else samples.select(source.argsort(stable=True))


def _ascending(frame: Int[Tensor, " A"]) -> Int[Tensor, " A"]:
    """Frame of every anchor, gaps (0) filled with the frame before; InputError if numbers do not ascend with frames."""
    filled = frame.cummax(0).values
    if bool(((frame > 0) & (frame < filled)).any()):
        raise InputError("anchors are not numbered from frame to frame; number those of frame 0 first, then of 1, ...")
    return filled


def _star_borders(source: Int[Tensor, " e"]) -> list[tuple[int, int]]:
    """First and last row, exclusive, of each run of equal sources."""
    cuts = [0, *(torch.nonzero(source.diff()).flatten() + 1).tolist(), len(source)]
    return list(zip(cuts[:-1], cuts[1:], strict=True))
