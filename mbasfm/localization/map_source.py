"""Sources of a map: photographs with known poses and intrinsics, and depth maps if there are any."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float64
from torch import Tensor

from mbasfm.errors import InputError
from mbasfm.io.calibration import KnownCamera, at_resolution
from mbasfm.io.images import find_photos
from mbasfm.io.poses import read_poses
from mbasfm.types.cameras import Intrinsics
from mbasfm.types.observations import Photo

POSE_FILES = ("gt.json", "poses.json")
"""Plain JSON with R, t and K of every image; looked for before COLMAP models and transforms.json."""


@dataclass(frozen=True)
class MapSource:
    """Posed photographs."""

    folder: Path
    photos: tuple[Photo, ...]
    cam_from_world: Float64[Tensor, "M 3 4"]
    intrinsics: Intrinsics
    depth: Path | None
    """Folder with a depth map for (some of) the photographs, in the world's unit."""


def read_map(folder: Path, names: Sequence[str] | None = None) -> MapSource:
    """A scene of `mba sfm`, a COLMAP model with its images, or images with gt.json; of them those with given names.

    Photographs are in ``images``, else in the folder itself; depth maps in ``depth``.
    """
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder; give a scene, or a folder with images and their poses")
    poses = read_poses(next((folder / name for name in POSE_FILES if (folder / name).is_file()), folder))
    images = folder / "images" if (folder / "images").is_dir() else folder
    photos, _ = find_photos(images)
    photos = choose_photos(photos, names, images)
    row_of = poses.rows_of([photo.name for photo in photos])
    placed = tuple(photo for photo in photos if photo.name in row_of)
    rows = [row_of[photo.name] for photo in placed]
    if names is not None and len(placed) < len(photos):
        missing = next(photo.name for photo in photos if photo.name not in row_of)
        raise InputError(f"{poses.path}: no pose for {missing}, which should be in the map")
    cameras = []
    for photo, row in zip(placed, rows, strict=True):
        stored = poses.cameras[row]
        if stored is None:
            raise InputError(f"{poses.path}: no intrinsics for {photo.name}; a map needs those of all its photographs")
        cameras.append(at_resolution(stored, photo, poses.path))
    depth = folder / "depth" if (folder / "depth").is_dir() else None
    pose = torch.from_numpy(poses.cam_from_world[rows])
    return MapSource(folder, placed, pose, _intrinsics(placed, cameras), depth)


def choose_photos(photos: Sequence[Photo], names: Sequence[str] | None, place: Path) -> tuple[Photo, ...]:
    """Photographs with the given names, in the order of names; all if none are given."""
    if names is None:
        return tuple(photos)
    by_name = {photo.name: photo for photo in photos}
    missing = [name for name in names if name not in by_name]
    if missing:
        raise InputError(f"{place}: no usable photograph {missing[0]}, which the list names")
    return tuple(by_name[name] for name in sorted(set(names)))


def _intrinsics(photos: Sequence[Photo], cameras: Sequence[KnownCamera]) -> Intrinsics:
    """Intrinsics as given; photographs with the same number share a camera."""
    fisheye = next((photo.name for photo, camera in zip(photos, cameras, strict=True) if camera.is_fisheye), None)
    if fisheye is not None:
        raise InputError(f"{fisheye}: fisheye lenses cannot be in a map; undistort the photographs first")
    keys = [(camera.focal, camera.center, camera.distortion) for camera in cameras]
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}

    def column(values: list[tuple[float, ...]]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64)

    return Intrinsics(
        focal=column([camera.focal for camera in cameras]),
        center=column([camera.center for camera in cameras]),
        distortion=column([camera.distortion for camera in cameras]),
        sizes=torch.tensor([[photo.width, photo.height] for photo in photos]),
        group=torch.tensor([numbers[key] for key in keys]),
    )
