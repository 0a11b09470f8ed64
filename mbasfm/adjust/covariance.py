"""Uncertainty of poses: the sandwich covariance A^-1 B A^-1 of the estimator.

A is the curvature of the loss. B, the spread of its gradient, is estimated in two ways. Clustered: gradients are summed
per source frame before they are squared, because residuals of one frame share the errors of its depth map; right for
any correlation, but noisy with few frames, and blind to a frame's own depth correction, whose gradient is zero at the
optimum. Modelled: matches are independent, and all depths of a frame are worth DEPTH_VOTES independent ones. The result
leans on the clustered one the more frames there are.
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mbasfm.adjust.gauge import Gauge
from mbasfm.adjust.levenberg_marquardt import linearize
from mbasfm.adjust.linear_solve import dense_matrix
from mbasfm.adjust.normal_equations import NormalEquations
from mbasfm.adjust.problem import Problem
from mbasfm.adjust.unknowns import SLOT_SCALE, SLOT_SHIFT, PriorTerm, Unknowns
from mbasfm.geometry.rigid import camera_centers
from mbasfm.objective.edge_block import POSE_COLUMNS
from mbasfm.objective.residual_kind import StarGram
from mbasfm.types.cameras import Cameras

CLUSTERS_FOR_HALF = 30.0
"""Neighbours of a frame at which the clustered and the modelled spread count the same."""
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
    scale = torch.diagonal(hessian).clamp_min(1e-300).rsqrt()
    bread = scale[:, None] * torch.linalg.pinv(scale[:, None] * hessian * scale, hermitian=True) * scale
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
