"""Time and memory of thousands of frames: cycle consistency, initialisation and adjustment of made-up scenes.

Samples are drawn straight into memory-mapped shards. Every phase of every size runs in a process of its own, so that
its peak memory is its own. Wall time is what a user waits; CPU time is given beside it, as machines are shared.

    python benchmarks/scale.py                                  growth from 500 to 4000 frames, few samples
    python benchmarks/scale.py --frames 8000 --samples-per-edge 200     the paper's largest problem
"""

import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
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
    folder: Path | None = None
    """Where shards are kept; by default a temporary folder."""
    plot: Path | None = None
    """Where to draw time and memory over frames (PNG)."""
    phase: Literal["", "make", "start", "adjust"] = ""


def main(options: Options) -> None:
    if options.phase:
        print(json.dumps(PHASES[options.phase](options)))
        return
    rows = []
    for frames in options.frames:
        with tempfile.TemporaryDirectory() as temporary:
            rows.append(measure(frames, options, options.folder or Path(temporary)))
            print(json.dumps(rows[-1]), flush=True)
    exponents = {}
    if len(rows) > 1:
        for key in ("start [s]", "start CPU [s]", "step [s]", "step CPU [s]", "start [GB]", "adjust [GB]"):
            exponents[key] = fitted_exponent([row["frames"] for row in rows], [row[key] for row in rows])
        print("growth with frames to the power of", {key: round(value, 2) for key, value in exponents.items()})
    title = f"{options.degree:g} neighbours per frame, {options.samples_per_edge} samples per edge"
    report("scale", title, rows, {"exponent": exponents, "threads": options.threads})
    if options.plot is not None:
        draw(rows, exponents, options.plot)


def measure(frames: int, options: Options, folder: Path) -> dict[str, Any]:
    """All phases of one size, each in its own process."""
    found = {phase: _apart(phase, frames, options, folder) for phase in ("make", "start", "adjust")}
    start, adjust = found["start"], found["adjust"]
    return {
        "frames": frames,
        "edges": found["make"]["edges"],
        "start [s]": start["seconds"],
        "start CPU [s]": start["cpu"],
        "start [GB]": start["peak_gb"],
        "adjust [s]": adjust["seconds"],
        "adjust CPU [s]": adjust["cpu"],
        "steps": adjust["steps"],
        "step [s]": adjust["seconds"] / max(adjust["steps"], 1),
        "step CPU [s]": adjust["cpu"] / max(adjust["steps"], 1),
        "adjust [GB]": adjust["peak_gb"],
        "wrong pairs left": start["wrong_left"],
        "start error [deg]": start["rotation_deg"],
        "end error [deg]": adjust["rotation_deg"],
        "end error / height": adjust["position"],
    }


def _apart(phase: str, frames: int, options: Options, folder: Path) -> dict[str, Any]:
    command = [sys.executable, __file__, "--phase", phase, "--frames", str(frames), "--folder", str(folder)]
    command += ["--degree", str(options.degree), "--samples-per-edge", str(options.samples_per_edge)]
    command += ["--threads", str(options.threads)]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1])


def make(options: Options) -> dict[str, Any]:
    """Draw the samples into shards; scene and pairs are cheap and made again by the other phases."""
    from terrain import make_terrain, store_samples

    terrain = make_terrain(options.frames[0], options.degree)
    return {"edges": store_samples(terrain, _folder(options), options.samples_per_edge).num_edges}


def start(options: Options) -> dict[str, Any]:
    """From two-view poses, some of them wrong, to initial cameras."""
    import torch
    from terrain import make_terrain, two_views

    from mbasfm.graph import drop_inconsistent, select_edges
    from mbasfm.initialize import initialize_cameras
    from mbasfm.rotations import agree_with, average_rotations, rays_of

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
    """Coarse and fine stage to convergence."""
    import torch
    from terrain import make_terrain

    from mbasfm.adjust import adjust
    from mbasfm.config import PAPER_STAGES
    from mbasfm.io.shards import open_samples

    torch.set_num_threads(options.threads)
    cameras = torch.load(_folder(options) / "start.pt", weights_only=False)
    samples = open_samples(_folder(options))
    clock = Clock()
    found = adjust(cameras, samples, PAPER_STAGES, on_step=lambda stage, step, _: print(stage.name, step, flush=True))
    facts = clock.facts()
    facts |= {"steps": len(found.steps), "registered": int(found.registered.sum())}
    return facts | errors(found.cameras, make_terrain(options.frames[0], options.degree))


PHASES = {"make": make, "start": start, "adjust": adjust}


class Clock:
    """Wall and CPU seconds since it was made, and the peak memory so far."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def facts(self) -> dict[str, float]:
        """What it shows."""
        from mbasfm.watch import peak_memory_mb

        seconds, cpu = time.perf_counter() - self._wall, time.process_time() - self._cpu
        return {"seconds": seconds, "cpu": cpu, "peak_gb": peak_memory_mb() / 1024}


def errors(cameras: Any, terrain: Any) -> dict[str, float]:
    """Median rotation error, and position error over the height of flight, after alignment to the truth."""
    from terrain import HEIGHT

    from mbasfm.metrics import align_to_truth, frame_errors

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
