"""COLMAP models of any origin, checked.

pycolmap believes what a file says of itself, and a damaged one may claim anything. Binary files are walked through
first, so that counts never exceed what is there.
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath

import numpy as np
import pycolmap

from mbasfm.errors import InputError
from mbasfm.io.colmap import CAMERA_RECORD, COUNT, IMAGE_RECORD, POINT_BYTES

POINT = struct.Struct("<Q3d3BdQ")
"""Number, place, colour, error, length of the track."""
TRACK_BYTES = 8
RIG = struct.Struct("<II")
"""Number, number of sensors."""
SENSOR_BYTES, POSE_BYTES = 8, 56
FRAME = struct.Struct("<II7dI")
"""Number, rig, pose, number of its data."""
DATA_BYTES = 16
MAX_SIDE_PX = 1_000_000
MAX_TURN_ERROR = 1e-3
MIN_FOCAL_PX, LARGEST = 1e-3, 1e12
ADVICE = "export it again"


def read_model(folder: Path) -> pycolmap.Reconstruction:
    """A COLMAP model, binary or text, or an error that names what is wrong."""
    for name, walk in WALKS.items():
        path = folder / f"{name}.bin"
        if path.is_file():
            _check_sizes(path, walk)
    try:
        model = pycolmap.Reconstruction(folder)
        names = [image.name for image in model.images.values()]  # decoded here
    except Exception as error:  # C++ errors come through as whatever fits them best
        first = str(error).strip().split("\n")[0]
        raise InputError(f"{folder}: cannot be read as a COLMAP model ({first}); {ADVICE}") from error
    _check_names(names, folder)
    _check_values(model, folder)
    return model


# ----------------------------------------------------------------------------------------------------------------
# Sizes: each walk returns where the things end that a file says it holds


def _check_sizes(path: Path, walk: Callable[[bytes], int]) -> None:
    try:
        content = path.read_bytes()
        end = walk(content)
    except (OSError, struct.error, ValueError, OverflowError) as error:
        raise InputError(f"{path}: cut off or damaged ({error}); {ADVICE}") from error
    if end != len(content):
        raise InputError(f"{path}: has {len(content)} bytes, but announces {end}; it is cut off or damaged, {ADVICE}")


def _walk_cameras(content: bytes) -> int:
    (count,), position = COUNT.unpack_from(content), COUNT.size
    for _ in range(count):
        _, model, _, _ = CAMERA_RECORD.unpack_from(content, position)
        position += CAMERA_RECORD.size + 8 * _num_parameters(model)
    return position


def _num_parameters(model: int) -> int:
    if model not in {kind.value for kind in pycolmap.CameraModelId.__members__.values() if kind.value >= 0}:
        raise ValueError(f"no camera model has the number {model}")
    return len(pycolmap.Camera.create_from_model_id(1, pycolmap.CameraModelId(model), 1.0, 1, 1).params)


def _walk_images(content: bytes) -> int:
    (count,), position = COUNT.unpack_from(content), COUNT.size
    for _ in range(count):
        IMAGE_RECORD.unpack_from(content, position)
        end_of_name = content.index(b"\0", position + IMAGE_RECORD.size)
        (num_observations,) = COUNT.unpack_from(content, end_of_name + 1)
        position = end_of_name + 1 + COUNT.size + POINT_BYTES * num_observations
    return position


def _walk_points(content: bytes) -> int:
    (count,), position = COUNT.unpack_from(content), COUNT.size
    for _ in range(count):
        position += POINT.size + TRACK_BYTES * POINT.unpack_from(content, position)[-1]
    return position


def _walk_rigs(content: bytes) -> int:
    (count,), position = COUNT.unpack_from(content), COUNT.size
    for _ in range(count):
        _, num_sensors = RIG.unpack_from(content, position)
        position += RIG.size + (SENSOR_BYTES if num_sensors else 0)  # the first has no pose: it is the rig
        for _ in range(num_sensors - 1):
            has_pose = content[position + SENSOR_BYTES : position + SENSOR_BYTES + 1]
            if not has_pose:
                raise ValueError("a rig ends too early")
            position += SENSOR_BYTES + 1 + (POSE_BYTES if has_pose != b"\0" else 0)
    return position


def _walk_frames(content: bytes) -> int:
    (count,), position = COUNT.unpack_from(content), COUNT.size
    for _ in range(count):
        position += FRAME.size + DATA_BYTES * FRAME.unpack_from(content, position)[-1]
    return position


WALKS: Mapping[str, Callable[[bytes], int]] = {
    "cameras": _walk_cameras,
    "images": _walk_images,
    "points3D": _walk_points,
    "rigs": _walk_rigs,
    "frames": _walk_frames,
}


# ----------------------------------------------------------------------------------------------------------------
# Values


def _check_names(names: Sequence[str], folder: Path) -> None:
    """Refuse names that lead out of a folder of photographs: files are written by them."""
    for name in names:
        path = PurePosixPath(name)
        if not name or path.is_absolute() or ".." in path.parts or not name.isprintable():
            raise InputError(f"{folder}: {name!r} cannot be the name of a photograph; {ADVICE}")
    if len(set(names)) < len(names):
        raise InputError(f"{folder}: two images have the same name; {ADVICE}")


def _check_values(model: pycolmap.Reconstruction, folder: Path) -> None:
    """Refuse numbers that no camera and no point can have."""
    for number, camera in model.cameras.items():
        focal = np.array([camera.params[index] for index in camera.focal_length_idxs()])
        sizes_fit = 0 < camera.width < MAX_SIDE_PX and 0 < camera.height < MAX_SIDE_PX
        if not (sizes_fit and _are_sensible(camera.params) and (focal > MIN_FOCAL_PX).all()):
            raise InputError(f"{folder}: camera {number} is impossible ({camera.params_to_string()}); {ADVICE}")
    for image in model.images.values():
        if image.has_pose and not _is_pose(image.cam_from_world().matrix()):
            raise InputError(f"{folder}: the pose of {image.name} is impossible; {ADVICE}")
        pixels = np.array([point.xy for point in image.points2D])
        if not _are_sensible(pixels):
            raise InputError(f"{folder}: {image.name} has keypoints that are not numbers; {ADVICE}")
    points = np.array([point.xyz for point in model.points3D.values()])
    if not _are_sensible(points):
        raise InputError(f"{folder}: points3D has places that are not numbers; {ADVICE}")


def _is_pose(matrix: np.ndarray) -> bool:
    turn = matrix[:, :3]
    return _are_sensible(matrix) and float(np.abs(turn @ turn.T - np.eye(3)).max()) < MAX_TURN_ERROR


def _are_sensible(values: np.ndarray) -> bool:
    return bool((np.abs(values) < LARGEST).all())  # NaN is not
