"""The scene folder of a finished reconstruction: models, photographs, aligned depth, and what follows from them."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import cv2
import numpy as np
import pycolmap
from jaxtyping import Float32

from mbasfm.errors import InputError
from mbasfm.geometry.camera import values_at
from mbasfm.io.colmap_model import read_model
from mbasfm.io.images import read_mask
from mbasfm.runtime.parallel import in_parallel
from mbasfm.runtime.progress import stage
from mbasfm.scene.depth_fit import DepthFit, fit_depth, is_constant
from mbasfm.scene.depth_maps import write_depth
from mbasfm.scene.export import KINDS, export_scene, original_cameras, write_images
from mbasfm.scene.folder import Scene, points_seen, read_scenes
from mbasfm.scene.reconstruction import Reconstruction, finite
from mbasfm.scene.report_file import read_outputs
from mbasfm.scene.undistort import is_distorted, undistort_map
from mbasfm.types.cameras import Cameras
from mbasfm.types.observations import DepthEstimate, Observations
from mbasfm.types.outcome import RunReport, View


@dataclass(frozen=True)
class Written:
    """What was written into a scene folder."""

    outputs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Paths relative to the folder, by kind."""
    depth_misfit: Mapping[int, float] = field(default_factory=dict)
    """Relative difference between written depth and the points, by frame."""


NOTHING_WRITTEN = Written()


def write_scene(result: Reconstruction, observations: Observations, folder: Path) -> Written:
    """Write the whole scene folder but the report; files of an older result are removed."""
    with stage("export") as facts:
        originals = {photo.name: photo.path for photo in observations.photos}
        own = {path.resolve() for path in originals.values()}
        _remove_older(folder, own)
        result.save_models(folder)
        images, masks = [], []
        maps: dict[Path, tuple[int, float]] = {}
        for scene in read_scenes(folder) if result.models else ():
            images += write_images(scene, {view.name: originals[view.name] for view in scene.views})
            maps |= _write_depths(scene, result, observations)
            masks += _write_masks(scene, observations)
        written = export_scene(folder, [kind for kind in KINDS if kind != "images"]) if result.models else {}
        images = [path for path in images if path.resolve() not in own]  # those used in place are not ours to remove
        written["images"] = [path.relative_to(folder).as_posix() for path in images]
        if masks:
            written["masks"] = [path.relative_to(folder).as_posix() for path in masks]
        written["depth"] = [path.relative_to(folder).as_posix() for path in maps] + written.get("depth", [])
        facts.update({kind: len(paths) for kind, paths in written.items()})
    return Written({kind: tuple(paths) for kind, paths in written.items()}, dict(maps.values()))


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


def _write_masks(scene: Scene, observations: Observations) -> list[Path]:
    """Write masks for all photographs if any has a mask, as nerfstudio requires all or none."""
    if not any(observations.photos[view.number].mask is not None for view in scene.views):
        return []
    cameras, model = original_cameras(scene), read_model(scene.model)

    def write(view: View) -> Path:
        counts = read_mask(observations.photos[view.number]).astype(np.uint8) * 255
        values = np.asarray(cv2.resize(counts, view.size, interpolation=cv2.INTER_NEAREST_EXACT), dtype=np.float32)
        camera = cameras[view.name]
        if is_distorted(camera):
            values = undistort_map(values, camera, model.cameras[model.images[view.number + 1].camera_id])
        path = scene.mask_file(view)
        path.parent.mkdir(parents=True, exist_ok=True)
        if not cv2.imwrite(str(path), values.astype(np.uint8)):
            raise InputError(f"{path}: cannot be written")
        return path

    return list(in_parallel(write, scene.views))


def _write_depths(scene: Scene, result: Reconstruction, observations: Observations) -> dict[Path, tuple[int, float]]:
    """Write aligned depth of all photographs whose map is not constant; returns frame and misfit of every file."""
    model, cameras = read_model(scene.model), original_cameras(scene)

    def write(view: View) -> tuple[Path, float] | None:
        estimate = observations.depths[view.number]
        if is_constant(estimate.values):
            return None
        image = model.images[view.number + 1]
        raw = _straight(estimate, cameras[view.name], model.cameras[image.camera_id])
        pixels, points = points_seen(model, image)
        _, depth = view.project(points)
        adjusted = _adjusted(result.cameras, view.number)
        fit, error = fit_depth(values_at(raw, (pixels / view.size).astype(np.float32)), depth, adjusted)
        write_depth(scene.depth_file(view), fit.depth(raw))
        return scene.depth_file(view), error

    done = zip(scene.views, in_parallel(write, scene.views), strict=True)
    return {item[0]: (view.number, item[1]) for view, item in done if item is not None}


def _straight(estimate: DepthEstimate, camera: pycolmap.Camera, pinhole: pycolmap.Camera) -> Float32[np.ndarray, "h w"]:
    return undistort_map(estimate.values, camera, pinhole) if is_distorted(camera) else estimate.values


def _adjusted(cameras: Cameras, frame: int) -> DepthFit:
    scale, shift = float(cameras.depth_scale[frame]), float(cameras.depth_shift[frame])
    return DepthFit(scale, shift, bool(cameras.is_disparity[frame]))
