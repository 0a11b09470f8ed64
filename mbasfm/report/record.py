"""The report of a run: recorded as a value, and shown as SCENE/report.html."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pycolmap
import torch
from jaxtyping import Float64

from mbasfm.adjust.levenberg_marquardt import Step
from mbasfm.estimators.two_view import stands_alone
from mbasfm.io.colmap_model import read_model
from mbasfm.io.files import write_text
from mbasfm.io.images import read_first_small
from mbasfm.objective.losses import distribution_from_counts
from mbasfm.report.figures import color_depth, jpeg_text
from mbasfm.report.page import render_page
from mbasfm.report.verdict import judge, link_counts
from mbasfm.runtime.parallel import in_parallel
from mbasfm.scene.derived import frustum_size, is_constant, stand_up
from mbasfm.scene.reconstruction import Reconstruction, Written, finite, with_written
from mbasfm.scene.report_file import damaged_report_as_error, read_report, stage_row, stage_to_json
from mbasfm.sfm.adjustment import HISTOGRAM, Run
from mbasfm.sfm.intrinsics import StartIntrinsics, focal_source
from mbasfm.types.observations import DepthEstimate, Observations, TwoView
from mbasfm.types.outcome import CameraRow, PairColumns, Residuals, RunReport, StepColumns

MAX_PAIRS = 20_000
"""Largest number of recorded pairs, those with most matches."""
MAX_STEPS = 400
DEPTH_LONG_SIDE_PX = 96
MAX_POINTS = 20_000
"""Largest number of points in the page, over all components."""
MAX_THUMBNAILS = 2000
THUMBNAIL_SIDES_PX = ((60, 240), (300, 160), (MAX_THUMBNAILS, 112))
"""Long side of thumbnails for each largest number of photographs."""
RESIDUAL_TICKS_PX = (0.0, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
UNITS = 1000
"""Steps per radius of the scene in the page, which holds whole numbers."""
OUTSIDE = 1.6
"""Distance from the middle beyond which points are left out [radii]."""


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


def write_report(folder: Path | str) -> Path:
    """Write report.html into a scene's folder again; the same scene gives the same bytes."""
    report = read_report(Path(folder))
    paths = sorted((Path(folder) / "sparse").glob("*/images.bin"), key=lambda path: int(path.parent.name))
    with damaged_report_as_error(Path(folder)):
        return write_page(report, [read_model(path.parent) for path in paths], Path(folder))


def write_page(report: RunReport, models: Sequence[pycolmap.Reconstruction], folder: Path) -> Path:
    """Write report.html of a run; models are those without distortion."""
    target = folder / "report.html"
    write_text(target, render_page(page_data(report, models, folder)))
    return target


def page_data(report: RunReport, models: Sequence[pycolmap.Reconstruction], folder: Path) -> dict[str, Any]:
    """Everything that the page shows, as plain values; photographs are also looked for in the scene's folder."""
    names = [row.name for row in report.images]
    return {
        "title": Path(report.source).name,
        "verdict": asdict(judge(report)),
        "images": image_rows(report, thumbnails(folder, Path(report.source), names)),
        "scene": [component_view(model, _share_of(model, models)) for model in models],
        "pairs": asdict(report.pairs),
        "residuals": residual_curves(report.residuals),
        "steps": asdict(report.steps),
        "stages": [stage_to_json(row) for row in report.stages],
        "cameras": [asdict(row) | {"focal_from": str(row.focal_from)} for row in report.cameras],
        "settings": dict(report.settings),
        "notes": list(report.notes),
    }


def image_rows(report: RunReport, pictures: Sequence[str | None]) -> list[dict[str, Any]]:
    """Values that the page shows for every photograph."""
    links = link_counts(report)
    return [
        {
            "name": row.name,
            "component": row.component,
            "reason": "" if row.reason is None else str(row.reason),
            "neighbours": int(links[number]),
            "inlier_share": row.inlier_share,
            "depth_error": row.depth_error,
            "sigma_deg": None if row.sigma is None else _length(row.sigma.rotation_deg),
            "sigma_length": None if row.sigma is None else _length(row.sigma.translation),
            "picture": pictures[number],
            "depth_picture": report.depth_pictures[number],
        }
        for number, row in enumerate(report.images)
    ]


def _length(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.linalg.norm(known)) if known else None


# ----------------------------------------------------------------------------------------------------------------
# Photographs


def thumbnails(folder: Path, source: Path, names: Sequence[str]) -> list[str | None]:
    """Thumbnails as base64 JPEG, from where the photographs were found or from SCENE/images; None if in neither."""
    side = next((side for count, side in THUMBNAIL_SIDES_PX if len(names) <= count), None)
    if side is None:
        return [None] * len(names)
    base = source if source.is_dir() else source.parent

    def make(name: str) -> str | None:
        picture = read_first_small((base / name, folder / "images" / name), side)
        return None if picture is None else jpeg_text(picture)

    return list(in_parallel(make, names))


# ----------------------------------------------------------------------------------------------------------------
# Residuals


def residual_curves(record: Residuals) -> dict[str, Any]:
    """F at the borders of the bins, p of each bin, and the median of every recorded histogram."""
    curves = []
    for item in record.curves:
        distribution = distribution_from_counts(HISTOGRAM, torch.tensor(item.counts, dtype=torch.float64)[None])
        curves.append(
            {
                "stage": item.stage,
                "part": item.part,
                "cumulative": distribution.cumulative()[0].tolist(),
                "density": distribution.density()[0].tolist(),
                "median_px": float(distribution.quantile(0.5)[0]),
            }
        )
    places = HISTOGRAM.coordinate(torch.tensor([*RESIDUAL_TICKS_PX, record.inlier_px], dtype=torch.float64)).tolist()
    ticks = [(place, f"{px:g}") for place, px in zip(places, RESIDUAL_TICKS_PX, strict=False)]
    return {"ticks": ticks, "limit": places[-1], "curves": curves}


# ----------------------------------------------------------------------------------------------------------------
# Cameras and points


def _share_of(model: pycolmap.Reconstruction, models: Sequence[pycolmap.Reconstruction]) -> int:
    """Largest number of points of a component in the page."""
    total = sum(item.num_points3D() for item in models)
    return min(model.num_points3D(), MAX_POINTS * model.num_points3D() // max(total, 1))


def component_view(model: pycolmap.Reconstruction, num_points: int) -> dict[str, Any]:
    """Cameras and points of one component, upright and of radius 1, in whole thousandths.

    x points right, y up and z back, as seen by a viewer who looks in the cameras' mean direction.
    """
    ids = sorted(model.points3D)
    chosen = np.linspace(0, max(len(ids) - 1, 0), num_points).round().astype(np.int64)
    points = np.array([model.points3D[ids[number]].xyz for number in chosen]).reshape(-1, 3)
    colors = np.array([model.points3D[ids[number]].color for number in chosen], dtype=np.uint8).reshape(-1, 3)
    images = [model.images[number] for number in sorted(model.images)]
    world_from_cam = np.stack([image.cam_from_world().inverse().matrix() for image in images])
    centers = world_from_cam[:, :, 3]
    stage = stand_up(points, world_from_cam)
    near = np.linalg.norm(points - stage.middle, axis=1) < OUTSIDE * stage.radius
    frusta = [_frustum(model.cameras[image.camera_id]) for image in images]
    size = frustum_size(centers, stage.radius)
    corners = size * np.stack(frusta) @ world_from_cam[:, :, :3].swapaxes(1, 2) + centers[:, None]

    def whole(values: np.ndarray) -> np.ndarray:
        return (UNITS * stage.points(values)).round().astype(np.int64)

    return {
        "points": whole(points[near]).flatten().tolist(),
        "colors": colors[near].tobytes().hex(),
        "frames": [image.image_id - 1 for image in images],
        "frusta": whole(corners).reshape(len(images), -1).tolist(),
    }


def _frustum(camera: pycolmap.Camera) -> Float64[np.ndarray, "5 3"]:
    """Centre and corners of the image at depth 1."""
    right, down = camera.width / camera.focal_length_x / 2, camera.height / camera.focal_length_y / 2
    return np.array([[0, 0, 0], [-right, -down, 1], [right, -down, 1], [right, down, 1], [-right, down, 1]])
