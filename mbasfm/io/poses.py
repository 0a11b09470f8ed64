"""Camera poses in any of the usual files: COLMAP, nerfstudio's transforms.json, TUM, KITTI, or plain JSON.

Whatever a file's own convention, poses are cam_from_world with OpenCV axes when they leave this module.
"""

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import numpy as np
from jaxtyping import Float64

from mbasfm.errors import InputError
from mbasfm.io.colmap import (
    StoredCamera,
    UnsupportedLensError,
    is_number,
    numbered_lines,
    pose_from_quaternion,
    read_cameras,
    read_images,
    stored_camera,
)
from mbasfm.io.files import line_of, read_json
from mbasfm.io.names import join_names

TUM_NUMBERS, KITTI_NUMBERS = 7, 12
FILE_PATH = '"file_path"'
NUMBERED = "# number"
"""First line of a trajectory that is indexed by photograph instead of seconds."""
COLUMNS = "neither TUM's 'time tx ty tz qx qy qz qw' nor KITTI's 12 numbers"
MAX_TIME_APART = 0.02
"""Largest difference in time between a pose and its photograph [s]."""
MAX_SKEW = 0.01
"""Largest deviation of a stored matrix from a rotation: allows rounding, not scale."""
OPENGL_FROM_OPENCV = np.array([1.0, -1.0, -1.0])
NERFSTUDIO_KEYS = {"fl_x": "fx", "fl_y": "fy", "w": "width", "h": "height"} | {
    key: key for key in ("cx", "cy", "k1", "k2", "k3", "k4", "p1", "p2")
}
NERFSTUDIO_LENSES = ("OPENCV", "PINHOLE", "SIMPLE_PINHOLE", "OPENCV_FISHEYE")
WHAT_TO_GIVE = "give a COLMAP model's folder, a transforms.json, or a trajectory in the format of TUM or KITTI"


@dataclass(frozen=True)
class PoseFile:
    """Poses as stored in a file."""

    path: Path
    names: tuple[str, ...]
    """Names of the M images; in a trajectory, time stamps or line numbers."""
    cam_from_world: Float64[np.ndarray, "M 3 4"]
    cameras: tuple[StoredCamera | None, ...]
    """M intrinsics; None where the file has none, or of an unsupported kind."""
    by: Literal["name", "time", "number", "order"] = "name"
    """What poses are matched to photographs by. Numbers count photographs in the order of their names, from 0."""

    def rows_of(self, photos: Sequence[str], seconds: Mapping[str, float] | None = None) -> dict[str, int]:
        """Row of each photograph that has one; raises an error if that is ambiguous.

        ``seconds`` has the times of photographs, of a video for example. Without, names that are numbers are times.
        """
        if self.by == "order":
            return self._rows_in_order(sorted(photos))
        if self.by in ("time", "number"):
            return self._rows_by_time(sorted(photos), seconds or _times_in(photos))
        joined = join_names(self.names, photos)
        if joined.unclear:
            examples = ", ".join(joined.unclear[:3])
            raise InputError(
                f"{self.path}: {len(joined.unclear)} photographs have names that may mean several of its images"
                f" ({examples}); name them in the file by their path below the folder of photographs"
            )
        if not joined.entry_of:
            raise InputError(f"{self.path}: none of the photographs is in it; {self._examples(photos)}")
        row = {name: number for number, name in enumerate(self.names)}
        return {name: row[entry] for name, entry in joined.entry_of.items()}

    def _rows_in_order(self, photos: Sequence[str]) -> dict[str, int]:
        if len(photos) != len(self.names):
            raise InputError(
                f"{self.path}: {len(self.names)} poses without names for {len(photos)} photographs; they are joined in"
                " the order of names, so there must be as many, or give a file with names or time stamps"
            )
        return {name: number for number, name in enumerate(photos)}

    def _rows_by_time(self, photos: Sequence[str], seconds: Mapping[str, float]) -> dict[str, int]:
        stamps = np.array([float(name) for name in self.names])
        numbers = {photos[int(stamp)]: row for row, stamp in enumerate(stamps) if stamp in range(len(photos))}
        if self.by == "number" or len(numbers) == len(photos):
            seconds = {}  # 0, 1, 2 ... are no times, even of photographs that are named 1, 2, 3 ...
        nearest = {name: int(np.abs(stamps - seconds[name]).argmin()) for name in photos if name in seconds}
        rows = {name: row for name, row in nearest.items() if abs(stamps[row] - seconds[name]) <= MAX_TIME_APART}
        if rows or len(numbers) == len(stamps):
            return rows or numbers
        raise InputError(
            f"{self.path}: no time stamp is within {MAX_TIME_APART} s of a photograph; {self._examples(photos)}."
            " Name photographs by their time, or put their names in place of the time stamps"
        )

    def _examples(self, photos: Sequence[str]) -> str:
        return f"it lists {', '.join(self.names[:2])}, photographs are {', '.join(sorted(photos)[:2])}"


def _times_in(photos: Sequence[str]) -> dict[str, float]:
    """Times of photographs whose names are unique numbers."""
    stems = {name: PurePosixPath(name).stem for name in photos}
    found = {name: float(stem) for name, stem in stems.items() if _is_time(stem)}
    return found if len(set(found.values())) == len(found) else {}


def read_poses(path: Path) -> PoseFile:
    """Poses of a COLMAP model (folder, or images.txt or .bin), a scene folder, JSON, or a trajectory."""
    path = _pose_file(path)
    if path.name in ("images.bin", "images.txt"):
        found = _from_colmap(path)
    elif path.suffix == ".json":
        found = _from_json(path)
    else:
        found = _from_trajectory(path)
    if not found.names:
        raise InputError(f"{path}: no pose in it; {WHAT_TO_GIVE}")
    return found


def _pose_file(path: Path) -> Path:
    if path.is_dir():
        models = [path, path / "sparse" / "0", path / "sparse", path / "0"]
        candidates = [model / file for model in models for file in ("images.bin", "images.txt")]
        found = next((file for file in [*candidates, path / "transforms.json"] if file.is_file()), None)
        if found is None:
            raise InputError(f"{path}: no images.bin, images.txt or transforms.json in this folder; {WHAT_TO_GIVE}")
        return found
    if not path.is_file():
        raise InputError(f"{path} does not exist; {WHAT_TO_GIVE}")
    return path


# ----------------------------------------------------------------------------------------------------------------
# COLMAP


def _from_colmap(path: Path) -> PoseFile:
    images = read_images(path)
    beside = [path.with_name(f"cameras{suffix}") for suffix in (path.suffix, ".bin", ".txt")]
    file = next((candidate for candidate in beside if candidate.is_file()), None)
    try:
        cameras = {} if file is None else read_cameras(file)
    except UnsupportedLensError:
        cameras = {}  # poses are worth having without
    return PoseFile(
        path,
        tuple(images),
        np.array([image.cam_from_world() for image in images.values()]).reshape(-1, 3, 4),
        tuple(cameras.get(image.camera_id) for image in images.values()),
    )


# ----------------------------------------------------------------------------------------------------------------
# JSON


def _from_json(path: Path) -> PoseFile:
    content = read_json(path)
    if isinstance(content, dict) and isinstance(content.get("frames"), list):
        rows = [_nerfstudio_row(content, frame, path, number) for number, frame in enumerate(content["frames"])]
    elif isinstance(content, dict) and isinstance(content.get("images"), dict):
        rows = [_plain_row(name, entry, path) for name, entry in content["images"].items() if _is_told(entry)]
    else:
        raise InputError(
            f'{path}: neither "frames" as in transforms.json nor "images" as in {{"images": {{"a.jpg": {{"R": ...,'
            ' "t": ...}}}}'
        )
    names = tuple(name for name, _, _ in rows)
    _refuse_doubles(names, path)
    poses = np.array([pose for _, pose, _ in rows]).reshape(-1, 3, 4)
    return PoseFile(path, names, poses, tuple(camera for _, _, camera in rows))


Row = tuple[str, Float64[np.ndarray, "3 4"], StoredCamera | None]


def _nerfstudio_row(content: Mapping[str, Any], frame: object, path: Path, number: int) -> Row:
    try:
        return _nerfstudio_frame(content, frame, f"{path}, frame {number}")
    except InputError:  # once more, with the line, which has to be looked for
        place = f"{path}, line {line_of(path, FILE_PATH, number + 1)}, frame {number}"
        return _nerfstudio_frame(content, frame, place)


def _is_told(entry: object) -> bool:
    """Whether an entry holds a pose; a file may list photographs whose pose is unknown."""
    return not isinstance(entry, dict) or not entry or "R" in entry or "t" in entry


def _plain_row(name: str, entry: object, path: Path) -> Row:
    try:
        return _plain_image(name, entry, f"{path}, {name}")
    except InputError:
        return _plain_image(name, entry, f"{path}, line {line_of(path, json.dumps(name))}, {name}")


def _nerfstudio_frame(content: Mapping[str, Any], frame: object, place: str) -> Row:
    if not isinstance(frame, dict) or not isinstance(frame.get("file_path"), str):
        raise InputError(f'{place}: no "file_path"; each frame needs one, and a "transform_matrix"')
    matrix = _matrix(frame.get("transform_matrix"), (3, 4), (4, 4), f"{place}, transform_matrix")
    world_from_cam = np.column_stack([matrix[:3, :3] * OPENGL_FROM_OPENCV, matrix[:3, 3]])
    name = PurePosixPath(frame["file_path"]).as_posix()
    return name, invert_pose(world_from_cam, place), _nerfstudio_camera({**content, **frame}, place)


def _nerfstudio_camera(values: Mapping[str, Any], place: str) -> StoredCamera | None:
    numbers = {ours: float(values[key]) for key, ours in NERFSTUDIO_KEYS.items() if is_number(values.get(key))}
    if "fx" not in numbers and is_number(values.get("camera_angle_x")) and "width" in numbers:
        half = math.tan(values["camera_angle_x"] / 2)
        numbers["fx"] = numbers["width"] / 2 / half if half > 0 else math.nan
    lens = values.get("camera_model", NERFSTUDIO_LENSES[0])
    is_fisheye = lens == "OPENCV_FISHEYE"
    unused = ("p1", "p2") if is_fisheye else ("k3", "k4")
    if "fx" not in numbers or lens not in NERFSTUDIO_LENSES or any(numbers.get(key) for key in unused):
        return None
    return stored_camera({"f": numbers["fx"], **numbers}, place, str(values.get("camera_id", "")), is_fisheye)


def _plain_image(name: str, entry: object, place: str) -> Row:
    if not isinstance(entry, dict) or "R" not in entry or "t" not in entry:
        raise InputError(f'{place}: needs "R" (3 x 3) and "t" (3) with x_cam = R x_world + t')
    rotation = nearest_rotation(_matrix(entry["R"], (3, 3), (3, 3), f"{place}, R"), place)
    translation = _matrix(entry["t"], (3,), (3, 1), f"{place}, t").reshape(3)
    numbers = {key: float(entry[key]) for key in ("width", "height") if is_number(entry.get(key))}
    camera = None
    if "K" in entry:
        values = _matrix(entry["K"], (4,), (3, 3), f"{place}, K")
        fx, fy, cx, cy = (values if values.ndim == 1 else values[[0, 1, 0, 1], [0, 1, 2, 2]]).tolist()
        camera = stored_camera({"fx": fx, "fy": fy, "cx": cx, "cy": cy, **numbers}, place)
    return name, np.column_stack([rotation, translation]), camera


def _matrix(value: object, shape: tuple[int, ...], other: tuple[int, ...], place: str) -> Float64[np.ndarray, "..."]:
    wanted = " or ".join(" x ".join(map(str, size)) for size in dict.fromkeys((shape, other)))
    try:
        matrix = np.array(value, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{place}: must be {wanted} numbers") from error
    if matrix.shape not in (shape, other) or not np.isfinite(matrix).all():
        raise InputError(f"{place}: must be {wanted} finite numbers")
    return matrix


def invert_pose(world_from_cam: Float64[np.ndarray, "r 4"], place: str) -> Float64[np.ndarray, "3 4"]:
    """Pose cam_from_world of a matrix in a file."""
    rotation, center = nearest_rotation(world_from_cam[:3, :3], place), world_from_cam[:3, 3]
    return np.column_stack([rotation.T, -rotation.T @ center])


def nearest_rotation(matrix: Float64[np.ndarray, "3 3"], place: str) -> Float64[np.ndarray, "3 3"]:
    """Nearest rotation to a stored matrix; raises an error if none is near."""
    u, _, vt = np.linalg.svd(matrix)
    nearest = u @ vt
    if np.linalg.det(nearest) < 0 or np.abs(nearest - matrix).max() > MAX_SKEW:
        raise InputError(f"{place}: not a rotation; its rows must be of length 1, at right angles and right-handed")
    return nearest


# ----------------------------------------------------------------------------------------------------------------
# Trajectories: world_from_cam, one per line


def _from_trajectory(path: Path) -> PoseFile:
    rows = list(_trajectory_rows(path))
    names = tuple(name for name, _ in rows if name is not None)
    if names and len(names) != len(rows):
        raise InputError(f"{path}: some lines are as in TUM's format and some as in KITTI's; use one")
    poses = np.array([pose for _, pose in rows]).reshape(-1, 3, 4)
    no_cameras = (None,) * len(rows)
    if not names:
        return PoseFile(path, tuple(str(number) for number in range(len(rows))), poses, no_cameras, "order")
    _refuse_doubles(names, path)
    is_numbered = any(line.startswith(NUMBERED) for _, line in numbered_lines(path))
    by: Literal["time", "number"] = "number" if is_numbered else "time"
    return PoseFile(path, names, poses, no_cameras, by if all(map(_is_time, names)) else "name")


def _refuse_doubles(names: Sequence[str], path: Path) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise InputError(f"{path}: {twice[0]} is in it twice; remove one")


def _trajectory_rows(path: Path) -> Iterator[tuple[str | None, Float64[np.ndarray, "3 4"]]]:
    """Time stamp or name (None in KITTI's format) and pose."""
    for place, line in numbered_lines(path):
        words = line.replace(",", " ").split()
        if not words or line.startswith("#"):
            continue
        is_kitti = len(words) == KITTI_NUMBERS and all(map(_is_time, words))
        first, numbers = (None, words) if is_kitti else (" ".join(words[:-TUM_NUMBERS]), words[-TUM_NUMBERS:])
        is_name = len(words) == 1 + TUM_NUMBERS or not all(map(_is_number_word, words))  # names may have spaces
        if first == "" or not all(map(_is_time, numbers)) or not (is_kitti or is_name):
            raise InputError(f"{place}: {COLUMNS} ({line!r})")
        values = np.array(numbers, dtype=np.float64)
        if is_kitti:
            world_from_cam = values.reshape(3, 4)
        else:
            world_from_cam = pose_from_quaternion(values[3:].tolist(), values[:3].tolist(), place)
        yield first, invert_pose(world_from_cam, place)


def _is_number_word(text: str) -> bool:
    return _is_time(text) or text.lower().lstrip("+-") in ("nan", "inf", "infinity")


def _is_time(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
