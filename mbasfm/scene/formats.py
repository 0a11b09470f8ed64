"""Formats of other programs: depth images, PLY, TUM trajectories, binary glTF, and nerfstudio's transforms.json.

Aligned depth is exact as npz, in 16 bits for nerfstudio, and inverse in 16 bits for 3D Gaussian splatting.
"""

import json
import math
import struct
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import cv2
import numpy as np
from jaxtyping import Float32, Float64, UInt16
from scipy.spatial.transform import Rotation

from mbasfm.errors import InputError
from mbasfm.io.files import read_arrays
from mbasfm.types.outcome import Cloud, View

LARGEST = 65535
STEPS = 65536
"""Divisor of the 16-bit values in 3D Gaussian splatting."""
MILLI = 1e-3
"""Default unit of nerfstudio's depth images."""
MIN_STEPS, FULL_STEPS = 200, 1000
"""Steps of the median depth: below the first, the default unit is too coarse; another unit reaches the second."""
NEAR = 0.999
"""Quantile of inverse depth that must fit into an image."""
VERTEX = np.dtype([("xyz", "<f4", 3), ("rgb", "u1", 3)])
PROPERTIES = (*(f"float {axis}" for axis in "xyz"), *(f"uchar {color}" for color in ("red", "green", "blue")))
END = b"end_header\n"
"""Points of a PLY file, and how its header describes them."""
MAGIC, VERSION, JSON_CHUNK, BINARY_CHUNK = 0x46546C67, 2, 0x4E4F534A, 0x004E4942
FLOAT, BYTE = 5126, 5121
ARRAY_BUFFER = 34962
POINTS, LINES = 0, 1
"""Numbers by which binary glTF names its parts."""
FRUSTUM_SHARE = 0.04
"""Depth of a drawn camera as a share of the scene's size."""
FRUSTUM_COLOR = (255, 96, 0)
CORNERS = np.array([[0, 0], [1, 0], [1, 1], [0, 1]])
FRUSTUM_LINES = ((0, 1), (0, 2), (0, 3), (0, 4), (1, 2), (2, 3), (3, 4), (4, 1))
"""Lines from the centre (0) to the corners of the image, and around them."""
UPRIGHT = [1.0, 0.0, 0.0, 0.0]
"""Half a turn around x: glTF's y points up, that of photographs down."""


def stems_of(names: Iterable[str]) -> dict[str, str]:
    """Names without their extension, unless that makes two the same."""
    names = list(names)
    bare = [str(PurePosixPath(name).with_suffix("")) for name in names]
    count = Counter(bare)
    return {name: name if count[stem] > 1 else stem for name, stem in zip(names, bare, strict=True)}


def write_depth(path: Path, depth: Float32[np.ndarray, "h w"]) -> None:
    """Write depth in the world's unit, NaN where unknown."""
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, depth=depth)


def read_depth(path: Path) -> Float32[np.ndarray, "h w"]:
    """Depth map that ``write_depth`` wrote."""
    depth = read_arrays(path).get("depth")
    if depth is None or depth.ndim != 2 or depth.size == 0 or depth.dtype != np.float32:
        raise InputError(f"{path}: not a depth map of this program; run mba sfm again")
    return depth


def thinned(depth: Float32[np.ndarray, "h w"], count: int) -> Float32[np.ndarray, " _"]:
    """At most ``count`` of the known values, evenly spaced."""
    known = depth[np.isfinite(depth)]
    if len(known) <= count:
        return known
    return known[np.linspace(0, len(known) - 1, count).round().astype(np.int64)]


def depth_unit(depths: Sequence[Float32[np.ndarray, "..."]]) -> float:
    """World units per step of a 16-bit image: a thousandth where suitable, else another power of ten.

    The median of all depths decides: maps of disparity end far beyond what can be seen.
    """
    known = np.concatenate([depth[np.isfinite(depth)] for depth in depths])
    middle = float(np.median(known)) if known.size else 1.0
    if MIN_STEPS * MILLI <= middle < 10 * FULL_STEPS * MILLI:
        return MILLI
    return float(f"1e{math.floor(math.log10(middle / FULL_STEPS))}")


def depth_image(depth: Float32[np.ndarray, "h w"], unit: float) -> UInt16[np.ndarray, "h w"]:
    """Depth in steps of a unit; 0 where it is unknown or does not fit."""
    steps = np.round(depth.astype(np.float64) / unit)
    return np.where((steps >= 1) & (steps <= LARGEST), steps, 0).astype(np.uint16)


def inverse_scale(depths: Sequence[Float32[np.ndarray, "..."]]) -> float:
    """Common factor of all inverse depth images: 3D Gaussian splatting distrusts images with an unusual one."""
    inverse = np.concatenate([1 / depth[np.isfinite(depth)] for depth in depths])
    return float(np.quantile(inverse, NEAR)) * STEPS / LARGEST if inverse.size else 1.0


def inverse_image(depth: Float32[np.ndarray, "h w"], scale: float) -> UInt16[np.ndarray, "h w"]:
    """Inverse depth = value / 65536 * scale; what is nearer than that allows is capped, 0 is far or unknown."""
    steps = np.round(STEPS / (scale * depth.astype(np.float64)))
    return np.where(np.isnan(steps), 0, np.clip(steps, 0, LARGEST)).astype(np.uint16)


def write_16_bit(path: Path, values: UInt16[np.ndarray, "h w"]) -> None:
    """Write a 16-bit PNG."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(cv2.imencode(".png", values)[1].tobytes())


def write_ply(path: Path, cloud: Cloud) -> None:
    """Write positions as 32-bit floats, colours as bytes."""
    vertices = np.zeros(len(cloud.points), VERTEX)
    vertices["xyz"], vertices["rgb"] = cloud.points, cloud.colors
    path.write_bytes(_header(len(vertices)) + vertices.tobytes())


def read_ply(path: Path) -> Cloud:
    """Cloud that ``write_ply`` wrote; files of other programs are refused."""
    content = path.read_bytes()
    header, _, body = content.partition(END)
    count = len(body) // VERTEX.itemsize
    if header + END != _header(count) or len(body) != count * VERTEX.itemsize:
        raise InputError(f"{path}: not a point cloud of this program; make it again with mba export --format ply")
    vertices = np.frombuffer(body, VERTEX)
    if not np.isfinite(vertices["xyz"]).all():
        raise InputError(f"{path}: has points that are not finite; make it again with mba export --format ply")
    return Cloud(vertices["xyz"].astype(np.float64), vertices["rgb"].copy())


def _header(count: int) -> bytes:
    lines = ["ply", "format binary_little_endian 1.0", f"element vertex {count}"]
    lines += [f"property {name}" for name in PROPERTIES]
    return "".join(f"{line}\n" for line in lines).encode() + END


def tum_text(views: Sequence[View], seconds: Mapping[str, float]) -> str:
    """TUM trajectory: time, camera centre, quaternion x y z w of world_from_cam; without times, photograph numbers."""
    lines = ["# time tx ty tz qx qy qz qw" if seconds else "# number tx ty tz qx qy qz qw"]
    for view in views:
        pose = view.world_from_cam
        stamp = f"{seconds[view.name]:.6f}" if seconds else str(view.number)
        numbers = [*pose[:, 3], *Rotation.from_matrix(pose[:, :3]).as_quat()]
        lines.append(" ".join([stamp, *(f"{number:.9f}" for number in numbers)]))
    return "\n".join(lines) + "\n"


def glb_bytes(cloud: Cloud, views: Sequence[View]) -> bytes:
    """Binary glTF file of the scene."""
    lines = frusta(views, FRUSTUM_SHARE * _extent(cloud, views))
    parts = [(POINTS, cloud.points, cloud.colors), (LINES, lines, np.tile(FRUSTUM_COLOR, (len(lines), 1)))]
    binary, views_of, meshes = b"", [], []
    accessors: list[dict[str, Any]] = []
    for mode, points, colors in parts:
        if len(points) == 0:
            continue
        number = len(accessors)
        position = points.astype("<f4")
        opaque = np.column_stack([colors, np.full(len(colors), 255)]).astype(np.uint8)
        for data in (position.tobytes(), opaque.tobytes()):
            views_of.append({"buffer": 0, "byteOffset": len(binary), "byteLength": len(data), "target": ARRAY_BUFFER})
            binary += data
        accessors += _accessors(position, number)
        attributes = {"POSITION": number, "COLOR_0": number + 1}
        meshes.append({"primitives": [{"attributes": attributes, "mode": mode}]})
    content = {
        "asset": {"version": "2.0", "generator": "mbasfm"},
        "scene": 0,
        "scenes": [{"nodes": list(range(len(meshes)))}],
        "nodes": [{"mesh": number, "rotation": UPRIGHT} for number in range(len(meshes))],
        "meshes": meshes,
        "accessors": accessors,
        "bufferViews": views_of,
        "buffers": [{"byteLength": len(binary)}],
    }
    return _container(content, binary)


def frusta(views: Sequence[View], depth: float) -> Float64[np.ndarray, "M 3"]:
    """Ends of the lines that draw the cameras, two by two."""
    found = [np.zeros((0, 3))]
    for view in views:
        corners = view.lift(CORNERS * np.array(view.size, dtype=np.float64), np.full(4, depth))
        ends = np.vstack([view.world_from_cam[:, 3], corners])
        found.append(ends[np.array(FRUSTUM_LINES).ravel()])
    return np.concatenate(found)


def _extent(cloud: Cloud, views: Sequence[View]) -> float:
    """Size of the scene: the middle nine tenths of points and all cameras."""
    centers = np.stack([view.world_from_cam[:, 3] for view in views])
    low, high = np.quantile(cloud.points, [0.05, 0.95], axis=0) if len(cloud.points) else (centers[0], centers[0])
    return float(np.linalg.norm(np.maximum(high, centers.max(0)) - np.minimum(low, centers.min(0)))) or 1.0


def _accessors(position: np.ndarray, number: int) -> list[dict[str, Any]]:
    bounds = {"min": position.min(0).tolist(), "max": position.max(0).tolist()}
    count = len(position)
    return [
        {"bufferView": number, "componentType": FLOAT, "count": count, "type": "VEC3", **bounds},
        {"bufferView": number + 1, "componentType": BYTE, "normalized": True, "count": count, "type": "VEC4"},
    ]


def _container(content: dict[str, Any], binary: bytes) -> bytes:
    text = json.dumps(content).encode()
    chunks = [(JSON_CHUNK, text + b" " * (-len(text) % 4)), (BINARY_CHUNK, binary + b"\0" * (-len(binary) % 4))]
    body = b"".join(struct.pack("<II", len(data), kind) + data for kind, data in chunks)
    return struct.pack("<III", MAGIC, VERSION, 12 + len(body)) + body


@dataclass(frozen=True)
class Companions:
    """Files beside transforms.json, by paths relative to it."""

    images: Sequence[str]
    """Images, one per view."""
    depths: Sequence[str] = ()
    """Depth images, one per view or none at all, as nerfstudio requires."""
    masks: Sequence[str] = ()
    """Masks, one per view or none at all."""
    depth_unit: float | None = None
    """World units per step of the depth images."""
    cloud: str | None = None


def transforms(views: Sequence[View], files: Companions) -> dict[str, Any]:
    """Content of transforms.json: poses as OpenGL camera-to-world; intrinsics on top if shared, else per frame."""
    shared = len({view.camera for view in views}) == 1
    content: dict[str, Any] = {"camera_model": "OPENCV"}
    if shared:
        content |= _intrinsics(views[0])
    content["frames"] = [_frame(view, name, shared) for view, name in zip(views, files.images, strict=True)]
    for frame, depth in zip(content["frames"], files.depths, strict=False):
        frame["depth_file_path"] = depth
    for frame, mask in zip(content["frames"], files.masks, strict=False):
        frame["mask_path"] = mask
    if files.depths:
        content["depth_unit_scale_factor"] = files.depth_unit
    content["applied_transform"] = np.eye(4)[:3].tolist()
    if files.cloud is not None:
        content["ply_file_path"] = files.cloud
    return content


def _frame(view: View, name: str, shared: bool) -> dict[str, Any]:
    matrix = {"file_path": name, "transform_matrix": opengl_pose(view).tolist()}
    return matrix if shared else matrix | _intrinsics(view)


def opengl_pose(view: View) -> Float64[np.ndarray, "4 4"]:
    """Pose world_from_cam of a camera whose y points up and whose z points back."""
    pose = np.vstack([view.world_from_cam, [0, 0, 0, 1]])
    return pose * np.array([1.0, -1.0, -1.0, 1.0])


def _intrinsics(view: View) -> dict[str, Any]:
    (fx, fy), (cx, cy), (width, height) = view.focal.tolist(), view.center.tolist(), view.size
    lens = dict.fromkeys(("k1", "k2", "p1", "p2"), 0.0)
    return {"fl_x": fx, "fl_y": fy, "cx": cx, "cy": cy, "w": width, "h": height} | lens
