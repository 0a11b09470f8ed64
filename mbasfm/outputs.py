"""The scene folder of a finished reconstruction: models, photographs, aligned depth, and what follows from them."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pycolmap
from jaxtyping import Float32

from mbasfm.content import Content
from mbasfm.depth_fit import DepthFit, fit_depth, says_something
from mbasfm.errors import InputError
from mbasfm.export import KINDS, export_scene, original_cameras, write_images
from mbasfm.fuse import View
from mbasfm.infer import in_parallel, values_at
from mbasfm.io.colmap_model import read_model
from mbasfm.io.depth_maps import write_depth
from mbasfm.io.images import Photo
from mbasfm.models.base import DepthEstimate
from mbasfm.reconstruction import Reconstruction
from mbasfm.scene import Scene, observations, read_scenes
from mbasfm.types import Cameras
from mbasfm.undistort import is_distorted, undistort_map
from mbasfm.watch import Watch

BYTES_PER_PHOTO = 8_000_000
"""Features, matches, depth and points of one photograph, roughly."""


def refuse_overwriting(folder: Path, photos: Sequence[Photo], depth: str) -> None:
    """Input must not lie where output will be written."""
    images = (folder / "images").resolve()
    inside = [photo.name for photo in photos if images in photo.path.resolve().parents]
    if inside:
        advice = f"move them to {folder / 'input'} or choose another --output"
        raise InputError(
            f"{inside[0]} lies in {images}, where upright and undistorted photographs are written; {advice}"
        )
    maps = Path(depth.removeprefix("files:").partition("?")[0]).resolve()
    if depth.startswith("files:") and maps in ((folder / "depth").resolve(), (folder / "depths").resolve()):
        raise InputError(f"{maps} is where aligned depth is written; move your maps or choose another --output")


def check_room(folder: Path, photos: Sequence[Photo]) -> None:
    """Fail before hours of work, not after, if the disk cannot hold the scene."""
    folder.mkdir(parents=True, exist_ok=True)
    needed = sum(2 * photo.path.stat().st_size + BYTES_PER_PHOTO for photo in photos)
    free = shutil.disk_usage(folder).free
    if free < needed:
        have, want = (f"{size / 1e9:.1f} GB" for size in (free, needed))
        raise InputError(f"{folder}: the disk has {have} free, but the scene may need {want}; choose another --output")


def write_scene(result: Reconstruction, content: Content, folder: Path, watch: Watch) -> None:
    """Everything that a scene folder holds, the report last; files of an older result are removed."""
    with watch.stage("export") as facts:
        _remove_older(folder)
        result.save_models(folder)
        originals = {photo.name: photo.path for photo in content.photos}
        images, maps = [], []
        for scene in read_scenes(folder) if result.models else ():
            images += write_images(scene, {view.name: originals[view.name] for view in scene.views})
            maps += _write_depths(scene, result, content)
        written = export_scene(folder, [kind for kind in KINDS if kind != "images"]) if result.models else {}
        written["images"] = [path.relative_to(folder).as_posix() for path in images]
        written["depth"] = [path.relative_to(folder).as_posix() for path in maps] + written.get("depth", [])
        facts.update({kind: len(paths) for kind, paths in written.items()})
    result.report["outputs"] = written
    result.save_report(folder)


def _remove_older(folder: Path) -> None:
    """Only what an older report says was written: anything else in the folder is not ours."""
    try:
        outputs = json.loads((folder / "report.json").read_text(encoding="utf-8"))["outputs"]
        older = [folder / path for paths in outputs.values() for path in paths]
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return
    for path in older:
        if folder.resolve() in path.resolve().parents:
            path.unlink(missing_ok=True)


def _write_depths(scene: Scene, result: Reconstruction, content: Content) -> list[Path]:
    """Aligned depth of all photographs with a map that says something; the report gets how well it fits."""
    model, cameras = read_model(scene.model), original_cameras(scene)

    def write(view: View) -> tuple[Path, float] | None:
        estimate = content.depths[view.number]
        if not says_something(estimate.values):
            return None
        image = model.images[view.number + 1]
        raw = _straight(estimate, cameras[view.name], model.cameras[image.camera_id])
        pixels, points = observations(model, image)
        _, depth = view.project(points)
        adjusted = _adjusted(result.cameras, view.number)
        fit, error = fit_depth(values_at(raw, (pixels / view.size).astype(np.float32)), depth, adjusted)
        write_depth(scene.depth_file(view), fit.depth(raw))
        return scene.depth_file(view), error

    written = []
    for view, done in zip(scene.views, in_parallel(write, scene.views), strict=True):
        if done is not None:
            written.append(done[0])
            result.report["images"][view.number]["depth_misfit"] = done[1]
    return written


def _straight(estimate: DepthEstimate, camera: pycolmap.Camera, pinhole: pycolmap.Camera) -> Float32[np.ndarray, "h w"]:
    return undistort_map(estimate.values, camera, pinhole) if is_distorted(camera) else estimate.values


def _adjusted(cameras: Cameras, frame: int) -> DepthFit:
    scale, shift = float(cameras.depth_scale[frame]), float(cameras.depth_shift[frame])
    return DepthFit(scale, shift, bool(cameras.is_disparity[frame]))
