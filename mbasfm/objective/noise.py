"""Estimates of the errors of matches and depths from distributions of residuals."""

import torch

from mbasfm.objective.distribution import Binning, Distribution, robust_sigma
from mbasfm.objective.reference import NoiseScale

RATIO_BINNING = Binning(tau_max=2.0, num_bins=80, log_scale=0.01)
"""Bins of |along| / slope, the relative depth error of a sample."""
FIRST_NOISE = (1.0, 0.1)
"""Match error [px] and relative depth error assumed before anything has been measured."""
DEPTH_ERROR_RANGE = (0.01, 0.5)
MATCH_ERROR_RANGE_PX = (0.05, 10.0)
SHRINKAGE_SAMPLES = 20.0
"""Number of samples at which a frame's own depth error counts as much as the common one."""


def estimate_noise(across: Distribution, ratio: Distribution) -> NoiseScale:
    """Match noise from the across-part, and depth noise per frame, shrunk to the common one where samples are few."""
    match_px = float(robust_sigma(across, dimension=1)[0].clamp(*MATCH_ERROR_RANGE_PX))
    pooled = Distribution(ratio.binning, ratio.counts.sum(0, keepdim=True), ratio.total.sum(0, keepdim=True))
    if float(pooled.total[0]) < 1:
        return NoiseScale(match_px, torch.full((len(ratio.total),), 0.1, dtype=torch.float64))
    common, own = robust_sigma(pooled, dimension=1), robust_sigma(ratio, dimension=1)
    trust = ratio.total / (ratio.total + SHRINKAGE_SAMPLES)
    return NoiseScale(match_px, torch.exp(torch.lerp(common.log(), own.log(), trust)).clamp(*DEPTH_ERROR_RANGE))
