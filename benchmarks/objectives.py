"""The paper's objective against the split one: growing depth error, and the basin of rough starts."""

import statistics
from dataclasses import dataclass, replace
from typing import Any

import tyro
from common import report, rough_start, score, standard_problem

from mbasfm.adjust.adjust import adjust
from mbasfm.adjust.stage import COARSE, FINE, SPLIT, Stage, annealed

METHODS: dict[str, tuple[Stage, ...]] = {
    "paper": (COARSE, FINE),
    "paper, annealed": (COARSE, *annealed(FINE)),
    "split": (SPLIT,),
    "paper, no coarse": (FINE,),
    "coarse, then split": (COARSE, SPLIT),
}
SUCCESS = 0.5
"""AUC@5 from which a start counts as solved."""


@dataclass(frozen=True)
class Options:
    """Settings of the comparison."""

    depth_errors: tuple[float, ...] = (0.02, 0.05, 0.15)
    starts_deg: tuple[float, ...] = (2.0, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0)
    num_frames: int = 20
    seeds: int = 5


def depth_sweep(options: Options) -> list[dict[str, Any]]:
    rows = []
    for smooth in options.depth_errors:
        scores: dict[str, list[tuple[float, ...]]] = {name: [] for name in ("paper", "paper, annealed", "split")}
        for seed in range(options.seeds):
            problem = standard_problem(options.num_frames, seed, smooth)
            start = rough_start(problem, seed)
            for name, values in scores.items():
                values.append(score(adjust(start, problem.samples, METHODS[name]).cameras, problem))
        for name, values in scores.items():
            row: dict[str, Any] = {"depth error": smooth, "objective": name}
            for k, column in enumerate(("AUC@1", "AUC@3", "AUC@5")):
                row[column] = statistics.mean(value[k] for value in values)
            row["spread of AUC@1"] = statistics.stdev(value[0] for value in values)
            row["worst AUC@1"] = min(value[0] for value in values)
            rows.append(row)
    return rows


def basin(options: Options) -> list[dict[str, Any]]:
    names = ("paper", "paper, no coarse", "split", "coarse, then split")
    solved = {name: [0] * len(options.starts_deg) for name in names}
    for seed in range(options.seeds):
        problem = standard_problem(options.num_frames, seed)
        for column, degrees in enumerate(options.starts_deg):
            start = rough_start(problem, 100 * seed + column, degrees)
            for name in names:
                stages = [replace(stage, restarts=0) for stage in METHODS[name]]
                result = adjust(start, problem.samples, stages).cameras
                solved[name][column] += score(result, problem)[2] > SUCCESS
    return [
        {
            "objective": name,
            **{f"{d:g} deg": f"{n}/{options.seeds}" for d, n in zip(options.starts_deg, counts, strict=True)},
        }
        for name, counts in solved.items()
    ]


def main(options: Options) -> None:
    sweep = depth_sweep(options)
    report(
        "depth_error",
        f"Pose AUC by depth error ({options.num_frames} frames, start 10 deg, {options.seeds} seeds)",
        sweep,
    )
    report("basin", f"Starts solved (AUC@5 > {SUCCESS}), centres off by 1 % of the scene per degree", basin(options))


if __name__ == "__main__":
    main(tyro.cli(Options))
