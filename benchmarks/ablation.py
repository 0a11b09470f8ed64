"""The ablations of the paper's Tab. `optimizer` on made-up scenes, with their spread over seeds.

Rows: stages (initial, coarse, fine), samples per edge (30, 200, 500), losses (same solver, same start), and the split
form with each of its 1-D weights.
"""

import statistics
from dataclasses import dataclass, replace
from typing import Any, get_args

import tyro
from common import report, rough_start, score, standard_problem

from mbasfm.adjust.adjust import adjust
from mbasfm.adjust.stage import COARSE, FINE, SPLIT, Loss, Stage, annealed, with_loss
from mbasfm.evaluation.metrics import relative_pose_errors_deg
from mbasfm.synthetic.problem import Problem
from mbasfm.types.cameras import Cameras

ROBUST = ("soft_l1", "cauchy", "tukey", "l2", "truncated_l1")


@dataclass(frozen=True)
class Options:
    """Settings of the ablation."""

    num_frames: int = 20
    seeds: int = 5
    depth_error: float = 0.05


def variants() -> list[tuple[str, str, tuple[Stage, ...], int]]:
    """Group, name, stages and samples per edge of each row."""
    rows: list[tuple[str, str, tuple[Stage, ...], int]] = [
        ("stages", "initial", (), 200),
        ("stages", "coarse", (COARSE,), 200),
        ("stages", "fine", (COARSE, FINE), 200),
        ("stages", "fine, annealed to 4 px", (COARSE, *annealed(FINE)), 200),
        ("density", "30 samples per edge", (COARSE, FINE), 30),
        ("density", "200", (COARSE, FINE), 200),
        ("density", "500", (COARSE, FINE), 500),
        ("losses", "mba", (COARSE, FINE), 200),
    ]
    for loss in ROBUST:
        assert loss in get_args(Loss)
        rows.append(("losses", loss, with_loss(loss), 200))
    for loss in ("mba", "median", "mixture"):
        rows.append(("split", {"mba": "p / |e|", "median": "p / sigma", "mixture": "mixture"}[loss],
                     (replace(SPLIT, loss=loss),), 200))  # fmt: skip
    return rows


def accuracies(cameras: Cameras, problem: Problem) -> tuple[float, ...]:
    """RRA@5, RTA@5 [%] and AUC@1/3/5."""
    rotation, translation = relative_pose_errors_deg(cameras.cam_from_world, problem.truth.cam_from_world)
    return (
        100 * float((rotation < 5).double().mean()),
        100 * float((translation < 5).double().mean()),
        *score(cameras, problem),
    )


def main(options: Options) -> None:
    problems = {
        (seed, density): standard_problem(options.num_frames, seed, options.depth_error, samples_per_edge=density)
        for seed in range(options.seeds)
        for density in (30, 200, 500)
    }
    rows: list[dict[str, Any]] = []
    for group, name, stages, density in variants():
        values = []
        for seed in range(options.seeds):
            problem = problems[seed, density]
            cameras = rough_start(problem, seed)
            if stages:
                cameras = adjust(cameras, problem.samples, stages).cameras
            values.append(accuracies(cameras, problem))
        row: dict[str, Any] = {"ablation": group, "variant": name}
        for column, series in zip(
            ("RRA@5", "RTA@5", "AUC@1", "AUC@3", "AUC@5"), zip(*values, strict=True), strict=True
        ):
            row[column] = statistics.mean(series)
            row[f"± {column}"] = statistics.stdev(series)
        rows.append(row)
    report(
        "ablation", f"Ablations, {options.num_frames} frames, {options.seeds} seeds, mean ± standard deviation", rows
    )


if __name__ == "__main__":
    main(tyro.cli(Options))
