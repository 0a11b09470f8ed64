"""Relative poses with scale, from depth in both images: three matches are enough, and no parallax is needed.

Depth maps of the two images may differ by a factor. Hypotheses align the points of three matches; they are judged by
the match error across the epipolar line and by where depth puts each point in the other image.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mbasfm.estimators.ransac import RansacSettings, draw_samples
from mbasfm.estimators.sampson import MatchBatch, homogeneous, sampson_forms
from mbasfm.estimators.scores import SCORES, score_matrices
from mbasfm.geometry.camera import essential_from_pose
from mbasfm.geometry.rigid import exp_so3, invert, transform
from mbasfm.geometry.similarity import Pairs, fit_similarity

MINIMAL = 3
MIN_LENGTH = 1e-9
DEPTH_TOLERANCE = 8.0
"""Tolerance of projections in units of that of matches: monocular depth is rough."""


@dataclass(frozen=True)
class MetricPoses:
    """One pose per pair, in the unit of the depth of i."""

    j_from_i: Float[Tensor, "P 3 4"]
    depth_ratio: Float[Tensor, " P"]
    """Factor on the depth of j that makes it agree with that of i."""
    found: Bool[Tensor, " P"]
    score: Float[Tensor, " P"]


def estimate_metric_poses(
    matches: MatchBatch,
    depth_i: Float[Tensor, "P M"],
    depth_j: Float[Tensor, "P M"],
    settings: RansacSettings | None = None,
) -> MetricPoses:
    """Relative pose with scale of every pair; matches without depth (NaN) propose nothing."""
    settings = settings or RansacSettings()
    first, second = homogeneous(matches.rays_i) * depth_i[..., None], homogeneous(matches.rays_j) * depth_j[..., None]
    known = matches.is_match & (depth_i > 0) & (depth_j > 0) & depth_i.isfinite() & depth_j.isfinite()
    order = (~known).to(torch.uint8).argsort(dim=1, stable=True)  # matches with depth first
    drawn = draw_samples(known.sum(1), settings.samples * settings.rounds, MINIMAL, settings.seed)
    chosen = order.gather(1, drawn.flatten(1).clamp_max(order.shape[1] - 1))[..., None].expand(-1, -1, 3)
    triples = [points.gather(1, chosen).unflatten(1, (-1, MINIMAL)) for points in (first, second)]
    enough = known.sum(1) >= MINIMAL
    triples = [points.where(enough[:, None, None, None], torch.zeros_like(points)).nan_to_num() for points in triples]
    # The points of i are those of j times the ratio, turned and moved: neither depth is better than the other.
    ratio, i_from_j = fit_similarity(Pairs(triples[1], triples[0]), symmetric=True)
    poses = invert(i_from_j)
    scores = score_metric(poses, ratio, matches, first, second, settings)
    scores = scores.masked_fill(~(enough[:, None] & (ratio > MIN_LENGTH) & poses.isfinite().all(-1).all(-1)), -1)
    best, row = scores.argmax(1), torch.arange(len(scores))
    found = scores[row, best] >= 0
    pose = torch.where(found[:, None, None], poses[row, best], torch.eye(3, 4).to(poses))
    return MetricPoses(pose, ratio[row, best], found, scores[row, best].clamp_min(0))


def score_metric(
    poses: Float[Tensor, "P H 3 4"],
    ratio: Float[Tensor, "P H"],
    matches: MatchBatch,
    points_i: Float[Tensor, "P M 3"],
    points_j: Float[Tensor, "P M 3"],
    settings: RansacSettings,
) -> Float[Tensor, "P H"]:
    """Score across epipolar lines plus the mean of both projections' scores, at a threshold for depth."""
    forms = sampson_forms(matches, torch.float64)
    across = score_matrices(essential_from_pose(poses), forms, matches.is_match, settings.score, settings.tau_px)
    focal_i, focal_j = matches.focal_px.unbind(-1)
    tau = DEPTH_TOLERANCE * settings.tau_px
    there = transform(poses, points_i[:, None].expand(-1, poses.shape[1], -1, -1))
    back = transform(invert(poses), ratio[..., None, None] * points_j[:, None])
    score = SCORES[settings.score]
    forth_score = score(_misses_squared(there, matches.rays_j, focal_j / tau))
    back_score = score(_misses_squared(back, matches.rays_i, focal_i / tau))
    return across + 0.5 * ((forth_score + back_score) * matches.is_match[:, None]).sum(-1)


def _misses_squared(
    points: Float[Tensor, "P H M 3"], rays: Float[Tensor, "P M 2"], scale: Float[Tensor, " P"]
) -> Float[Tensor, "P H M"]:
    """Squared distance of projected points from matches in units of the threshold; large without depth or behind."""
    depth = points[..., 2:]
    offset = points[..., :2] / depth.where(depth > 0, torch.full_like(depth, torch.nan)) - rays[:, None]
    return (offset * scale[:, None, None, None]).square().sum(-1).nan_to_num(nan=1e6)


# ----------------------------------------------------------------------------------------------------------------
# Does the camera move at all?


def rotation_alone(
    matches: MatchBatch, rotation: Float[Tensor, "P 3 3"], weight: Float[Tensor, "P M"], tau_px: float, steps: int = 10
) -> tuple[Float[Tensor, "P 3 3"], Float[Tensor, "P M"]]:
    """The rotation that explains most weighted matches without any translation, and its residuals [px].

    Truncated L1, as S^m climbs, from a start nearby.
    """
    first, second = homogeneous(matches.rays_i), homogeneous(matches.rays_j)
    second = second / second.norm(dim=-1, keepdim=True)
    focal = matches.focal_px[:, 1:]
    reach = 16.0 * tau_px
    for _ in range(steps):
        turned = first @ rotation.mT
        turned = turned / turned.norm(dim=-1, keepdim=True)
        residual = (turned - second).norm(dim=-1) * focal
        pull = weight * (residual < reach) / residual.clamp_min(0.05 * tau_px)
        # Least squares of second = turned + omega x turned.
        moment = (pull[..., None] * torch.linalg.cross(turned, second)).sum(1)
        eye = torch.eye(3, dtype=first.dtype, device=first.device)
        inertia = pull.sum(1)[:, None, None] * eye - (turned * pull[..., None]).mT @ turned + 1e-9 * eye
        omega = torch.linalg.solve_ex(inertia, moment[..., None])[0].squeeze(-1)
        rotation = exp_so3(omega) @ rotation
        reach = max(reach / 2, 2 * tau_px)
    turned = first @ rotation.mT
    residual = ((turned / turned.norm(dim=-1, keepdim=True)) - second).norm(dim=-1) * focal
    return rotation, residual


def with_unit_translation(j_from_i: Float[Tensor, "P 3 4"]) -> Float[Tensor, "P 3 4"]:
    """Poses with translations of unit length; a zero translation stays zero."""
    length = j_from_i[..., 3].norm(dim=-1).clamp_min(MIN_LENGTH)
    return torch.cat([j_from_i[..., :3], (j_from_i[..., 3] / length[..., None])[..., None]], -1)
