"""Time and memory of thousands of frames: cycle consistency, initialisation and adjustment of made-up scenes.

Samples are drawn straight into memory-mapped shards. Every phase of every size runs in a process of its own, so that
its peak memory is its own. Wall time is what a user waits; CPU time is given beside it, as machines are shared.

    python benchmarks/scale.py                                  growth from 500 to 4000 frames, few samples
    python benchmarks/scale.py --frames 8000 --samples-per-edge 200 --processes 2     the paper's largest problem
    python benchmarks/scale.py --frames 2000 --samples-per-edge 200 --processes 1 2 --max-steps 5      their speed
"""

import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import tyro
from common import report


@dataclass(frozen=True)
class Options:
    """Settings; with a phase given, that phase in this process, printed as JSON."""

    frames: tuple[int, ...] = (500, 1000, 2000, 4000)
    degree: float = 70.5
    """Neighbours of a frame: 564,000 directed pairs of 8,000 frames."""
    samples_per_edge: int = 20
    threads: int = 1
    """Of each process."""
    processes: tuple[int, ...] = (1,)
    """For adjustment; with several numbers it is run with each of them, and poses are compared."""
    max_steps: int = 60
    """Of each stage."""
    objective: Literal["paper", "split"] = "paper"
    """The paper's coarse and fine stage, or the residual that is split at the epipolar line."""
    folder: Path | None = None
    """Where shards are kept; by default a temporary folder."""
    plot: Path | None = None
    """Where to draw time and memory over frames (PNG)."""
    phase: Literal["", "make", "start", "adjust"] = ""


def main(options: Options) -> None:
    if options.phase:
        from mbasfm.runtime.parallel import rank

        facts = PHASES[options.phase](options)
        (_folder(options) / f"{options.phase}-{rank()}.json").write_text(json.dumps(facts))
        return
    rows = []
    for frames in options.frames:
        with tempfile.TemporaryDirectory() as temporary:
            rows += measure(frames, options, options.folder or Path(temporary))
            print(json.dumps(rows[-len(options.processes) :]), flush=True)
    exponents = {}
    if len(options.frames) > 1:
        for key in ("start [s]", "start CPU [s]", "step [s]", "step CPU [s]", "start [GB]", "adjust [GB]"):
            exponents[key] = fitted_exponent([row["frames"] for row in rows], [row[key] for row in rows])
        print("growth with frames to the power of", {key: round(value, 2) for key, value in exponents.items()})
    title = f"{options.degree:g} neighbours per frame, {options.samples_per_edge} samples per edge"
    report("scale", title, rows, {"exponent": exponents, "threads": options.threads})
    if options.plot is not None:
        draw(rows, exponents, options.plot)


def measure(frames: int, options: Options, folder: Path) -> list[dict[str, Any]]:
    """All phases of one size, each in its own process, adjustment in several; one row per number of processes."""
    edges, start = _apart("make", frames, options, folder)[0]["edges"], _apart("start", frames, options, folder)[0]
    return [
        {
            "frames": frames,
            "edges": edges,
            "wrong pairs left": start["wrong_left"],
            "start [s]": start["seconds"],
            "start CPU [s]": start["cpu"],
            "start [GB]": start["peak_gb"],
            "start error [deg]": start["rotation_deg"],
            "start error / height": start["position"],
            **_adjusted(frames, options, folder, count),
        }
        for count in options.processes
    ]


def _adjusted(frames: int, options: Options, folder: Path, count: int) -> dict[str, Any]:
    """What adjustment took; memory and CPU time of all processes together."""
    found = _apart("adjust", frames, options, folder, count)
    steps, cpu = max(found[0]["steps"], 1), sum(own["cpu"] for own in found)
    return {
        "processes": count,
        "adjust [s]": found[0]["seconds"],
        "adjust CPU [s]": cpu,
        "steps": steps,
        "step [s]": found[0]["step_seconds"],
        "step CPU [s]": cpu / steps,
        "adjust [GB]": sum(own["peak_gb"] for own in found),
        "end error [deg]": found[0]["rotation_deg"],
        "end error / height": found[0]["position"],
        "pose difference": _difference(folder, options.processes[0], count),
    }


def _difference(folder: Path, first: int, second: int) -> float:
    """Largest difference between numbers of the poses that two runs found."""
    import torch

    a, b = (torch.load(folder / f"end-{count}.pt", weights_only=True) for count in (first, second))
    return float((a - b).abs().max())


def _apart(phase: str, frames: int, options: Options, folder: Path, count: int = 1) -> list[dict[str, Any]]:
    """Run a phase in processes of its own; returns what each found."""
    command = [__file__, "--phase", phase, "--frames", str(frames), "--folder", str(folder)]
    command += ["--degree", str(options.degree), "--samples-per-edge", str(options.samples_per_edge)]
    command += ["--threads", str(options.threads), "--max-steps", str(options.max_steps)]
    command += ["--objective", options.objective]
    if count > 1:
        command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count), *command]
    subprocess.run([sys.executable, *command], check=True, stdout=sys.stderr)
    return [json.loads((folder / f"{phase}-{number}.json").read_text()) for number in range(count)]


def make(options: Options) -> dict[str, Any]:
    """Draw the samples into shards; scene and pairs are cheap and made again by the other phases."""
    from terrain import make_terrain, store_samples

    terrain = make_terrain(options.frames[0], options.degree)
    return {"edges": store_samples(terrain, _folder(options), options.samples_per_edge).num_edges}


def start(options: Options) -> dict[str, Any]:
    """From two-view poses, some of them wrong, to initial cameras."""
    import torch
    from terrain import make_terrain, two_views

    from mbasfm.sfm.pairs.pose_graph import agree_with, drop_inconsistent, select_edges
    from mbasfm.sfm.start.averaging import average_rotations, rays_of
    from mbasfm.sfm.start.initialize import initialize_cameras

    torch.set_num_threads(options.threads)
    terrain = make_terrain(options.frames[0], options.degree)
    views, is_wrong = two_views(terrain)
    clock = Clock()
    count, intrinsics = options.frames[0], terrain.truth.intrinsics
    kept, _ = drop_inconsistent(views, count)
    kept = agree_with(kept, average_rotations(kept, count), rays_of(terrain.keypoints, intrinsics))
    kept = select_edges(kept, count, 0.15)
    starts, _ = initialize_cameras(kept, terrain.keypoints, intrinsics, terrain.truth.is_disparity)
    facts = clock.facts()
    torch.save(starts[0], _folder(options) / "start.pt")
    left = sum(is_wrong[view.i, view.j] for view in kept)
    return {**facts, "wrong": sum(is_wrong.values()), "wrong_left": left, **errors(starts[0], terrain)}


def adjust(options: Options) -> dict[str, Any]:
    """All stages to convergence, by this process and its kin."""
    import torch
    from terrain import make_terrain

    from mbasfm.adjust.adjust import Checkpoint, adjust
    from mbasfm.adjust.stage import PAPER_STAGES, SPLIT_STAGES
    from mbasfm.runtime import parallel
    from mbasfm.sfm.sample_store import open_samples

    torch.set_num_threads(options.threads)
    parallel.start()
    cameras = torch.load(_folder(options) / "start.pt", weights_only=False)
    samples = open_samples(_folder(options))
    stages = PAPER_STAGES if options.objective == "paper" else SPLIT_STAGES
    stages = tuple(replace(stage, max_steps=options.max_steps) for stage in stages)
    clock, laps = Clock(), [time.perf_counter()]

    class Laps:
        """A journal that keeps nothing but the time."""

        def last(self) -> None:
            """There is no earlier run."""

        def keep(self, checkpoint: Checkpoint) -> None:
            """Note when a step was done."""
            laps.append(time.perf_counter())
            if parallel.is_main():
                (name, step), seconds = checkpoint.history[-1], laps[-1] - laps[-2]
                print(f"{name}: loss {step.loss:.8f}, {seconds:.1f} s", file=sys.stderr, flush=True)

    found = adjust(cameras, samples, stages, journal=Laps())
    facts = clock.facts()
    facts |= {"steps": len(found.steps), "step_seconds": (laps[-1] - laps[0]) / max(len(found.steps), 1)}
    if parallel.is_main():
        torch.save(found.cameras.cam_from_world, _folder(options) / f"end-{parallel.world_size()}.pt")
    parallel.wait_for_all()
    return facts | errors(found.cameras, make_terrain(options.frames[0], options.degree))


PHASES = {"make": make, "start": start, "adjust": adjust}


class Clock:
    """Wall and CPU seconds since it was made, and the peak memory so far."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def facts(self) -> dict[str, float]:
        """What it shows."""
        from mbasfm.runtime.progress import peak_memory_mb

        seconds, cpu = time.perf_counter() - self._wall, time.process_time() - self._cpu
        return {"seconds": seconds, "cpu": cpu, "peak_gb": peak_memory_mb() / 1024}


def errors(cameras: Any, terrain: Any) -> dict[str, float]:
    """Median rotation error, and position error over the height of flight, after alignment to the truth."""
    from terrain import HEIGHT

    from mbasfm.evaluation.metrics import align_to_truth, frame_errors

    truth = terrain.truth.cam_from_world
    found = frame_errors(align_to_truth(cameras.cam_from_world, truth, truth[:, 0, 0].isfinite()), truth)
    return {"rotation_deg": found.median_rotation_deg, "position": found.median_distance / HEIGHT}


def _folder(options: Options) -> Path:
    assert options.folder is not None
    return options.folder


def fitted_exponent(sizes: list[int], values: list[float]) -> float:
    """Slope of log value over log size."""
    x, y = [math.log(v) for v in sizes], [math.log(v) for v in values]
    return statistics.linear_regression(x, y).slope


def draw(rows: list[dict[str, Any]], exponents: dict[str, float], path: Path) -> None:
    """Time and memory over frames, both logarithmic."""
    from PIL import Image, ImageDraw

    width, height, margin = 560, 420, 60
    image = Image.new("RGB", (2 * width, height), "white")
    pen = ImageDraw.Draw(image)
    panels = (("seconds of CPU", ("start CPU [s]", "step CPU [s]")), ("peak GB", ("start [GB]", "adjust [GB]")))
    for number, (title, keys) in enumerate(panels):
        values = [row[key] for row in rows for key in keys]
        low, high = math.log(min(values)) - 0.2, math.log(max(values)) + 0.2
        sizes = [math.log(row["frames"]) for row in rows]
        left, span = number * width + margin, width - 2 * margin

        def place(x: float, y: float, left=left, span=span, sizes=sizes, low=low, high=high) -> tuple[float, float]:
            share = (x - sizes[0]) / (sizes[-1] - sizes[0]), (y - low) / (high - low)
            return left + share[0] * span, height - margin - share[1] * (height - 2 * margin)

        pen.rectangle([left, margin, left + span, height - margin], outline="gray")
        pen.text((left, margin - 24), title, fill="black")
        for color, key in zip(("#1f5fa8", "#c05020"), keys, strict=True):
            dots = [place(math.log(row["frames"]), math.log(row[key])) for row in rows]
            pen.line(dots, fill=color, width=2)
            for (x, y), row in zip(dots, rows, strict=True):
                pen.ellipse([x - 4, y - 4, x + 4, y + 4], fill=color)
                pen.text((x - 14, y - 18), f"{row[key]:.3g}", fill=color)
                pen.text((x - 14, height - margin + 6), str(row["frames"]), fill="black")
            pen.text((left + 8, margin + 8 + 16 * keys.index(key)), f"{key}: ^{exponents[key]:.2f}", fill=color)
    image.save(path)


if __name__ == "__main__":
    main(tyro.cli(Options))
