"""Samples per second, memory and growth of one full linearisation of the `lm` solver.

Every size runs in a process of its own, so that its peak memory is its own. Samples are drawn from random cameras in
front of random points: what is measured does not depend on how well they fit.
"""

import json
import math
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from typing import Any, Literal

import tyro
from common import report


@dataclass(frozen=True)
class Options:
    """Settings; with ``edges`` given, one measurement in this process, printed as JSON."""

    edges: int = 0
    frames: int = 60
    samples_per_edge: int = 200
    objective: Literal["paper", "split", "anchored"] = "paper"
    double: bool = False
    """Samples in double precision."""
    targets: int = 20
    observations: int = 6
    """Of anchors: frames that see those of a frame, and how many of them see each."""
    repeats: int = 15
    growth: tuple[int, ...] = (1_000, 2_000, 10_000, 100_000)


def random_state(options: Options) -> tuple[Any, Any]:
    """Cameras on a small arc that see a cloud of points, and matches with one pixel of noise and 10 % outliers."""
    import torch

    from mbasfm.geometry.camera import project, unproject
    from mbasfm.geometry.rigid import compose, exp_se3, invert, transform
    from mbasfm.types.cameras import Cameras, Intrinsics
    from mbasfm.types.observations import Samples

    generator = torch.Generator().manual_seed(0)
    num_frames, num_edges, per_edge = options.frames, options.edges, options.samples_per_edge
    spread = torch.tensor([0.1, 0.2, 0.1, 0.4, 0.2, 0.2], dtype=torch.float64)
    poses = exp_se3(torch.randn(num_frames, 6, generator=generator, dtype=torch.float64) * spread)
    sizes = torch.tensor([[640, 480]]).expand(num_frames, 2)
    intrinsics = Intrinsics.pinhole(torch.full((num_frames,), 570.0), sizes, torch.zeros(num_frames, dtype=torch.long))
    i = torch.randint(0, num_frames, (num_edges,), generator=generator)
    j = (i + torch.randint(1, num_frames, (num_edges,), generator=generator)) % num_frames
    data = torch.empty(num_edges, per_edge, 5)
    for low in range(0, num_edges, 1000):  # in pieces: the data shall be the largest thing in memory
        part = slice(low, low + 1000)
        a, b = i[part], j[part]
        pixels = torch.rand(len(a), per_edge, 2, generator=generator) * torch.tensor([640.0, 480.0])
        depth = 2 + 4 * torch.rand(len(a), per_edge, generator=generator)
        points = unproject(pixels, depth, intrinsics, a[:, None])
        j_from_i = compose(poses[b], invert(poses[a])).float()
        matches = project(transform(j_from_i, points), intrinsics, b[:, None]).nan_to_num(nan=0.0)
        matches += torch.randn(matches.shape, generator=generator)
        wrong = torch.rand(len(a), per_edge, generator=generator) < 0.1
        matches[wrong] = torch.rand(int(wrong.sum()), 2, generator=generator) * 480
        smooth = 1 + 0.05 * torch.randn(len(a), per_edge, generator=generator)
        data[part] = torch.cat([pixels, matches, (depth * smooth)[..., None]], -1)
    ones, no = torch.ones(num_frames, dtype=torch.float64), torch.zeros(num_frames, dtype=torch.bool)
    cameras = Cameras(poses, intrinsics, ones, 0 * ones, no)
    return cameras, Samples(torch.stack([i, j], -1), data, torch.ones(num_edges, per_edge))


def as_anchors(samples: Any, options: Options) -> Any:
    """The samples as anchors: the pixels of each frame are seen by some of the frames that follow it.

    Matches stay what they are, so that most do not fit; what is measured does not depend on that.
    """
    import torch

    from mbasfm.types.observations import Samples

    generator = torch.Generator().manual_seed(1)
    per_edge, targets = options.samples_per_edge, options.targets
    count = per_edge * targets // options.observations
    stars = samples.num_edges // targets
    source = torch.arange(stars) % options.frames
    source = source.sort().values
    edges = torch.stack([source[:, None].expand(stars, targets), (source[:, None] + 1 + torch.arange(targets))], -1)
    number = torch.stack([torch.randperm(count, generator=generator)[:per_edge] for _ in range(stars * targets)])
    number = number.view(stars, targets, per_edge) + count * torch.arange(stars)[:, None, None]
    data = samples.data[: stars * targets].clone()
    first = torch.zeros(stars * count, 3)
    first[number.flatten()] = data[..., [0, 1, 4]].flatten(0, 1)
    number = number.flatten(0, 1)
    data[..., [0, 1, 4]] = first[number]
    return Samples(edges.flatten(0, 1) % options.frames, data, torch.ones(data.shape[:2]), number)


def measure(options: Options) -> dict[str, Any]:
    """One size: seconds of linearisation and of evaluation, and memory above the bare import."""
    from mbasfm.adjust.adjust import make_problem
    from mbasfm.adjust.levenberg_marquardt import linearize
    from mbasfm.adjust.stage import ANCHORED, FINE, SPLIT
    from mbasfm.runtime.progress import peak_memory_mb
    from mbasfm.types.cameras import Fixed

    imported_mb = peak_memory_mb()
    cameras, samples = random_state(options)
    if options.objective == "anchored":
        samples = as_anchors(samples, options)
    if options.double:
        samples = replace(samples, data=samples.data.double(), weight=samples.weight.double())
    stage = {"paper": FINE, "split": SPLIT, "anchored": ANCHORED}[options.objective]
    problem = make_problem(cameras, samples, stage, Fixed.build(options.frames))
    frozen = problem.form.start(cameras)
    linear, evaluate = [], []
    for _ in range(options.repeats):
        begin = time.perf_counter()
        linearize(problem, cameras, frozen)
        middle = time.perf_counter()
        problem.form.measure(cameras, frozen)
        linear.append(middle - begin)
        evaluate.append(time.perf_counter() - middle)
    peak_mb = peak_memory_mb()
    return {
        "linearize": statistics.median(linear),
        "linearize_best": min(linear),
        "evaluate": statistics.median(evaluate),
        "extra_mb": peak_mb - imported_mb,
        "data_mb": samples.data.numel() * 4 / 2**20,
    }


def measure_apart(edges: int, objective: str, double: bool, options: Options) -> dict[str, Any]:
    command = [sys.executable, __file__, "--edges", str(edges), "--frames", str(options.frames)]
    repeats = max(3, min(options.repeats, 30_000 // edges))
    command += ["--repeats", str(repeats), "--objective", objective, "--double" if double else "--no-double"]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def fitted_exponent(sizes: list[int], seconds: list[float]) -> float:
    """Slope of log time over log size."""
    x, y = [math.log(v) for v in sizes], [math.log(v) for v in seconds]
    return statistics.linear_regression(x, y).slope


def main(options: Options) -> None:
    if options.edges:
        print(json.dumps(measure(options)))
        return
    rows, exponents = [], {}
    for objective, double in (("paper", False), ("split", False), ("anchored", False), ("anchored", True)):
        name = f"{objective}, double" if double else objective
        seconds = []
        for edges in options.growth:
            result = measure_apart(edges, objective, double, options)
            samples = edges * options.samples_per_edge
            seconds.append(result["linearize"])
            rows.append(
                {
                    "objective": name,
                    "edges": edges,
                    "linearize [s]": result["linearize"],
                    "M samples/s": samples / result["linearize"] / 1e6,
                    "best M samples/s": samples / result["linearize_best"] / 1e6,
                    "evaluate [s]": result["evaluate"],
                    "data [MB]": result["data_mb"],
                    "memory above import [MB]": result["extra_mb"],
                    "3 x data + 300 [MB]": 3 * result["data_mb"] + 300,
                }
            )
        exponents[name] = fitted_exponent(list(options.growth), seconds)
    print("time grows with edges to the power of", {k: round(v, 3) for k, v in exponents.items()})
    title = f"One full linearisation, {options.frames} frames, {options.samples_per_edge} samples per edge"
    report("throughput", title, rows, {"exponent": exponents})


if __name__ == "__main__":
    main(tyro.cli(Options))
