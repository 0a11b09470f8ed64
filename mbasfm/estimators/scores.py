"""Scores of RANSAC: contribution of one match, from its squared residual over tau squared."""

import math
from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mbasfm.estimators.sampson import Forms, sampson_squared

NUM_THRESHOLDS = 100
"""Number of thresholds, T of S^m."""
CHI_QUANTILE = 3.6437
"""Quantile 0.99 of the chi distribution with four degrees of freedom: tau in sigmas."""

ScoreName = Literal["inliers", "msac", "magsac", "marginalized"]


def _inliers(squared: Float[Tensor, "*B"]) -> Float[Tensor, "*B"]:
    return (squared < 1).to(squared.dtype)


def _msac(squared: Float[Tensor, "*B"]) -> Float[Tensor, "*B"]:
    return (1 - squared).clamp_min_(0)


def _magsac(squared: Float[Tensor, "*B"]) -> Float[Tensor, "*B"]:
    """1 - F(r), for F the distribution of chi with four degrees of freedom, set to zero at tau."""
    half = squared * (0.5 * CHI_QUANTILE**2)
    rest = 0.5 * CHI_QUANTILE**2
    beyond = math.exp(-rest) * (1 + rest)
    return ((torch.exp(-half) * (1 + half) - beyond) / (1 - beyond)).clamp_min_(0)


def _marginalized(squared: Float[Tensor, "*B"]) -> Float[Tensor, "*B"]:
    """Share of the T thresholds i tau / T above the residual (eqn:binary_scoring_funciton_thresholds_summation)."""
    return (1 - squared.sqrt().mul_(NUM_THRESHOLDS).floor_().div_(NUM_THRESHOLDS)).clamp_min_(0)


SCORES: dict[ScoreName, Callable[[Tensor], Tensor]] = {
    "inliers": _inliers,
    "msac": _msac,
    "magsac": _magsac,
    "marginalized": _marginalized,
}


def score_matrices(
    essential: Float[Tensor, "P H 3 3"],
    forms: Forms,
    is_match: Bool[Tensor, "P M"],
    score: ScoreName,
    tau_px: float | Float[Tensor, " P"],
) -> Float[Tensor, "P H"]:
    """Score of every hypothesis of every pair."""
    squared = sampson_squared(essential, forms)
    squared = squared.mul_(torch.as_tensor(tau_px, dtype=squared.dtype, device=squared.device).pow(-2).view(-1, 1, 1))
    return (SCORES[score](squared) @ is_match[..., None].to(squared)).squeeze(-1)
