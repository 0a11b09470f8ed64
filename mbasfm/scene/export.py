"""Files of a finished scene for trainers, viewers and evaluation, in their formats."""

import json
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal, get_args

import pycolmap

from mbasfm.errors import InputError
from mbasfm.io.colmap_model import read_model
from mbasfm.io.images import FRAMES_FOLDER, is_upright, read_times, read_upright, write_image
from mbasfm.runtime.parallel import in_parallel
from mbasfm.scene.depth_maps import depth_image, depth_unit, inverse_image, inverse_scale, write_16_bit
from mbasfm.scene.folder import Scene, read_scenes
from mbasfm.scene.glb import glb_bytes
from mbasfm.scene.nerfstudio import Companions, transforms
from mbasfm.scene.ply import write_ply
from mbasfm.scene.report_file import read_sources
from mbasfm.scene.tum import tum_text
from mbasfm.scene.undistort import is_distorted, undistort_image
from mbasfm.types.outcome import View

Kind = Literal["images", "depth", "ply", "tum", "glb", "nerfstudio"]
KINDS: tuple[Kind, ...] = get_args(Kind)
"""All kinds, in the order in which they are written: transforms.json names clouds and depth images that exist."""


def export_scene(folder: Path | str, kinds: Sequence[Kind] = KINDS) -> dict[str, list[str]]:
    """Make files of a scene again; returns their paths, relative to the folder, by kind.

    Images that are there stay; a missing one is made from the photograph that report.json names.
    """
    scenes = read_scenes(Path(folder))
    paths = {kind: write_kind(kind, scenes) for kind in KINDS if kind in kinds}
    return {kind: [path.relative_to(folder).as_posix() for path in found] for kind, found in paths.items()}


def write_kind(kind: Kind, scenes: Iterable[Scene]) -> list[Path]:
    """Write the files of one kind for all components; returns their paths."""
    return [path for scene in scenes for path in WRITERS[kind](scene)]


# ----------------------------------------------------------------------------------------------------------------
# Photographs


def _missing_images(scene: Scene) -> list[Path]:
    missing = [view.name for view in scene.views if not (scene.folder / "images" / view.name).is_file()]
    if not missing:
        return []
    sources = read_sources(scene.folder)
    for name in missing:
        if name not in sources or not sources[name].is_file():
            where = f"; {sources[name]} does not exist" if name in sources else ""
            raise InputError(f"images/{name}: missing, and so is its original{where}; put it back or run mba sfm again")
    distorted = scene.folder / "distorted" / "sparse" / str(scene.number)
    cameras = cameras_of(read_model(distorted if distorted.is_dir() else scene.model))
    return write_images(scene.folder, {name: sources[name] for name in missing}, cameras)


def write_images(folder: Path, sources: Mapping[str, Path], cameras: Mapping[str, pycolmap.Camera]) -> list[Path]:
    """Write photographs upright and without distortion; those that are so already are copied byte by byte.

    ``cameras`` are those that took them, with their distortion, by name.
    """

    def write(name: str) -> Path:
        source, target = sources[name], folder / "images" / name
        if source.resolve() == target.resolve() and not target.is_symlink():
            if is_distorted(cameras[name]) or not is_upright(source):
                raise InputError(
                    f"{source}: is the original itself and must be rewritten; move it out of {target.parent}"
                )
            return target
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)  # it may be a link to the original
        if is_distorted(cameras[name]):
            write_image(target, undistort_image(read_upright(source), cameras[name]))
        elif is_upright(source):
            shutil.copyfile(source, target)
        else:
            write_image(target, read_upright(source))
        return target

    return list(in_parallel(write, sources))


def cameras_of(model: pycolmap.Reconstruction) -> dict[str, pycolmap.Camera]:
    """Cameras of a model by name of the photograph."""
    return {image.name: model.cameras[image.camera_id] for image in model.images.values()}


# ----------------------------------------------------------------------------------------------------------------
# Depth


def _depth_images(scene: Scene) -> list[Path]:
    """Write depth/*.png for nerfstudio, and depths/*.png with depth_params.json for Gaussian splatting."""
    if not scene.with_depth:
        return []
    unit, scale = depth_unit(scene.depth_sample), inverse_scale(scene.depth_sample)

    def write(view: View) -> list[Path]:
        plain, inverse = (scene.folder / sub / f"{scene.stems[view.name]}.png" for sub in ("depth", "depths"))
        depth = scene.depth(view)
        write_16_bit(plain, depth_image(depth, unit))
        write_16_bit(inverse, inverse_image(depth, scale))
        return [plain, inverse]

    written = [path for paths in in_parallel(write, scene.with_depth) for path in paths]
    params = {scene.stems[view.name]: {"scale": scale, "offset": 0.0} for view in scene.with_depth}
    return [*written, _write_json(scene.model / "depth_params.json", params)]


# ----------------------------------------------------------------------------------------------------------------
# Files of a whole component


def _ply(scene: Scene) -> list[Path]:
    write_ply(scene.file("points.ply"), scene.cloud)
    return [scene.file("points.ply")]


def _tum(scene: Scene) -> list[Path]:
    path = scene.file("trajectory.tum")
    path.write_text(tum_text(scene.views, read_times(scene.folder / FRAMES_FOLDER)), encoding="utf-8")
    return [path]


def _glb(scene: Scene) -> list[Path]:
    path = scene.file("scene.glb")
    path.write_bytes(glb_bytes(scene.cloud, scene.views))
    return [path]


def _nerfstudio(scene: Scene) -> list[Path]:
    depths = [f"depth/{scene.stems[view.name]}.png" for view in scene.views]
    complete = len(scene.with_depth) == len(scene.views) and all((scene.folder / path).is_file() for path in depths)
    cloud = scene.file("points.ply")
    masks = [scene.mask_file(view).relative_to(scene.folder).as_posix() for view in scene.views]
    files = Companions(
        images=[f"images/{view.name}" for view in scene.views],
        masks=masks if all((scene.folder / path).is_file() for path in masks) else (),
        depths=depths if complete else (),
        depth_unit=depth_unit(scene.depth_sample) if complete else None,
        cloud=cloud.name if cloud.is_file() else None,
    )
    return [_write_json(scene.file("transforms.json"), transforms(scene.views, files))]


def _write_json(path: Path, content: object) -> Path:
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return path


WRITERS: Mapping[Kind, Callable[[Scene], list[Path]]] = {
    "images": _missing_images,
    "depth": _depth_images,
    "ply": _ply,
    "tum": _tum,
    "glb": _glb,
    "nerfstudio": _nerfstudio,
}
