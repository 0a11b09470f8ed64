"""How often the truth lies inside the reported pose covariance, on scenes that no constant was chosen on."""

import statistics
from dataclasses import dataclass, replace
from typing import Any

import torch
import tyro
from common import report, score

from mbasfm.adjust import covariance
from mbasfm.adjust.adjust import adjust
from mbasfm.adjust.stage import SPLIT
from mbasfm.evaluation.metrics import twists_to_truth
from mbasfm.objective import isotropic, split
from mbasfm.synthetic.cameras import perturb, scene_size
from mbasfm.synthetic.depth_errors import DepthError
from mbasfm.synthetic.problem import MatchError, Settings, make_problem

CHI2_6 = {"inside 50 %": 5.348, "inside 90 %": 10.645}
"""Quantiles of the chi-square distribution with 6 degrees of freedom."""


@dataclass(frozen=True)
class Options:
    """Which scenes."""

    first_seed: int = 100
    seeds: int = 4
    num_frames: int = 14
    depth_error: float = 0.08


def run(options: Options, votes: float, clusters_for_half: float) -> dict[str, Any]:
    split.DEPTH_VOTES = isotropic.DEPTH_VOTES = votes
    covariance.CLUSTERS_FOR_HALF = clusters_for_half
    errors, distances, aucs = [], [], []
    base = Settings("room", 100, DepthError(smooth=options.depth_error), MatchError(outliers=0.2), max_degree=8)
    for kind in ("room", "place", "object"):
        for seed in range(options.first_seed, options.first_seed + options.seeds):
            problem = make_problem(options.num_frames, seed, replace(base, kind=kind))
            start = perturb(problem.truth, 7, 8.0, 0.05 * scene_size(problem.scene, problem.truth), 1.1)
            result = adjust(start, problem.samples, SPLIT)
            free = result.pose_covariance.abs().sum((1, 2)) > 0
            twist = twists_to_truth(result.cameras, problem.truth, int(torch.nonzero(~free)[0]))[free]
            block = result.pose_covariance[free]
            errors.append(twist / block.diagonal(dim1=1, dim2=2).sqrt())
            distances.append((twist * torch.linalg.solve(block, twist)).sum(-1))
            aucs.append(score(result.cameras, problem)[0])
    size, distance = torch.cat(errors).abs(), torch.cat(distances)
    row = {
        "within 1 sigma": float((size < 1).double().mean()),
        "within 1.96 sigma": float((size < 1.96).double().mean()),
    }
    row |= {name: float((distance < limit).double().mean()) for name, limit in CHI2_6.items()}
    return {**row, "AUC@1": statistics.mean(aucs), "worst AUC@1": min(aucs)}


def main(options: Options) -> None:
    votes, half = split.DEPTH_VOTES, covariance.CLUSTERS_FOR_HALF
    variants = {
        "as shipped": (votes, half),
        "20 votes": (20.0, half),
        "64 votes": (64.0, half),
        "clustered spread only": (votes, 1e-9),
        "modelled spread only": (votes, 1e9),
    }
    rows = [{"variant": name, **run(options, *values)} for name, values in variants.items()]
    title = f"Truth inside the covariance (should be .68, .95, .50, .90), {3 * options.seeds} scenes"
    report("covariance", title, rows)


if __name__ == "__main__":
    main(tyro.cli(Options))
