"""Covisible pairs of images, by sensor depth and true poses: ScanNet's protocol counts only these."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Bool, Float32, Float64, Int64
from torch import Tensor

from mbasfm.datasets.base import DatasetScene
from mbasfm.errors import InputError
from mbasfm.evaluation.metrics import all_pairs
from mbasfm.geometry.camera import values_at
from mbasfm.io.calibration import at_resolution
from mbasfm.io.images import inspect_photos
from mbasfm.models.depth.files import FilesDepth
from mbasfm.types.observations import Photo

COLUMNS, ROWS = 160, 120
"""Resolution of the depth maps."""
STEP = 5
"""Spacing of the pixels that are projected into other images."""
MIN_SHARE = 0.15
"""Share of an image's pixels that another one must see: nu, as for edges of the pose graph."""
MAX_DEPTH_RATIO = 1.1
"""Largest ratio of depths; beyond it, the point is occluded."""


def covisible_pairs(scene: DatasetScene) -> Int64[Tensor, "P 2"]:
    """Pairs i < j of which one image shows at least 15 % of what the other does."""
    if scene.depth is None:
        raise InputError(f"{scene.name}: covisible pairs need sensor depth, which is missing; export it too")
    photos = inspect_photos([scene.images / name for name in scene.names])
    maps, rays = _depth_maps(scene, photos), _rays(scene, photos)
    share = np.stack([_shares(frame, maps, rays, scene.cam_from_world) for frame in range(len(scene.names))])
    pairs = all_pairs(len(scene.names))
    one, other = (torch.from_numpy(matrix)[tuple(pairs.T)] for matrix in (share, share.T))
    return pairs[torch.maximum(one, other) >= MIN_SHARE]


def _centres() -> Float32[np.ndarray, "h w 2"]:
    """Centres of the pixels of the small maps, as shares of width and height."""
    across, down = ((np.arange(side, dtype=np.float32) + 0.5) / side for side in (COLUMNS, ROWS))
    return np.stack(np.meshgrid(across, down), -1)


def _depth_maps(scene: DatasetScene, photos: Sequence[Photo]) -> Float32[np.ndarray, "N h w"]:
    """Small depth maps, NaN where unknown."""
    model = FilesDepth(str(scene.depth))
    places, found = _centres().reshape(-1, 2), []
    nothing = np.zeros((1, 1, 3), np.uint8)
    for name, photo in zip(scene.names, photos, strict=True):
        known = model.find(name) is not None
        values = (
            model.estimate(replace(photo, name=name), nothing).values if known else np.full((1, 1), np.nan, np.float32)
        )
        found.append(values_at(values, places).reshape(ROWS, COLUMNS).astype(np.float32))
    return np.stack(found)


def _rays(scene: DatasetScene, photos: Sequence[Photo]) -> Float64[np.ndarray, "N 2 2"]:
    """Focal lengths and principal points as shares of width and height, per image."""
    found = []
    for name, photo, camera in zip(scene.names, photos, scene.cameras, strict=True):
        if camera is None:
            raise InputError(f"{scene.name}: the dataset has no intrinsics of {name}")
        known = at_resolution(camera, photo, scene.images / name)
        found.append(np.array([known.focal, known.center]) / (photo.width, photo.height))
    return np.stack(found)


def _shares(
    frame: int,
    maps: Float32[np.ndarray, "N h w"],
    rays: Float64[np.ndarray, "N 2 2"],
    cam_from_world: Float64[np.ndarray, "N 3 4"],
) -> Float64[np.ndarray, " N"]:
    """Share of one image's pixels that each image sees."""
    depth = maps[frame, ::STEP, ::STEP].reshape(-1).astype(np.float64)
    known = depth > 0  # False for NaN
    places = _centres()[::STEP, ::STEP].reshape(-1, 2)[known]
    focal, center = rays[frame]
    points = np.column_stack([(places - center) / focal, np.ones(len(places))]) * depth[known, None]
    rotation, translation = cam_from_world[frame, :, :3], cam_from_world[frame, :, 3]
    points_world = (points - translation) @ rotation
    seen = cam_from_world[:, :, :3] @ points_world.T + cam_from_world[:, :, 3:]
    with np.errstate(divide="ignore", invalid="ignore"):
        pixels = seen[:, :2] / seen[:, 2:] * rays[:, 0, :, None] + rays[:, 1, :, None]
    inside = (seen[:, 2] > 0) & (pixels > 0).all(1) & (pixels < 1).all(1)
    return _agree(maps, pixels, seen[:, 2], inside).mean(1) if known.any() else np.zeros(len(maps))


def _agree(
    maps: Float32[np.ndarray, "N h w"],
    pixels: Float64[np.ndarray, "N 2 M"],
    depth: Float64[np.ndarray, "N M"],
    inside: Bool[np.ndarray, "N M"],
) -> Bool[np.ndarray, "N M"]:
    """Whether points are where the other image's depth says that something is."""
    image, _ = rows = np.nonzero(inside)
    across, down = pixels[image, 0, rows[1]], pixels[image, 1, rows[1]]
    there = maps[image, (down * ROWS).astype(int), (across * COLUMNS).astype(int)]
    found = np.zeros(inside.shape, dtype=bool)
    with np.errstate(invalid="ignore"):
        ratio = depth[rows] / there
        found[rows] = (ratio < MAX_DEPTH_RATIO) & (ratio > 1 / MAX_DEPTH_RATIO)
    return found
