"""Thousands of cameras above a hilly plain: as many neighbours and matches per frame however many frames there are.

Frames observe common landmarks, so that keypoints, two-view geometry and samples belong together as in a real run.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from scipy.spatial import cKDTree
from scipy.spatial.transform import Rotation

from mbasfm.sfm.sample_store import StoredSamples, create_samples
from mbasfm.types.cameras import Cameras, Intrinsics
from mbasfm.types.observations import BLOCK_SAMPLES, Keypoints, Samples, TwoView

SIZE, FOCAL = (1024, 768), 800.0
SPACING, HEIGHT, TILT_DEG = 0.9, 10.0, 6.0
LANDMARK_DENSITY = 5.0
NOISE_PX, OUTLIERS = 1.0, 0.1
DEPTH_SCALE, DEPTH_SMOOTH = 0.2, 0.05
WRONG_PAIRS, PAIR_ERROR_DEG, MATCHES_PER_PAIR = 0.02, 1.0, 100


@dataclass(frozen=True)
class Terrain:
    """The truth, and what frames observe of it."""

    truth: Cameras
    pairs: np.ndarray
    """(P, 2), i < j: the nearest of all pairs."""
    landmark_of: list[np.ndarray]
    """Landmarks that each frame sees, sorted."""
    keypoints: list[Keypoints]

    def common(self, i: int, j: int) -> np.ndarray:
        """Keypoints of i and j that show the same landmark (M, 2)."""
        _, first, second = np.intersect1d(
            self.landmark_of[i], self.landmark_of[j], assume_unique=True, return_indices=True
        )
        return np.stack([first, second], -1)


def make_terrain(num_frames: int, degree: float, seed: int = 0) -> Terrain:
    """Cameras at random places that look down; the ``degree / 2`` nearest pairs per frame."""
    generator = np.random.default_rng(seed)
    side = SPACING * np.sqrt(num_frames)
    centers = np.column_stack([generator.uniform(0, side, (num_frames, 2)), generator.uniform(9, 11, num_frames)])
    tilt = Rotation.from_rotvec(np.deg2rad(TILT_DEG) * generator.uniform(-1, 1, (num_frames, 3)) * [1, 1, 0])
    yaw = Rotation.from_rotvec(generator.uniform(-np.pi, np.pi, (num_frames, 1)) * [[0, 0, 1]])
    down = Rotation.from_rotvec([np.pi, 0, 0])
    rotation = (tilt * down * yaw).as_matrix()
    cam_from_world = np.concatenate([rotation, -rotation @ centers[..., None]], -1)
    scale = np.exp(DEPTH_SCALE * generator.standard_normal(num_frames))
    truth = Cameras(
        torch.from_numpy(cam_from_world),
        _intrinsics(num_frames),
        torch.from_numpy(scale),
        torch.zeros(num_frames, dtype=torch.float64),
        torch.zeros(num_frames, dtype=torch.bool),
    )
    landmarks = _landmarks(side, generator)
    seen, keypoints = _observe(cam_from_world, scale, centers, landmarks, generator)
    return Terrain(truth, _nearest_pairs(centers, degree), seen, keypoints)


def _intrinsics(num_frames: int) -> Intrinsics:
    sizes = torch.tensor([SIZE]).expand(num_frames, 2).clone()
    group = torch.zeros(num_frames, dtype=torch.int64)
    return Intrinsics.pinhole(torch.full((num_frames,), FOCAL, dtype=torch.float64), sizes, group)


def _landmarks(side: float, generator: np.random.Generator) -> np.ndarray:
    x, y = generator.uniform(-HEIGHT, side + HEIGHT, (2, int(LANDMARK_DENSITY * (side + 2 * HEIGHT) ** 2)))
    z = 0.8 * (np.sin(0.9 * x + 1) * np.cos(0.7 * y)) + 0.5 * np.sin(0.31 * x - 0.53 * y)
    return np.column_stack([x, y, z])


def _observe(
    poses: np.ndarray, scale: np.ndarray, centers: np.ndarray, landmarks: np.ndarray, generator: np.random.Generator
) -> tuple[list[np.ndarray], list[Keypoints]]:
    tree, seen, keypoints = cKDTree(landmarks[:, :2]), [], []
    for pose, own_scale, center in zip(poses, scale, centers, strict=True):
        near = np.array(sorted(tree.query_ball_point(center[:2], 1.4 * HEIGHT)))
        points = landmarks[near] @ pose[:, :3].T + pose[:, 3]
        pixels = FOCAL * points[:, :2] / points[:, 2:] + np.array(SIZE) / 2
        inside = ((pixels > 0) & (pixels < SIZE)).all(1)
        pixels = pixels[inside] + NOISE_PX * generator.standard_normal((inside.sum(), 2))
        terms = generator.standard_normal((2, 2))
        place = np.pi * pixels / SIZE
        smooth = (np.cos(place @ terms) * [0.7, 0.7]).sum(1)
        depth = points[inside, 2] * np.exp(DEPTH_SMOOTH * smooth)
        seen.append(near[inside])
        keypoints.append(Keypoints(pixels.astype(np.float32), (depth / own_scale).astype(np.float32)))
    return seen, keypoints


def _nearest_pairs(centers: np.ndarray, degree: float) -> np.ndarray:
    count = int(degree * len(centers) / 2)
    distance, index = cKDTree(centers).query(centers, k=min(len(centers), int(2.5 * degree)))
    first = np.repeat(np.arange(len(centers)), index.shape[1])
    pairs, distance = np.stack([first, index.ravel()], -1), distance.ravel()
    pairs, distance = pairs[pairs[:, 0] < pairs[:, 1]], distance[pairs[:, 0] < pairs[:, 1]]
    pairs = pairs[np.argsort(distance, kind="stable")[:count]]
    return pairs[np.lexsort([pairs[:, 1], pairs[:, 0]])]


def store_samples(terrain: Terrain, folder: Path, samples_per_edge: int, seed: int = 0) -> StoredSamples:
    """Samples of both directions of all pairs, straight into shards."""
    generator = np.random.default_rng([seed, 1])
    edges = np.concatenate([terrain.pairs, terrain.pairs[:, ::-1]])
    edges = edges[np.lexsort([edges[:, 1], edges[:, 0]])]
    mass = torch.full((len(edges),), float(samples_per_edge))
    stored = create_samples(folder, torch.from_numpy(edges), mass, samples_per_edge, BLOCK_SAMPLES // samples_per_edge)
    for low in range(0, len(edges), 4096):
        rows = np.empty((len(edges[low : low + 4096]), samples_per_edge, 5), np.float32)
        for number, (i, j) in enumerate(edges[low : low + 4096].tolist()):
            first, second = terrain.common(i, j).T
            chosen = generator.integers(0, len(first), samples_per_edge)
            source, target = terrain.keypoints[i], terrain.keypoints[j]
            rows[number, :, :2], rows[number, :, 4] = source.pixels[first[chosen]], source.raw_depth[first[chosen]]
            rows[number, :, 2:4] = target.pixels[second[chosen]]
        wrong = generator.random(rows.shape[:2]) < OUTLIERS
        rows[wrong, 2:4] = generator.uniform(0, 1, (int(wrong.sum()), 2)) * SIZE
        some = torch.arange(low, low + len(rows))
        stored.put(some, Samples(stored.edges[some], torch.from_numpy(rows), torch.ones(rows.shape[:2])))
    return stored


def two_views(terrain: Terrain, seed: int = 0) -> tuple[list[TwoView], dict[tuple[int, int], bool]]:
    """What verification would say: poses about a degree off, some pairs wrong altogether; and which are."""
    generator = np.random.default_rng([seed, 2])
    poses, views, wrong = terrain.truth.cam_from_world.numpy(), [], {}
    for i, j in terrain.pairs.tolist():
        rotation = poses[j, :, :3] @ poses[i, :, :3].T
        step = poses[j, :, 3] - rotation @ poses[i, :, 3]
        error = np.deg2rad(PAIR_ERROR_DEG) * generator.standard_normal((2, 3))
        wrong[i, j] = is_wrong = bool(generator.random() < WRONG_PAIRS)
        turn = Rotation.from_rotvec(error[0] if not is_wrong else generator.uniform(-1, 1, 3)).as_matrix()
        step = step / np.linalg.norm(step) + error[1]
        matches = terrain.common(i, j)
        keep = generator.permutation(len(matches))[:MATCHES_PER_PAIR]
        pose = np.column_stack([turn @ rotation, step / np.linalg.norm(step)])
        views.append(TwoView(i, j, matches[keep], pose, np.eye(3), False, -50.0, 0.9, (0.6, 0.6)))
    return views, wrong
