"""What is known about each frame after adjustment, without any ground truth: its quality and its uncertainty.

The uncertainty is the sandwich covariance A^-1 B A^-1 of the estimator. A is the curvature of the loss. B, the spread
of its gradient, is estimated in two ways. Clustered: gradients are summed per source frame before they are squared, as
residuals of one frame share the errors of its depth map; right for any correlation, but noisy with few frames, and
blind to a frame's own depth correction, whose gradient is zero at the optimum. Modelled: matches, or tracks, are
independent, and depth errs as it is believed to. The result leans on the clustered one the more frames there are.
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mbasfm.adjust.levenberg_marquardt import Problem, linearize
from mbasfm.adjust.linear_solve import dense_matrix
from mbasfm.adjust.normal_equations import NormalEquations
from mbasfm.adjust.stage import COARSE, Stage
from mbasfm.adjust.unknowns import SLOT_SCALE, SLOT_SHIFT, Gauge, PriorTerm, Unknowns
from mbasfm.geometry.rigid import camera_centers
from mbasfm.objective.anchor_block import nearest
from mbasfm.objective.edge_block import POSE_COLUMNS, blocks
from mbasfm.objective.isotropic import isotropic
from mbasfm.objective.losses import Binning, Distribution, add_bins, distribution_from_counts, robust_sigma
from mbasfm.objective.registry import KINDS
from mbasfm.objective.residual_kind import NO_INTRINSICS, StarGram, stream
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


CLUSTERS_FOR_HALF = 30.0
"""Neighbours of a frame at which the clustered and the modelled spread count the same."""
TINY_SHARE = 1e-20
"""Share of the largest curvature that is rounding: squared units of pixels, radians and lengths differ by 1e12."""
MOST_UNKNOWNS = 2000
"""Largest number of unknowns with a joint covariance: for twice as many it takes half a minute and a gigabyte."""


def pose_covariance(problem: Problem, cameras: Cameras, priors: PriorTerm) -> Float[Tensor, "N 6 6"]:
    """Covariance of each pose's twist (omega [rad], tau [world length]), relative to its component's root.

    World scale is the gauge in which depth corrections are 1 on average. Fixed poses have covariance 0. Beyond a few
    hundred frames only a frame's own block is inverted: the covariance given its neighbours, which is smaller.
    """
    frozen = problem.form.start(cameras)
    equations, scores = _collect_scores(problem, cameras, frozen)
    curvature = _curvature(problem, cameras, frozen)
    prior = priors.evaluate(cameras, problem.unknowns)[2]
    if problem.unknowns.count > MOST_UNKNOWNS:
        return _conditional(problem.unknowns, equations, curvature)
    hessian = dense_matrix(curvature) + torch.diag(prior)
    if int(torch.linalg.cholesky_ex(hessian).info) != 0:  # far from a minimum: use the majoriser's curvature
        hessian = dense_matrix(equations) + torch.diag(prior)
    bread = _pseudo_inverse(hessian)
    for direction, constraint in _scale_gauges(cameras, problem.unknowns, problem.gauge):
        projector = torch.eye(len(direction), dtype=torch.float64)
        projector -= torch.outer(direction, constraint) / (constraint @ direction)
        bread = projector @ bread
    squares = linearize(problem, cameras, problem.form.squared_gradients(frozen))[1]
    modelled = dense_matrix(squares) + torch.diag(prior)
    clustered = scores.T @ scores + torch.diag(prior)
    neighbours = problem.pairing.num_neighbours.double()
    trust = (neighbours / (neighbours + CLUSTERS_FOR_HALF))[:, None, None]
    blocks = [_pose_blocks(bread @ meat @ bread.T, problem.unknowns) for meat in (modelled, clustered)]
    return torch.lerp(blocks[0], blocks[1], trust)


def _pseudo_inverse(hessian: Float[Tensor, "U U"]) -> Float[Tensor, "U U"]:
    """Inverse on what the data determines.

    What is left of a diagonal after elimination may be a rounding error of either sign: it counts as nothing.
    """
    diagonal = torch.diagonal(hessian)
    known = diagonal > TINY_SHARE * diagonal.max().clamp_min(1e-300)
    scale = torch.where(known, diagonal.clamp_min(1e-300).rsqrt(), 0.0)
    return scale[:, None] * torch.linalg.pinv(scale[:, None] * hessian * scale, hermitian=True) * scale


def _collect_scores(problem: Problem, cameras: Cameras, frozen: Any) -> tuple[NormalEquations, Float[Tensor, "N U"]]:
    """Normal equations with the solver's weights, and the gradient of each source frame's residuals."""
    unknowns = problem.unknowns
    equations = NormalEquations(problem.pairing, cameras, unknowns)
    dense = unknowns.count <= MOST_UNKNOWNS
    scores = torch.zeros(cameras.num_frames if dense else 0, unknowns.count + 1, dtype=torch.float64)
    column = torch.where(unknowns.index >= 0, unknowns.index, unknowns.count)  # the last one collects what is fixed

    sink = _Scores(equations, problem.samples.edges, scores, column)
    problem.form.linearize(cameras, frozen, unknowns.columns, sink if dense else equations)
    problem.form.share.total(*equations.sums, scores)
    return equations, scores[:, :-1]


@dataclass(frozen=True)
class _Scores:
    """Adds to the normal equations, and collects the gradient of each source frame's residuals."""

    equations: NormalEquations
    edges: Int[Tensor, "E 2"]
    scores: Float[Tensor, "N U1"]
    column: Int[Tensor, "N D"]

    def add(self, chunk: slice, gram: Float[Tensor, "e C1 C1"]) -> None:
        """Take a block of edges."""
        self.equations.add(chunk, gram)
        columns = self.column[self.edges[chunk]].flatten(1)
        gradient = self.equations.in_frames(chunk, gram)[:, :-1, -1]
        self.scores.index_put_((self.edges[chunk, :1].expand_as(columns), columns), gradient, accumulate=True)

    def add_star(self, star: StarGram) -> None:
        """Take the edges of one source frame."""
        self.equations.add_star(star)
        frames = torch.cat([torch.tensor([star.source]), star.targets])
        gradient = self.equations.star_in_frames(star).gradient
        self.scores[star.source].index_add_(0, self.column[frames].flatten(), gradient.flatten())


def _curvature(problem: Problem, cameras: Cameras, frozen: Any) -> NormalEquations:
    """Second derivative of the loss; weights may be negative, so both signs are summed separately."""
    positive, negative = problem.form.curvature(frozen)
    _, total = linearize(problem, cameras, positive)
    if negative is not None:
        _, minus = linearize(problem, cameras, negative)
        total.diagonal -= minus.diagonal
        total.off_diagonal -= minus.off_diagonal
    return total


def _scale_gauges(cameras: Cameras, unknowns: Unknowns, gauge: Gauge) -> list[tuple[Tensor, Tensor]]:
    """For each component of free scale, the direction of growth and the constraint that the mean depth stays."""
    centers = camera_centers(cameras.cam_from_world)
    pivot = centers[gauge.root][gauge.component]
    sign = torch.where(cameras.is_disparity, -1.0, 1.0).double()
    slots = torch.zeros(unknowns.index.shape, dtype=torch.float64)
    growth = (cameras.cam_from_world[..., :3] @ (pivot - centers)[..., None]).squeeze(-1)
    slots[:, 3:POSE_COLUMNS] = growth
    slots[:, SLOT_SCALE] = sign
    slots[:, SLOT_SHIFT] = sign * cameras.depth_shift
    result = []
    for number in torch.nonzero(gauge.scale_is_free).flatten():
        mine = (gauge.component == number)[:, None] & (unknowns.index >= 0)
        direction, constraint = torch.zeros(2, unknowns.count, dtype=torch.float64)
        direction[unknowns.index[mine]] = slots[mine]
        scales = mine[:, SLOT_SCALE]
        constraint[unknowns.index[scales, SLOT_SCALE]] = sign[scales]
        if float(constraint @ direction) > 0:
            result.append((direction, constraint))
    return result


def _pose_blocks(covariance: Float[Tensor, "U U"], unknowns: Unknowns) -> Float[Tensor, "N 6 6"]:
    columns = unknowns.index[:, :POSE_COLUMNS]
    free = columns[:, 0] >= 0
    blocks = torch.zeros(len(columns), POSE_COLUMNS, POSE_COLUMNS, dtype=torch.float64)
    blocks[free] = covariance[columns[free][:, :, None], columns[free][:, None, :]]
    return blocks


def _conditional(unknowns: Unknowns, equations: NormalEquations, curvature: NormalEquations) -> Float[Tensor, "N 6 6"]:
    """Inverse of each pose's own block of curvature, for problems too large to invert as a whole."""
    free = unknowns.index[:, 0] >= 0
    blocks = torch.zeros(len(free), POSE_COLUMNS, POSE_COLUMNS, dtype=torch.float64)
    own = curvature.diagonal[free, :POSE_COLUMNS, :POSE_COLUMNS]
    bad = torch.linalg.cholesky_ex(own).info != 0
    own = torch.where(bad[:, None, None], equations.diagonal[free, :POSE_COLUMNS, :POSE_COLUMNS], own)
    blocks[free] = torch.linalg.pinv(own, hermitian=True)
    return blocks
