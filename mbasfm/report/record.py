"""The report of a run: residuals, steps, pairs, cameras, depth."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch

from mbasfm.adjust.problem import Step
from mbasfm.estimators.two_view import stands_alone
from mbasfm.report.pictures import color_depth, jpeg_text
from mbasfm.scene.depth_fit import is_constant
from mbasfm.scene.reconstruction import Reconstruction, finite
from mbasfm.scene.report_file import stage_row
from mbasfm.scene.write import Written, with_written
from mbasfm.sfm.intrinsics import StartIntrinsics, focal_source
from mbasfm.sfm.outcome import Run
from mbasfm.types.observations import DepthEstimate, Observations, TwoView
from mbasfm.types.outcome import CameraRow, PairColumns, RunReport, StepColumns

MAX_PAIRS = 20_000
"""Largest number of recorded pairs, those with most matches."""
MAX_STEPS = 400
DEPTH_LONG_SIDE_PX = 96


def record(
    run: Run, result: Reconstruction, written: Written, stages: Sequence[dict[str, Any]], notes: Sequence[str]
) -> RunReport:
    """Report of a finished run, bounded in size except for one or two lines per photograph."""
    return replace(
        with_written(result.report, written),
        source=str(run.source.resolve()),
        settings=asdict(run.config),
        depth_model=run.observations.depth_model,
        pairs_chosen=run.observations.pairs_chosen,
        cameras=camera_rows(run.observations, run.start, result),
        pairs=pair_columns(run.observations, run.verified, result),
        residuals=run.residuals,
        steps=step_columns(run.placed.adjustment.steps if run.placed is not None else ()),
        depth_pictures=tuple(_depth_picture(depth) for depth in run.observations.depths),
        stages=tuple(stage_row(stage) for stage in stages),
        notes=tuple(notes),
        skipped=tuple(run.skipped),
    )


def _depth_picture(depth: DepthEstimate) -> str | None:
    """Picture of a depth map; None if depth is the same everywhere."""
    return None if is_constant(depth.values) else jpeg_text(color_depth(depth, DEPTH_LONG_SIDE_PX))


# ----------------------------------------------------------------------------------------------------------------
# Steps, pairs, cameras


def step_columns(steps: Sequence[tuple[str, Step]]) -> StepColumns:
    """History of the adjustment by columns; a long one is thinned evenly."""
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
    """Pairs by columns: matches, verified inliers, and whether the pair is an edge of the final graph (0 or 1)."""
    matches = {
        (i, j): len(m) for (i, j), m in zip(observations.pairs.tolist(), observations.matches, strict=True) if len(m)
    }
    used = {(min(edge), max(edge)) for edge in result.graph.edges.tolist()}
    pairs_of = ((view, (view.i, view.j)) for view in verified)
    inliers = {pair: view.num_inliers for view, pair in pairs_of if stands_alone(view) or pair in used}
    pairs = sorted(sorted(matches, key=lambda pair: (-matches[pair], pair))[:MAX_PAIRS])
    return PairColumns(
        i=tuple(i for i, _ in pairs),
        j=tuple(j for _, j in pairs),
        matches=tuple(matches[pair] for pair in pairs),
        inliers=tuple(inliers.get(pair, 0) for pair in pairs),
        used=tuple(int(pair in used) for pair in pairs),
    )


def camera_rows(observations: Observations, start: StartIntrinsics, result: Reconstruction) -> tuple[CameraRow, ...]:
    """Size and focal length of each camera, and where the focal length comes from."""
    rows = []
    group = start.intrinsics.group
    for number in torch.unique(group).tolist():
        frames = torch.nonzero(group == number).flatten().tolist()
        width, height = start.intrinsics.sizes[frames[0]].tolist()
        source = focal_source(start, frames[0], any(observations.depths[frame].focal_px for frame in frames))
        begin, end = (finite(float(i.focal[frames].median())) for i in (start.intrinsics, result.cameras.intrinsics))
        registered = int(result.registered[frames].sum())
        rows.append(CameraRow(len(frames), width, height, source, begin, end, registered))
    return tuple(rows)
