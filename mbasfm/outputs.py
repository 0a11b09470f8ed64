"""The scene folder of a finished reconstruction: models, photographs, aligned depth, and what follows from them."""

import json
import shutil
from collections.abc import Collection, Sequence
from pathlib import Path

import cv2
import numpy as np
import pycolmap
from jaxtyping import Float32

from mbasfm.config import Config
from mbasfm.content import Content
from mbasfm.depth_fit import DepthFit, fit_depth, says_something
from mbasfm.errors import InputError
from mbasfm.export import KINDS, export_scene, original_cameras, write_images
from mbasfm.fuse import View
from mbasfm.infer import in_parallel, values_at
from mbasfm.io.calibration import read_calibration
from mbasfm.io.colmap_model import read_model
from mbasfm.io.depth_maps import write_depth
from mbasfm.io.images import Photo, is_upright
from mbasfm.io.masks import read_mask
from mbasfm.models.base import DepthEstimate
from mbasfm.reconstruction import Reconstruction
from mbasfm.scene import Scene, observations, read_scenes
from mbasfm.types import Cameras
from mbasfm.undistort import is_distorted, undistort_map
from mbasfm.watch import Watch

BYTES_PER_PHOTO = 8_000_000
"""Features, matches, depth and points of one photograph, roughly."""


def refuse_overwriting(folder: Path, photos: Sequence[Photo], config: Config) -> None:
    """Input must not lie where output will be written, except photographs that are already as they would be written."""
    images, masks = (folder / "images").resolve(), (folder / "masks").resolve()
    inside = [photo for photo in photos if images in photo.path.resolve().parents]
    if inside:
        _refuse_rewriting(inside, images, photos, config)
    masked = [photo.name for photo in photos if photo.mask is not None and masks in photo.mask.resolve().parents]
    if masked:
        raise InputError(
            f"the mask of {masked[0]} lies in {masks}, where masks of the result are written; move them to"
            f" {folder / 'input_masks'} or choose another --output"
        )
    maps = Path(config.depth.removeprefix("files:").partition("?")[0]).resolve()
    if config.depth.startswith("files:") and maps in ((folder / "depth").resolve(), (folder / "depths").resolve()):
        raise InputError(f"{maps} is where aligned depth is written; move your maps or choose another --output")


def _refuse_rewriting(inside: Sequence[Photo], images: Path, photos: Sequence[Photo], config: Config) -> None:
    """Photographs in the folder of the result are used in place if they need not change."""
    advice = f"move them to {images.parent / 'input'} or choose another --output"
    moved = [photo.name for photo in inside if photo.path.resolve() != images / photo.name]
    if moved:
        raise InputError(f"{moved[0]} lies in {images}, where photographs are written; {advice}")
    turned = [photo.name for photo in inside if not is_upright(photo.path)]
    if turned:
        raise InputError(f"{turned[0]} lies in {images} and is not stored upright, so it would be rewritten; {advice}")
    given = {} if config.cameras is None else read_calibration(Path(config.cameras), photos)
    bent = [name for name, camera in given.items() if camera.is_fisheye or any(camera.distortion)]
    is_straight = config.lens == "pinhole" or config.focal is not None or len(given) == len(photos)
    if bent or not is_straight:
        raise InputError(
            f"{inside[0].name} lies in {images}, where undistorted photographs are written; say --lens pinhole if they"
            f" have no distortion, else {advice}"
        )


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
        originals = {photo.name: photo.path for photo in content.photos}
        own = {path.resolve() for path in originals.values()}
        _remove_older(folder, own)
        result.save_models(folder)
        images, maps, masks = [], [], []
        for scene in read_scenes(folder) if result.models else ():
            images += write_images(scene, {view.name: originals[view.name] for view in scene.views})
            maps += _write_depths(scene, result, content)
            masks += _write_masks(scene, content)
        written = export_scene(folder, [kind for kind in KINDS if kind != "images"]) if result.models else {}
        images = [path for path in images if path.resolve() not in own]  # those used in place are not ours to remove
        written["images"] = [path.relative_to(folder).as_posix() for path in images]
        if masks:
            written["masks"] = [path.relative_to(folder).as_posix() for path in masks]
        written["depth"] = [path.relative_to(folder).as_posix() for path in maps] + written.get("depth", [])
        facts.update({kind: len(paths) for kind, paths in written.items()})
    result.report["outputs"] = written
    result.save_report(folder)


def _remove_older(folder: Path, own: Collection[Path]) -> None:
    """Only what an older report says was written: anything else in the folder, or the user's own, is not ours."""
    try:
        outputs = json.loads((folder / "report.json").read_text(encoding="utf-8"))["outputs"]
        older = [folder / path for paths in outputs.values() for path in paths]
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return
    for path in older:
        if folder.resolve() in path.resolve().parents and path.resolve() not in own:
            path.unlink(missing_ok=True)


def _write_masks(scene: Scene, content: Content) -> list[Path]:
    """Masks as the images are, for all photographs as soon as one has a mask: nerfstudio wants all or none."""
    if not any(content.photos[view.number].mask is not None for view in scene.views):
        return []
    cameras, model = original_cameras(scene), read_model(scene.model)

    def write(view: View) -> Path:
        counts = read_mask(content.photos[view.number]).astype(np.uint8) * 255
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
