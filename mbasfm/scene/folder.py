"""A scene folder: its components as values, and the files for trainers, viewers and evaluation made from these."""

import json
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import pycolmap
from jaxtyping import Float32, Int64

from mbasfm.errors import InputError
from mbasfm.geometry.camera import values_at
from mbasfm.io.colmap_model import read_model
from mbasfm.io.images import FRAMES_FOLDER, is_upright, read_times, read_upright, write_image
from mbasfm.runtime.parallel import in_parallel
from mbasfm.scene.derived import confirmed_points, is_distorted, neighbours_of, undistort_image
from mbasfm.scene.formats import (
    Companions,
    depth_image,
    depth_unit,
    glb_bytes,
    inverse_image,
    inverse_scale,
    read_depth,
    stems_of,
    thinned,
    transforms,
    tum_text,
    write_16_bit,
    write_ply,
)
from mbasfm.scene.report_file import read_sources
from mbasfm.types.outcome import Cloud, View

CLOUD_POINTS = 200_000
SAMPLED_DEPTHS = 20_000_000
"""Number of depth values, of all maps of a component together, that units of depth images are chosen by."""
MAPS_IN_MEMORY = 32
"""Number of depth maps kept in memory; consecutive views have mostly the same neighbours."""
DepthMap = Callable[[], Float32[np.ndarray, "_ _"]]
Kind = Literal["images", "depth", "ply", "tum", "glb", "nerfstudio"]
KINDS: tuple[Kind, ...] = get_args(Kind)
"""All kinds, in the order in which they are written: transforms.json names clouds and depth images that exist."""


@dataclass(frozen=True)
class Scene:
    """One component of a scene folder, as values: from the folder, or from the result that is written there."""

    folder: Path
    number: int
    views: tuple[View, ...]
    """Views in the order of their numbers."""
    sparse: Cloud
    seen: tuple[Int64[np.ndarray, " _"], ...]
    """Numbers of the sparse points that each view sees."""
    stems: Mapping[str, str]
    """Names of depth maps, without ending, by name of the photograph; of all components."""
    depths: Mapping[str, DepthMap]
    """Depth maps, each made or read when it is asked for, by name of the photograph."""

    def file(self, name: str) -> Path:
        """Path of a file of the whole component; those of further components carry their number."""
        path = self.folder / name
        return path if self.number == 0 else path.with_stem(f"{path.stem}_{self.number}")

    @property
    def model(self) -> Path:
        """Folder of the COLMAP model."""
        return self.folder / "sparse" / str(self.number)

    def depth_file(self, view: View) -> Path:
        """Path of a view's depth map, whether it exists or not."""
        return self.folder / "depth" / f"{self.stems[view.name]}.npz"

    def mask_file(self, view: View) -> Path:
        """Path of a view's mask, whether it exists or not."""
        return self.folder / "masks" / f"{view.name}.png"

    @cached_property
    def with_depth(self) -> tuple[View, ...]:
        """Views that have a depth map."""
        return tuple(view for view in self.views if view.name in self.depths)

    @cached_property
    def depth_sample(self) -> list[Float32[np.ndarray, " _"]]:
        """Known values of every depth map, evenly spaced if all would not fit into memory."""
        share = max(SAMPLED_DEPTHS // max(len(self.with_depth), 1), 1)
        return list(in_parallel(lambda view: thinned(self.depths[view.name](), share), self.with_depth))

    def depth(self, view: View) -> Float32[np.ndarray, "_ _"]:
        """Depth map of a view; the last ones asked for stay in memory."""
        return self._depth_of(view.name)

    @cached_property
    def _depth_of(self) -> Callable[[str], Float32[np.ndarray, "_ _"]]:
        return lru_cache(MAPS_IN_MEMORY)(lambda name: self.depths[name]())

    @cached_property
    def cloud(self) -> Cloud:
        """Points fused from depth, or the sparse ones if there are more of them."""
        fused = fuse(self) if self.with_depth else Cloud(np.zeros((0, 3)), np.zeros((0, 3), np.uint8))
        return fused if len(fused.points) > len(self.sparse.points) else self.sparse


def fuse(scene: Scene, count: int = CLOUD_POINTS) -> Cloud:
    """About ``count`` points of all depth maps that other maps confirm, in the colours of their photographs."""
    near = dict(zip((view.name for view in scene.views), neighbours_of(scene.seen), strict=True))
    usable = {view.name for view in scene.with_depth}
    share = max(count // len(usable), 1)

    def lift(view: View) -> Cloud:
        others = [scene.views[number] for number in near[view.name]]
        pairs = [(other, scene.depth(other)) for other in others if other.name in usable]
        points, pixels = confirmed_points(view, scene.depth(view), pairs, share)
        image = read_upright(scene.folder / "images" / view.name)
        return Cloud(points, values_at(image, (pixels / view.size).astype(np.float32)))

    clouds = list(in_parallel(lift, scene.with_depth))
    return Cloud(np.concatenate([c.points for c in clouds]), np.concatenate([c.colors for c in clouds]))


def read_scenes(folder: Path) -> tuple[Scene, ...]:
    """All components of a scene folder, largest first."""
    sparse = folder / "sparse"
    numbers = sorted(int(path.name) for path in sparse.iterdir() if path.name.isdigit()) if sparse.is_dir() else []
    if not numbers and not (folder / "report.json").is_file():
        raise InputError(f"{folder}: no sparse/0 there; give the --output of mba sfm")
    scenes = scenes_of(folder, [read_model(sparse / str(number)) for number in numbers], numbers)
    return tuple(replace(scene, depths=_stored_depths(scene)) for scene in scenes)


def _stored_depths(scene: Scene) -> dict[str, DepthMap]:
    """Depth maps that are in the folder."""
    paths = {view.name: scene.depth_file(view) for view in scene.views}
    return {name: partial(read_depth, path) for name, path in paths.items() if path.is_file()}


def scenes_of(
    folder: Path, models: Sequence[pycolmap.Reconstruction], numbers: Sequence[int] | None = None
) -> tuple[Scene, ...]:
    """Components of a scene by their models without distortion, as yet without depth; nothing is read."""
    stems = stems_of(image.name for model in models for image in model.images.values())
    which = range(len(models)) if numbers is None else numbers
    return tuple(_scene(folder, number, model, stems) for number, model in zip(which, models, strict=True))


def _scene(folder: Path, number: int, model: pycolmap.Reconstruction, stems: Mapping[str, str]) -> Scene:
    images = [model.images[image_id] for image_id in sorted(model.images)]
    order = sorted(model.points3D)
    points = np.array([model.points3D[key].xyz for key in order]).reshape(-1, 3)
    colors = np.array([model.points3D[key].color for key in order], dtype=np.uint8).reshape(-1, 3)
    views = tuple(view_of(image, model.cameras[image.camera_id]) for image in images)
    return Scene(folder, number, views, Cloud(points, colors), tuple(map(_seen, images)), stems, {})


def _seen(image: pycolmap.Image) -> Int64[np.ndarray, " _"]:
    return np.array([point.point3D_id for point in image.points2D if point.has_point3D()], dtype=np.int64)


def view_of(image: pycolmap.Image, camera: pycolmap.Camera) -> View:
    """View of an image of an undistorted model."""
    if is_distorted(camera):
        raise InputError(f"{image.name}: its camera is {camera.model.name}, not PINHOLE; run mba sfm again")
    return View(
        name=image.name,
        number=image.image_id - 1,
        cam_from_world=image.cam_from_world().matrix(),
        focal=np.array([camera.focal_length_x, camera.focal_length_y]),
        center=np.array([camera.principal_point_x, camera.principal_point_y]),
        size=(camera.width, camera.height),
        camera=image.camera_id,
    )


def points_seen(model: pycolmap.Reconstruction, image: pycolmap.Image) -> tuple[np.ndarray, np.ndarray]:
    """Pixels of an image that show points, and those points in the world."""
    seen: Sequence[pycolmap.Point2D] = [point for point in image.points2D if point.has_point3D()]
    pixels = np.array([point.xy for point in seen]).reshape(-1, 2)
    return pixels, np.array([model.points3D[point.point3D_id].xyz for point in seen]).reshape(-1, 3)


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
