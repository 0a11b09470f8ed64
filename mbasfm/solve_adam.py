"""The paper's recipe: Adam on all unknowns, with the surrogate loss refitted at every step. The readable twin of lm."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mbasfm.config import Stage
from mbasfm.forms import SplitForm
from mbasfm.geometry import rotation_from_6d, rotation_to_6d
from mbasfm.normal import SLOT_INTRINSIC, SLOT_SCALE, SLOT_SHIFT
from mbasfm.objective import (
    Binning,
    Distribution,
    WeightTable,
    fit_distribution,
    fit_weights,
    marginalized_score,
    surrogate_loss,
)
from mbasfm.residuals import isotropic_residuals, split_residuals
from mbasfm.solve_lm import Problem, Step
from mbasfm.types import Cameras, Samples
from mbasfm.unknowns import Gauge, PriorTerm


@dataclass(frozen=True)
class Parameters:
    """Leaves of the graph: 6-D rotations, translations, focal lengths per group [px], depth corrections, k1."""

    rotation: Tensor
    translation: Tensor
    focal: Tensor
    scale: Tensor
    shift: Tensor
    radial: Tensor

    @staticmethod
    def build(cameras: Cameras, group: Tensor) -> "Parameters":
        """From cameras."""
        num_groups = int(group.max()) + 1
        first = torch.zeros(num_groups, dtype=torch.long).scatter_(0, group, torch.arange(len(group)))
        values = (
            rotation_to_6d(cameras.cam_from_world[..., :3]),
            cameras.cam_from_world[..., 3],
            cameras.intrinsics.focal[first, 0],
            cameras.depth_scale,
            cameras.depth_shift,
            cameras.intrinsics.distortion[first, 0],
        )
        return Parameters(*(value.clone().requires_grad_() for value in values))


def solve_adam(
    problem: Problem, cameras: Cameras, priors: PriorTerm, on_step: Callable[[Step, Cameras], None]
) -> Cameras:
    """A fixed number of steps. As in the paper there are no priors; ``priors`` only travels through the gauge."""
    stage, start = problem.stage, time.perf_counter()
    cameras, priors = _unit_depth(problem.gauge, cameras, priors)
    _, group = cameras.intrinsics.group.unique(return_inverse=True)
    parameters = Parameters.build(cameras, group)
    others = [parameters.rotation, parameters.translation, parameters.scale, parameters.shift, parameters.radial]
    focal_rate = stage.learning_rate * stage.intrinsics_boost
    groups: list[dict[str, Any]] = [{"params": [parameters.focal], "lr": focal_rate}, {"params": others}]
    optimizer = torch.optim.Adam(groups, lr=stage.learning_rate)
    result = cameras
    for _ in range(stage.max_steps):
        optimizer.zero_grad()
        moved = assemble(cameras, parameters, problem, group)
        loss, score = stage_loss(moved, problem)
        torch.autograd.backward(loss)
        optimizer.step()
        with torch.no_grad():
            parameters.scale.clamp_min_(1e-6)
        with torch.no_grad():
            result = assemble(cameras, parameters, problem, group)
        on_step(Step(time.perf_counter() - start, float(loss.detach()), score, 0.0, True), result)
    return problem.gauge.normalize(result, priors)[0]


def _unit_depth(gauge: Gauge, cameras: Cameras, priors: PriorTerm) -> tuple[Cameras, PriorTerm]:
    """Scale the world so that the root's typical depth is 1: only then a learning rate means something."""
    root = gauge.root
    corrected = cameras.depth_scale[root] * gauge.typical_raw[root] + cameras.depth_shift[root]
    factor = torch.where(cameras.is_disparity[root], corrected, 1 / corrected)
    usable = gauge.scale_is_free & factor.isfinite() & (factor > 0)
    return gauge.rescale(cameras, priors, factor.where(usable, torch.ones_like(factor)))


def assemble(cameras: Cameras, parameters: Parameters, problem: Problem, group: Tensor) -> Cameras:
    """Cameras from parameters; what is fixed comes from ``cameras`` bit for bit."""
    free = problem.unknowns.index >= 0
    pose = torch.cat([rotation_from_6d(parameters.rotation), parameters.translation[..., None]], -1)
    intrinsics = cameras.intrinsics
    slot = SLOT_INTRINSIC
    if problem.unknowns.columns.focal:
        focal = intrinsics.focal / intrinsics.focal[:, :1] * parameters.focal[group, None]
        intrinsics = replace(intrinsics, focal=torch.where(free[:, slot, None], focal, intrinsics.focal))
        slot += 1
    if problem.unknowns.columns.radial:
        radial = torch.where(free[:, slot], parameters.radial[group], intrinsics.distortion[:, 0])
        intrinsics = replace(intrinsics, distortion=torch.cat([radial[:, None], intrinsics.distortion[:, 1:]], -1))
    return replace(
        cameras,
        cam_from_world=torch.where(free[:, :1, None], pose, cameras.cam_from_world),
        intrinsics=intrinsics,
        depth_scale=torch.where(free[:, SLOT_SCALE], parameters.scale, cameras.depth_scale),
        depth_shift=torch.where(free[:, SLOT_SHIFT], parameters.shift, cameras.depth_shift),
    )


def stage_loss(cameras: Cameras, problem: Problem) -> tuple[Tensor, float]:
    """Loss per sample with the distribution of the present residuals held fixed, and S^m per sample."""
    if isinstance(problem.form, SplitForm):
        return split_loss(cameras, problem.form, problem.stage)
    return isotropic_loss(cameras, problem.samples, problem.stage)


def isotropic_loss(cameras: Cameras, samples: Samples, stage: Stage) -> tuple[Tensor, float]:
    """eqn:fine_forward or, per star, eqn:coarse_ba: every star counts the same."""
    residuals = isotropic_residuals(cameras, samples)
    binning = Binning(stage.tau_max, stage.num_bins, stage.log_scale)
    star = samples.edges[:, 0] if stage.per_star else None
    num_groups = cameras.num_frames if stage.per_star else 1
    distribution = fit_distribution(residuals.detach(), samples.weight, binning, star, num_groups)
    share = samples.weight / samples.weight.sum()
    if star is not None:
        inside = distribution.counts.sum(-1)
        distribution = Distribution(binning, distribution.counts, inside)
        occupied = (inside > 0).sum().clamp_min(1)
        share = (samples.weight / inside[star, None].clamp_min(1e-30) / occupied).to(residuals)
    if stage.loss == "mba":
        values = surrogate_loss(residuals, distribution, star)
    else:
        values = fit_weights(distribution, stage.loss, dimension=2).loss(residuals, star)
    return (values * share).sum(), float(marginalized_score(residuals.detach(), stage.tau_max))


def split_loss(cameras: Cameras, form: SplitForm, stage: Stage) -> tuple[Tensor, float]:
    """Loss of both parts; noise, spread and votes are frozen like the distributions."""
    with torch.no_grad():
        frozen = form.start(cameras)
    parts = split_residuals(cameras, form.samples, frozen.noise)
    weight = form.samples.weight / form.samples.weight.sum()
    across = _finite_loss(frozen.across, parts.across) * form.across_share
    index = form.binning.index(parts.across.abs())
    gate = frozen.gate.weight.to(parts.across).flatten()[frozen.gate.slots(index)].view_as(parts.across)
    along = _finite_loss(frozen.along, parts.along / parts.spread.detach()) * gate * form.along_share
    score = float(marginalized_score(parts.across.detach().abs(), stage.tau_max))
    return ((across + along) * weight).sum(), score


def _finite_loss(table: WeightTable, residuals: Tensor) -> Tensor:
    """Loss of signed residuals; infinite ones saturate without touching the gradient."""
    finite = residuals.isfinite()
    size = residuals.where(finite, torch.zeros_like(residuals)).abs()
    return table.loss(size.where(finite, torch.full_like(size, table.binning.tau_max)))
