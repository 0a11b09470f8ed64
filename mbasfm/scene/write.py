"""The scene folder of a finished reconstruction: models, photographs, aligned depth, and what follows from them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import cv2
import numpy as np
import pycolmap
from jaxtyping import Float32

from mbasfm.errors import InputError
from mbasfm.geometry.camera import values_at
from mbasfm.io.images import read_mask
from mbasfm.runtime.parallel import in_parallel
from mbasfm.runtime.progress import stage
from mbasfm.scene.depth_fit import DepthFit, fit_depth, is_constant
from mbasfm.scene.depth_maps import write_depth
from mbasfm.scene.export import KINDS, cameras_of, write_images, write_kind
from mbasfm.scene.folder import DepthMap, Scene, points_seen, scenes_of
from mbasfm.scene.reconstruction import Reconstruction, finite
from mbasfm.scene.report_file import read_outputs
from mbasfm.scene.undistort import is_distorted, undistort_map
from mbasfm.types.cameras import Cameras
from mbasfm.types.observations import DepthEstimate, Observations, Photo
from mbasfm.types.outcome import RunReport, View

BentAndStraight = tuple[pycolmap.Reconstruction, pycolmap.Reconstruction]
"""Model of a component, with and without lens distortion."""


@dataclass(frozen=True)
class Written:
    """What was written into a scene folder."""

    outputs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Paths relative to the folder, by kind."""
    depth_misfit: Mapping[int, float] = field(default_factory=dict)
    """Relative difference between written depth and the points, by frame."""
    models: tuple[pycolmap.Reconstruction, ...] = ()
    """Models as they were written: without distortion."""


NOTHING_WRITTEN = Written()


def write_scene(result: Reconstruction, observations: Observations, folder: Path) -> Written:
    """Write the whole scene folder but the report; files of an older result are removed."""
    with stage("export") as facts:
        own = {photo.path.resolve() for photo in observations.photos}
        _remove_older(folder, own)
        models = result.save_models(folder)
        images, masks, maps, scenes = [], [], [], []
        misfit: dict[int, float] = {}
        for scene, straight, model in zip(scenes_of(folder, models), models, result.models, strict=True):
            sources = {view.name: observations.photos[view.number].path for view in scene.views}
            images += write_images(folder, sources, cameras_of(model))
            fitted = _fit_depths(scene, (model, straight), result.cameras, observations.depths)
            scenes.append(replace(scene, depths={name: depth for name, (depth, _) in fitted.items()}))
            maps += _write_depths(scenes[-1])
            misfit |= {view.number: fitted[view.name][1] for view in scenes[-1].with_depth}
            masks += _write_masks(scene, (model, straight), observations.photos)
        kinds = [kind for kind in KINDS if kind != "images"] if scenes else []
        paths: dict[str, list[Path]] = {kind: write_kind(kind, scenes) for kind in kinds}
        paths["images"] = [path for path in images if path.resolve() not in own]  # others are not ours to remove
        if masks:
            paths["masks"] = masks
        paths["depth"] = maps + paths.get("depth", [])
        facts.update({kind: len(found) for kind, found in paths.items()})
    outputs = {kind: tuple(path.relative_to(folder).as_posix() for path in found) for kind, found in paths.items()}
    return Written(outputs, misfit, models)


def with_written(report: RunReport, written: Written) -> RunReport:
    """Report completed with the written files."""
    misfit = {frame: finite(value) for frame, value in written.depth_misfit.items()}
    rows = tuple(replace(row, depth_misfit=misfit.get(frame)) for frame, row in enumerate(report.images))
    return replace(report, images=rows, outputs=written.outputs)


def _remove_older(folder: Path, own: Collection[Path]) -> None:
    """Remove files that an older report lists as written; any others may be the user's own."""
    for path in read_outputs(folder):
        if folder.resolve() in path.resolve().parents and path.resolve() not in own:
            path.unlink(missing_ok=True)


def _write_masks(scene: Scene, models: BentAndStraight, photos: Sequence[Photo]) -> list[Path]:
    """Write masks for all photographs if any has a mask, as nerfstudio requires all or none."""
    if not any(photos[view.number].mask is not None for view in scene.views):
        return []

    def write(view: View) -> Path:
        counts = read_mask(photos[view.number]).astype(np.uint8) * 255
        values = np.asarray(cv2.resize(counts, view.size, interpolation=cv2.INTER_NEAREST_EXACT), dtype=np.float32)
        path = scene.mask_file(view)
        path.parent.mkdir(parents=True, exist_ok=True)
        if not cv2.imwrite(str(path), _straight(values, view, models).astype(np.uint8)):
            raise InputError(f"{path}: cannot be written")
        return path

    return list(in_parallel(write, scene.views))


def _write_depths(scene: Scene) -> list[Path]:
    """Write aligned depth of all photographs that have some."""

    def write(view: View) -> Path:
        write_depth(scene.depth_file(view), scene.depths[view.name]())
        return scene.depth_file(view)

    return list(in_parallel(write, scene.with_depth))


def _fit_depths(
    scene: Scene, models: BentAndStraight, cameras: Cameras, estimates: Sequence[DepthEstimate]
) -> dict[str, tuple[DepthMap, float]]:
    """Aligned depth, and its misfit, of all photographs whose map is not constant."""

    def fit(view: View) -> tuple[DepthMap, float]:
        values = estimates[view.number].values
        pixels, points = points_seen(models[1], models[1].images[view.number + 1])
        _, depth = view.project(points)
        raw = values_at(_straight(values, view, models), (pixels / view.size).astype(np.float32))
        found, error = fit_depth(raw, depth, _adjusted(cameras, view.number))
        return lambda: found.depth(_straight(values, view, models)), error

    varied = [view for view in scene.views if not is_constant(estimates[view.number].values)]
    return {view.name: found for view, found in zip(varied, in_parallel(fit, varied), strict=True)}


def _straight(values: Float32[np.ndarray, "h w"], view: View, models: BentAndStraight) -> Float32[np.ndarray, "h w"]:
    """A map that spans a photograph, as one that spans the photograph without distortion."""
    camera, pinhole = (model.cameras[model.images[view.number + 1].camera_id] for model in models)
    return undistort_map(values, camera, pinhole) if is_distorted(camera) else values


def _adjusted(cameras: Cameras, frame: int) -> DepthFit:
    scale, shift = float(cameras.depth_scale[frame]), float(cameras.depth_shift[frame])
    return DepthFit(scale, shift, bool(cameras.is_disparity[frame]))
