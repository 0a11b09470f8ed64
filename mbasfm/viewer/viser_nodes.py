"""Nodes of a viser scene: a cloud, a camera, lines, a wall of photographs."""

from collections.abc import Mapping

import numpy as np
import viser
from jaxtyping import Float64, UInt8
from viser.transforms import SO3

from mbasfm.types.outcome import Cloud, View

CAMERA = (74, 144, 226)
POINT_SIZE, LARGEST_POINT = 0.0035, 0.008
"""Size of points relative to the scene's radius: in a full cloud, and in one of a few points."""
FULL_CLOUD = 100_000
WALL_WIDTH = 1.6
TILE_SHARE = 0.93
"""Share of its tile that a photograph on the wall fills."""
UPSIDE_DOWN = (0.0, 1.0, 0.0, 0.0)
"""Half a turn around x: pictures have y down, the scene has it up."""


def add_cloud(scene: viser.SceneApi, name: str, cloud: Cloud) -> viser.PointCloudHandle:
    """Add coloured points."""
    points = cloud.points.astype(np.float32)
    return scene.add_point_cloud(
        name, points, cloud.colors, point_size=point_size(len(points)), point_shape="circle", precision="float32"
    )


def point_size(count: int) -> float:
    """Point size for a cloud of ``count`` points: fewer points are larger."""
    return float(min(POINT_SIZE * max(FULL_CLOUD / max(count, 1), 1) ** (1 / 3), LARGEST_POINT))


def add_frustum(
    scene: viser.SceneApi,
    name: str,
    view: View,
    pose: Float64[np.ndarray, "3 4"],
    picture: UInt8[np.ndarray, "_ _ 3"] | None,
) -> viser.CameraFrustumHandle:
    """Add a camera with its photograph."""
    wide, tall = view.size / view.focal / 2
    return scene.add_camera_frustum(
        name,
        fov=float(2 * np.arctan(tall)),
        aspect=float(wide / tall),
        thickness=1.5,
        thickness_units="screen",
        color=CAMERA,
        image=picture,
        wxyz=wxyz(pose),
        position=pose[:, 3],
        cast_shadow=False,
        receive_shadow=False,
    )


def frustum_scale(view: View) -> float:
    """Scale that gives viser's frustum a depth of 1: viser gives all frusta the same volume."""
    wide, tall = view.size / view.focal / 2
    return float(np.cbrt(wide * tall / 3))


def wxyz(pose: Float64[np.ndarray, "3 4"]) -> Float64[np.ndarray, "4"]:
    """The rotation of a pose as a quaternion."""
    return np.asarray(SO3.from_matrix(pose[:, :3]).wxyz)


def add_lines(
    scene: viser.SceneApi,
    name: str,
    ends: Float64[np.ndarray, "L 2 3"],
    colors: UInt8[np.ndarray, "L 3"],
    thickness_px: float,
) -> viser.LineSegmentsHandle:
    """Add lines of one colour each, given as sRGB."""
    # viser takes the colours of lines, unlike all others, for linear ones and would show them pale.
    linear = (255 * ((colors / 255 + 0.055) / 1.055) ** 2.4).round().astype(np.uint8)
    both = np.repeat(linear[:, None], 2, axis=1)
    return scene.add_line_segments(name, ends, both, thickness=thickness_px, thickness_units="screen")


def add_wall(scene: viser.SceneApi, pictures: Mapping[int, UInt8[np.ndarray, "_ _ 3"]]) -> dict[int, viser.ImageHandle]:
    """Add pictures in rows and columns around the origin, seen from +z."""
    columns = max(int(np.ceil(np.sqrt(1.5 * len(pictures)))), 1)
    rows, side, tiles = -(-len(pictures) // columns), WALL_WIDTH / columns, {}
    for place, (number, picture) in enumerate(pictures.items()):
        height, width = TILE_SHARE * side * np.array(picture.shape[:2]) / max(picture.shape[:2])
        row, column = divmod(place, columns)
        position = ((column - (columns - 1) / 2) * side, ((rows - 1) / 2 - row) * side, 0.0)
        tiles[number] = scene.add_image(
            f"/wall/{number}", picture, float(width), float(height), wxyz=UPSIDE_DOWN, position=position
        )
    return tiles
