"""The task of two views: relative poses of pairs by ours, MAGSAC++ and PoseLib, from the same matches.

Pairs of every set are split in halves by the seed. The threshold is chosen from a grid on first halves, by the mean of
AUC@5, 10 and 20 over all their pairs, for every method by itself; second halves are measured.
"""

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Float64
from torch import Tensor

from mbasfm.bench.jobs import Job
from mbasfm.bench.recipe import PairSettings
from mbasfm.bench.tasks.base import Outcome
from mbasfm.bench.tasks.pair_sets import PairSet, load_pair_set
from mbasfm.datasets.pair_lists import PairSets
from mbasfm.errors import InputError
from mbasfm.estimators.ransac import PAPER_BUDGET, RansacSettings, minimal_hypotheses
from mbasfm.estimators.relative import Method as EstimatorName
from mbasfm.estimators.relative import estimate_relative_poses
from mbasfm.estimators.sampson import MatchBatch, sampson_forms, sampson_squared
from mbasfm.estimators.scores import SCORES, ScoreName
from mbasfm.evaluation.metrics import PairErrors, auc, recall_curve, relative_errors
from mbasfm.evaluation.protocols import find_protocol, pair_measures
from mbasfm.evaluation.score_files import CURVE_DEG
from mbasfm.geometry.camera import essential_from_pose
from mbasfm.io.files import Cache, write_text
from mbasfm.runtime.parallel import in_parallel

LIMITS_DEG = (5.0, 10.0, 20.0)
"""Limits whose mean AUC chooses the threshold."""
PAIRS_AT_ONCE = 64
"""Number of pairs at once, per core."""
NUM_SAMPLES = 64
NOT_FOUND_DEG = 180.0


@dataclass(frozen=True)
class Estimate:
    """Relative poses of many pairs."""

    j_from_i: Float64[Tensor, "P 3 4"]
    found: Bool[Tensor, " P"]
    cpu_seconds: float = 0.0
    """Seconds of the threads that computed, as the machine may be busy otherwise."""


Method = Callable[[MatchBatch, float, int], Estimate]
"""Function from matches, threshold [px at a long side of 1024] and seed to an estimate."""


class TwoView:
    """AUC of the pose error over pairs; a pair without an answer is 180 degrees off."""

    @property
    def methods(self) -> tuple[str, ...]:
        """Whole pipelines, and scores that choose from the same samples."""
        return tuple(METHODS)

    def run(self, job: Job, work: Path, cache: Path) -> Outcome:
        """Choose the threshold if there is a choice, then measure."""
        torch.set_num_threads(1)
        dataset, settings = PairSets(Path(job.data)), PairSettings.of(job.settings)
        pairs, store = {}, Cache(cache / "ours")
        train = [job.scene] if not settings.train or len(settings.thresholds_px) == 1 else list(settings.train)
        for scene in dict.fromkeys([job.scene, *train]):
            pairs[scene] = load_pair_set(dataset, scene, settings, store, job.seed)
        method = METHODS[job.method]
        if len(settings.thresholds_px) == 1:
            (tau_px,), measured = settings.thresholds_px, pairs[job.scene]
        else:
            halves = {scene: pairs[scene].halves(job.seed) for scene in pairs}
            first = {scene: halves[scene][0].thinned(settings.max_train) for scene in train}
            tau_px = _choose(first, job, settings, cache / "two-view")
            measured = halves[job.scene][1]
        if settings.batch:
            drawn = np.random.default_rng(job.seed).integers(0, len(measured), settings.batch)
            measured = measured.subset(drawn)
        begin = time.perf_counter()
        estimate = _estimate(method, measured.batch(), tau_px, job.seed)
        seconds = time.perf_counter() - begin
        errors = relative_errors(estimate.j_from_i, measured.truth, estimate.found)
        speed = {
            "tau px": tau_px,
            "CPU ms per pair": 1e3 * estimate.cpu_seconds / len(measured),
            "pairs/s": len(measured) / seconds,
        }
        return _outcome(job, measured.names, errors, speed, seconds, not settings.batch)

    def failed(self, job: Job) -> Outcome:
        """Outcome in which no pair has a pose. All pairs count, as matches would be needed to tell which overlap."""
        gaps = PairSettings.of(job.settings).gaps
        pairs = PairSets(Path(job.data)).pairs(job.scene, gaps.get(job.scene))
        wrong = torch.full((len(pairs),), NOT_FOUND_DEG, dtype=torch.float64)
        errors = PairErrors(wrong, wrong, torch.zeros(len(pairs), dtype=torch.bool))
        return _outcome(job, [" ".join(pair.names) for pair in pairs], errors, {}, 0.0, True)


def _outcome(
    job: Job, names: Sequence[str], errors: PairErrors, more: dict[str, float], seconds: float, keep: bool
) -> Outcome:
    protocol = find_protocol(job.protocol)
    pose_deg = errors.pose_deg(protocol.folded)
    by_name: dict[str, tuple[float, ...]]
    by_name = {name: (value,) for name, value in zip(names, pose_deg.tolist(), strict=True)} if keep else {}
    return Outcome(
        pair_measures(errors, protocol) | more,
        {"pairs": seconds},
        len(names),
        int(errors.known.sum()),
        len(names),
        curve=tuple(recall_curve(pose_deg, CURVE_DEG)),
        errors=by_name,
    )


def _estimate(method: Method, matches: MatchBatch, tau_px: float, seed: int) -> Estimate:
    """Estimate of all pairs, in pieces on all cores."""

    def piece(start: int) -> Estimate:
        begin = time.thread_time()
        found = method(matches.pairs(slice(start, start + PAIRS_AT_ONCE)), tau_px, seed)
        return replace(found, cpu_seconds=time.thread_time() - begin)

    parts = list(in_parallel(piece, range(0, matches.num_pairs, PAIRS_AT_ONCE)))
    if not parts:
        raise InputError("no pair overlaps enough to be measured")
    poses, found = torch.cat([part.j_from_i for part in parts]), torch.cat([part.found for part in parts])
    return Estimate(poses, found, sum(part.cpu_seconds for part in parts))


# ----------------------------------------------------------------------------------------------------------------
# The threshold


def _choose(sets: Mapping[str, PairSet], job: Job, settings: PairSettings, folder: Path) -> float:
    """Threshold with the best mean AUC over all training pairs; errors of each set are computed once."""
    by_tau: dict[float, list[float]] = {tau: [] for tau in settings.thresholds_px}
    for scene, pairs in sets.items():
        state = json.dumps([job.method, scene, job.seed, settings.thresholds_px, pairs.names, settings.matcher])
        path = folder / f"{hashlib.sha1(state.encode()).hexdigest()}.json"
        if path.is_file():
            errors = json.loads(path.read_text(encoding="utf-8"))
        else:
            errors = _errors_by_threshold(pairs, job, settings)
            folder.mkdir(parents=True, exist_ok=True)
            write_text(path, json.dumps(errors))
        for tau, found in zip(settings.thresholds_px, errors, strict=True):
            by_tau[tau] += found
    return max(by_tau, key=lambda tau: _mean_auc(by_tau[tau]))


def _errors_by_threshold(pairs: PairSet, job: Job, settings: PairSettings) -> list[list[float]]:
    if not len(pairs):
        return [[] for _ in settings.thresholds_px]
    batch = pairs.batch()
    rows = []
    for tau_px in settings.thresholds_px:
        estimate = _estimate(METHODS[job.method], batch, tau_px, job.seed)
        rows.append(relative_errors(estimate.j_from_i, pairs.truth, estimate.found).pose_deg().tolist())
    return rows


def _mean_auc(errors: Sequence[float]) -> float:
    values = torch.tensor(errors, dtype=torch.float64)
    return sum(auc(values, limit) for limit in LIMITS_DEG) / len(LIMITS_DEG)


# ----------------------------------------------------------------------------------------------------------------
# Methods


def _ransac(name: EstimatorName, settings: RansacSettings, matches: MatchBatch, tau_px: float, seed: int) -> Estimate:
    found = estimate_relative_poses(matches, name, replace(settings, tau_px=tau_px, seed=seed))
    return Estimate(found.j_from_i, found.found)


def _score(name: ScoreName, matches: MatchBatch, tau_px: float, seed: int) -> Estimate:
    """Best solution of 64 samples by a score, not refined: all scores see the same hypotheses."""
    poses, valid = minimal_hypotheses(matches, NUM_SAMPLES, seed)
    squared = sampson_squared(essential_from_pose(poses), sampson_forms(matches, torch.float32))
    scores = (SCORES[name](squared / tau_px**2) @ matches.is_match[..., None].float()).squeeze(-1)
    best = scores.masked_fill(~valid, -1).argmax(1)
    rows = torch.arange(len(best))
    return Estimate(poses[rows, best].double(), valid[rows, best])


METHODS: dict[str, Method] = {
    "ours": partial(_ransac, "ours", RansacSettings()),
    "ours-64": partial(_ransac, "ours", PAPER_BUDGET),
    "ours-64-unrefined": partial(_ransac, "ours", replace(PAPER_BUDGET, candidates=0)),
    "magsac": partial(_ransac, "magsac", RansacSettings()),
    "poselib": partial(_ransac, "poselib", RansacSettings()),
}
METHODS |= {f"score-{name}": partial(_score, name) for name in SCORES}
