"""What the solvers work on, and iteratively re-weighted Levenberg-Marquardt on the frozen loss."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jaxtyping import Float
from torch import Tensor

from mbasfm.adjust.linear_solve import System, reduce_system
from mbasfm.adjust.normal_equations import NormalEquations, Pairing
from mbasfm.adjust.stage import Stage
from mbasfm.adjust.unknowns import Gauge, PriorTerm, Unknowns, retract
from mbasfm.objective.residual_kind import Form
from mbasfm.types.cameras import Cameras
from mbasfm.types.observations import SampleSource


@dataclass(frozen=True)
class Step:
    """One line of a stage's history."""

    seconds: float
    """Seconds since the start of the stage."""
    loss: float
    """Loss per sample under the distribution at the start of the step."""
    score: float
    """S^m per sample after the step [px]; not comparable between stages with different tau_max. NaN before any."""
    damping: float
    accepted: bool


@dataclass(frozen=True)
class Problem:
    """All that stays the same during one stage."""

    form: Form
    samples: SampleSource
    unknowns: Unknowns
    pairing: Pairing
    gauge: Gauge
    stage: Stage


FIRST_DAMPING = 1e-4
MIN_GAIN = 1e-3
"""Least share of the predicted decrease that an accepted step must bring."""
MAX_TRIES = 8
STRETCH_GAIN, MAX_STRETCHES = 0.75, 4
"""A step that brings this share of the predicted decrease is tried at twice the length, this many times over."""
SETTLED_STEPS = 2
"""Steps in a row below the tolerance that end the stage: a single one may just be due to strong damping."""


@dataclass(frozen=True)
class Descent:
    """State between two steps: all that the next one depends on, so that an interrupted run can continue."""

    cameras: Cameras
    priors: PriorTerm
    statistics: Any = None
    """Statistics of the residuals, from which the loss is frozen; None: not measured yet."""
    damping: float = FIRST_DAMPING
    settled: int = 0
    """Number of steps in a row below the tolerance."""
    score: float = float("nan")
    num_steps: int = 0
    seconds: float = 0.0


def linearize(problem: Problem, cameras: Cameras, frozen: Any) -> tuple[float, NormalEquations]:
    """Loss and normal equations of the data at the present cameras."""
    equations = NormalEquations(problem.pairing, cameras, problem.unknowns)
    loss = problem.form.linearize(cameras, frozen, problem.unknowns.columns, equations)
    problem.form.share.total(*equations.sums)
    return loss, equations


def solve_lm(
    problem: Problem,
    cameras: Cameras,
    priors: PriorTerm,
    on_step: Callable[[Step, Descent], None],
    stopped: Descent | None = None,
) -> Cameras:
    """Cameras at which steps gain no more than the tolerance, starting from ``cameras`` or from an interrupted run."""
    state = stopped or Descent(cameras, priors)
    form, stage, start = problem.form, problem.stage, time.perf_counter() - state.seconds
    mass = float(problem.samples.edge_mass().sum())
    frozen = form.start(cameras) if state.statistics is None else form.freeze(state.statistics)
    while state.num_steps < stage.max_steps and state.settled < SETTLED_STEPS:
        cameras, priors, damping = state.cameras, state.priors, state.damping
        data_loss, equations = linearize(problem, cameras, frozen)
        prior_loss, prior_gradient, prior_diagonal = priors.evaluate(cameras, problem.unknowns)
        system = reduce_system(equations, prior_diagonal, prior_gradient)
        loss = data_loss + prior_loss
        attempt = _try_steps(problem, state, frozen, system, loss)
        seconds = time.perf_counter() - start
        if attempt.cameras is None:
            on_step(Step(seconds, loss / mass, state.score, damping, False), state)
            break
        settled = state.settled + 1 if attempt.gain <= _little(problem, loss) else 0
        growth = problem.gauge.growth(attempt.cameras)
        state = Descent(
            *problem.gauge.rescale(attempt.cameras, priors, growth),
            form.rescaled(attempt.statistics, growth[problem.gauge.component]),
            attempt.damping,
            settled,
            attempt.score,
            state.num_steps + 1,
            seconds,
        )
        on_step(Step(seconds, loss / mass, attempt.score, damping, True), state)
        frozen = form.freeze(state.statistics)
    return state.cameras


def _little(problem: Problem, loss: float) -> float:
    """Decrease of the loss that is not worth another step."""
    stage = problem.stage
    return max(stage.tolerance * abs(loss), stage.tolerance_per_unknown * problem.unknowns.count)


@dataclass(frozen=True)
class _Attempt:
    cameras: Cameras | None
    statistics: Any
    damping: float
    gain: float
    """Decrease of the loss, or what was predicted if that is less: latents may still gain where cameras do not."""
    score: float


def _try_steps(problem: Problem, state: Descent, frozen: Any, system: System, loss: float) -> _Attempt:
    """Raise the damping until a step brings a fair share of the predicted decrease (Nielsen's rule)."""
    growth, damping = 2.0, state.damping
    for _ in range(MAX_TRIES):
        diagonal = damping * system.diagonal.clamp_min(1e-12)
        step = system.solve(diagonal)
        if step is not None and bool(step.isfinite().all()):
            candidate, now, statistics = _take(problem, state, frozen, step)
            promised = float(0.5 * step @ (diagonal * step - system.gradient))
            gain = (loss - now) / max(promised, 1e-300)
            if gain > MIN_GAIN:
                if gain > STRETCH_GAIN:
                    candidate, now, statistics = _stretch(problem, state, frozen, step, (candidate, now, statistics))
                score = float(problem.form.distribution(statistics).score()[0])
                factor = max(1 / 3, 1 - (2 * gain - 1) ** 3)
                return _Attempt(candidate, statistics, max(damping * factor, 1e-9), min(loss - now, promised), score)
            if promised <= _little(problem, loss):
                break
        damping *= growth
        growth *= 2
    return _Attempt(None, None, damping, 0.0, float("nan"))


Taken = tuple[Cameras, float, Any]
"""Cameras after a step, their loss under what is frozen, and the statistics there."""


def _take(problem: Problem, state: Descent, frozen: Any, step: Float[Tensor, " U"]) -> Taken:
    candidate = retract(state.cameras, problem.unknowns, step)
    data_loss, statistics = problem.form.measure(candidate, frozen)
    return candidate, data_loss + state.priors.evaluate(candidate, problem.unknowns)[0], statistics


def _stretch(problem: Problem, state: Descent, frozen: Any, step: Float[Tensor, " U"], best: Taken) -> Taken:
    """Double the step while that lowers the loss: re-weighted steps are too short where few samples hold a length."""
    for _ in range(MAX_STRETCHES):
        step = 2 * step
        longer = _take(problem, state, frozen, step)
        if not longer[1] < best[1]:
            break
        best = longer
    return best
