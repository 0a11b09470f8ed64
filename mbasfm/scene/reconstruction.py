"""The result of a run, and its scene folder: checked before the work, written after it."""

import math
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import cv2
import numpy as np
import pycolmap
from jaxtyping import Bool, Float32, Float64, Int64, UInt8
from torch import Tensor

from mbasfm.errors import InputError
from mbasfm.geometry.camera import values_at
from mbasfm.io.calibration import KnownCamera
from mbasfm.io.images import is_upright, read_mask
from mbasfm.runtime.parallel import in_parallel
from mbasfm.runtime.progress import stage
from mbasfm.scene.derived import DepthFit, fit_depth, is_constant, is_distorted, undistort_map, undistort_model
from mbasfm.scene.folder import KINDS, DepthMap, Scene, cameras_of, points_seen, scenes_of, write_images, write_kind
from mbasfm.scene.formats import write_depth
from mbasfm.scene.report_file import read_outputs
from mbasfm.types.cameras import Cameras
from mbasfm.types.observations import DepthEstimate, Observations, Photo, PoseGraph
from mbasfm.types.outcome import RunReport, Sigma, View

BentAndStraight = tuple[pycolmap.Reconstruction, pycolmap.Reconstruction]
"""Model of a component, with and without lens distortion."""
BYTES_PER_PHOTO = 8_000_000
"""Approximate bytes of features, matches, depth and points of one photograph."""


@dataclass(frozen=True)
class Reconstruction:
    """Camera poses of a set of photographs."""

    names: tuple[str, ...]
    """Paths of the photographs, relative to their folder; frame n is the n-th."""
    graph: PoseGraph
    cameras: Cameras
    registered: Bool[Tensor, " N"]
    component: Int64[Tensor, " N"]
    """0 for the largest component; -1 for frames that are not registered."""
    models: tuple[pycolmap.Reconstruction, ...]
    """One COLMAP model per component, largest first; image ids are frame numbers plus one."""
    report: RunReport
    """Outcome of photographs and components; at the end of a run, the course of it too."""

    def save_models(self, folder: Path) -> tuple[pycolmap.Reconstruction, ...]:
        """Write sparse/0, sparse/1, ... without lens distortion, and those that had some as distorted/sparse/N too.

        Returns those without.
        """
        for parent in (folder / "sparse", folder / "distorted" / "sparse"):
            shutil.rmtree(parent, ignore_errors=True)
        straight = tuple(_straight_model(model) for model in self.models)
        for number, (model, same) in enumerate(zip(self.models, straight, strict=True)):
            if same is not model:
                _write(model, folder / "distorted" / "sparse" / str(number))
            _write(same, folder / "sparse" / str(number))
        return straight


def _straight_model(model: pycolmap.Reconstruction) -> pycolmap.Reconstruction:
    """The model without lens distortion: itself, if it has none."""
    return undistort_model(model) if any(map(is_distorted, model.cameras.values())) else model


def _write(model: pycolmap.Reconstruction, folder: Path) -> None:
    folder.mkdir(parents=True)
    model.write_binary(folder)


def color_points(model: pycolmap.Reconstruction, colors: Sequence[UInt8[np.ndarray, "_ 3"]]) -> None:
    """Give every point the mean colour of its observations."""
    for point in model.points3D.values():
        seen = [colors[element.image_id - 1][element.point2D_idx] for element in point.track.elements]
        point.color = np.mean(seen, axis=0).round().astype(np.uint8)


def finite(value: float) -> float | None:
    """The number, or None if it is NaN or infinite."""
    return value if math.isfinite(value) else None


def spread_of(covariance: Float64[np.ndarray, "6 6"]) -> Sigma:
    """Standard deviations of a pose."""
    sigma = np.sqrt(np.maximum(np.diag(covariance), 0))
    rotation_deg, translation = np.rad2deg(sigma[:3]).tolist(), sigma[3:].tolist()
    return Sigma(tuple(map(finite, rotation_deg)), tuple(map(finite, translation)))


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


def refuse_overwriting(
    folder: Path, photos: Sequence[Photo], depth: str, held: Mapping[str, KnownCamera], is_pinhole: bool
) -> None:
    """Refuse input where output will be written, except photographs that are already as they would be written.

    ``depth`` is the setting; ``held`` are intrinsics that are given, by name; other lenses may be pinholes for sure.
    """
    images, masks = (folder / "images").resolve(), (folder / "masks").resolve()
    inside = [photo for photo in photos if images in photo.path.resolve().parents]
    if inside:
        _refuse_moving(inside, images)
        _refuse_straightening(inside, images, held, is_pinhole or len(held) == len(photos))
    masked = [photo.name for photo in photos if photo.mask is not None and masks in photo.mask.resolve().parents]
    if masked:
        raise InputError(
            f"the mask of {masked[0]} lies in {masks}, where masks of the result are written; move them to"
            f" {folder / 'input_masks'} or choose another --output"
        )
    maps = Path(depth.removeprefix("files:").partition("?")[0]).resolve()
    if depth.startswith("files:") and maps in ((folder / "depth").resolve(), (folder / "depths").resolve()):
        raise InputError(f"{maps} is where aligned depth is written; move your maps or choose another --output")


def _refuse_moving(inside: Sequence[Photo], images: Path) -> None:
    """Refuse photographs in the folder of the result that would be written elsewhere or turned upright."""
    advice = _advice(images)
    moved = [photo.name for photo in inside if photo.path.resolve() != images / photo.name]
    if moved:
        raise InputError(f"{moved[0]} lies in {images}, where photographs are written; {advice}")
    turned = [photo.name for photo in inside if not is_upright(photo.path)]
    if turned:
        raise InputError(f"{turned[0]} lies in {images} and is not stored upright, so it would be rewritten; {advice}")


def _refuse_straightening(
    inside: Sequence[Photo], images: Path, held: Mapping[str, KnownCamera], is_straight: bool
) -> None:
    """Refuse photographs in the folder of the result that would be undistorted."""
    bent = any(camera.is_fisheye or any(camera.distortion) for camera in held.values())
    if bent or not is_straight:
        raise InputError(
            f"{inside[0].name} lies in {images}, where undistorted photographs are written; say --lens pinhole if they"
            f" have no distortion, else {_advice(images)}"
        )


def _advice(images: Path) -> str:
    return f"move them to {images.parent / 'input'} or choose another --output"


def check_room(folder: Path, photos: Sequence[Photo]) -> None:
    """Refuse to start if the disk cannot hold the scene."""
    folder.mkdir(parents=True, exist_ok=True)
    needed = sum(2 * photo.path.stat().st_size + BYTES_PER_PHOTO for photo in photos)
    free = shutil.disk_usage(folder).free
    if free < needed:
        have, want = (f"{size / 1e9:.1f} GB" for size in (free, needed))
        raise InputError(f"{folder}: the disk has {have} free, but the scene may need {want}; choose another --output")
