"""Two-view poses: scores on the same hypotheses, whole pipelines against MAGSAC++ and PoseLib, and throughput.

    python benchmarks/two_view.py --data FOLDER --cache CACHE --part scores pipelines throughput

Pairs of every set are split in halves by a seed. The threshold is chosen from the paper's twelve values on the first
half, by the mean of AUC@5, 10 and 20 over all of its pairs, for every method by itself; figures are of the second half.
The pose error is the larger of rotation and translation angle; a pair without an answer is 180 degrees off.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import tyro
from common import report
from pair_sets import KITCHEN, PairSet, load_sets

from mbasfm.epipolar import MatchBatch, essential_from_pose, sampson_forms, sampson_squared
from mbasfm.geometry import rotation_angle
from mbasfm.infer import WORKERS, in_parallel
from mbasfm.metrics import auc
from mbasfm.ransac import PAPER_BUDGET, SCORES, RansacSettings, estimate_poses, minimal_hypotheses
from mbasfm.rivals import estimate_by_rival

THRESHOLDS_PX = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.0, 1.2, 1.5, 1.7, 2.0)
"""The paper's grid, here at a long side of 1024."""
LIMITS_DEG = (5.0, 10.0, 20.0)
CHUNK = 16
BOOTSTRAPS = 2000
Part = Literal["scores", "pipelines", "throughput"]
Errors = list[torch.Tensor]
"""Pose errors of the pairs of each set [deg]."""
METHODS: dict[str, Callable[[MatchBatch, float], Any]] = {
    "ours": lambda matches, tau: estimate_poses(matches, RansacSettings(tau_px=tau)),
    "ours, 64 samples": lambda matches, tau: estimate_poses(matches, replace(PAPER_BUDGET, tau_px=tau)),
    "MAGSAC++ (OpenCV)": lambda matches, tau: estimate_by_rival(matches, "magsac", tau),
    "PoseLib": lambda matches, tau: estimate_by_rival(matches, "poselib", tau),
}


@dataclass(frozen=True)
class Options:
    """What to run."""

    data: Path
    cache: Path
    """Features and matches are kept here."""
    part: tuple[Part, ...] = ("scores", "pipelines", "throughput")
    seed: int = 0
    train_every: int = 12
    """Of redkitchen's training half, only every so many-th pair is used to choose the threshold."""
    pairs: int = 4096
    """For throughput."""


def split(item: PairSet, seed: int, train_every: int) -> tuple[PairSet, PairSet]:
    order = np.random.default_rng(seed).permutation(len(item))
    first, second = np.sort(order[: len(item) // 2]), np.sort(order[len(item) // 2 :])
    return item.subset(first[:: train_every if item.name == KITCHEN else 1]), item.subset(second)


def pose_errors(j_from_i: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    """Poses may have more axes between the pairs and the matrix."""
    truth = truth.view(len(truth), *(1 for _ in j_from_i.shape[1:-2]), 3, 4)
    turn = rotation_angle(j_from_i[..., :3] @ truth[..., :3].mT)
    a, b = j_from_i[..., 3], truth[..., 3].expand(j_from_i.shape[:-1])
    shift = torch.atan2(torch.linalg.cross(a, b).norm(dim=-1), (a * b).sum(-1))
    return torch.maximum(turn, shift).rad2deg()


def aucs(errors: torch.Tensor) -> np.ndarray:
    return np.array([auc(errors, limit) for limit in LIMITS_DEG])


def choose(by_threshold: dict[float, Errors]) -> float:
    """The threshold with the best mean AUC over all training pairs."""
    return max(by_threshold, key=lambda tau: float(aucs(torch.cat(by_threshold[tau])).mean()))


def score_errors(item: PairSet, seed: int) -> dict[tuple[str, float], torch.Tensor]:
    """Errors of the best of 64 samples' solutions by every score and threshold: the same hypotheses, no refinement."""
    found: dict[tuple[str, float], list[torch.Tensor]] = {(name, tau): [] for name in SCORES for tau in THRESHOLDS_PX}
    batch = item.batch()
    for start in range(0, len(item), CHUNK):
        part = slice(start, start + CHUNK)
        matches = batch.pairs(part)
        poses, valid = minimal_hypotheses(matches, PAPER_BUDGET.samples, seed)
        errors = pose_errors(poses, item.truth[part]).masked_fill(~valid, 180.0)
        squared = sampson_squared(essential_from_pose(poses), sampson_forms(matches, torch.float32))
        for (name, tau), parts in found.items():
            scores = (SCORES[name](squared / tau**2) @ matches.is_match[..., None].float()).squeeze(-1)
            best = scores.masked_fill(~valid, -1).argmax(1, keepdim=True)
            parts.append(errors.gather(1, best).squeeze(1))
    return {key: torch.cat(parts) for key, parts in found.items()}


def run_scores(train: Sequence[PairSet], test: Sequence[PairSet], seed: int) -> list[dict[str, Any]]:
    trained, tested = ([score_errors(item, seed) for item in half] for half in (train, test))
    rows = []
    for name in SCORES:
        tau = choose({tau: [errors[name, tau] for errors in trained] for tau in THRESHOLDS_PX})
        rows.append({"score": name, "tau": tau} | columns([errors[name, tau] for errors in tested], test))
    return rows


def columns(errors: Errors, sets: Sequence[PairSet]) -> dict[str, Any]:
    """AUC@5/10/20 of all pairs and of every set."""
    named = [("pooled", torch.cat(errors)), *((item.name, found) for item, found in zip(sets, errors, strict=True))]
    return {name: "/".join(f"{100 * value:.1f}" for value in aucs(found)) for name, found in named}


def run_method(method: Callable[[MatchBatch, float], Any], sets: Sequence[PairSet], tau: float) -> tuple[Errors, float]:
    """Errors, and CPU milliseconds per pair, of this thread: the machine may have other things to do."""
    errors, seconds = [], 0.0
    for item in sets:
        matches = item.batch()
        begin = time.thread_time()
        result = method(matches, tau)
        seconds += time.thread_time() - begin
        errors.append(pose_errors(result.j_from_i, item.truth).masked_fill(~result.found, 180.0))
    return errors, 1e3 * seconds / sum(map(len, sets))


def run_pipelines(
    train: Sequence[PairSet], test: Sequence[PairSet], seed: int
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    def run(name: str) -> tuple[float, Errors, float]:
        tau = choose({tau: run_method(METHODS[name], train, tau)[0] for tau in THRESHOLDS_PX})
        return tau, *run_method(METHODS[name], test, tau)

    rows, errors = [], {}
    for name, (tau, found, milliseconds) in zip(METHODS, in_parallel(run, METHODS), strict=True):
        errors[name] = found
        rows.append({"method": name, "tau": tau, "CPU ms/pair": milliseconds} | columns(found, test))
        print(rows[-1], flush=True)
    rival = errors["MAGSAC++ (OpenCV)"]
    differences = [
        {"method": name} | interval_columns(found, rival, test, seed)
        for name, found in errors.items()
        if found is not rival
    ]
    return rows, differences


def interval_columns(ours: Errors, rival: Errors, sets: Sequence[PairSet], seed: int) -> dict[str, str]:
    """Difference of AUC@5/10/20 in points with paired-bootstrap 95 % intervals."""
    named = [("pooled", torch.cat(ours), torch.cat(rival))]
    named += [(item.name, a, b) for item, a, b in zip(sets, ours, rival, strict=True)]
    return {name: interval(a, b, seed) for name, a, b in named}


def interval(ours: torch.Tensor, rival: torch.Tensor, seed: int) -> str:
    generator = np.random.default_rng(seed)
    drawn = torch.from_numpy(generator.integers(0, len(ours), (BOOTSTRAPS, len(ours))))
    texts = []
    for limit in LIMITS_DEG:
        gain = (1 - ours / limit).clamp_min(0) - (1 - rival / limit).clamp_min(0)
        low, high = np.percentile(gain[drawn].mean(1).numpy(), (2.5, 97.5))
        texts.append(f"{100 * float(gain.mean()):+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]")
    return "  ".join(texts)


def run_throughput(sets: Sequence[PairSet], count: int, tau: float) -> list[dict[str, Any]]:
    """Many pairs in one call, on all cores: those of the sets over and over."""
    pixels = [pair for item in sets for pair in item.pixels]
    whole = PairSet(
        "all",
        pixels,
        np.concatenate([item.calibration for item in sets]),
        np.concatenate([item.long_side for item in sets]),
        torch.cat([item.truth for item in sets]),
    )
    chosen = np.random.default_rng(0).integers(0, len(whole), count)
    matches = whole.subset(chosen).batch()
    rows = []
    for name, settings in (("64 samples", PAPER_BUDGET), ("adaptive", RansacSettings())):
        for refinement in (True, False):
            used = replace(settings, tau_px=tau) if refinement else replace(settings, tau_px=tau, candidates=0)
            pieces = [matches.pairs(slice(start, start + 4 * CHUNK)) for start in range(0, count, 4 * CHUNK)]
            begin, cpu = time.perf_counter(), time.process_time()
            samples = sum(
                int(found.samples.sum()) for found in in_parallel(lambda p, u=used: estimate_poses(p, u), pieces)
            )
            seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
            row: dict[str, Any] = {"budget": name, "refinement": str(refinement), "pairs": count, "seconds": seconds}
            row |= {"pairs/s": count / seconds, "CPU ms/pair": 1e3 * cpu / count, "samples/pair": samples / count}
            rows.append(row)
    return rows


def main(options: Options) -> None:
    torch.set_num_threads(1)
    sets = load_sets(options.data, options.cache, options.seed)
    halves = [split(item, options.seed, options.train_every) for item in sets]
    train, test = [first for first, _ in halves], [second for _, second in halves]
    sizes = ", ".join(f"{b.name} {len(a)}+{len(b)}" for a, b in halves)
    if "scores" in options.part:
        rows = run_scores(train, test, options.seed)
        report("two_view_scores", f"AUC@5/10/20, same 64 samples, no refinement; pairs: {sizes}", rows)
    if "pipelines" in options.part:
        rows, differences = run_pipelines(train, test, options.seed)
        report("two_view", f"AUC@5/10/20 of whole pipelines; pairs: {sizes}", rows, {"minus MAGSAC++": differences})
        report("two_view_differences", "AUC@5/10/20 minus MAGSAC++'s, 95 % intervals", differences)
    if "throughput" in options.part:
        rows = run_throughput(test, options.pairs, RansacSettings().tau_px)
        report("two_view_throughput", f"Pairs per second on {WORKERS} cores", rows)


if __name__ == "__main__":
    main(tyro.cli(Options))
