"""`mba demo`: a made-up scene from a bad start to adjusted cameras, as a table and a picture."""

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal

import torch
from jaxtyping import Float
from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor

from mbasfm import __version__
from mbasfm.adjust import Adjustment, adjust
from mbasfm.config import FINE, PAPER_STAGES, SPLIT_STAGES, Stage
from mbasfm.errors import ConfigError, InputError
from mbasfm.geometry import align_similarity, apply_similarity, camera_centers
from mbasfm.metrics import pose_auc, pose_errors_deg, relative_pose_errors_deg
from mbasfm.plots import Picture, Track, require_matplotlib, save_picture
from mbasfm.residuals import NoiseScale, isotropic_residuals, split_residuals
from mbasfm.solve_lm import Step
from mbasfm.staging import perturb, render, scene_size
from mbasfm.synthetic import DepthError, Problem, Settings, make_problem, observe_depth_map
from mbasfm.types import Cameras

MIN_FRAMES = 3
"""Two camera centres do not determine the rotation of an alignment."""
MAX_DEPTH_ERROR = 0.5
NUM_PHOTOGRAPHS = 6
SHRINKAGE = 2
"""Photographs of the figure are smaller than those of the problem by this factor."""
START_ROTATION_DEG = 10.0
START_OFFSET = 0.1
"""Share of the scene's size."""
START_FOCAL_FACTOR = 1.15
COLORS = {"start": "#d93025", "paper": "#f29900", "split": "#1a73e8"}


@dataclass(frozen=True)
class Demo:
    """Adjust a made-up scene from a bad start, with the paper's residual and with the split one; draw the result."""

    output: Path
    """Folder for demo.png and result.json; made if it does not exist."""
    num_frames: int = 24
    """Photographs in the scene."""
    kind: Literal["room", "place", "object"] = "room"
    """What the scene is: indoors, outdoors, or a heap of things to walk around."""
    seed: int = 0
    """Another number is another scene."""
    depth_error: float = 0.08
    """Relative error of the simulated depth, slowly varying over each image."""


@dataclass(frozen=True)
class Report:
    """How good a set of cameras is."""

    auc_1: float
    """Area under the recall curve of the pose error of pairs, up to 1 degree."""
    auc_3: float
    auc_5: float
    rotation_deg: float
    """Median error of the rotation between pairs."""
    center_share: float
    """Median distance of camera centres to the true ones, after a similarity alignment, over the scene's size."""
    focal_error: float
    """Relative, signed."""
    registered: int
    steps: int
    seconds: float


@dataclass(frozen=True)
class Run:
    """One row of the table."""

    cameras: Cameras
    aligned: Float[Tensor, "N 3 4"]
    """cam_from_world in the world of the truth."""
    report: Report
    errors_deg: tuple[float, ...] = field(repr=False, default=())
    """Median pose error before the first step and after each."""


def run_demo(demo: Demo, console: Console | None = None) -> None:
    """Make the scene, adjust it twice, print the table and write both files."""
    console = console or Console()
    _check(demo)
    require_matplotlib()
    settings = Settings(kind=demo.kind, depth_error=DepthError(smooth=demo.depth_error))
    problem = make_problem(demo.num_frames, demo.seed, settings)
    size = scene_size(problem.scene, problem.truth)
    start = perturb(problem.truth, demo.seed, START_ROTATION_DEG, START_OFFSET * size, START_FOCAL_FACTOR)
    everyone = torch.ones(demo.num_frames, dtype=torch.bool)
    runs = {"start": evaluate(problem, size, start, everyone)}
    for name, stages in (("paper", PAPER_STAGES), ("split", SPLIT_STAGES)):
        console.print(f"adjusting {demo.num_frames} frames, {problem.samples.num_edges} edges: {name}")
        runs[name] = adjust_and_evaluate(problem, size, start, stages)
    console.print(make_table(runs, demo.num_frames))
    picture, numbers = demo.output / "demo.png", demo.output / "result.json"
    try:
        save_picture(picture, make_picture(problem, runs, settings.depth_error, demo.seed))
        numbers.write_text(json.dumps(summarize(demo, problem, size, runs), indent=2, allow_nan=False) + "\n")
    except OSError as error:
        raise InputError(f"cannot write into {demo.output}: {error}; choose another --output") from error
    console.print(f"wrote {picture} and {numbers}", soft_wrap=True)


def _check(demo: Demo) -> None:
    """Refuse early what would fail late."""
    if demo.num_frames < MIN_FRAMES:
        raise ConfigError(f"--num-frames is {demo.num_frames}; at least {MIN_FRAMES} are needed")
    if not 0 <= demo.depth_error <= MAX_DEPTH_ERROR:
        raise ConfigError(f"--depth-error is {demo.depth_error:g}; give a share between 0 and {MAX_DEPTH_ERROR:g}")
    try:
        demo.output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the folder {demo.output}: {error}; choose another --output") from error


def adjust_and_evaluate(problem: Problem, size: float, start: Cameras, stages: Sequence[Stage]) -> Run:
    """Adjust from the start, watching the error against the truth (which the adjustment never sees)."""
    truth = problem.truth.cam_from_world
    errors = [float(pose_errors_deg(start.cam_from_world, truth).median())]

    def watch(stage: Stage, step: Step, cameras: Cameras) -> None:
        errors.append(float(pose_errors_deg(cameras.cam_from_world.detach(), truth).median()))

    begin = time.perf_counter()
    result: Adjustment = adjust(start, problem.samples, stages, on_step=watch)
    seconds = time.perf_counter() - begin
    run = evaluate(problem, size, result.cameras, result.registered)
    report = replace(run.report, steps=len(result.steps), seconds=seconds)
    return replace(run, report=report, errors_deg=tuple(errors))


def evaluate(problem: Problem, size: float, cameras: Cameras, registered: Tensor) -> Run:
    """Compare cameras with the truth."""
    truth = problem.truth.cam_from_world
    used = registered if int(registered.sum()) >= MIN_FRAMES else torch.ones_like(registered)
    aligned = align_poses(cameras.cam_from_world, truth, used)
    rotation, _ = relative_pose_errors_deg(cameras.cam_from_world, truth, registered)
    offset = (camera_centers(aligned) - camera_centers(truth)).norm(dim=-1) / size
    focal = cameras.intrinsics.focal[:, 0] / problem.truth.intrinsics.focal[:, 0] - 1
    auc_1, auc_3, auc_5 = pose_auc(cameras.cam_from_world, truth, registered)
    report = Report(
        auc_1,
        auc_3,
        auc_5,
        rotation_deg=float(rotation.median()),
        center_share=float(offset[used].median()),
        focal_error=float(focal.median()),
        registered=int(registered.sum()),
        steps=0,
        seconds=0.0,
    )
    return Run(cameras, aligned, report)


def align_poses(
    cam_from_world: Float[Tensor, "N 3 4"], truth: Float[Tensor, "N 3 4"], used: Tensor
) -> Float[Tensor, "N 3 4"]:
    """The poses after the similarity that brings the used camera centres closest to the true ones."""
    scale, true_from_world = align_similarity(camera_centers(cam_from_world[used]), camera_centers(truth[used]))
    return apply_similarity(cam_from_world, scale, true_from_world)


def make_table(runs: dict[str, Run], num_frames: int) -> Table:
    """One row per run."""
    table = Table(
        title="pose error of pairs: AUC and median rotation; centres: median after alignment",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1),
        collapse_padding=True,
        pad_edge=False,
    )
    for heading in ("", "AUC@1", "AUC@3", "AUC@5", "rot. deg", "centre %", "focal %", "frames", "steps", "s"):
        table.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    for name, run in runs.items():
        report = run.report
        table.add_row(
            name,
            *(f"{value:.3f}" for value in (report.auc_1, report.auc_3, report.auc_5)),
            f"{report.rotation_deg:.3f}",
            f"{100 * report.center_share:.2f}",
            f"{100 * report.focal_error:+.2f}",
            f"{report.registered}/{num_frames}",
            *((str(report.steps), f"{report.seconds:.1f}") if report.steps else ("", "")),
        )
    return table


def summarize(demo: Demo, problem: Problem, size: float, runs: dict[str, Run]) -> dict[str, object]:
    """The numbers of the table and what they belong to."""
    samples = problem.samples
    return {
        "version": __version__,
        "settings": {**asdict(demo), "output": str(demo.output)},
        "problem": {
            "num_edges": samples.num_edges,
            "samples_per_edge": samples.samples_per_edge,
            "scene_size": size,
        },
        "runs": {name: asdict(run.report) for name, run in runs.items()},
    }


def make_picture(problem: Problem, runs: dict[str, Run], depth_error: DepthError, seed: int) -> Picture:
    """Render a few photographs and collect residuals."""
    scene, truth = problem.scene, problem.truth
    small, small_error = shrink(truth), replace(depth_error, edge_blur_px=depth_error.edge_blur_px / SHRINKAGE)
    count = min(NUM_PHOTOGRAPHS, truth.num_frames)
    frames = tuple(round(number * (truth.num_frames - 1) / max(count - 1, 1)) for number in range(count))
    tracks = {name: _track(name, run, problem) for name, run in runs.items()}
    return Picture(
        scene=scene,
        photographs=tuple(render(scene, small, frame)[0] for frame in frames),
        depth_maps=tuple(observe_depth_map(scene, small, frame, small_error, seed) for frame in frames),
        frames=frames,
        truth=truth.cam_from_world,
        start=tracks.pop("start"),
        results=tuple(tracks.values()),
        tau_max=FINE.tau_max,
    )


def shrink(cameras: Cameras) -> Cameras:
    """The same cameras with smaller images: as many pixels as the figure can show."""
    intrinsics = cameras.intrinsics
    sizes = intrinsics.sizes // SHRINKAGE
    factor = sizes / intrinsics.sizes.double()
    focal, center = intrinsics.focal * factor, intrinsics.center * factor
    return replace(cameras, intrinsics=replace(intrinsics, focal=focal, center=center, sizes=sizes))


def _track(name: str, run: Run, problem: Problem) -> Track:
    noise = NoiseScale(1.0, torch.full((problem.truth.num_frames,), 0.1, dtype=torch.float64))
    residuals = isotropic_residuals(run.cameras, problem.samples).flatten()
    across = split_residuals(run.cameras, problem.samples, noise).across.flatten()
    return Track(name, COLORS[name], run.aligned, residuals, across, run.errors_deg, run.report.center_share)
