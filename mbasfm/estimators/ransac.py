"""Relative poses of many pairs by RANSAC: all minimal solutions of all pairs are made and scored in batches.

The score of a hypothesis is a value: the number of inliers S^b, MSAC, the distribution of a fixed chi (MAGSAC, a
special case of the paper's objective) or S^m, inliers marginalized over thresholds. The best are refined by iteratively
re-weighted least squares whose weights come from the pair's own residuals, and scored again.
"""

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mbasfm.estimators.five_point import essential_matrices
from mbasfm.estimators.sampson import (
    Forms,
    MatchBatch,
    homogeneous,
    minimal_poses,
    moved,
    poses_from_essential,
    sampson_forms,
    sampson_linearized,
    sampson_squared,
)
from mbasfm.estimators.scores import SCORES, ScoreName, score_matrices
from mbasfm.geometry.camera import essential_from_pose, in_front
from mbasfm.objective.losses import Binning, fit_distribution, fit_weights, robust_sigma

MINIMAL = 5
L1_FLOOR = 0.05
"""Share of tau below which the weights 1 / r grow no further."""
NUM_BINS = 64
MAX_STEP = 0.2
"""Largest step [rad], also for the direction of translation."""
PAIRS_PER_CHUNK = 16
"""Number of pairs per chunk, so that residuals of all its hypotheses stay in the cache."""


@dataclass(frozen=True)
class RansacSettings:
    """How hypotheses are made, judged and refined."""

    score: ScoreName = "marginalized"
    tau_px: float = 2.0
    """Threshold, or the largest of the thresholds [px]."""
    samples: int = 64
    """Minimal samples per round."""
    rounds: int = 16
    """Largest number of rounds; fewer if the share of inliers allows. The paper takes one round."""
    confidence: float = 0.9999
    """Stop when a sample of inliers has been drawn with this probability."""
    candidates: int = 4
    """Number of best hypotheses per round that climb to a higher S^m; 0 leaves the best as it is."""
    climb_steps: int = 3
    refine_steps: int = 8
    """Number of steps of the last refinement, which is for the best only."""
    loss: str = "mixture"
    """Weights of the last refinement, from ``mbasfm.objective.losses``."""
    reach: float = 4.0
    """Residuals up to this many tau take part in the last refinement."""
    seed: int = 0


PAPER_BUDGET = RansacSettings(rounds=1)
"""64 minimal samples for every pair."""


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
    """Sampson distances; infinite for padding and for points behind a camera."""
    samples: Int[Tensor, " P"]
    """Number of minimal samples drawn."""

    def inliers(self, tau_px: float) -> Bool[Tensor, "P M"]:
        """Matches within a threshold."""
        return self.residual_px < tau_px


# ----------------------------------------------------------------------------------------------------------------
# Hypotheses


def draw_samples(count: Int[Tensor, " P"], num_samples: int, size: int, seed: int) -> Int[Tensor, "P S k"]:
    """Distinct matches of each pair, independent of the other pairs in the batch."""
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
    """Poses of random minimal samples, (P, H, 3, 4), and which entries are valid (P, H)."""
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
    """Hypotheses of the same pair in one row; at least one entry per row."""
    count = torch.bincount(pair, minlength=num_pairs)
    first = count.cumsum(0) - count
    place = torch.arange(len(pair), device=pair.device) - first[pair]
    width = max(int(count.max()), 1)
    rows = torch.eye(3, 4, dtype=poses.dtype, device=poses.device).repeat(num_pairs, width, 1, 1)
    rows[pair, place] = poses
    return rows, torch.arange(width, device=pair.device) < count[:, None]


# ----------------------------------------------------------------------------------------------------------------
# Refinement


def climb(
    j_from_i: Float[Tensor, "P 3 4"], forms: Forms, is_match: Bool[Tensor, "P M"], tau_px: float, steps: int
) -> Float[Tensor, "P 3 4"]:
    """Poses with a higher S^m, whose gradient is that of a truncated L1 norm: the weights are 1 / r up to tau."""
    for _ in range(steps):
        residual, slope = sampson_linearized(j_from_i, forms)
        size = residual.abs()
        weight = ((size < tau_px) & is_match) / size.clamp_min(L1_FLOOR * tau_px)
        j_from_i = _least_squares_step(j_from_i, residual, slope, weight)
    return j_from_i


def refine(
    j_from_i: Float[Tensor, "P 3 4"], forms: Forms, is_match: Bool[Tensor, "P M"], settings: RansacSettings
) -> Float[Tensor, "P 3 4"]:
    """Poses after re-weighted least squares of Sampson distances; each pair's weights follow its own residuals."""
    reach = settings.reach * settings.tau_px
    binning = Binning(reach, num_bins=NUM_BINS, log_scale=0.05 * reach)
    group = torch.arange(len(j_from_i))
    mass = is_match.double()
    for step in range(settings.refine_steps):
        residual, slope = sampson_linearized(j_from_i, forms)
        size = residual.abs()
        if step % 2 == 0:  # the distribution changes little from step to step
            table = fit_weights(fit_distribution(size, mass, binning, group, len(group)), settings.loss, 1)
        weight = table.weight.flatten()[table.slots(binning.index(size), group)].view_as(size) * mass
        j_from_i = _least_squares_step(j_from_i, residual, slope, weight)
    return j_from_i


def _least_squares_step(
    j_from_i: Float[Tensor, "P 3 4"],
    residual: Float[Tensor, "P M"],
    slope: Float[Tensor, "P 5 M"],
    weight: Float[Tensor, "P M"],
) -> Float[Tensor, "P 3 4"]:
    weighted = slope * weight[:, None]
    normal, gradient = weighted @ slope.mT, weighted @ residual[..., None]
    damping = 1e-6 * normal.diagonal(dim1=-2, dim2=-1).mean(-1).clamp_min(1e-12)
    eye = torch.eye(5, dtype=normal.dtype, device=normal.device)
    step, _ = torch.linalg.solve_ex(normal + damping[:, None, None] * eye, gradient)
    return moved(j_from_i, -step.squeeze(-1).nan_to_num().clamp(-MAX_STEP, MAX_STEP).double())


def estimate_poses(matches: MatchBatch, settings: RansacSettings | None = None) -> RelativePoses:
    """Relative pose of every pair."""
    settings = settings or RansacSettings()
    parts = [
        _estimate_chunk(matches.pairs(slice(start, start + PAIRS_PER_CHUNK)), settings)
        for start in range(0, matches.num_pairs, PAIRS_PER_CHUNK)
    ]
    return RelativePoses(*(torch.cat(column) for column in zip(*(vars(part).values() for part in parts), strict=True)))


def _estimate_chunk(matches: MatchBatch, settings: RansacSettings) -> RelativePoses:
    forms = sampson_forms(matches, torch.float32)
    best = _Best.empty(matches.num_pairs)
    active = torch.arange(matches.num_pairs)
    for number in range(settings.rounds):
        some, some_forms = matches.pairs(active), _chosen(forms, active)
        poses, valid = minimal_hypotheses(some, settings.samples, settings.seed + number)
        best.update(active, *_best_of_round(poses, valid, some, some_forms, settings), settings.samples)
        share = _inlier_share(best.pose[active], some_forms, some.is_match, settings.tau_px)
        active = active[best.samples[active] < samples_needed(share, settings.confidence)]
        if len(active) == 0:
            break
    return finish_poses(best.pose, matches, settings, best.samples, best.score >= 0)


def samples_needed(inlier_share: Float[Tensor, " P"], confidence: float) -> Float[Tensor, " P"]:
    """Number of samples of five needed to draw one without outliers with the given probability."""
    clean = inlier_share.clamp(1e-3, 1 - 1e-9) ** MINIMAL
    return math.log(1 - confidence) / torch.log1p(-clean)


@dataclass
class _Best:
    """Best poses so far: the only state of the search."""

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
    forms: Forms,
    settings: RansacSettings,
) -> tuple[Float[Tensor, "P 3 4"], Float[Tensor, " P"]]:
    """Best pose of a round: all are scored, and the best few climb."""
    judge = settings.score, settings.tau_px
    scores = score_matrices(essential_from_pose(poses), forms, matches.is_match, *judge).masked_fill(~valid, -1)
    scores, order = scores.topk(min(max(settings.candidates, 1), scores.shape[1]), dim=1)
    width = scores.shape[1]
    poses = poses.gather(1, order[..., None, None].expand(-1, -1, 3, 4))
    if settings.candidates:
        repeated = Forms(*(table.repeat_interleave(width, 0) for table in (forms.bilinear, forms.squares)))
        is_match = matches.is_match.repeat_interleave(width, 0)
        higher = climb(poses.flatten(0, 1), repeated, is_match, settings.tau_px, settings.climb_steps)
        higher = higher.unflatten(0, (-1, width))
        again = score_matrices(essential_from_pose(higher), forms, matches.is_match, *judge)
        better = again > scores
        poses, scores = torch.where(better[..., None, None], higher, poses), torch.where(better, again, scores)
        scores = scores.masked_fill(~valid.gather(1, order), -1)
    top = scores.argmax(1)
    row = torch.arange(len(top))
    return poses[row, top], scores[row, top].double()


def _inlier_share(
    pose: Float[Tensor, "P 3 4"], forms: Forms, is_match: Bool[Tensor, "P M"], tau_px: float
) -> Float[Tensor, " P"]:
    squared = sampson_squared(essential_from_pose(pose)[:, None], forms)[:, 0]
    return ((squared < tau_px**2) & is_match).sum(1) / is_match.sum(1).clamp_min(1)


def finish_poses(
    start: Float[Tensor, "P 3 4"],
    matches: MatchBatch,
    settings: RansacSettings,
    samples: Int[Tensor, " P"],
    found: Bool[Tensor, " P"],
) -> RelativePoses:
    """Refined poses; of each essential matrix's four, the one with most weight in front of both cameras."""
    forms = sampson_forms(matches, torch.float64)
    pose = refine(start, forms, matches.is_match, settings) if settings.candidates else start
    squared = sampson_squared(essential_from_pose(pose)[:, None], forms)[:, 0]
    poses = poses_from_essential(essential_from_pose(pose))
    shape = (-1, 4, -1, -1)
    rays_i, rays_j = (homogeneous(rays)[:, None].expand(shape) for rays in (matches.rays_i, matches.rays_j))
    front = in_front(poses, rays_i, rays_j)
    weight = matches.is_match / (1 + squared)
    which = (front * weight[:, None]).sum(-1).argmax(1)
    row = torch.arange(len(which))
    pose = torch.where(found[:, None, None], poses[row, which], start)
    residual = squared.sqrt().masked_fill(~(matches.is_match & front[row, which] & found[:, None]), torch.inf)
    score = SCORES[settings.score]((residual / settings.tau_px).square()).sum(1)
    return RelativePoses(pose, found, score, residual, samples)


def sigma_px(poses: RelativePoses, tau_px: float) -> Float[Tensor, " P"]:
    """Standard deviation of a Gaussian with the median of the residuals within tau."""
    inside = poses.inliers(tau_px).double()
    distribution = fit_distribution(
        poses.residual_px, inside, Binning(tau_px, 200), torch.arange(len(inside)), len(inside)
    )
    return robust_sigma(replace(distribution, total=distribution.counts.sum(-1)), 1)
