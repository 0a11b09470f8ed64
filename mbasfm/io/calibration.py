"""Known intrinsics: COLMAP's cameras, as text or binary, or a small JSON file.

All have the first pixel's centre at (0.5, 0.5), as everywhere here. Photographs are upright: intrinsics of a picture
that lies on its side belong to another picture.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from mbasfm.errors import InputError
from mbasfm.io.colmap import UNDISTORT, StoredCamera, is_number, read_cameras, read_images, stored_camera
from mbasfm.io.files import read_json
from mbasfm.io.names import join_names
from mbasfm.types.observations import Photo

Value = TypeVar("Value")

MAX_ASPECT_CHANGE = 0.01
JSON_KEYS = ("fx", "fy", "cx", "cy", "k1", "k2", "k3", "k4", "p1", "p2", "width", "height")
HIGHER_DISTORTION = ("k3", "k4", "k5", "k6")
JSON_MODELS = ("OPENCV", "OPENCV_FISHEYE")
"""Values of "model"; the first is the default."""


@dataclass(frozen=True)
class KnownCamera:
    """Intrinsics of one photograph, at its own resolution."""

    focal: tuple[float, float]
    """fx, fy [px]."""
    center: tuple[float, float]
    """cx, cy [px]."""
    distortion: tuple[float, float, float, float]
    """k1, k2, p1, p2 of COLMAP's OPENCV model or, of a fisheye, k1, k2, k3, k4 of OPENCV_FISHEYE."""
    camera_id: str
    """Camera identifier; photographs with the same one share intrinsics."""
    is_fisheye: bool = False


def read_calibration(path: Path, photos: Sequence[Photo]) -> dict[str, KnownCamera]:
    """Intrinsics by name of photograph; one that the file says nothing about is left out.

    ``path`` is COLMAP's cameras.txt or cameras.bin, a folder with one of them, or a JSON file.
    """
    path = _calibration_file(path)
    stored = _from_json(path, photos) if path.suffix == ".json" else _from_colmap(path, photos)
    return {photo.name: at_resolution(stored[photo.name], photo, path) for photo in photos if photo.name in stored}


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


def at_resolution(stored: StoredCamera, photo: Photo, path: Path) -> KnownCamera:
    """Intrinsics scaled to the photograph, each axis by itself because resizing rounds both sides."""
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
        is_fisheye=stored.is_fisheye,
    )


def _by_name(entries: Mapping[str, Value], photos: Sequence[Photo], path: Path) -> dict[str, Value]:
    """Entries by name of photograph; ambiguous photographs are left out."""
    joined = join_names([*entries], [photo.name for photo in photos])
    if photos and not joined.entry_of:
        example = f"it lists {next(iter(entries))}" if entries else "it lists none"
        raise InputError(f"{path}: none of the photographs is in it; {example}, a photograph is {photos[0].name}")
    return {name: entries[entry] for name, entry in joined.entry_of.items()}


def _from_json(path: Path, photos: Sequence[Photo]) -> dict[str, StoredCamera]:
    content = read_json(path)
    images = content.get("images") if isinstance(content, dict) else None
    if images is None:
        stored = replace(_from_json_entry(content, str(path)), camera_id="1")
        return {photo.name: stored for photo in photos}
    if not isinstance(images, dict):
        raise InputError(f'{path}: "images" must map names to intrinsics, as in {{"a.jpg": {{"fx": 800}}}}')
    entries = {name: _from_json_entry(entry, f"{path}, {name}") for name, entry in images.items()}
    camera_ids: dict[StoredCamera, str] = {}
    for entry in entries.values():
        camera_ids.setdefault(entry, str(len(camera_ids) + 1))  # equal numbers: the same camera
    return _by_name(
        {name: replace(entry, camera_id=camera_ids[entry]) for name, entry in entries.items()}, photos, path
    )


def _from_json_entry(entry: object, place: str) -> StoredCamera:
    if not isinstance(entry, dict):
        raise InputError(f'{place}: must be an object such as {{"fx": 800, "fy": 800, "cx": 320, "cy": 240}}')
    entry = {key: value for key, value in entry.items() if value is not None}
    if "K" in entry:
        if not (isinstance(entry["K"], list) and len(entry["K"]) == 4):
            raise InputError(f"{place}: K must be four numbers [fx, fy, cx, cy]")
        entry |= dict(zip(("fx", "fy", "cx", "cy"), entry["K"], strict=True))
    if "fx" not in entry and "focal" not in entry:
        raise InputError(f"{place}: no focal length; give fx, fy, cx, cy (and k1, k2, p1, p2), or focal, in px")
    is_fisheye = _is_fisheye(entry, place)
    known = {"f": entry["focal" if "focal" in entry else "fx"]} | {key: entry[key] for key in JSON_KEYS if key in entry}
    for key, value in known.items():
        if not is_number(value):
            raise InputError(f"{place}: {key} must be a number, not {value!r}")
    return stored_camera({key: float(value) for key, value in known.items()}, place, is_fisheye=is_fisheye)


def _is_fisheye(entry: Mapping[str, object], place: str) -> bool:
    """Whether the lens is a fisheye; refuses unknown models and coefficients that the model does not have."""
    model = entry.get("model", JSON_MODELS[0])
    if model not in JSON_MODELS:
        raise InputError(f"{place}: model {model!r} is none of {', '.join(JSON_MODELS)}; {UNDISTORT}")
    is_fisheye = model == "OPENCV_FISHEYE"
    foreign = ("p1", "p2") if is_fisheye else HIGHER_DISTORTION
    if any(entry.get(key) for key in foreign):
        raise InputError(f"{place}: {', '.join(foreign)} are not supported with {model}; {UNDISTORT}")
    return is_fisheye


def _from_colmap(path: Path, photos: Sequence[Photo]) -> dict[str, StoredCamera]:
    """Camera of each photograph: the only one, the one that images.txt or .bin assigns, or the one of its size."""
    cameras = read_cameras(path)
    if not cameras:
        raise InputError(f"{path}: no camera in it")
    if len(cameras) == 1:
        (camera,) = cameras.values()
        return {photo.name: camera for photo in photos}
    candidates = [path.with_name(f"images{suffix}") for suffix in (path.suffix, ".bin", ".txt")]
    beside = next((candidate for candidate in candidates if candidate.is_file()), None)
    if beside is None:
        return {photo.name: _only_one_of_size(cameras, photo, path) for photo in photos}
    camera_of = {name: image.camera_id for name, image in read_images(beside).items()}
    for name, camera_id in camera_of.items():
        if camera_id not in cameras:
            raise InputError(f"{beside}: {name} has camera {camera_id}, which is not in {path.name}; export both again")
    return {name: cameras[camera_id] for name, camera_id in _by_name(camera_of, photos, beside).items()}


def _only_one_of_size(cameras: Mapping[str, StoredCamera], photo: Photo, path: Path) -> StoredCamera:
    fitting = [camera for camera in cameras.values() if camera.size == (photo.width, photo.height)]
    if len(fitting) != 1:
        what = (
            f"{len(fitting)} of its {len(cameras)} cameras have the {photo.width} x {photo.height} px of {photo.name}"
        )
        raise InputError(f"{path}: {what}; put COLMAP's images.txt or images.bin beside it, which says whose is which")
    return fitting[0]
