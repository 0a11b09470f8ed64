"""Iteratively re-weighted Levenberg-Marquardt on the frozen loss."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mbasfm.config import Stage
from mbasfm.forms import Form
from mbasfm.linear import System, reduce_system
from mbasfm.normal import NormalEquations, Pairing, Unknowns
from mbasfm.types import Cameras, SampleSource
from mbasfm.unknowns import Gauge, PriorTerm, retract

FIRST_DAMPING = 1e-4
MIN_GAIN = 1e-3
"""Share of the promised decrease a step must bring to be taken."""
MAX_TRIES = 8
SETTLED_STEPS = 2
"""Steps in a row below the tolerance before the stage ends: one alone may only follow a large damping."""


@dataclass(frozen=True)
class Step:
    """One line of a stage's history."""

    seconds: float
    """Since the start of the stage."""
    loss: float
    """Under the distribution at the start of the step, per sample."""
    score: float
    """S^m per sample after the step [px]; not comparable between stages with different tau_max. NaN before any."""
    damping: float
    accepted: bool


@dataclass(frozen=True)
class Problem:
    """What stays the same during one stage."""

    form: Form
    samples: SampleSource
    unknowns: Unknowns
    pairing: Pairing
    gauge: Gauge
    stage: Stage


def linearize(problem: Problem, cameras: Cameras, frozen: Any) -> tuple[float, NormalEquations]:
    """Loss and normal equations of the data at the present cameras."""
    equations = NormalEquations(problem.pairing, cameras, problem.unknowns)
    loss = problem.form.linearize(cameras, frozen, problem.unknowns.columns, equations.add)
    problem.form.share.total(*equations.sums)
    return loss, equations


def solve_lm(
    problem: Problem, cameras: Cameras, priors: PriorTerm, on_step: Callable[[Step, Cameras], None]
) -> Cameras:
    """Descend until steps bring no more than the tolerance."""
    form, stage, start = problem.form, problem.stage, time.perf_counter()
    mass = float(problem.samples.edge_mass().sum())
    frozen = form.start(cameras)
    damping, settled, score = FIRST_DAMPING, 0, float("nan")
    for _ in range(stage.max_steps):
        data_loss, equations = linearize(problem, cameras, frozen)
        prior_loss, prior_gradient, prior_diagonal = priors.evaluate(cameras, problem.unknowns)
        system = reduce_system(equations, prior_diagonal, prior_gradient)
        loss = data_loss + prior_loss
        attempt = _try_steps(problem, cameras, priors, frozen, system, loss, damping)
        accepted = attempt.cameras is not None
        score = attempt.score if accepted else score
        seconds = time.perf_counter() - start
        on_step(Step(seconds, loss / mass, score, damping, accepted), attempt.cameras or cameras)
        if attempt.cameras is None:
            break
        cameras, priors = problem.gauge.normalize(attempt.cameras, priors)
        frozen, damping = attempt.frozen, attempt.damping
        settled = settled + 1 if attempt.decrease <= stage.tolerance * abs(loss) else 0
        if settled >= SETTLED_STEPS:
            break
    return cameras


@dataclass(frozen=True)
class _Attempt:
    cameras: Cameras | None
    frozen: Any
    damping: float
    decrease: float
    score: float


def _try_steps(
    problem: Problem,
    cameras: Cameras,
    priors: PriorTerm,
    frozen: Any,
    system: System,
    loss: float,
    damping: float,
) -> _Attempt:
    """Raise the damping until a step brings a fair share of the decrease it promises (Nielsen's rule)."""
    growth = 2.0
    for _ in range(MAX_TRIES):
        diagonal = damping * system.diagonal.clamp_min(1e-12)
        step = system.solve(diagonal)
        if step is not None:
            candidate = retract(cameras, problem.unknowns, step)
            data_loss, statistics = problem.form.measure(candidate, frozen)
            decrease = loss - data_loss - priors.evaluate(candidate, problem.unknowns)[0]
            promised = float(0.5 * step @ (diagonal * step - system.gradient))
            gain = decrease / max(promised, 1e-300)
            if gain > MIN_GAIN:
                score = float(problem.form.distribution(statistics).score()[0])
                factor = max(1 / 3, 1 - (2 * gain - 1) ** 3)
                refit = problem.form.freeze(statistics)
                return _Attempt(candidate, refit, max(damping * factor, 1e-9), decrease, score)
            if promised <= problem.stage.tolerance * abs(loss):
                break
        damping *= growth
        growth *= 2
    return _Attempt(None, frozen, damping, 0.0, float("nan"))
