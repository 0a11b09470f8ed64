"""A scene folder, read back: cameras and points from sparse/, depth from depth/, photographs from images/."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from pathlib import Path

import numpy as np
import pycolmap
from jaxtyping import Float32, Int64

from mbasfm.errors import InputError
from mbasfm.geometry.camera import values_at
from mbasfm.io.colmap_model import read_model
from mbasfm.io.images import read_upright
from mbasfm.runtime.parallel import in_parallel
from mbasfm.scene.depth_maps import read_depth, stems_of, thinned
from mbasfm.scene.fuse import confirmed_points, neighbours_of
from mbasfm.scene.undistort import is_distorted
from mbasfm.types.outcome import Cloud, View

CLOUD_POINTS = 200_000
SAMPLED_DEPTHS = 20_000_000
"""Number of depth values, of all maps of a component together, that units of depth images are chosen by."""
MAPS_IN_MEMORY = 32
"""Number of depth maps kept in memory; consecutive views have mostly the same neighbours."""
DepthMap = Callable[[], Float32[np.ndarray, "_ _"]]


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
