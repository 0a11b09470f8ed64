"""Second order against first order: the paper's objective, the same start, one run.

Adam runs the paper's recipe for a number of steps, half coarse and half fine; `lm` runs until it settles. An AUC counts
as reached from 0.005 below Adam's best on. Times exclude the evaluation against the truth.
"""

import time
from dataclasses import dataclass, replace
from typing import Any

import tyro
from common import report, rough_start, score, standard_problem

from mbasfm.adjust.adjust import Checkpoint, adjust, make_problem
from mbasfm.adjust.levenberg_marquardt import linearize
from mbasfm.adjust.stage import COARSE, FINE, Stage, annealed
from mbasfm.synthetic.problem import Problem
from mbasfm.types.cameras import Cameras, Fixed

PAPER_STEPS = 50_000
SLACK = 0.005


@dataclass(frozen=True)
class Options:
    """Settings of the race."""

    frames: tuple[int, ...] = (20, 60)
    timed_frames: tuple[int, ...] = (200,)
    """Adam is only timed here, not run to its end."""
    adam_steps: int = 8000
    timed_steps: int = 20
    check_every: int = 40
    seed: int = 0


class Trace:
    """AUC after steps, on a clock that stops while the truth is consulted."""

    def __init__(self, problem: Problem, every: int):
        self.problem, self.every = problem, every
        self.points: list[tuple[float, tuple[float, float, float]]] = []
        self.steps, self.paused, self.started = 0, 0.0, time.perf_counter()

    def last(self) -> None:
        """There is no earlier run."""

    def keep(self, checkpoint: Checkpoint) -> None:
        """Note where the solver is."""
        self.steps += 1
        if self.steps % self.every == 0:
            now = time.perf_counter()
            self.points.append((now - self.started - self.paused, score(checkpoint.state.cameras, self.problem)))
            self.paused += time.perf_counter() - now

    @property
    def seconds(self) -> float:
        """Time of the last point."""
        return self.points[-1][0]

    def best(self) -> tuple[float, float, float]:
        """Best value of each AUC, whenever it was."""
        one, three, five = (max(point[1][k] for point in self.points) for k in range(3))
        return one, three, five

    def first_time(self, target: tuple[float, ...]) -> float | None:
        """When all three AUCs have been reached, each at its own time."""
        times = []
        for k, value in enumerate(target):
            reached = [seconds for seconds, auc in self.points if auc[k] >= value - SLACK]
            if not reached:
                return None
            times.append(reached[0])
        return max(times)


def run(problem: Problem, start: Cameras, stages: tuple[Stage, ...], every: int) -> Trace:
    trace = Trace(problem, every)
    adjust(start, problem.samples, [replace(stage, restarts=0) for stage in stages], journal=trace)
    return trace


def linearization_seconds(problem: Problem, start: Cameras) -> float:
    """Median time of one full linearisation of the fine stage."""
    inner = make_problem(start, problem.samples, FINE, Fixed.build(start.num_frames))
    frozen, times = inner.form.start(start), []
    for _ in range(9):
        begin = time.perf_counter()
        linearize(inner, start, frozen)
        times.append(time.perf_counter() - begin)
    return sorted(times)[4]


def race(num_frames: int, options: Options, full: bool) -> list[dict[str, Any]]:
    problem = standard_problem(num_frames, options.seed)
    start = rough_start(problem, options.seed + 1)
    steps = options.adam_steps if full else options.timed_steps
    adam_stages = tuple(replace(stage, solver="adam", max_steps=steps // 2) for stage in (COARSE, FINE))
    adam = run(problem, start, adam_stages, options.check_every if full else 1)
    lm = run(problem, start, (COARSE, FINE), 1)
    lm_annealed = run(problem, start, (COARSE, *annealed(FINE)), 1)
    patient = [replace(stage, tolerance=1e-8, max_steps=400) for stage in (COARSE, FINE)]
    lm_patient = run(problem, start, tuple(patient), 1)
    linear = linearization_seconds(problem, start)
    adam_step = adam.seconds / adam.steps
    common = {"frames": num_frames, "edges": problem.samples.num_edges}
    target = adam.best()
    adam_time = adam.first_time(target) if full else None
    rows = [row(common, f"adam, {adam.steps} steps", adam, adam_step / linear, adam_time, None, None)]
    for name, trace in (("lm", lm), ("lm, to 1e-8", lm_patient), ("lm, annealed", lm_annealed)):
        reached = trace.first_time(target) if full else None
        ratio = adam_time / reached if adam_time and reached else None
        rows.append(row(common, name, trace, None, reached, ratio, PAPER_STEPS * adam_step / trace.seconds))
    return rows


def row(
    common: dict[str, Any],
    solver: str,
    trace: Trace,
    linearizations: float | None,
    reached: float | None,
    ratio: float | None,
    product: float | None,
) -> dict[str, Any]:
    best = trace.points[-1][1] if solver.startswith("lm") else trace.best()
    return {
        **common,
        "solver": solver,
        "steps": trace.steps,
        "seconds": trace.seconds,
        "step/linearization": _or_dash(linearizations),
        "AUC@1": best[0],
        "AUC@3": best[1],
        "AUC@5": best[2],
        "s to adam's best": _or_dash(reached),
        "times faster": _or_dash(ratio),
        "50k adam steps / all of it": _or_dash(product),
    }


def _or_dash(value: float | None) -> Any:
    return "-" if value is None else value


def main(options: Options) -> None:
    rows = []
    for num_frames in options.frames:
        rows += race(num_frames, options, full=True)
    for num_frames in options.timed_frames:
        rows += race(num_frames, options, full=False)
    report("solver_race", "Solver race, the paper's objective (AUC: adam's best, lm's last)", rows)


if __name__ == "__main__":
    main(tyro.cli(Options))
