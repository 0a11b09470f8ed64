"""Known intrinsics: COLMAP's cameras, as text or binary, or a small JSON file.

All have the first pixel's centre at (0.5, 0.5), as everywhere here. Photographs are upright: intrinsics of a picture
that lies on its side belong to another picture.
"""

import math
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TypeVar

from mbasfm.errors import InputError
from mbasfm.io.images import Photo
from mbasfm.io.plain import read_json

Value = TypeVar("Value")

COLMAP_PARAMETERS = {
    "SIMPLE_PINHOLE": ("f", "cx", "cy"),
    "PINHOLE": ("fx", "fy", "cx", "cy"),
    "SIMPLE_RADIAL": ("f", "cx", "cy", "k1"),
    "RADIAL": ("f", "cx", "cy", "k1", "k2"),
    "OPENCV": ("fx", "fy", "cx", "cy", "k1", "k2", "p1", "p2"),
}
"""In the order of COLMAP's files."""
COLMAP_MODELS = (
    *COLMAP_PARAMETERS,
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
"""By the number that stands for them in binary files."""
CAMERA_RECORD = struct.Struct("<IiQQ")
"""Number, model, width, height; then the parameters."""
IMAGE_RECORD = struct.Struct("<I7dI")
"""Number, pose, camera; then the name up to a zero byte, and the points."""
COUNT = struct.Struct("<Q")
POINT_BYTES = 24
LARGEST = 1e9
"""No size, focal length or distortion of a camera comes near."""
MAX_ASPECT_CHANGE = 0.01
JSON_KEYS = ("fx", "fy", "cx", "cy", "k1", "k2", "p1", "p2", "width", "height")
HIGHER_DISTORTION = ("k3", "k4", "k5", "k6")
UNDISTORT = "undistort the photographs first, for example with colmap image_undistorter"


@dataclass(frozen=True)
class KnownCamera:
    """Intrinsics of one photograph, at its own resolution."""

    focal: tuple[float, float]
    """fx, fy [px]."""
    center: tuple[float, float]
    """cx, cy [px]."""
    distortion: tuple[float, float, float, float]
    """k1, k2, p1, p2 of COLMAP's OPENCV model."""
    camera_id: str
    """Photographs with the same one were taken by the same camera."""


@dataclass(frozen=True)
class _Stored:
    """A camera as the file has it."""

    focal: tuple[float, float]
    center: tuple[float, float] | None
    """None: the middle of the picture."""
    distortion: tuple[float, float, float, float]
    size: tuple[float, float] | None
    """None: that of the photograph."""
    camera_id: str = ""


def read_calibration(path: Path, photos: Sequence[Photo]) -> dict[str, KnownCamera]:
    """Intrinsics by name of photograph; one that the file says nothing about is left out.

    ``path`` is COLMAP's cameras.txt or cameras.bin, a folder with one of them, or a JSON file.
    """
    path = _calibration_file(path)
    stored = _from_json(path, photos) if path.suffix == ".json" else _from_colmap(path, photos)
    return {photo.name: _at_resolution(stored[photo.name], photo, path) for photo in photos if photo.name in stored}


def _calibration_file(path: Path) -> Path:
    if path.is_dir():
        candidates = [path / "cameras.bin", path / "cameras.txt"]  # the order in which COLMAP looks
        found = next((candidate for candidate in candidates if candidate.is_file()), None)
        if found is None:
            raise InputError(f"{path}: neither cameras.bin nor cameras.txt in this folder; give COLMAP's model folder")
        return found
    if not path.is_file():
        raise InputError(f"{path} does not exist; give COLMAP's cameras.txt or cameras.bin, or a JSON file")
    if path.suffix not in (".txt", ".bin", ".json"):
        raise InputError(f"{path}: not a calibration; give COLMAP's cameras.txt or cameras.bin, or a JSON file")
    return path


def _at_resolution(stored: _Stored, photo: Photo, path: Path) -> KnownCamera:
    """Scaled to the photograph, each axis by itself: resizing rounds both sides."""
    width, height = stored.size or (photo.width, photo.height)
    scale_x, scale_y = photo.width / width, photo.height / height
    if abs(scale_x / scale_y - 1) > MAX_ASPECT_CHANGE:
        sizes = f"calibrated at {width:g} x {height:g} px, but the photograph has {photo.width} x {photo.height} px"
        turned = abs(photo.width / height * width / photo.height - 1) <= MAX_ASPECT_CHANGE
        advice = "it is read upright, calibrate it so" if turned else "calibrate it without cropping"
        raise InputError(f"{path}: {photo.name} is {sizes}; {advice}, or leave it out of the calibration")
    center_x, center_y = stored.center or (width / 2, height / 2)
    if not (0 < center_x < width and 0 < center_y < height):
        point = f"the principal point ({center_x:g}, {center_y:g}) is outside the picture of {width:g} x {height:g} px"
        raise InputError(f"{path}: {photo.name}: {point}; give the width and height that it was calibrated at")
    return KnownCamera(
        focal=(stored.focal[0] * scale_x, stored.focal[1] * scale_y),
        center=(center_x * scale_x, center_y * scale_y),
        distortion=stored.distortion,
        camera_id=stored.camera_id,
    )


def _stored(values: Mapping[str, float], place: str, camera_id: str = "") -> _Stored:
    """From named numbers. ``f`` is both focal lengths; what is not distorted needs no distortion."""
    focal = tuple(values.get(key, values.get("f", math.nan)) for key in ("fx", "fy"))
    if not (focal[0] > 0 and focal[1] > 0 and all(abs(value) < LARGEST for value in values.values())):
        raise InputError(f"{place}: needs finite numbers and positive focal lengths in px, but has {dict(values)}")
    for names in (("cx", "cy"), ("width", "height")):
        if (names[0] in values) != (names[1] in values):
            raise InputError(f"{place}: has only one of {names[0]} and {names[1]}; give both or none")
    size = (values["width"], values["height"]) if "width" in values else None
    if size and min(size) <= 0:
        raise InputError(f"{place}: width and height must be positive, but are {size[0]:g} and {size[1]:g}")
    return _Stored(
        focal=(focal[0], focal[1]),
        center=(values["cx"], values["cy"]) if "cx" in values else None,
        distortion=(values.get("k1", 0.0), values.get("k2", 0.0), values.get("p1", 0.0), values.get("p2", 0.0)),
        size=size,
        camera_id=camera_id,
    )


def _by_name(entries: Mapping[str, Value], photos: Sequence[Photo], path: Path) -> dict[str, Value]:
    """Entries by name of photograph: the same path, or the same file name if that occurs once on both sides."""
    entry_files = Counter(PurePosixPath(name).name for name in entries)
    photo_files = Counter(PurePosixPath(photo.name).name for photo in photos)
    of_file = {PurePosixPath(name).name: entry for name, entry in entries.items()}
    found: dict[str, Value] = {}
    for photo in photos:
        file = PurePosixPath(photo.name).name
        if photo.name in entries:
            found[photo.name] = entries[photo.name]
        elif entry_files[file] == 1 == photo_files[file]:
            found[photo.name] = of_file[file]
    if photos and not found:
        example = f"it speaks of {next(iter(entries))}" if entries else "it speaks of none"
        raise InputError(f"{path}: none of the photographs is in it; {example}, a photograph is {photos[0].name}")
    return found


def _from_json(path: Path, photos: Sequence[Photo]) -> dict[str, _Stored]:
    content = read_json(path)
    images = content.get("images") if isinstance(content, dict) else None
    if images is None:
        stored = replace(_from_json_entry(content, str(path)), camera_id="1")
        return {photo.name: stored for photo in photos}
    if not isinstance(images, dict):
        raise InputError(f'{path}: "images" must map names to intrinsics, as in {{"a.jpg": {{"fx": 800}}}}')
    entries = {name: _from_json_entry(entry, f"{path}, {name}") for name, entry in images.items()}
    camera_ids: dict[_Stored, str] = {}
    for entry in entries.values():
        camera_ids.setdefault(entry, str(len(camera_ids) + 1))  # equal numbers: the same camera
    return _by_name(
        {name: replace(entry, camera_id=camera_ids[entry]) for name, entry in entries.items()}, photos, path
    )


def _from_json_entry(entry: object, place: str) -> _Stored:
    if not isinstance(entry, dict):
        raise InputError(f'{place}: must be an object such as {{"fx": 800, "fy": 800, "cx": 320, "cy": 240}}')
    entry = {key: value for key, value in entry.items() if value is not None}
    if "K" in entry:
        if not (isinstance(entry["K"], list) and len(entry["K"]) == 4):
            raise InputError(f"{place}: K must be four numbers [fx, fy, cx, cy]")
        entry |= dict(zip(("fx", "fy", "cx", "cy"), entry["K"], strict=True))
    if any(entry.get(key) for key in HIGHER_DISTORTION):
        raise InputError(f"{place}: {', '.join(HIGHER_DISTORTION)} are not supported; {UNDISTORT}")
    if "fx" not in entry and "focal" not in entry:
        raise InputError(f"{place}: no focal length; give fx, fy, cx, cy (and k1, k2, p1, p2), or focal, in px")
    known = {"f": entry["focal" if "focal" in entry else "fx"]} | {key: entry[key] for key in JSON_KEYS if key in entry}
    for key, value in known.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > LARGEST:
            raise InputError(f"{place}: {key} must be a number, not {value!r}")
    return _stored({key: float(value) for key, value in known.items()}, place)


def _from_colmap(path: Path, photos: Sequence[Photo]) -> dict[str, _Stored]:
    """One camera is everybody's; of several, each photograph's is said by images.txt or .bin, or else by its size."""
    cameras = dict(_read_binary(path, _binary_cameras) if path.suffix == ".bin" else _text_cameras(path))
    if not cameras:
        raise InputError(f"{path}: no camera in it")
    if len(cameras) == 1:
        (camera,) = cameras.values()
        return {photo.name: camera for photo in photos}
    candidates = [path.with_name(f"images{suffix}") for suffix in (path.suffix, ".bin", ".txt")]
    beside = next((candidate for candidate in candidates if candidate.is_file()), None)
    if beside is None:
        return {photo.name: _only_one_of_size(cameras, photo, path) for photo in photos}
    camera_of = dict(_read_binary(beside, _binary_images) if beside.suffix == ".bin" else _text_images(beside))
    for name, camera_id in camera_of.items():
        if camera_id not in cameras:
            raise InputError(f"{beside}: {name} has camera {camera_id}, which is not in {path.name}; export both again")
    return {name: cameras[camera_id] for name, camera_id in _by_name(camera_of, photos, beside).items()}


def _only_one_of_size(cameras: Mapping[str, _Stored], photo: Photo, path: Path) -> _Stored:
    fitting = [camera for camera in cameras.values() if camera.size == (photo.width, photo.height)]
    if len(fitting) != 1:
        what = (
            f"{len(fitting)} of its {len(cameras)} cameras have the {photo.width} x {photo.height} px of {photo.name}"
        )
        raise InputError(f"{path}: {what}; put COLMAP's images.txt or images.bin beside it, which says whose is which")
    return fitting[0]


def _colmap_camera(model: str, camera_id: str, numbers: Sequence[float], place: str) -> _Stored:
    """Check the model and name its numbers: width, height, parameters."""
    names = _parameters(model, place)
    if len(numbers) != 2 + len(names):
        raise InputError(f"{place}: {model} has {len(names)} parameters ({', '.join(names)}), not {len(numbers) - 2}")
    return _stored(dict(zip(("width", "height", *names), numbers, strict=True)), place, camera_id)


def _parameters(model: str, place: str) -> tuple[str, ...]:
    if model not in COLMAP_PARAMETERS:
        raise InputError(f"{place}: camera model {model} is none of {', '.join(COLMAP_PARAMETERS)}; {UNDISTORT}")
    return COLMAP_PARAMETERS[model]


def _numbered_lines(path: Path) -> Iterator[tuple[str, str]]:
    """Each line with its place."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read as text ({error}); export it from COLMAP again") from error
    return ((f"{path}, line {number}", line.strip()) for number, line in enumerate(lines, start=1))


def _text_cameras(path: Path) -> Iterator[tuple[str, _Stored]]:
    for place, line in _numbered_lines(path):
        if not line or line.startswith("#"):
            continue
        try:
            camera_id, model, width, height, *values = line.split()
            numbers = [float(text) for text in (width, height, *values)]
        except ValueError as error:
            raise InputError(f"{place}: not 'CAMERA_ID MODEL WIDTH HEIGHT PARAMS' ({line!r})") from error
        yield camera_id, _colmap_camera(model, camera_id, numbers, place)


def _text_images(path: Path) -> Iterator[tuple[str, str]]:
    """Name and camera. Each image has two lines, and the second, its points, may be empty."""
    lines = _numbered_lines(path)
    for place, line in lines:
        if not line or line.startswith("#"):
            continue
        fields = line.split(maxsplit=9)
        if len(fields) != 10:
            raise InputError(f"{place}: not 'IMAGE_ID QW QX QY QZ TX TY TZ CAMERA_ID NAME' ({line!r})")
        yield fields[9], fields[8]
        next(lines, None)


def _read_binary(
    path: Path, parse: Callable[[bytes, Path], Iterator[tuple[str, Value]]]
) -> Sequence[tuple[str, Value]]:
    """Everything a binary file has, or an error if it ends too early."""
    try:
        return list(parse(path.read_bytes(), path))
    except (OSError, struct.error, ValueError, OverflowError) as error:
        raise InputError(f"{path}: cut off or not a file of COLMAP ({error}); export it again") from error


def _binary_cameras(content: bytes, path: Path) -> Iterator[tuple[str, _Stored]]:
    (count,), position = COUNT.unpack_from(content), COUNT.size
    for _ in range(count):
        number, model_number, width, height = CAMERA_RECORD.unpack_from(content, position)
        place, is_known = f"{path}, camera {number}", 0 <= model_number < len(COLMAP_MODELS)
        model = COLMAP_MODELS[model_number] if is_known else f"number {model_number}"
        record = struct.Struct(f"<{len(_parameters(model, place))}d")
        values = record.unpack_from(content, position + CAMERA_RECORD.size)
        position += CAMERA_RECORD.size + record.size
        yield str(number), _colmap_camera(model, str(number), (float(width), float(height), *values), place)


def _binary_images(content: bytes, path: Path) -> Iterator[tuple[str, str]]:
    """Name and camera."""
    del path
    (count,), position = COUNT.unpack_from(content), COUNT.size
    for _ in range(count):
        *_, camera_number = IMAGE_RECORD.unpack_from(content, position)
        start = position + IMAGE_RECORD.size
        end = content.index(b"\0", start)
        (num_points,) = COUNT.unpack_from(content, end + 1)
        position = end + 1 + COUNT.size + num_points * POINT_BYTES
        yield content[start:end].decode("utf-8"), str(camera_number)
