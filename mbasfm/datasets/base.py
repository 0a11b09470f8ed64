"""What all datasets share: their scenes, and reading numbers with messages that name file and line."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float32, Float64

from mbasfm.config import Grouping
from mbasfm.errors import InputError
from mbasfm.io.colmap import StoredCamera, numbered_lines
from mbasfm.io.files import line_of
from mbasfm.io.poses import PoseFile, invert_pose

MAX_FOCAL_RATIO = 1.01
"""Focal lengths that differ by a larger factor belong to different cameras."""
IMAGE_ENDINGS = (".jpg", ".jpeg", ".png")


@dataclass(frozen=True)
class DatasetScene:
    """One scene with ground truth. Names are paths below ``images``, sorted."""

    name: str
    images: Path
    names: tuple[str, ...]
    cam_from_world: Float64[np.ndarray, "N 3 4"]
    cameras: tuple[StoredCamera | None, ...]
    """Known intrinsics; None where the dataset has none."""
    splits: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Names of images by the split they belong to: map and query, or bags."""
    grouping: Grouping = "shared"
    """Which images were taken by one camera."""
    depth: Path | None = None
    """Folder with sensor depth, one map per image."""
    read_depth: Callable[[str], Float32[np.ndarray, "H W"]] | None = None
    """Returns sensor depth as the image's camera sees it [m], NaN if unknown; None if files in ``depth`` are that."""
    has_rotations: bool = True
    """Whether rotations of the true cameras are known, not only their centres."""
    left_out: tuple[str, ...] = ()
    """Photographs in the folder without truth."""
    map_scene: "DatasetScene | None" = None
    """Images of the map with their truth, if they are from another scene."""

    @property
    def map(self) -> "DatasetScene":
        """Scene in which queries are localized."""
        if self.map_scene is None and not self.splits.get("map"):
            raise InputError(f"{self.name}: the dataset does not say which of its images are the map")
        return self.map_scene or self.only(self.splits["map"])

    @property
    def queries(self) -> "DatasetScene":
        """Scene with the images to localize."""
        if not self.splits.get("query"):
            raise InputError(f"{self.name}: the dataset does not say which of its images are queries")
        return self.only(self.splits["query"])

    def calibration(self) -> dict[str, dict[str, Any]]:
        """Intrinsics by name, in the form of gt.json."""
        found: dict[str, dict[str, Any]] = {}
        for name, camera in zip(self.names, self.cameras, strict=True):
            if camera is None or camera.center is None:
                raise InputError(f"{self.name}: the dataset has no intrinsics of {name}; use intrinsics = unknown")
            size = dict(zip(("width", "height"), camera.size, strict=True)) if camera.size else {}
            bent = dict(zip(("k1", "k2", "p1", "p2"), camera.distortion, strict=True)) if any(camera.distortion) else {}
            found[name] = {"K": [*camera.focal, *camera.center], **size, **bent}
        return found

    def only(self, names: Sequence[str]) -> "DatasetScene":
        """Scene with the named images only, in the order of their names."""
        wanted = set(names)
        rows = [row for row, name in enumerate(self.names) if name in wanted]
        return replace(
            self,
            names=tuple(self.names[row] for row in rows),
            cam_from_world=self.cam_from_world[rows],
            cameras=tuple(self.cameras[row] for row in rows),
        )


@runtime_checkable
class Dataset(Protocol):
    """A folder that holds a benchmark as published."""

    @property
    def folder(self) -> Path:
        """Folder of the dataset."""
        ...

    def scenes(self) -> tuple[str, ...]:
        """Names of the scenes in the folder."""
        ...

    def load(self, scene: str) -> DatasetScene:
        """Everything of a scene except pixels."""
        ...


@dataclass(frozen=True)
class Published:
    """Origin of a dataset, named in its errors."""

    title: str
    url: str

    def need(self, path: Path) -> Path:
        """Return the path if it exists; raises an error if it does not."""
        if not path.exists():
            raise InputError(f"{path} is missing; {self.title} is published at {self.url}, unpack it as it is")
        return path

    def folders(self, parent: Path, is_scene: Callable[[Path], bool]) -> tuple[str, ...]:
        """Names of the folders that are scenes; raises an error if there are none."""
        found = tuple(sorted(path.name for path in self.need(parent).iterdir() if path.is_dir() and is_scene(path)))
        if not found:
            raise InputError(f"{parent}: no scene of {self.title} in this folder; it is published at {self.url}")
        return found


def read_numbers(path: Path, columns: int | Sequence[int]) -> list[tuple[str, list[float]]]:
    """Place and numbers of each non-empty line; every line must have an allowed number of them."""
    allowed = (columns,) if isinstance(columns, int) else tuple(columns)
    return [(place, numbers_of(line, allowed, place)) for place, line in numbered_lines(path) if line]


def numbers_of(line: str, allowed: Sequence[int], place: str) -> list[float]:
    """Numbers of a line; may be infinite, but not NaN."""
    try:
        numbers = [float(word) for word in line.replace(",", " ").split()]
    except ValueError as error:
        raise InputError(f"{place}: not numbers ({line[:80]!r})") from error
    if len(numbers) not in allowed:
        raise InputError(f"{place}: {len(numbers)} columns instead of {' or '.join(map(str, allowed))}")
    if np.isnan(numbers).any():
        raise InputError(f"{place}: not a number (NaN) in {line[:80]!r}")
    return numbers


def read_matrix(path: Path, columns: int, rows: int) -> tuple[str, Float64[np.ndarray, "r c"]]:
    """Place of the first line and a matrix of exactly this size."""
    lines = read_numbers(path, columns)
    if len(lines) != rows:
        raise InputError(f"{path}: {len(lines)} lines instead of {rows}")
    return lines[0][0], np.array([numbers for _, numbers in lines])


def read_world_from_cam(path: Path) -> Float64[np.ndarray, "3 4"] | None:
    """Pose cam_from_world of a 4 x 4 text file with world_from_cam; None if infinite, where tracking was lost."""
    place, matrix = read_matrix(path, 4, 4)
    return invert_pose(matrix, place) if np.isfinite(matrix).all() else None


def scene_of_poses(name: str, images: Path, poses: PoseFile, published: Published) -> DatasetScene:
    """Scene with a pose file as truth, mostly a COLMAP model; every image must be there."""
    order = sorted(range(len(poses.names)), key=lambda row: poses.names[row])
    names = tuple(poses.names[row] for row in order)
    missing = next((image for image in names if not (images / image).is_file()), None)
    if missing is not None:
        line = f", line {line_of(poses.path, missing)}," if poses.path.suffix in (".txt", ".json") else ""
        raise InputError(
            f"{poses.path}{line} lists {missing}, but {images / missing} is missing; {published.title} is published"
            f" at {published.url}"
        )
    cameras = tuple(poses.cameras[row] for row in order)
    return DatasetScene(name, images, names, poses.cam_from_world[order], cameras, grouping=_grouping(cameras))


def _grouping(cameras: Sequence[StoredCamera | None]) -> Grouping:
    """Grouping of the images: one camera if intrinsics are equal up to measurement noise."""
    sizes = {camera.size for camera in cameras if camera is not None}
    focals = [camera.focal[0] for camera in cameras if camera is not None]
    alike = len(sizes) <= 1 and max(focals, default=1.0) < MAX_FOCAL_RATIO * min(focals, default=1.0)
    return "shared" if alike else "per-image"
