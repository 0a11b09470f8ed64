"""What the benchmarks share: problems, tables and JSON."""

import json
import platform
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from mbasfm.evaluation.metrics import pose_auc
from mbasfm.synthetic.cameras import perturb, scene_size
from mbasfm.synthetic.depth_errors import DepthError
from mbasfm.synthetic.problem import MatchError, Problem, Settings, make_problem
from mbasfm.types.cameras import Cameras

RESULTS = Path(__file__).parent / "results"


def standard_problem(
    num_frames: int, seed: int, smooth: float = 0.05, outliers: float = 0.2, samples_per_edge: int = 200
) -> Problem:
    """A room with the errors of a monocular depth network and of a matcher."""
    settings = Settings(
        samples_per_edge=samples_per_edge,
        max_degree=min(num_frames - 1, 30),
        depth_error=DepthError(smooth=smooth),
        match_error=MatchError(noise_px=1.0, outliers=outliers),
    )
    return make_problem(num_frames, seed, settings)


def rough_start(problem: Problem, seed: int, rotation_deg: float = 10.0, focal_factor: float = 1.15) -> Cameras:
    """Cameras off by an angle, and by one percent of the scene for each degree of it; the focal length off too."""
    share = rotation_deg / 100
    return perturb(problem.truth, seed, rotation_deg, share * scene_size(problem.scene, problem.truth), focal_factor)


def score(cameras: Cameras, problem: Problem) -> tuple[float, float, float]:
    """Pose AUC at 1, 3 and 5 degrees."""
    one, three, five = pose_auc(cameras.cam_from_world, problem.truth.cam_from_world)
    return one, three, five


def report(name: str, title: str, rows: list[dict[str, Any]], extra: dict[str, Any] | None = None) -> None:
    """Print rows as a table and write them as JSON."""
    table = Table(title=title)
    columns = list(dict.fromkeys(key for row in rows for key in row))
    for column in columns:
        table.add_column(column, justify="left" if isinstance(rows[0].get(column), str) else "right")
    for row in rows:
        table.add_row(*(_text(row.get(column, "")) for column in columns))
    Console(width=160).print(table)
    RESULTS.mkdir(exist_ok=True)
    machine = {"torch": torch.__version__, "threads": torch.get_num_threads(), "machine": platform.machine()}
    content = {"title": title, "machine": machine, "rows": rows, **(extra or {})}
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(content, indent=1))
    print(f"wrote {path.relative_to(Path(__file__).parent.parent)}")


def _text(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)
