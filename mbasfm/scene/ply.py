"""Coloured points as binary PLY."""

from pathlib import Path

import numpy as np

from mbasfm.errors import InputError
from mbasfm.types.outcome import Cloud

VERTEX = np.dtype([("xyz", "<f4", 3), ("rgb", "u1", 3)])
PROPERTIES = (*(f"float {axis}" for axis in "xyz"), *(f"uchar {color}" for color in ("red", "green", "blue")))
END = b"end_header\n"


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
