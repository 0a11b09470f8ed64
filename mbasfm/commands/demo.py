"""`mba demo`: photographs of a made-up place, with depth as a network might see it, to camera poses and a report."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image
from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor

from mbasfm.config import Config
from mbasfm.errors import ConfigError, InputError
from mbasfm.evaluation.metrics import pose_auc
from mbasfm.reconstruct import reconstruct
from mbasfm.runtime.parallel import in_parallel
from mbasfm.runtime.progress import Progress
from mbasfm.scene.reconstruction import Reconstruction
from mbasfm.synthetic.cameras import make_cameras, render
from mbasfm.synthetic.depth_errors import DepthError, draw_depth_affine, observe_depth_map
from mbasfm.synthetic.solids import make_scene
from mbasfm.types.cameras import Cameras

MIN_FRAMES = 3
MAX_DEPTH_ERROR = 0.5
RUNS: Mapping[str, Mapping[str, Any]] = {
    "no depth": {"depth": "flat", "polish": False},
    "paper": {"objective": "paper", "tree": "paper", "polish": False},
    "anchored": {"polish": False},
    "anchored, polished": {},
}
"""Settings of the runs that are compared; the last one is written as a scene."""


@dataclass(frozen=True)
class Demo:
    """Photograph a made-up place, simulate monocular depth, and find the cameras: flat, as the paper, as we do."""

    output: Path
    """Folder for photos, depth, scene and result.json; made if it does not exist."""
    num_frames: int = 16
    """Photographs."""
    kind: Literal["room", "place", "object"] = "place"
    """What the scene is: indoors, outdoors, or a heap of things to walk around."""
    seed: int = 0
    """Another number is another scene."""
    depth_error: float = 0.08
    """Relative error of the simulated depth, slowly varying over each image, besides a wrong scale and shift."""

    def run(self) -> int:
        """Photograph and reconstruct on the terminal."""
        run_demo(self)
        return 0


def run_demo(demo: Demo, console: Console | None = None) -> None:
    """Take the photographs, reconstruct them in several ways, print a table and say where to look."""
    console = console or Console()
    _check(demo)
    console.print(f"photographing a made-up {demo.kind} from {demo.num_frames} places")
    truth = take_photographs(demo)
    scores = {}
    for name, changes in RUNS.items():
        is_last = name == list(RUNS)[-1]
        console.print(f"reconstructing: {name}")
        config = replace(Config(depth=f"files:{demo.output / 'monocular'}"), **changes)
        scene, cache = demo.output / "scene", demo.output / "scene" / "cache"
        progress = Progress(console if is_last else None)
        result = reconstruct(demo.output / "photos", scene if is_last else None, config, cache, progress)
        scores[name] = score(result, truth)
    console.print(make_table(scores, demo.num_frames))
    summary = {"settings": {**asdict(demo), "output": str(demo.output)}, "runs": scores}
    (demo.output / "result.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    scene = demo.output / "scene"
    console.print(f"the scene is {scene}; look at {scene / 'report.html'} or run: mba view {scene}", soft_wrap=True)


def _check(demo: Demo) -> None:
    """Refuse early what would fail late."""
    if demo.num_frames < MIN_FRAMES:
        raise ConfigError(f"--num-frames is {demo.num_frames}; at least {MIN_FRAMES} are needed")
    if not 0 <= demo.depth_error <= MAX_DEPTH_ERROR:
        raise ConfigError(f"--depth-error is {demo.depth_error:g}; give a share between 0 and {MAX_DEPTH_ERROR:g}")
    try:
        for name in ("photos", "monocular"):
            (demo.output / name).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the folder {demo.output}: {error}; choose another --output") from error


def take_photographs(demo: Demo) -> Cameras:
    """Write photos/*.png and monocular/*.npy; returns the true cameras."""
    scene, error = make_scene(demo.kind, demo.seed), DepthError(smooth=demo.depth_error)
    truth = draw_depth_affine(scene, make_cameras(scene, demo.num_frames, demo.seed), error, demo.seed)

    def take(frame: int) -> None:
        name = f"{frame:03d}"
        Image.fromarray(render(scene, truth, frame)[0].numpy()).save(demo.output / "photos" / f"{name}.png")
        depth = observe_depth_map(scene, truth, frame, error, demo.seed)
        np.save(demo.output / "monocular" / f"{name}.npy", depth.numpy().astype(np.float32))

    list(in_parallel(take, range(demo.num_frames)))
    return truth


def score(result: Reconstruction, truth: Cameras) -> dict[str, float]:
    """Accuracy of the cameras of the largest component; photographs outside it count as wrong."""
    placed = result.component == 0
    poses: Float[Tensor, "N 3 4"] = truth.cam_from_world
    areas = pose_auc(result.cameras.cam_from_world, poses, placed)
    focal = (result.cameras.intrinsics.focal[:, 0] / truth.intrinsics.focal[:, 0] - 1)[placed]
    row = {f"auc_{limit}": area for limit, area in zip((1, 3, 5), areas, strict=True)}
    seconds = sum(stage.seconds for stage in result.report.stages if stage.name in ("adjust", "settle", "polish"))
    error = float(focal.median()) if len(focal) else float("nan")
    return row | {"focal_error": error, "registered": int(torch.sum(placed)), "seconds": seconds}


def make_table(scores: Mapping[str, Mapping[str, float]], num_frames: int) -> Table:
    """Table with one row per run."""
    title = "pose error of pairs: area under the recall curve; s: adjustment and polish"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for heading in ("", "AUC@1", "AUC@3", "AUC@5", "focal %", "placed", "s"):
        table.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    for name, row in scores.items():
        table.add_row(
            name,
            *(f"{row[key]:.3f}" for key in ("auc_1", "auc_3", "auc_5")),
            f"{100 * row['focal_error']:+.2f}",
            f"{row['registered']:.0f}/{num_frames}",
            f"{row['seconds']:.1f}",
        )
    return table
