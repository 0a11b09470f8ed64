"""The paper's recipe: Adam on all unknowns, with the surrogate loss refitted at every step. The readable twin of lm."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mbasfm.adjust.levenberg_marquardt import Problem, Step
from mbasfm.adjust.stage import Stage
from mbasfm.adjust.unknowns import SLOT_INTRINSIC, SLOT_SCALE, SLOT_SHIFT, Gauge, PriorTerm
from mbasfm.geometry.rigid import rotation_from_6d, rotation_to_6d
from mbasfm.types.cameras import Cameras


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
        """Parameters with the values of the given cameras."""
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


@dataclass(frozen=True)
class AdamDescent:
    """State between two steps: all that the next one depends on. It changes values and optimizer in place."""

    cameras: Cameras
    origin: Cameras
    """Cameras at the start, scaled so that the root's typical depth is 1."""
    priors: PriorTerm
    values: tuple[Tensor, ...]
    """Values of the parameters."""
    optimizer: dict[str, Any]
    num_steps: int
    seconds: float


def solve_adam(
    problem: Problem,
    cameras: Cameras,
    priors: PriorTerm,
    on_step: Callable[[Step, AdamDescent], None],
    stopped: AdamDescent | None = None,
) -> Cameras:
    """Cameras after a fixed number of steps. As in the paper there are no priors; ``priors`` only follows the gauge."""
    stage, start, done = problem.stage, time.perf_counter(), 0
    cameras, priors = _unit_depth(problem.gauge, cameras, priors)
    if stopped is not None:
        cameras, priors, start, done = stopped.origin, stopped.priors, start - stopped.seconds, stopped.num_steps
    _, group = cameras.intrinsics.group.unique(return_inverse=True)
    parameters = Parameters.build(cameras, group)
    optimizer = _optimizer(parameters, stage)
    if stopped is not None:
        _put_back(stopped, parameters, optimizer)
    result = cameras if stopped is None else stopped.cameras
    for number in range(done, stage.max_steps):
        optimizer.zero_grad()
        moved = assemble(cameras, parameters, problem, group)
        loss, score = descend(moved, problem)
        optimizer.step()
        with torch.no_grad():
            parameters.scale.clamp_min_(1e-6)
            result = assemble(cameras, parameters, problem, group)
        seconds = time.perf_counter() - start
        values = tuple(vars(parameters).values())
        state = AdamDescent(result, cameras, priors, values, optimizer.state_dict(), number + 1, seconds)
        on_step(Step(seconds, loss, score, 0.0, True), state)
    return problem.gauge.rescale(result, priors, problem.gauge.growth(result))[0]


def _optimizer(parameters: Parameters, stage: Stage) -> torch.optim.Adam:
    others = [parameters.rotation, parameters.translation, parameters.scale, parameters.shift, parameters.radial]
    focal_rate = stage.learning_rate * stage.intrinsics_boost
    groups: list[dict[str, Any]] = [{"params": [parameters.focal], "lr": focal_rate}, {"params": others}]
    return torch.optim.Adam(groups, lr=stage.learning_rate)


def _put_back(stopped: AdamDescent, parameters: Parameters, optimizer: torch.optim.Adam) -> None:
    with torch.no_grad():
        for parameter, value in zip(vars(parameters).values(), stopped.values, strict=True):
            parameter.copy_(value)
    optimizer.load_state_dict(stopped.optimizer)


def _unit_depth(gauge: Gauge, cameras: Cameras, priors: PriorTerm) -> tuple[Cameras, PriorTerm]:
    """Scale the world so that the root's typical depth is 1, which gives the learning rate a meaning."""
    root = gauge.root
    corrected = cameras.depth_scale[root] * gauge.typical_raw[root] + cameras.depth_shift[root]
    factor = torch.where(cameras.is_disparity[root], corrected, 1 / corrected)
    usable = gauge.scale_is_free & factor.isfinite() & (factor > 0)
    return gauge.rescale(cameras, priors, factor.where(usable, torch.ones_like(factor)))


def assemble(cameras: Cameras, parameters: Parameters, problem: Problem, group: Tensor) -> Cameras:
    """Cameras from parameters; what is fixed is copied from ``cameras`` bit for bit."""
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


def descend(cameras: Cameras, problem: Problem) -> tuple[float, float]:
    """Loss per sample with the distribution of the present residuals held fixed, and S^m per sample.

    The gradient is added to whatever the cameras were computed from. Edges are processed block by block to save memory.
    """
    samples, share = problem.samples, problem.form.share
    block_loss = problem.form.first_order_loss(cameras)
    moved, leaves, twins = _leaves(cameras)
    sums = torch.zeros(2, dtype=torch.float64)
    for chunk in share.blocks:
        loss, score = block_loss(twins, samples.rows(chunk), chunk)
        torch.autograd.backward(loss)
        sums += torch.tensor([float(loss.detach()), score], dtype=torch.float64)
    gradients = [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in leaves]
    share.total(sums, *gradients)
    torch.autograd.backward(moved, gradients)
    loss_value, score = sums.tolist()
    return loss_value, score / (samples.num_edges * samples.samples_per_edge)


def _leaves(cameras: Cameras) -> tuple[list[Tensor], list[Tensor], Cameras]:
    """Unknowns of the cameras, detached copies as leaves of a graph of their own, and cameras made of these leaves."""
    intrinsics = cameras.intrinsics
    poses = cameras.cam_from_world, cameras.depth_scale, cameras.depth_shift
    both = [*poses, intrinsics.focal, intrinsics.distortion]
    moved = [tensor for tensor in both if tensor.requires_grad]
    twin = [tensor.detach().clone().requires_grad_(tensor.requires_grad) for tensor in both]
    leaves = [tensor for tensor in twin if tensor.requires_grad]
    apart = replace(
        cameras,
        cam_from_world=twin[0],
        depth_scale=twin[1],
        depth_shift=twin[2],
        intrinsics=replace(intrinsics, focal=twin[3], distortion=twin[4]),
    )
    return moved, leaves, apart
