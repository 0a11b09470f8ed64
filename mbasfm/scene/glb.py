"""Points and cameras as one binary glTF, which browsers and all 3-D viewers open."""

import json
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float64

from mbasfm.types.outcome import Cloud, View

MAGIC, VERSION, JSON_CHUNK, BINARY_CHUNK = 0x46546C67, 2, 0x4E4F534A, 0x004E4942
FLOAT, BYTE = 5126, 5121
ARRAY_BUFFER = 34962
POINTS, LINES = 0, 1
FRUSTUM_SHARE = 0.04
"""Depth of a drawn camera as a share of the scene's size."""
FRUSTUM_COLOR = (255, 96, 0)
CORNERS = np.array([[0, 0], [1, 0], [1, 1], [0, 1]])
FRUSTUM_LINES = ((0, 1), (0, 2), (0, 3), (0, 4), (1, 2), (2, 3), (3, 4), (4, 1))
"""Lines from the centre (0) to the corners of the image, and around them."""
UPRIGHT = [1.0, 0.0, 0.0, 0.0]
"""Half a turn around x: glTF's y points up, that of photographs down."""


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
