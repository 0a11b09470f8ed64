"""Relative pose of a pair whose focal length is not known: five-point RANSAC under many focal lengths at once.

Every candidate focal length turns the pair into one with known intrinsics. All of them go through the estimator as one
batch, with the same samples and the same threshold in pixels, and the score decides; then the focal length is refined
around the best one, with poses refined under each.
"""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mbasfm.estimators.ransac import RansacSettings, RelativePoses, estimate_poses, finish_poses
from mbasfm.estimators.sampson import MatchBatch
from mbasfm.geometry.focal import MAX_FOCAL, MIN_FOCAL

NUM_COARSE, NUM_FINE = 20, 11
NARROWING = (1.2, 1.05, 1.012)
"""Factors around the best focal length that the rounds of refinement span."""


def estimate_with_focal(
    offsets_i: Float[Tensor, "M 2"],
    offsets_j: Float[Tensor, "M 2"],
    focal_px: Float[Tensor, " 2"],
    long_side: Float[Tensor, " 2"],
    settings: RansacSettings,
) -> tuple[Float[Tensor, " 2"], RelativePoses]:
    """Focal lengths [px of each image] and the pose of one pair.

    ``offsets`` are pixels from the principal point, ``focal_px`` is NaN where unknown. Two unknown cameras have the
    same field of view along the long side. Thresholds are at a long side of 1024.
    """
    unknown = focal_px.isnan()
    candidates = torch.logspace(math.log10(MIN_FOCAL), math.log10(MAX_FOCAL), NUM_COARSE, dtype=torch.float64)
    focal = _fill(candidates, focal_px, long_side, unknown)
    found = estimate_poses(_under(offsets_i, offsets_j, focal, long_side), settings)
    best = int(found.score.argmax())
    pose, center = found.j_from_i[best], candidates[best]
    for factor in NARROWING:
        trial = center * torch.tensor(factor).double() ** torch.linspace(-1, 1, NUM_FINE, dtype=torch.float64)
        focal = _fill(trial, focal_px, long_side, unknown)
        matches = _under(offsets_i, offsets_j, focal, long_side)
        samples, is_found = found.samples[best].repeat(NUM_FINE), found.found[best].repeat(NUM_FINE)
        refined = finish_poses(pose.repeat(NUM_FINE, 1, 1), matches, settings, samples, is_found)
        best_trial = int(refined.score.argmax())
        pose, center = refined.j_from_i[best_trial], trial[best_trial]
    row = slice(best_trial, best_trial + 1)
    result = RelativePoses(*(column[row] for column in vars(refined).values()))
    return focal[best_trial], result


def _fill(
    candidates: Float[Tensor, " F"],
    focal_px: Float[Tensor, " 2"],
    long_side: Float[Tensor, " 2"],
    unknown: Bool[Tensor, " 2"],
) -> Float[Tensor, "F 2"]:
    """Candidates, in long sides, for the focal lengths that are unknown."""
    return torch.where(unknown, candidates[:, None] * long_side, focal_px.nan_to_num()[None])


def _under(
    offsets_i: Float[Tensor, "M 2"],
    offsets_j: Float[Tensor, "M 2"],
    focal: Float[Tensor, "F 2"],
    long_side: Float[Tensor, " 2"],
) -> MatchBatch:
    """The pair repeated for every focal length."""
    rays_i, rays_j = offsets_i / focal[:, :1, None], offsets_j / focal[:, 1:, None]
    return MatchBatch(rays_i, rays_j, torch.ones(rays_i.shape[:2], dtype=torch.bool), focal * 1024 / long_side)
