"""Relative poses of many pairs by RANSAC: all minimal solutions of all pairs are made and scored in batches.

The score of a hypothesis is a value: the number of inliers S^b, MSAC, the distribution of a fixed chi (MAGSAC, a
special case of the paper's objective) or S^m, inliers marginalized over thresholds. The best are refined by iteratively
re-weighted least squares whose weights come from the pair's own residuals, and scored again.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mbasfm.epipolar import (
    Forms,
    MatchBatch,
    essential_from_pose,
    homogeneous,
    in_front,
    minimal_poses,
    moved,
    poses_from_essential,
    sampson_forms,
    sampson_linearized,
    sampson_squared,
)
from mbasfm.five_point import essential_matrices
from mbasfm.objective import Binning, fit_distribution, fit_weights, robust_sigma

MINIMAL = 5
NUM_THRESHOLDS = 100
"""T of S^m."""
CHI_QUANTILE = 3.6437
"""Of the chi distribution with four degrees of freedom, at 0.99: tau in sigmas."""
PAIRS_PER_CHUNK = 16
"""So that residuals of all hypotheses of a chunk stay in the cache."""

ScoreName = Literal["inliers", "msac", "magsac", "marginalized"]


@dataclass(frozen=True)
class RansacSettings:
    """How hypotheses are made, judged and refined."""

    score: ScoreName = "marginalized"
    tau_px: float = 2.0
    """Threshold, or the largest of the thresholds [px]."""
    samples: int = 64
    """Minimal samples per round; the paper takes one round of 64."""
    rounds: int = 1
    """At most so many rounds: more than one adapts to the share of inliers."""
    confidence: float = 0.9999
    """Stop when a sample of inliers has been drawn with this probability."""
    candidates: int = 4
    """So many of the best hypotheses of a round are refined; 0 leaves the best as it is."""
    steps: int = 8
    """Of refinement."""
    loss: str = "mixture"
    """Weights of refinement, from ``mbasfm.objective``."""
    reach: float = 4.0
    """Residuals up to so many tau take part in refinement."""
    seed: int = 0


@dataclass(frozen=True)
class RelativePoses:
    """One pose per pair."""

    j_from_i: Float[Tensor, "P 3 4"]
    """Translation of unit length."""
    found: Bool[Tensor, " P"]
    """False where no sample had a solution: the pose is the identity then."""
    score: Float[Tensor, " P"]
    """Sum over the matches, each in [0, 1]."""
    residual_px: Float[Tensor, "P M"]
    """Sampson distances; infinite for the filling and behind a camera."""
    samples: Int[Tensor, " P"]
    """Minimal samples that were drawn."""

    def inliers(self, tau_px: float) -> Bool[Tensor, "P M"]:
        """Matches within a threshold."""
        return self.residual_px < tau_px


# ----------------------------------------------------------------------------------------------------------------
# Scores: what one match adds, from its squared residual over tau squared


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
    tau_px: float | Float[Tensor, "P"],
) -> Float[Tensor, "P H"]:
    """Score of every hypothesis of every pair."""
    squared = sampson_squared(essential, forms)
    squared = squared.mul_(torch.as_tensor(tau_px, dtype=squared.dtype, device=squared.device).pow(-2).view(-1, 1, 1))
    return (SCORES[score](squared) @ is_match[..., None].to(squared)).squeeze(-1)


# ----------------------------------------------------------------------------------------------------------------
# Hypotheses


def draw_samples(count: Int[Tensor, " P"], num_samples: int, size: int, seed: int) -> Int[Tensor, "P S k"]:
    """Distinct matches of each pair; those of a pair do not depend on which others are in the batch."""
    generator = torch.Generator().manual_seed(seed)
    uniform = torch.rand(num_samples, size, generator=generator, dtype=torch.float64)
    drawn: list[Tensor] = []
    for k in range(size):
        value = (uniform[:, k] * (count[:, None] - k).clamp_min(1)).long()
        # The value counts those that are left: skip what was drawn before, in order.
        for earlier in torch.stack(drawn, -1).sort(-1).values.unbind(-1) if drawn else ():
            value = value + (value >= earlier)
        drawn.append(value)
    return torch.stack(drawn, -1)


def minimal_hypotheses(matches: MatchBatch, num_samples: int, seed: int) -> tuple[Tensor, Tensor]:
    """Poses of random minimal samples, (P, H, 3, 4), and which places hold one (P, H)."""
    chosen = draw_samples(matches.is_match.sum(1), num_samples, MINIMAL, seed).clamp_max(matches.rays_i.shape[1] - 1)
    flat = chosen.flatten(1)[..., None].expand(-1, -1, 2)
    rays_i, rays_j = (
        homogeneous(rays.gather(1, flat)).unflatten(1, (num_samples, MINIMAL)).flatten(0, 1)
        for rays in (matches.rays_i, matches.rays_j)
    )
    essential, valid = essential_matrices(rays_i, rays_j, polish_steps=0)
    sample = valid.nonzero()[:, 0]
    poses, possible = minimal_poses(essential[valid], rays_i[sample], rays_j[sample])
    enough = matches.is_match.sum(1) >= MINIMAL
    pair = sample // num_samples
    possible &= enough[pair]
    return _side_by_side(poses[possible], pair[possible], matches.num_pairs)


def _side_by_side(poses: Float[Tensor, "R 3 4"], pair: Int[Tensor, " R"], num_pairs: int) -> tuple[Tensor, Tensor]:
    """Hypotheses of the same pair in one row; at least one place per row."""
    count = torch.bincount(pair, minlength=num_pairs)
    first = count.cumsum(0) - count
    place = torch.arange(len(pair), device=pair.device) - first[pair]
    width = max(int(count.max()), 1)
    rows = torch.eye(3, 4, dtype=poses.dtype, device=poses.device).repeat(num_pairs, width, 1, 1)
    rows[pair, place] = poses
    return rows, torch.arange(width, device=pair.device) < count[:, None]


# ----------------------------------------------------------------------------------------------------------------
# Refinement


def refine(
    j_from_i: Float[Tensor, "P 3 4"], forms: Forms, is_match: Bool[Tensor, "P M"], settings: RansacSettings
) -> Float[Tensor, "P 3 4"]:
    """Iteratively re-weighted least squares of Sampson distances; each pair's weights follow its own residuals."""
    reach = settings.reach * settings.tau_px
    binning = Binning(reach, num_bins=64, log_scale=0.05 * reach)
    group = torch.arange(len(j_from_i))
    eye = torch.eye(5, dtype=j_from_i.dtype, device=j_from_i.device)
    mass = is_match.double()
    for _ in range(settings.steps):
        residual, slope = sampson_linearized(j_from_i, forms)
        size = residual.abs()
        table = fit_weights(fit_distribution(size, mass, binning, group, len(group)), settings.loss, 1)
        weight = table.weight.flatten()[table.slots(binning.index(size), group)].view_as(size) * mass
        weighted = slope * weight[:, None]
        normal, gradient = weighted @ slope.mT, weighted @ residual[..., None]
        damping = 1e-6 * normal.diagonal(dim1=-2, dim2=-1).mean(-1).clamp_min(1e-12)
        step, _ = torch.linalg.solve_ex(normal + damping[:, None, None] * eye, gradient)
        j_from_i = moved(j_from_i, -step.squeeze(-1).nan_to_num().clamp(-0.2, 0.2))
    return j_from_i


def estimate_poses(matches: MatchBatch, settings: RansacSettings | None = None) -> RelativePoses:
    """Relative pose of every pair."""
    settings = settings or RansacSettings()
    parts = [
        _estimate_chunk(matches.pairs(slice(start, start + PAIRS_PER_CHUNK)), settings)
        for start in range(0, matches.num_pairs, PAIRS_PER_CHUNK)
    ]
    return RelativePoses(*(torch.cat(column) for column in zip(*(vars(part).values() for part in parts), strict=True)))


def _estimate_chunk(matches: MatchBatch, settings: RansacSettings) -> RelativePoses:
    single, double = (sampson_forms(matches, dtype) for dtype in (torch.float32, torch.float64))
    best = _Best.empty(matches.num_pairs)
    active = torch.arange(matches.num_pairs)
    for number in range(settings.rounds):
        some = matches.pairs(active)
        forms_32, forms_64 = (_chosen(forms, active) for forms in (single, double))
        poses, valid = minimal_hypotheses(some, settings.samples, settings.seed + number)
        poses, scores = _best_of_round(poses, valid, some, forms_32, forms_64, settings)
        best.update(active, poses, scores, settings.samples)
        share = _inlier_share(best.pose[active], forms_64, some.is_match, settings.tau_px)
        active = active[best.samples[active] < samples_needed(share, settings.confidence)]
        if len(active) == 0:
            break
    return _finish(best, matches, double)


def samples_needed(inlier_share: Float[Tensor, " P"], confidence: float) -> Float[Tensor, " P"]:
    """Samples of five after which one without outliers was drawn with the given probability."""
    clean = inlier_share.clamp(1e-3, 1 - 1e-9) ** MINIMAL
    return math.log(1 - confidence) / torch.log1p(-clean)


@dataclass
class _Best:
    """What was found so far: the only state of the search."""

    pose: Tensor
    score: Tensor
    samples: Tensor

    @staticmethod
    def empty(num_pairs: int) -> "_Best":
        pose = torch.eye(3, 4, dtype=torch.float64).repeat(num_pairs, 1, 1)
        return _Best(pose, torch.full((num_pairs,), -1.0).double(), torch.zeros(num_pairs, dtype=torch.int64))

    def update(self, pairs: Tensor, pose: Tensor, score: Tensor, samples: int) -> None:
        better = score > self.score[pairs]
        self.pose[pairs[better]], self.score[pairs[better]] = pose[better], score[better]
        self.samples[pairs] += samples


def _chosen(forms: Forms, pairs: Int[Tensor, " Q"]) -> Forms:
    if len(pairs) == len(forms.bilinear):
        return forms
    return Forms(forms.bilinear[pairs], forms.squares[pairs])


def _best_of_round(
    poses: Float[Tensor, "P H 3 4"],
    valid: Bool[Tensor, "P H"],
    matches: MatchBatch,
    forms_32: Forms,
    forms_64: Forms,
    settings: RansacSettings,
) -> tuple[Float[Tensor, "P 3 4"], Float[Tensor, " P"]]:
    """Score all, refine the best few, and take the best of those."""
    judge = settings.score, settings.tau_px
    scores = score_matrices(essential_from_pose(poses), forms_32, matches.is_match, *judge).double()
    scores = scores.masked_fill(~valid, -1)
    scores, order = scores.topk(min(max(settings.candidates, 1), scores.shape[1]), dim=1)
    width = scores.shape[1]
    poses = poses.gather(1, order[..., None, None].expand(-1, -1, 3, 4))
    if settings.candidates:
        repeated = Forms(*(table.repeat_interleave(width, 0) for table in (forms_64.bilinear, forms_64.squares)))
        refined = refine(poses.flatten(0, 1), repeated, matches.is_match.repeat_interleave(width, 0), settings)
        refined = refined.unflatten(0, (-1, width))
        again = score_matrices(essential_from_pose(refined), forms_64, matches.is_match, *judge)
        again = again.masked_fill(scores < 0, -1)
        # Refinement minimises another loss, so its score may be a little lower and the pose still better.
        poses, scores = refined, again
    top = scores.argmax(1)
    row = torch.arange(len(top))
    return poses[row, top], scores[row, top]


def _inlier_share(
    pose: Float[Tensor, "P 3 4"], forms: Forms, is_match: Bool[Tensor, "P M"], tau_px: float
) -> Float[Tensor, " P"]:
    squared = sampson_squared(essential_from_pose(pose)[:, None], forms)[:, 0]
    return ((squared < tau_px**2) & is_match).sum(1) / is_match.sum(1).clamp_min(1)


def _finish(best: _Best, matches: MatchBatch, forms: Forms) -> RelativePoses:
    """The one of four poses that has most of the weight in front of both cameras."""
    rays_i, rays_j = homogeneous(matches.rays_i), homogeneous(matches.rays_j)
    squared = sampson_squared(essential_from_pose(best.pose)[:, None], forms)[:, 0]
    poses = poses_from_essential(essential_from_pose(best.pose))
    shape = (-1, 4, -1, -1)
    front = in_front(poses, rays_i[:, None].expand(shape), rays_j[:, None].expand(shape))
    weight = matches.is_match / (1 + squared)
    which = (front * weight[:, None]).sum(-1).argmax(1)
    row = torch.arange(len(which))
    found = best.score >= 0
    pose = torch.where(found[:, None, None], poses[row, which], best.pose)
    visible = matches.is_match & front[row, which] & found[:, None]
    residual = squared.sqrt().masked_fill(~visible, torch.inf)
    return RelativePoses(pose, found, best.score.clamp_min(0), residual, best.samples)


def sigma_px(poses: RelativePoses, tau_px: float) -> Float[Tensor, " P"]:
    """Scale of a Gaussian with the median of the residuals within tau."""
    inside = poses.inliers(tau_px).double()
    distribution = fit_distribution(
        poses.residual_px, inside, Binning(tau_px, 200), torch.arange(len(inside)), len(inside)
    )
    return robust_sigma(replace(distribution, total=distribution.counts.sum(-1)), 1)
