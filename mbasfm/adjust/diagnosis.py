"""What is known about each frame after adjustment, without any ground truth."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mbasfm.adjust.stage import COARSE, Stage
from mbasfm.objective.distribution import Binning, Distribution, add_bins, distribution_from_counts, robust_sigma
from mbasfm.objective.edge_block import blocks, nearest
from mbasfm.objective.isotropic import isotropic
from mbasfm.objective.registry import KINDS
from mbasfm.objective.residual_kind import NO_INTRINSICS, stream
from mbasfm.runtime.parallel import deal
from mbasfm.types.cameras import Cameras, Fixed
from mbasfm.types.observations import SampleSource
from mbasfm.types.outcome import NoPose, Reason

QUANTILES = (0.25, 0.5, 0.75, 0.9)
MIN_INLIER_SHARE = 0.02
INLIER_PX = 20.0
"""Largest residual of an inlier, however wide the stage's own tau_max is [px at a long side of 1024]."""
TELLING_PX = 1.0
"""Error of a match up to which, and parallax from which on, a sample tells the error of its depth."""
FIRST_DEPTH_ERROR = 0.1
"""Relative depth error that is assumed where nothing tells it."""
DEPTH_ERROR_RANGE = (0.002, 0.5)
SHRINKAGE_SAMPLES = 20.0
"""Number of samples at which a frame's own depth error counts as much as the common one."""
ACROSS_BINNING = Binning(20.0, 100, log_scale=0.2)
RATIO_BINNING = Binning(tau_max=2.0, num_bins=80, log_scale=0.01)
REPORT_BINNING = Binning(COARSE.tau_max, 400, log_scale=0.05)


@dataclass(frozen=True)
class Diagnosis:
    """Quality of each frame."""

    inlier_share: Float[Tensor, " N"]
    """Share of inliers in front of the camera among the samples on a frame's edges, in both directions."""
    residual_quantiles_px: Float[Tensor, "N Q"]
    """Quantiles (25, 50, 75, 90 %) of the isotropic residuals of the frame's own samples, at a long side of 1024."""
    depth_error: Float[Tensor, " N"]
    """Estimated relative error of the frame's depth after correction."""
    parallax_px: Float[Tensor, " N"]
    """Median shift of a frame's samples due to baseline and depth, in the neighbour where it is largest."""
    match_error_px: float
    """Estimated error of a match across its epipolar line, at a long side of 1024."""

    def explain(self, frame: int) -> Reason[NoPose]:
        """Reason why a frame counts as not registered."""
        return Reason(NoPose.FEW_MATCHES_AGREE, (100 * float(self.inlier_share[frame]),))


def diagnose(cameras: Cameras, samples: SampleSource, stage: Stage) -> Diagnosis:
    """Measure all frames at the given cameras."""
    share, num_frames = deal(blocks(samples), at_random=True), cameras.num_frames
    across = torch.zeros(1, ACROSS_BINNING.num_bins + 1, dtype=torch.float64)
    depth = torch.zeros(num_frames, RATIO_BINNING.num_bins + 1, dtype=torch.float64)
    residual = torch.zeros(num_frames, REPORT_BINNING.num_bins + 1, dtype=torch.float64)
    parallax = torch.zeros(num_frames, dtype=torch.float64)
    for chunk, block in stream(cameras, samples, NO_INTRINSICS, share):
        source, parts, best = samples.edges[chunk, 0], isotropic(block), nearest(block)
        has_depth = block.weight * block.raw.isfinite()
        add_bins(residual, REPORT_BINNING.index(parts.squared.sqrt()), has_depth, source)
        distance, rho = best.squared.sqrt(), parts.prediction.rho
        add_bins(across, ACROSS_BINNING.index(distance), block.weight)
        tells = has_depth * (distance < TELLING_PX) * (best.by_rho * rho * FIRST_DEPTH_ERROR > TELLING_PX)
        add_bins(depth, RATIO_BINNING.index((best.rho / rho - 1).abs()), tells, source)
        shift = (best.by_rho * best.rho).nan_to_num(0.0, 0.0, 0.0).median(-1).values.double()
        parallax.scatter_reduce_(0, source, shift, "amax")
    share.total(across, depth, residual)
    parallax = share.largest(parallax)
    quantiles = distribution_from_counts(REPORT_BINNING, residual)
    match_px = float(robust_sigma(distribution_from_counts(ACROSS_BINNING, across), dimension=1)[0])
    return Diagnosis(
        inlier_shares(cameras, samples, stage),
        torch.stack([quantiles.quantile(q) for q in QUANTILES], -1),
        _depth_errors(distribution_from_counts(RATIO_BINNING, depth)),
        parallax,
        match_px,
    )


def _depth_errors(ratio: Distribution) -> Float[Tensor, " N"]:
    """Relative depth error of each frame, shrunk to the common one where few samples tell."""
    pooled = Distribution(ratio.binning, ratio.counts.sum(0, keepdim=True), ratio.total.sum(0, keepdim=True))
    if float(pooled.total[0]) < 1:
        return torch.full((len(ratio.total),), FIRST_DEPTH_ERROR, dtype=torch.float64)
    common, own = robust_sigma(pooled, dimension=1), robust_sigma(ratio, dimension=1)
    trust = ratio.total / (ratio.total + SHRINKAGE_SAMPLES)
    return torch.exp(torch.lerp(common.log(), own.log(), trust)).clamp(*DEPTH_ERROR_RANGE)


def inlier_limit_px(stage: Stage) -> float:
    """Residual below which a sample is an inlier after the stage [px at a long side of 1024]."""
    return min(stage.tau_max, INLIER_PX)


def inlier_shares(cameras: Cameras, samples: SampleSource, stage: Stage) -> Float[Tensor, " N"]:
    """Share of samples within tau_max (at most INLIER_PX), per frame, over all edges that touch it."""
    good = torch.zeros(cameras.num_frames, dtype=torch.float64)
    total = torch.zeros_like(good)
    kind, limit = KINDS[stage.residual], inlier_limit_px(stage)
    share = deal(blocks(samples), at_random=True)
    for chunk, block in stream(cameras, samples, NO_INTRINSICS, share):
        inside = kind.agreeing(block, limit)
        edge_good = (block.weight * inside).sum(-1, dtype=torch.float64)
        edge_total = block.weight.sum(-1, dtype=torch.float64)
        for end in samples.edges[chunk].unbind(-1):
            good.index_add_(0, end, edge_good)
            total.index_add_(0, end, edge_total)
    share.total(good, total)
    return good / total.clamp_min(1e-30)


def find_stuck(cameras: Cameras, samples: SampleSource, stage: Stage, fixed: Fixed) -> Bool[Tensor, " N"]:
    """Frames that hardly any sample agrees with: their loss is flat, so they would stay wrong for ever.

    Some samples agree by chance; even twice as many do not count as support.
    """
    chance = KINDS[stage.residual].chance_share(inlier_limit_px(stage))
    floor = max(MIN_INLIER_SHARE, 2 * chance)
    seen = torch.bincount(samples.edges.flatten(), minlength=cameras.num_frames) > 0
    return (inlier_shares(cameras, samples, stage) < floor) & seen & ~fixed.pose
