"""Photographs of a corner of two walls, with depth and poses: a map and queries."""

import cv2
import numpy as np
from made_up import make_pose

SIZE, FOCAL = (320, 240), 300.0
MAP = {f"map{number}.png": make_pose([2.0, 6.0 * number - 12, 0.0], [0.15 * number, 0.1, 3.0]) for number in range(5)}
QUERIES = {
    "a.png": make_pose([-3.0, 4.0, 2.0], [0.2, 0.0, 2.7]),
    "b.png": make_pose([1.0, -7.0, -3.0], [0.0, 0.2, 3.2]),
}


def texture(seed):
    """Blobs of many sizes."""
    generator = np.random.default_rng(seed)
    layers = [cv2.resize(generator.random((n, n)).astype(np.float32), (1024, 1024)) for n in (16, 48, 128, 300)]
    values = sum(weight * layer for weight, layer in zip((1.0, 1.0, 0.8, 0.6), layers, strict=True))
    return (255 * (values - values.min()) / np.ptp(values)).astype(np.uint8)


def see(pose, seed):
    """Photograph and depth of two walls that meet behind the origin at a right angle, each with its own texture."""
    column, row = np.meshgrid(np.arange(SIZE[0]) + 0.5, np.arange(SIZE[1]) + 0.5)
    rays = np.stack([(column - SIZE[0] / 2) / FOCAL, (row - SIZE[1] / 2) / FOCAL, np.ones_like(column)], -1)
    centre, rays = -pose[:, :3].T @ pose[:, 3], rays @ pose[:, :3]
    depth, image = np.full(column.shape, np.inf), np.zeros(column.shape, np.float32)
    for wall, normal in enumerate(np.array([[1.0, 0.0, 1.0], [-1.0, 0.0, 1.0]]) / np.sqrt(2)):
        along = (1.0 - centre @ normal) / (rays @ normal)
        along[along <= 0] = np.inf
        points = centre + rays * np.where(np.isfinite(along), along, 0)[..., None]
        place = 512 + 160 * np.stack([points @ np.cross(normal, [0, 1, 0]), points[..., 1]], -1)
        shown = cv2.remap(texture(10 * seed + wall), place.astype(np.float32), None, cv2.INTER_LINEAR)
        nearer = along < depth
        depth, image = np.where(nearer, along, depth), np.where(nearer, shown, image)
    return np.repeat(image[..., None], 3, -1).astype(np.uint8), depth
