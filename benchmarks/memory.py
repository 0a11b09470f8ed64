"""Is the memory budget held? What `sfm/samples.py` predicts beside the peak that was measured.

A made-up scene is stored once. Then, for every budget, a process of its own plans, takes the samples that the plan
allows, and takes one step of every stage: all that needs memory happens in the first.

    python benchmarks/memory.py
"""

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
import tyro
from common import report
from terrain import make_terrain, store_samples, two_views

from mbasfm.adjust.adjust import adjust
from mbasfm.adjust.stage import ANCHORED, PAPER_STAGES
from mbasfm.polish.tracks import draw_anchors
from mbasfm.runtime.progress import peak_memory_mb, present_memory_mb
from mbasfm.sfm.sample_store import StoredSamples, create_samples, open_samples
from mbasfm.sfm.samples import FOLDER, GB, Demand, Plan, Stock, plan_memory
from mbasfm.types.observations import Samples, SampleSource

MB = 1 << 20
NO_BUDGET = 0.0


@dataclass(frozen=True)
class Options:
    """Settings; with a phase given, that phase in this process."""

    frames: int = 300
    degree: float = 40.0
    samples_per_edge: int = 100
    budgets: tuple[float, ...] = (NO_BUDGET, 0.54, 0.5, 0.48)
    """[GB]; 0: none."""
    folder: Path | None = None
    """Where shards are kept; by default a temporary folder."""
    anchors_per_frame: int = 400
    objective: Literal["anchored", "paper"] = "anchored"
    phase: Literal["", "make", "cut", "adjust"] = ""
    plan: str = ""
    """Of phase cut: samples per edge, anchors per frame, edges, samples of a block."""


def main(options: Options) -> None:
    if options.phase:
        PHASES[options.phase](options)
        return
    with tempfile.TemporaryDirectory() as temporary:
        options = replace(options, folder=options.folder or Path(temporary))
        apart(options, "make")
        rows = []
        for objective in ("anchored", "paper"):
            for budget in options.budgets:
                told = apart(replace(options, objective=objective, budgets=(budget,)), "adjust")
                rows.append({"objective": objective, "budget [GB]": budget or "none"} | json.loads(told))
                print(json.dumps(rows[-1]), flush=True)
    report("memory", f"{options.frames} frames, {options.degree:g} neighbours each", rows)


def apart(options: Options, phase: str, plan: str = "") -> str:
    """A phase in a process of its own; returns the last line that it prints."""
    command = [sys.executable, __file__, "--phase", phase, "--folder", str(options.folder), "--plan", plan]
    command += ["--frames", str(options.frames), "--degree", str(options.degree), "--objective", options.objective]
    command += ["--anchors-per-frame", str(options.anchors_per_frame)]
    command += ["--samples-per-edge", str(options.samples_per_edge), "--budgets", *map(str, options.budgets)]
    found = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return found.splitlines()[-1] if found else ""


def make(options: Options) -> None:
    """Scene and all its samples."""
    terrain = make_terrain(options.frames, options.degree)
    store_samples(terrain, _folder(options) / "all", options.samples_per_edge)
    torch.save(terrain.truth, _folder(options) / "cameras.pt")


def cut(options: Options) -> None:
    """What a plan leaves of the samples: the first ones of each edge, and some pairs."""
    samples_per_edge, anchors_per_frame, num_edges, block_samples = map(int, options.plan.split())
    if anchors_per_frame:
        cut_anchors(options, anchors_per_frame, num_edges, block_samples)
        return
    whole = open_samples(_folder(options) / "all")
    i, j = whole.edges.unbind(-1)
    pair = torch.minimum(i, j) * options.frames + torch.maximum(i, j)
    keep = ((pair * 2654435761) % 1_000_003) < 1_000_003 * num_edges / whole.num_edges  # of a pair both edges
    kept: StoredSamples = whole.select(keep)
    block_edges = max(1, block_samples // samples_per_edge)
    mass = torch.full((kept.num_edges,), float(samples_per_edge))
    stored = create_samples(_folder(options) / FOLDER, kept.edges, mass, samples_per_edge, block_edges)
    for some in torch.arange(kept.num_edges).split(4096):
        rows = kept.rows(slice(int(some[0]), int(some[-1]) + 1))
        few = rows.data[:, :samples_per_edge], rows.weight[:, :samples_per_edge]
        stored.put(some, Samples(rows.edges, *few))


def cut_anchors(options: Options, anchors_per_frame: int, num_edges: int, block_samples: int) -> None:
    """Anchors of the nearest pairs."""
    terrain = make_terrain(options.frames, num_edges / options.frames)
    samples = draw_anchors(two_views(terrain)[0], terrain.keypoints, anchors_per_frame, 20, 0)
    stock = Stock(Plan(0, anchors_per_frame, 0, block_samples, True, 0.0), _folder(options))
    stock.keep(samples)


def measure(options: Options) -> None:
    """Plan, then adjust; prints what was predicted and what was measured."""
    torch.set_num_threads(1)
    cameras = torch.load(_folder(options) / "cameras.pt", weights_only=False)
    num_edges = int(options.frames * options.degree)
    budget, used = options.budgets[0] * GB or None, present_memory_mb() * MB
    is_anchored = options.objective == "anchored"
    degree = int(1.5 * options.degree)  # of the frame that has most
    demand = Demand(
        options.frames, degree, num_edges, options.samples_per_edge, is_anchored * options.anchors_per_frame
    )
    plan = plan_memory(demand, budget, used)
    edges = min(num_edges, plan.pairs_per_frame * options.frames)
    apart(options, "cut", f"{plan.samples_per_edge} {plan.anchors_per_frame} {edges} {plan.block_samples}")
    samples = _samples(options, plan)
    stages = (ANCHORED,) if is_anchored else PAPER_STAGES
    adjust(cameras, samples, tuple(replace(stage, max_steps=1, restarts=0) for stage in stages))
    predicted, measured = plan.bytes_needed, peak_memory_mb() * MB
    facts: dict[str, Any] = {
        "rows": samples.num_edges,
        "anchors": samples.num_anchors if is_anchored else 0,
        "samples": samples.samples_per_edge,
        "block": plan.block_samples,
        "on disk": str(plan.is_on_disk),
        "before [GB]": used / GB,
        "predicted [GB]": predicted / GB,
        "measured [GB]": measured / GB,
        "predicted / measured, beyond before": (predicted - used) / (measured - used),
    }
    print(json.dumps(facts))


def _samples(options: Options, plan: Plan) -> SampleSource:
    stored = open_samples(_folder(options) / FOLDER)
    return stored if plan.is_on_disk else stored.rows(slice(0, stored.num_edges))


def _folder(options: Options) -> Path:
    assert options.folder is not None
    return options.folder


PHASES = {"make": make, "cut": cut, "adjust": measure}


if __name__ == "__main__":
    main(tyro.cli(Options))
