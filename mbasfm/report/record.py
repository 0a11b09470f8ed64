"""What a run leaves in report.json for those who look at it later: residuals, steps, pairs, cameras, depth."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import pycolmap
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from mbasfm.adjust.diagnosis import inlier_limit_px
from mbasfm.adjust.problem import Step
from mbasfm.config import stages_of
from mbasfm.estimators.two_view import stands_alone
from mbasfm.matching.observe import Observations
from mbasfm.objective.distribution import Binning, count_bins
from mbasfm.objective.isotropic import isotropic
from mbasfm.objective.residual_kind import NO_INTRINSICS, stream
from mbasfm.objective.split import split
from mbasfm.report.pictures import color_depth, jpeg_text
from mbasfm.scene.depth_fit import says_something
from mbasfm.scene.reconstruction import Reconstruction
from mbasfm.sfm.outcome import Run
from mbasfm.sfm.starting_intrinsics import StartIntrinsics
from mbasfm.types.cameras import REFERENCE_LONG_SIDE, Cameras
from mbasfm.types.pairs import TwoView
from mbasfm.types.photos import DepthEstimate
from mbasfm.types.samples import SampleSource

HISTOGRAM = Binning(1000.0, 100, log_scale=0.05)
"""Of the residuals in the report, whatever binning a stage works with [px at a long side of 1024]."""
MAX_PAIRS = 20_000
"""Of many more pairs those with most matches are recorded."""
MAX_STEPS = 400
DEPTH_LONG_SIDE_PX = 96


def record(run: Run, result: Reconstruction) -> dict[str, Any]:
    """Entries of the report; all are plain values and bounded in size, but for one line or two per photograph."""
    return {
        "source": str(run.source.resolve()),
        "settings": asdict(run.config),
        "cameras": camera_rows(run.observations, run.start, result.cameras),
        "pairs": pair_columns(run.observations, run.verified, result),
        "residuals": residual_record(run, result.models),
        "steps": step_columns(run.placed.adjustment.steps if run.placed is not None else ()),
        "depth_pictures": [_depth_picture(depth) for depth in run.observations.depths],
    }


def _depth_picture(depth: DepthEstimate) -> str | None:
    """None where depth is the same everywhere: there is nothing to see."""
    return jpeg_text(color_depth(depth, DEPTH_LONG_SIDE_PX)) if says_something(depth.values) else None


# ----------------------------------------------------------------------------------------------------------------
# Residuals


def residual_record(run: Run, models: Sequence[pycolmap.Reconstruction]) -> dict[str, Any]:
    """Histograms of the residuals at the start, after adjustment and after polish; the last count lies beyond all."""
    curves: list[dict[str, Any]] = []
    if run.placed is not None:
        for stage, cameras in (("start", run.placed.start), ("adjust", run.placed.adjustment.cameras)):
            whole, across = sample_histograms(cameras, run.placed.samples)
            curves += [{"stage": stage, "part": "whole", "counts": _rounded(whole)}]
            curves += [{"stage": stage, "part": "across", "counts": _rounded(across)}]
    if models:
        errors = np.concatenate([track_errors_px(model) for model in models])
        index = HISTOGRAM.index(torch.from_numpy(errors)[None])
        counts = count_bins(index, torch.ones(index.shape), HISTOGRAM.num_bins)[0]
        curves.append({"stage": "polish", "part": "tracks", "counts": _rounded(counts)})
    limit = inlier_limit_px(stages_of(run.config)[-1])
    return {"edges_px": HISTOGRAM.edges().tolist(), "inlier_px": limit, "curves": curves}


def sample_histograms(cameras: Cameras, samples: SampleSource) -> tuple[Float[Tensor, " T1"], Float[Tensor, " T1"]]:
    """Mass of the samples by size of the residual (eqn:residual_2d), and by its part across the epipolar line."""
    whole = torch.zeros(HISTOGRAM.num_bins + 1, dtype=torch.float64)
    across = torch.zeros_like(whole)
    depth_error = torch.tensor(0.1, dtype=samples.dtype)
    for _, block in stream(cameras, samples, NO_INTRINSICS):
        residual = isotropic(block).squared.sqrt()
        whole += count_bins(HISTOGRAM.index(residual), block.weight, HISTOGRAM.num_bins)[0]
        distance = split(block, 1.0, depth_error.expand(len(block.raw), 1)).across.abs()
        across += count_bins(HISTOGRAM.index(distance), block.weight, HISTOGRAM.num_bins)[0]
    return whole, across


def track_errors_px(model: pycolmap.Reconstruction) -> Float64[np.ndarray, " M"]:
    """Distance of every observation to the image of its point [px at a long side of 1024]."""
    errors = [np.zeros(0)]
    for image in model.images.values():
        seen = image.get_observation_points2D()
        if not seen:
            continue
        camera = model.cameras[image.camera_id]
        points = np.stack([model.points3D[point.point3D_id].xyz for point in seen])
        pixels = camera.img_from_cam(image.cam_from_world() * points)
        distance = np.linalg.norm(pixels - np.stack([point.xy for point in seen]), axis=1)
        errors.append(distance * REFERENCE_LONG_SIDE / max(camera.width, camera.height))
    return np.concatenate(errors)


def _rounded(counts: Float[Tensor, " T1"]) -> list[float]:
    return [round(value, 3) for value in counts.tolist()]


# ----------------------------------------------------------------------------------------------------------------
# Steps, pairs, cameras


def step_columns(steps: Sequence[tuple[str, Step]]) -> dict[str, list[Any]]:
    """The history of the adjustment by columns; long ones are thinned out evenly."""
    chosen = np.linspace(0, len(steps) - 1, min(len(steps), MAX_STEPS)).round().astype(np.int64).tolist()
    rows = [(number, steps[number]) for number in chosen]
    return {
        "number": [number for number, _ in rows],
        "stage": [name for _, (name, _) in rows],
        "loss": [step.loss for _, (_, step) in rows],
        "score": [step.score for _, (_, step) in rows],
        "damping": [step.damping for _, (_, step) in rows],
        "accepted": [step.accepted for _, (_, step) in rows],
    }


def pair_columns(
    observations: Observations, verified: Sequence[TwoView], result: Reconstruction
) -> dict[str, list[int]]:
    """Matches, verified inliers and whether the pair is an edge of the final graph (0 or 1), by columns."""
    matches = {
        (i, j): len(m) for (i, j), m in zip(observations.pairs.tolist(), observations.matches, strict=True) if len(m)
    }
    used = {(min(edge), max(edge)) for edge in result.graph.edges.tolist()}
    pairs_of = ((view, (view.i, view.j)) for view in verified)
    inliers = {pair: view.num_inliers for view, pair in pairs_of if stands_alone(view) or pair in used}
    pairs = sorted(sorted(matches, key=lambda pair: (-matches[pair], pair))[:MAX_PAIRS])
    return {
        "i": [i for i, _ in pairs],
        "j": [j for _, j in pairs],
        "matches": [matches[pair] for pair in pairs],
        "inliers": [inliers.get(pair, 0) for pair in pairs],
        "used": [int(pair in used) for pair in pairs],
    }


def camera_rows(observations: Observations, start: StartIntrinsics, cameras: Cameras) -> list[dict[str, Any]]:
    """Size and focal length of each camera, and where its focal length came from."""
    rows = []
    group = start.intrinsics.group
    for number in torch.unique(group).tolist():
        frames = torch.nonzero(group == number).flatten().tolist()
        width, height = start.intrinsics.sizes[frames[0]].tolist()
        if bool(start.is_known[frames[0]]):
            source = "given"
        elif bool(start.is_exif[frames[0]]):
            source = "metadata"
        elif bool(start.is_init[frames[0]]):
            source = "model to start from"
        else:
            source = "depth model" if any(observations.depths[frame].focal_px for frame in frames) else "search"
        rows.append(
            {
                "images": len(frames),
                "width": width,
                "height": height,
                "focal_from": source,
                "start_focal_px": float(start.intrinsics.focal[frames].median()),
                "focal_px": float(cameras.intrinsics.focal[frames].median()),
            }
        )
    return rows
