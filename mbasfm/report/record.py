"""The report of a run, for those who look at it later: residuals, steps, pairs, cameras, depth."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pycolmap
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from mbasfm.adjust.diagnosis import inlier_limit_px
from mbasfm.adjust.problem import Step
from mbasfm.config import stages_of
from mbasfm.objective.distribution import Binning, count_bins
from mbasfm.objective.isotropic import isotropic
from mbasfm.objective.residual_kind import NO_INTRINSICS, stream
from mbasfm.objective.split import split
from mbasfm.report.pictures import color_depth, jpeg_text
from mbasfm.scene.depth_fit import says_something
from mbasfm.scene.reconstruction import Reconstruction, finite
from mbasfm.scene.report_file import stage_row
from mbasfm.scene.write import Written, with_written
from mbasfm.sfm.outcome import Run
from mbasfm.sfm.starting_intrinsics import StartIntrinsics, focal_source
from mbasfm.types.cameras import REFERENCE_LONG_SIDE, Cameras
from mbasfm.types.observations import Observations
from mbasfm.types.outcome import CameraRow, PairColumns, ResidualCurve, Residuals, RunReport, StepColumns
from mbasfm.types.pairs import TwoView
from mbasfm.types.photos import DepthEstimate
from mbasfm.types.samples import SampleSource

HISTOGRAM = Binning(1000.0, 100, log_scale=0.05)
"""Of the residuals in the report, whatever binning a stage works with [px at a long side of 1024]."""
MAX_PAIRS = 20_000
"""Of many more pairs those with most matches are recorded."""
MAX_STEPS = 400
DEPTH_LONG_SIDE_PX = 96


def record(
    run: Run, result: Reconstruction, written: Written, stages: Sequence[dict[str, Any]], notes: Sequence[str]
) -> RunReport:
    """The whole report of a run at its end; all is bounded in size, but for one line or two per photograph."""
    return replace(
        with_written(result.report, written),
        source=str(run.source.resolve()),
        settings=asdict(run.config),
        depth_model=run.observations.depth_model,
        pairs_chosen=run.observations.pairs_chosen,
        cameras=camera_rows(run.observations, run.start, result.cameras),
        pairs=pair_columns(run.observations, run.verified, result),
        residuals=residual_record(run, result.models),
        steps=step_columns(run.placed.adjustment.steps if run.placed is not None else ()),
        depth_pictures=tuple(_depth_picture(depth) for depth in run.observations.depths),
        stages=tuple(stage_row(stage) for stage in stages),
        notes=tuple(notes),
        skipped=tuple(run.skipped),
    )


def _depth_picture(depth: DepthEstimate) -> str | None:
    """None where depth is the same everywhere: there is nothing to see."""
    return jpeg_text(color_depth(depth, DEPTH_LONG_SIDE_PX)) if says_something(depth.values) else None


# ----------------------------------------------------------------------------------------------------------------
# Residuals


def residual_record(run: Run, models: Sequence[pycolmap.Reconstruction]) -> Residuals:
    """Histograms of the residuals at the start, after adjustment and after polish; the last count lies beyond all."""
    curves: list[ResidualCurve] = []
    if run.placed is not None:
        for stage, cameras in (("start", run.placed.start), ("adjust", run.placed.adjustment.cameras)):
            whole, across = sample_histograms(cameras, run.placed.samples)
            curves += [ResidualCurve(stage, "whole", _rounded(whole)), ResidualCurve(stage, "across", _rounded(across))]
    if models:
        errors = np.concatenate([track_errors_px(model) for model in models])
        index = HISTOGRAM.index(torch.from_numpy(errors)[None])
        counts = count_bins(index, torch.ones(index.shape), HISTOGRAM.num_bins)[0]
        curves.append(ResidualCurve("polish", "tracks", _rounded(counts)))
    limit = inlier_limit_px(stages_of(run.config)[-1])
    return Residuals(tuple(HISTOGRAM.edges().tolist()), limit, tuple(curves))


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


def _rounded(counts: Float[Tensor, " T1"]) -> tuple[float, ...]:
    return tuple(round(value, 3) for value in counts.tolist())


# ----------------------------------------------------------------------------------------------------------------
# Steps, pairs, cameras


def step_columns(steps: Sequence[tuple[str, Step]]) -> StepColumns:
    """The history of the adjustment by columns; long ones are thinned out evenly."""
    chosen = np.linspace(0, len(steps) - 1, min(len(steps), MAX_STEPS)).round().astype(np.int64).tolist()
    rows = [steps[number] for number in chosen]
    return StepColumns(
        number=tuple(chosen),
        stage=tuple(name for name, _ in rows),
        loss=tuple(finite(step.loss) for _, step in rows),
        score=tuple(finite(step.score) for _, step in rows),
        damping=tuple(finite(step.damping) for _, step in rows),
        accepted=tuple(step.accepted for _, step in rows),
    )


def pair_columns(observations: Observations, verified: Sequence[TwoView], result: Reconstruction) -> PairColumns:
    """Matches, verified inliers and whether the pair is an edge of the final graph (0 or 1), by columns."""
    matches = {
        (i, j): len(m) for (i, j), m in zip(observations.pairs.tolist(), observations.matches, strict=True) if len(m)
    }
    inliers = {(view.i, view.j): view.num_inliers for view in verified}
    used = {(min(edge), max(edge)) for edge in result.graph.edges.tolist()}
    pairs = sorted(sorted(matches, key=lambda pair: (-matches[pair], pair))[:MAX_PAIRS])
    return PairColumns(
        i=tuple(i for i, _ in pairs),
        j=tuple(j for _, j in pairs),
        matches=tuple(matches[pair] for pair in pairs),
        inliers=tuple(inliers.get(pair, 0) for pair in pairs),
        used=tuple(int(pair in used) for pair in pairs),
    )


def camera_rows(observations: Observations, start: StartIntrinsics, cameras: Cameras) -> tuple[CameraRow, ...]:
    """Size and focal length of each camera, and where its focal length came from."""
    rows = []
    group = start.intrinsics.group
    for number in torch.unique(group).tolist():
        frames = torch.nonzero(group == number).flatten().tolist()
        width, height = start.intrinsics.sizes[frames[0]].tolist()
        source = focal_source(start, frames[0], any(observations.depths[frame].focal_px for frame in frames))
        focals = (float(item.focal[frames].median()) for item in (start.intrinsics, cameras.intrinsics))
        rows.append(CameraRow(len(frames), width, height, source, *map(finite, focals)))
    return tuple(rows)
