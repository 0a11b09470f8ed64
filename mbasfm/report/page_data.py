"""SCENE/report.html, made from a scene's folder alone: report.json, the models and the photographs."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pycolmap
import torch
from jaxtyping import Float64

from mbasfm.io.colmap_model import read_model
from mbasfm.io.images import read_first_small
from mbasfm.io.text_files import write_text
from mbasfm.objective.distribution import distribution_from_counts
from mbasfm.report.page import render_page
from mbasfm.report.pictures import jpeg_text
from mbasfm.report.verdict import judge, link_counts
from mbasfm.runtime.parallel import in_parallel
from mbasfm.scene.framing import frustum_size, stand_up
from mbasfm.scene.report_file import damaged_report_as_error, read_report, stage_to_json
from mbasfm.sfm.outcome import HISTOGRAM
from mbasfm.types.outcome import Residuals, RunReport

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
