"""Marginalized bundle adjustment: one call for both stages, both solvers and re-localization."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mbasfm.adjust.adam import AdamDescent, solve_adam
from mbasfm.adjust.check_inputs import check_inputs, check_stage
from mbasfm.adjust.covariance import pose_covariance
from mbasfm.adjust.diagnosis import Diagnosis, diagnose, find_stuck
from mbasfm.adjust.gauge import find_gauge, fix_roots
from mbasfm.adjust.levenberg_marquardt import Descent, solve_lm
from mbasfm.adjust.normal_equations import Pairing
from mbasfm.adjust.pose_priors import PosePriors
from mbasfm.adjust.problem import Problem, Step
from mbasfm.adjust.stage import COARSE, Stage
from mbasfm.adjust.unknowns import SLOT_INTRINSIC, SLOT_SCALE, SLOT_SHIFT, PriorTerm, make_priors, number_unknowns
from mbasfm.errors import ConfigError, DegenerateError
from mbasfm.objective.registry import KINDS
from mbasfm.runtime.parallel import one_core
from mbasfm.types.cameras import Cameras, Fixed
from mbasfm.types.observations import SampleSource
from mbasfm.types.outcome import NoPose, Reason

MANY_SAMPLES = 200_000
"""Samples from which on all cores are used; fewer are faster on one core, by far if the machine is busy."""
RESTART_NEIGHBOURS = 3
RESTART_STEPS = 30
Record = Callable[[Step, Descent | AdamDescent], None]
History = tuple[tuple[str, Step], ...]


@dataclass(frozen=True)
class Checkpoint:
    """Progress of an adjustment, from which one with the same input continues as if it had never stopped."""

    place: tuple[int, int]
    """Number of the stage, and how often stuck frames were restarted in it."""
    state: Descent | AdamDescent
    history: History


@runtime_checkable
class Journal(Protocol):
    """Keeps the progress of an adjustment."""

    def last(self) -> Checkpoint | None:
        """Last checkpoint of an earlier run with the same input, if any; the same on all processes."""

    def keep(self, checkpoint: Checkpoint) -> None:
        """Keep the checkpoint of an accepted step; write it at once, as the next step changes it in place."""


@dataclass(frozen=True)
class Adjustment:
    """Adjusted cameras and what is known about each of them."""

    cameras: Cameras
    registered: Bool[Tensor, " N"]
    """False for frames with no edge or no residual that could move them; their rows of ``cameras`` are meaningless."""
    reason: tuple[Reason[NoPose] | None, ...]
    """Why a frame is not registered; None for the others."""
    diagnosis: Diagnosis
    pose_covariance: Float[Tensor, "N 6 6"]
    """Covariance of the twist (omega [rad], tau [world length]), T <- exp(xi) T, relative to the component's root."""
    steps: History
    """History of steps, each with the name of its stage."""


def adjust(
    cameras: Cameras,
    samples: SampleSource,
    stage: Stage | Sequence[Stage],
    fixed: Fixed | None = None,
    pose_priors: PosePriors | None = None,
    journal: Journal | None = None,
) -> Adjustment:
    """Register all frames in one world by the stage's objective (or by several stages, one after the other).

    ``fixed`` says which unknowns of which frames must not move (none by default). Where a connected component has no
    fixed pose its best connected frame is held; where nothing determines its size, depth is kept on average as the
    depth model gave it. ``pose_priors`` are known up to a similarity, so they bend components but do not move them;
    `lm` uses them, `adam` does not. ``journal`` keeps a checkpoint of every accepted step, and
    gives the last one of an earlier run at the beginning.
    """
    stages = [stage] if isinstance(stage, Stage) else list(stage)
    if not stages:
        raise ConfigError("no stage was given; use ANCHORED_STAGES or PAPER_STAGES of mbasfm.adjust.stage")
    for item in stages:
        check_stage(item)
    fixed = fixed or Fixed.build(cameras.num_frames)
    check_inputs(cameras, samples, fixed, any(KINDS[item.residual].needs_depth for item in stages))
    active, fixed = _drop_settled(samples, cameras, fixed)
    log = _Log(journal)
    is_small = samples.num_edges * samples.samples_per_edge < MANY_SAMPLES
    with one_core() if is_small else nullcontext():
        for number, item in enumerate(stages):
            for attempt in range(1 + item.restarts):
                place = number, attempt
                if log.is_past(place):
                    continue
                state = log.state(place)
                if attempt > 0 and state is None:
                    stuck = find_stuck(cameras, active, item, fixed)
                    if not stuck.any() or stuck.all():
                        break
                    cameras = _restart(cameras, active, fixed, stuck, item)
                problem = make_problem(cameras, active, item, fixed)
                priors = _priors(cameras, problem, pose_priors)
                cameras = _run(problem, cameras, priors, partial(log.note, item, place), state)
        problem = make_problem(cameras, active, stages[-1], fixed)
        priors = _priors(cameras, problem, pose_priors)
        return _report(cameras, samples, problem, priors, fixed, tuple(log.history))


class _Log:
    """Steps taken so far, including those before an interruption."""

    def __init__(self, journal: Journal | None):
        self._journal = journal
        self._stopped = None if journal is None else journal.last()
        self.history = [] if self._stopped is None else list(self._stopped.history)

    def is_past(self, place: tuple[int, int]) -> bool:
        """Whether the place was finished before the interruption."""
        return self._stopped is not None and place < self._stopped.place

    def state(self, place: tuple[int, int]) -> Descent | AdamDescent | None:
        """State to continue with if the interruption happened at this place, else None."""
        return self._stopped.state if self._stopped is not None and place == self._stopped.place else None

    def note(self, stage: Stage, place: tuple[int, int], step: Step, state: Descent | AdamDescent) -> None:
        """Record a step; one that was accepted also goes to the journal."""
        self.history.append((stage.name, step))
        if self._journal is not None and step.accepted:  # a rejected step ends the solver and would be done again
            self._journal.keep(Checkpoint(place, state, tuple(self.history)))


def make_problem(cameras: Cameras, samples: SampleSource, stage: Stage, fixed: Fixed) -> Problem:
    """Problem of a stage: everything that stays the same while it runs."""
    gauge = find_gauge(samples, fixed)
    unknowns = number_unknowns(fix_roots(fixed, gauge), cameras.intrinsics)
    if unknowns.count == 0:
        raise DegenerateError("every unknown is fixed: there is nothing to adjust; free some frames in `fixed`")
    form = KINDS[stage.residual].build(samples, cameras.num_frames, stage.shape)
    pairing = Pairing.build(samples.edges, cameras.num_frames, form.coupled_frames())
    return Problem(form, samples, unknowns, pairing, gauge, stage)


def _priors(cameras: Cameras, problem: Problem, pose_priors: PosePriors | None) -> PriorTerm:
    priors = make_priors(cameras, problem.unknowns, problem.stage.priors, problem.gauge.typical_raw)
    return replace(priors, poses=problem.gauge.split(pose_priors))


def _run(
    problem: Problem, cameras: Cameras, priors: PriorTerm, record: Record, stopped: Descent | AdamDescent | None = None
) -> Cameras:
    if problem.stage.solver == "lm":
        return solve_lm(problem, cameras, priors, record, stopped if isinstance(stopped, Descent) else None)
    return solve_adam(problem, cameras, priors, record, stopped if isinstance(stopped, AdamDescent) else None)


def _drop_settled(samples: SampleSource, cameras: Cameras, fixed: Fixed) -> tuple[SampleSource, Fixed]:
    """Leave out edges that no unknown can change, which would blur the histograms, and hold frames without edges."""
    i, j = samples.edges.unbind(-1)
    unknowns = number_unknowns(fixed, cameras.intrinsics)
    moves = unknowns.index >= 0
    pose, intrinsic = moves[:, 0], moves[:, SLOT_INTRINSIC:].any(-1)
    depth = moves[:, SLOT_SCALE] | moves[:, SLOT_SHIFT]
    free = pose[i] | pose[j] | depth[i] | intrinsic[i] | intrinsic[j]
    if not bool(free.any()):
        raise DegenerateError("every unknown is fixed: there is nothing to adjust; free some frames in `fixed`")
    active = samples if bool(free.all()) else samples.select(free)
    seen = torch.bincount(active.edges.flatten(), minlength=cameras.num_frames) > 0
    source = torch.bincount(active.edges[:, 0], minlength=cameras.num_frames) > 0
    held = replace(fixed, pose=fixed.pose | ~seen, scale=fixed.scale | ~source, shift=fixed.shift | ~source)
    return active, held


def _restart(cameras: Cameras, samples: SampleSource, fixed: Fixed, stuck: Bool[Tensor, " N"], stage: Stage) -> Cameras:
    """Restart stuck frames from their best neighbours, one at a time, with all others held."""
    for frame in torch.nonzero(stuck).flatten().tolist():
        mine = (samples.edges == frame).any(-1)
        near = samples.select(mine)
        others = near.edges[near.edges != frame]
        mass = torch.zeros(cameras.num_frames, dtype=torch.float64)
        mass.index_add_(0, others, near.edge_mass())
        mass[stuck] = 0
        hold = Fixed(*(value | (torch.arange(cameras.num_frames) != frame) for value in vars(fixed).values()))
        candidates = []
        for neighbour in mass.topk(min(RESTART_NEIGHBOURS, len(mass))).indices[:RESTART_NEIGHBOURS].tolist():
            if mass[neighbour] > 0:
                candidates.append(_start_at(cameras, near, hold, (frame, neighbour), stage))
        if candidates:
            cameras = max(candidates, key=lambda item: item[0])[1]
            stuck = stuck & (torch.arange(len(stuck)) != frame)
    return cameras


def _start_at(
    cameras: Cameras, near: SampleSource, hold: Fixed, ends: tuple[int, int], stage: Stage
) -> tuple[float, Cameras]:
    """Score and cameras after some steps, started with the first frame at its neighbour's pose.

    Where residuals need depth they are those of the coarse stage, which has the widest basin.
    """
    frame, neighbour = ends
    stage = COARSE if KINDS[stage.residual].needs_depth else stage
    pose = cameras.cam_from_world.clone()
    pose[frame] = pose[neighbour]
    scale, shift = cameras.depth_scale.clone(), cameras.depth_shift.clone()
    scale[frame], shift[frame] = scale[neighbour], 0.0
    moved = replace(cameras, cam_from_world=pose, depth_scale=scale, depth_shift=shift)
    scores: list[float] = []
    problem = make_problem(moved, near, replace(stage, max_steps=RESTART_STEPS), hold)
    moved = _run(problem, moved, _priors(moved, problem, None), lambda step, state: scores.append(step.score))
    return (scores[-1] if scores and scores[-1] == scores[-1] else float("-inf")), moved


def _report(
    cameras: Cameras,
    samples: SampleSource,
    problem: Problem,
    priors: PriorTerm,
    fixed: Fixed,
    history: History,
) -> Adjustment:
    diagnosis = diagnose(cameras, samples, problem.stage)
    stuck = find_stuck(cameras, samples, problem.stage, fixed)
    seen = torch.bincount(samples.edges.flatten(), minlength=cameras.num_frames) > 0
    reason = tuple(
        Reason(NoPose.NO_EDGE) if not has_edge else diagnosis.explain(frame) if is_stuck else None
        for frame, (has_edge, is_stuck) in enumerate(zip(seen.tolist(), stuck.tolist(), strict=True))
    )
    covariance = pose_covariance(problem, cameras, priors)
    return Adjustment(cameras, seen & ~stuck, reason, diagnosis, covariance, history)
