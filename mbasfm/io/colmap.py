"""Cameras and images of a COLMAP model, from its text or binary files; points are left out.

COLMAP has the first pixel's centre at (0.5, 0.5), as everywhere here.
"""

import math
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from jaxtyping import Float64

from mbasfm.errors import InputError

Value = TypeVar("Value")

COLMAP_PARAMETERS = {
    "SIMPLE_PINHOLE": ("f", "cx", "cy"),
    "PINHOLE": ("fx", "fy", "cx", "cy"),
    "SIMPLE_RADIAL": ("f", "cx", "cy", "k1"),
    "RADIAL": ("f", "cx", "cy", "k1", "k2"),
    "OPENCV": ("fx", "fy", "cx", "cy", "k1", "k2", "p1", "p2"),
    "OPENCV_FISHEYE": ("fx", "fy", "cx", "cy", "k1", "k2", "k3", "k4"),
    "SIMPLE_RADIAL_FISHEYE": ("f", "cx", "cy", "k1"),
    "RADIAL_FISHEYE": ("f", "cx", "cy", "k1", "k2"),
}
"""Parameters of each camera model, in the order of COLMAP's files."""
COLMAP_MODELS = (
    "SIMPLE_PINHOLE",
    "PINHOLE",
    "SIMPLE_RADIAL",
    "RADIAL",
    "OPENCV",
    "OPENCV_FISHEYE",
    "FULL_OPENCV",
    "FOV",
    "SIMPLE_RADIAL_FISHEYE",
    "RADIAL_FISHEYE",
    "THIN_PRISM_FISHEYE",
    "RAD_TAN_THIN_PRISM_FISHEYE",
    "SIMPLE_DIVISION",
    "DIVISION",
    "SIMPLE_FISHEYE",
    "FISHEYE",
    "EUCM",
    "EQUIRECTANGULAR",
)
"""Camera models by their number in binary files."""
CAMERA_RECORD = struct.Struct("<IiQQ")
"""Number, model, width, height; then the parameters."""
IMAGE_RECORD = struct.Struct("<I7dI")
"""Number, pose, camera; then the name up to a zero byte, and the points."""
COUNT = struct.Struct("<Q")
POINT_BYTES = 24
LARGEST = 1e9
"""Upper bound for sizes, focal lengths, distortions and positions; larger values are refused."""
IMAGE_LINE = "IMAGE_ID QW QX QY QZ TX TY TZ CAMERA_ID NAME"
UNDISTORT = "undistort the photographs first, for example with colmap image_undistorter"


class UnsupportedLensError(InputError):
    """A camera model that is not supported: its intrinsics cannot be used."""


@dataclass(frozen=True)
class StoredCamera:
    """A camera as stored in a file."""

    focal: tuple[float, float]
    """fx, fy [px]."""
    center: tuple[float, float] | None
    """Principal point [px]; None for the middle of the image."""
    distortion: tuple[float, float, float, float]
    """k1, k2, p1, p2 or, of a fisheye, k1, k2, k3, k4."""
    size: tuple[float, float] | None
    """Width, height [px]; None for those of the photograph."""
    camera_id: str = ""
    is_fisheye: bool = False


@dataclass(frozen=True)
class StoredImage:
    """An image as stored in a file."""

    camera_id: str
    quaternion: tuple[float, float, float, float]
    """w, x, y, z of cam_from_world."""
    translation: tuple[float, float, float]
    place: str
    """File and line or number, for errors."""

    def cam_from_world(self) -> Float64[np.ndarray, "3 4"]:
        """Pose of the image; raises an error that names the place in the file."""
        w, x, y, z = self.quaternion
        return pose_from_quaternion((x, y, z, w), self.translation, self.place)


def pose_from_quaternion(xyzw: Sequence[float], translation: Sequence[float], place: str) -> Float64[np.ndarray, "3 4"]:
    """Pose [R | t] from the numbers of a file."""
    numbers = np.array([*xyzw, *translation], dtype=np.float64)
    is_sensible = bool((np.abs(numbers) < LARGEST).all())  # NaN is not
    length = float(np.linalg.norm(numbers[:4])) if is_sensible else 0.0
    if not 1e-6 < length < 1e6:
        raise InputError(f"{place}: needs finite numbers and a quaternion that is not zero, but has {numbers.tolist()}")
    x, y, z, w = numbers[:4] / length
    axis = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    return np.column_stack([np.eye(3) + 2 * w * axis + 2 * axis @ axis, numbers[4:]])


def is_number(value: object) -> bool:
    """Whether a value of a JSON file is a finite number of plausible size."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < LARGEST


def stored_camera(
    values: Mapping[str, float], place: str, camera_id: str = "", is_fisheye: bool = False
) -> StoredCamera:
    """Camera from named numbers. ``f`` sets both focal lengths; missing distortion is zero."""
    focal = tuple(values.get(key, values.get("f", math.nan)) for key in ("fx", "fy"))
    if not (focal[0] > 0 and focal[1] > 0 and all(abs(value) < LARGEST for value in values.values())):
        raise InputError(f"{place}: needs finite numbers and positive focal lengths in px, but has {dict(values)}")
    for names in (("cx", "cy"), ("width", "height")):
        if (names[0] in values) != (names[1] in values):
            raise InputError(f"{place}: has only one of {names[0]} and {names[1]}; give both or none")
    size = (values["width"], values["height"]) if "width" in values else None
    if size and min(size) <= 0:
        raise InputError(f"{place}: width and height must be positive, but are {size[0]:g} and {size[1]:g}")
    k1, k2, third, fourth = (
        values.get(key, 0.0) for key in (("k1", "k2", "k3", "k4") if is_fisheye else ("k1", "k2", "p1", "p2"))
    )
    return StoredCamera(
        focal=(focal[0], focal[1]),
        center=(values["cx"], values["cy"]) if "cx" in values else None,
        distortion=(k1, k2, third, fourth),
        size=size,
        camera_id=camera_id,
        is_fisheye=is_fisheye,
    )


def read_cameras(path: Path) -> dict[str, StoredCamera]:
    """Cameras of cameras.txt or cameras.bin by their number."""
    return dict(_read_binary(path, _binary_cameras) if path.suffix == ".bin" else _text_cameras(path))


def read_images(path: Path) -> dict[str, StoredImage]:
    """Images of images.txt or images.bin by their name."""
    return dict(_read_binary(path, _binary_images) if path.suffix == ".bin" else _text_images(path))


def _colmap_camera(model: str, camera_id: str, numbers: Sequence[float], place: str) -> StoredCamera:
    """Check the model and name its numbers: width, height, parameters."""
    names = _parameters(model, place)
    if len(numbers) != 2 + len(names):
        raise InputError(f"{place}: {model} has {len(names)} parameters ({', '.join(names)}), not {len(numbers) - 2}")
    values = dict(zip(("width", "height", *names), numbers, strict=True))
    return stored_camera(values, place, camera_id, is_fisheye="FISHEYE" in model)


def _parameters(model: str, place: str) -> tuple[str, ...]:
    if model not in COLMAP_PARAMETERS:
        raise UnsupportedLensError(
            f"{place}: camera model {model} is none of {', '.join(COLMAP_PARAMETERS)}; {UNDISTORT}"
        )
    return COLMAP_PARAMETERS[model]


def numbered_lines(path: Path) -> Iterator[tuple[str, str]]:
    """Each line of a text file with its place."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read as text ({error}); export it again") from error
    return ((f"{path}, line {number}", line.strip()) for number, line in enumerate(lines, start=1))


def _text_cameras(path: Path) -> Iterator[tuple[str, StoredCamera]]:
    for place, line in numbered_lines(path):
        if not line or line.startswith("#"):
            continue
        try:
            camera_id, model, width, height, *values = line.split()
            numbers = [float(text) for text in (width, height, *values)]
        except ValueError as error:
            raise InputError(f"{place}: not 'CAMERA_ID MODEL WIDTH HEIGHT PARAMS' ({line!r})") from error
        yield camera_id, _colmap_camera(model, camera_id, numbers, place)


def _text_images(path: Path) -> Iterator[tuple[str, StoredImage]]:
    """Images of a text file: two lines each, of which the second, its points, may be empty."""
    lines = numbered_lines(path)
    for place, line in lines:
        if not line or line.startswith("#"):
            continue
        fields = line.split(maxsplit=9)
        try:
            qw, qx, qy, qz, tx, ty, tz = (float(text) for text in fields[1:8])
            camera_id, name = fields[8:]
        except ValueError as error:
            raise InputError(f"{place}: not '{IMAGE_LINE}' ({line!r})") from error
        yield name, StoredImage(camera_id, (qw, qx, qy, qz), (tx, ty, tz), place)
        next(lines, None)


def _read_binary(
    path: Path, parse: Callable[[bytes, Path], Iterator[tuple[str, Value]]]
) -> Sequence[tuple[str, Value]]:
    """All entries of a binary file; raises an error if it ends too early."""
    try:
        return list(parse(path.read_bytes(), path))
    except (OSError, struct.error, ValueError, OverflowError) as error:
        raise InputError(f"{path}: cut off or not a file of COLMAP ({error}); export it again") from error


def _binary_cameras(content: bytes, path: Path) -> Iterator[tuple[str, StoredCamera]]:
    (count,), position = COUNT.unpack_from(content), COUNT.size
    for _ in range(count):
        number, model_number, width, height = CAMERA_RECORD.unpack_from(content, position)
        place, is_known = f"{path}, camera {number}", 0 <= model_number < len(COLMAP_MODELS)
        model = COLMAP_MODELS[model_number] if is_known else f"number {model_number}"
        record = struct.Struct(f"<{len(_parameters(model, place))}d")
        values = record.unpack_from(content, position + CAMERA_RECORD.size)
        position += CAMERA_RECORD.size + record.size
        yield str(number), _colmap_camera(model, str(number), (float(width), float(height), *values), place)


def _binary_images(content: bytes, path: Path) -> Iterator[tuple[str, StoredImage]]:
    (count,), position = COUNT.unpack_from(content), COUNT.size
    for _ in range(count):
        number, qw, qx, qy, qz, tx, ty, tz, camera_number = IMAGE_RECORD.unpack_from(content, position)
        start = position + IMAGE_RECORD.size
        end = content.index(b"\0", start)
        (num_points,) = COUNT.unpack_from(content, end + 1)
        position = end + 1 + COUNT.size + num_points * POINT_BYTES
        if position > len(content):
            raise ValueError(f"image {number} has no end")
        pose = (qw, qx, qy, qz), (tx, ty, tz)
        yield content[start:end].decode("utf-8"), StoredImage(str(camera_number), *pose, f"{path}, image {number}")
