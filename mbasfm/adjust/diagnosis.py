"""What is known about each frame after adjustment, without any ground truth."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mbasfm.adjust.stage import COARSE, Stage
from mbasfm.objective.distribution import Binning, add_bins, distribution_from_counts
from mbasfm.objective.edge_block import blocks
from mbasfm.objective.isotropic import isotropic
from mbasfm.objective.reference import RATIO_BINNING, estimate_noise
from mbasfm.objective.registry import KINDS
from mbasfm.objective.residual_kind import NO_INTRINSICS, stream
from mbasfm.objective.split import SplitForm, split
from mbasfm.runtime.parallel import deal
from mbasfm.types.cameras import Cameras, Fixed
from mbasfm.types.observations import SampleSource
from mbasfm.types.outcome import NoPose, Reason

QUANTILES = (0.25, 0.5, 0.75, 0.9)
MIN_INLIER_SHARE = 0.02
INLIER_PX = 20.0
"""Largest residual of an inlier, however wide the stage's own tau_max is [px at a long side of 1024]."""
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
    num_frames = cameras.num_frames
    form = SplitForm.build(samples, num_frames, Binning(20.0, 100, log_scale=0.2), "mixture", per_star=False)
    statistics = form.statistics(cameras, form.start(cameras).next_noise)
    ratio = distribution_from_counts(RATIO_BINNING, statistics.ratio)
    noise = estimate_noise(form.distribution(statistics), ratio)
    counts = torch.zeros(num_frames, REPORT_BINNING.num_bins + 1, dtype=torch.float64)
    for chunk, block in stream(cameras, samples, NO_INTRINSICS, form.share):
        index = REPORT_BINNING.index(isotropic(block).squared.sqrt())
        add_bins(counts, index, block.weight, samples.edges[chunk, 0])
    form.share.total(counts)
    distribution = distribution_from_counts(REPORT_BINNING, counts)
    quantiles = torch.stack([distribution.quantile(q) for q in QUANTILES], -1)
    shares, parallax = inlier_shares(cameras, samples, stage), parallaxes_px(cameras, samples)
    return Diagnosis(shares, quantiles, noise.depth, parallax, noise.match_px)


def parallaxes_px(cameras: Cameras, samples: SampleSource) -> Float[Tensor, " N"]:
    """Parallax of each frame: the largest median over its edges, at a long side of 1024."""
    largest = torch.zeros(cameras.num_frames, dtype=torch.float64)
    depth_error, share = torch.tensor(0.1, dtype=samples.dtype), deal(blocks(samples), at_random=True)
    for chunk, block in stream(cameras, samples, NO_INTRINSICS, share):
        slope = split(block, 1.0, depth_error.expand(len(block.raw), 1)).slope
        median = slope.nan_to_num(0.0, 0.0, 0.0).median(-1).values.double()
        largest.scatter_reduce_(0, samples.edges[chunk, 0], median, "amax")
    return share.largest(largest)


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
