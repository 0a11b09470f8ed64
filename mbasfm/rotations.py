"""Rotations and positions of all frames from the relative poses of all pairs, and what they say back about each pair.

One two-view rotation may be several degrees off, above all where matches are few and the field of view is narrow; all
pairs together are far better. Under the averaged rotation a pair's translation is found again, linearly.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Float64
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import breadth_first_order, connected_components, minimum_spanning_tree
from scipy.spatial.transform import Rotation

from mbasfm.geometry import unit_rays
from mbasfm.sampling import Keypoints
from mbasfm.twoview import TwoView
from mbasfm.types import Intrinsics

ERROR_FLOOR_DEG, ERROR_OF_ONE_DEG = 0.3, 150.0
"""A two-view rotation of strength s is off by about the floor, or 150 / s degrees, whichever is larger."""
TOLERANCES_DEG = (20.0, 20.0, 10.0, 10.0, 5.0, 5.0, 5.0, 5.0)
"""Where a pair stops pulling, round by round."""
MAX_DISAGREEMENT_DEG = 15.0
"""Pairs further from the average are mismatched."""
DIRECTION_ROUNDS = 8
CONVEX_ROUNDS, POSITION_TOLERANCES_DEG = 40, (20.0, 20.0, 10.0, 10.0, 5.0, 5.0, 5.0, 5.0)
SHORTEST, SLACK = 1e-2, 1e-3
"""Of a deviation, in units of the shortest baseline; and how little distances are held where directions decide."""


def rays_of(keypoints: Sequence[Keypoints], intrinsics: Intrinsics) -> list[Float64[np.ndarray, "_ 3"]]:
    """Undistorted rays (x/z, y/z, 1) of all keypoints of all frames."""
    return [
        unit_rays(torch.from_numpy(points.pixels).double(), intrinsics, torch.tensor(frame)).numpy()
        for frame, points in enumerate(keypoints)
    ]


def average_rotations(views: Sequence[TwoView], num_frames: int) -> Float64[np.ndarray, "N 3 3"]:
    """cam_from_world rotations that agree best with all pairs; every component has a gauge of its own.

    Starts along the strongest spanning tree; then iteratively re-weighted least squares, in which the correction of all
    frames solves one weighted graph Laplacian (Chatterjee & Govindu, ICCV 2013). A wrong pair in the tree can hold its
    frame for ever: pairs that contradict their triangles should be gone before. (Rounds in which all pairs pull
    would free it, but let the many wrong pairs of a scene with little texture bend the whole.)
    """
    ends = np.array([(view.i, view.j) for view in views]).reshape(-1, 2)
    relative = np.stack([view.j_from_i[:, :3] for view in views])
    sigma = _sigma_deg(views)
    rotation = _along_tree(ends, relative, sigma, num_frames)
    roots = _roots(ends, num_frames)
    i, j = ends.T
    for tolerance in TOLERANCES_DEG:
        # World-frame residual of R_j = R_ij R_i; frames move by R <- R exp(delta).
        residual = Rotation.from_matrix(rotation[j].swapaxes(1, 2) @ relative @ rotation[i]).as_rotvec()
        angle = np.rad2deg(np.linalg.norm(residual, axis=1))
        weight = (tolerance**2 / (tolerance**2 + angle**2)) ** 2 / sigma**2  # Geman-McClure
        delta = _solve_laplacian(ends, weight, residual, roots, num_frames)
        rotation = rotation @ Rotation.from_rotvec(delta).as_matrix()
    return rotation


def agree_with(
    views: Sequence[TwoView], rotation: Float64[np.ndarray, "N 3 3"], rays: Sequence[Float64[np.ndarray, "_ 3"]]
) -> list[TwoView]:
    """Pairs near the averaged rotations, with their pose replaced by the averaged one; the others are left out."""
    found = []
    for view in views:
        average = rotation[view.j] @ rotation[view.i].T
        angle = Rotation.from_matrix(average @ view.j_from_i[:, :3].T).magnitude()
        if np.rad2deg(angle) <= MAX_DISAGREEMENT_DEG:
            first, second = view.matches.T
            turned, target = rays[view.i][first] @ average.T, rays[view.j][second]
            known = np.isfinite(turned).all(1) & np.isfinite(target).all(1)
            step = direction(turned[known], target[known], view.j_from_i[:, 3])
            found.append(replace(view, j_from_i=np.column_stack([average, step])))
    return found


def average_positions(views: Sequence[TwoView], rotation: Float64[np.ndarray, "N 3 3"]) -> Float64[np.ndarray, "N 3"]:
    """Camera centres that agree best with the directions of all pairs; the shortest baseline is about 1.

    First least unsquared deviations: min sum |gap - s line| over centres and s >= 1, which is convex, so that the start
    does not matter (Ozyesil & Singer, CVPR 2015). Then the angles themselves, with outliers cut off.
    """
    ends = np.array([(view.i, view.j) for view in views]).reshape(-1, 2)
    # The translation of j_from_i points from centre j to centre i, in the frame of j.
    line = -np.einsum("eji,ej->ei", rotation[ends[:, 1]], np.stack([view.j_from_i[:, 3] for view in views]))
    sigma = _sigma_deg(views)
    outer = line[:, :, None] * line[:, None, :]
    roots, centers = _roots(ends, len(rotation)), np.zeros((len(rotation), 3))
    for tolerance in (*([None] * CONVEX_ROUNDS), *POSITION_TOLERANCES_DEG):
        gap = centers[ends[:, 1]] - centers[ends[:, 0]]
        along = (gap * line).sum(1)
        length = np.maximum(along, 1.0)
        rest = np.linalg.norm(gap - length[:, None] * line, axis=1)
        if tolerance is None:
            weight = 1 / (sigma * np.maximum(rest, SHORTEST))
            pull = np.where(along < 1, 1.0, SLACK)
        else:
            angle = np.rad2deg(np.arctan2(np.linalg.norm(np.cross(line, gap), axis=1), along))
            weight = (tolerance**2 / (tolerance**2 + angle**2)) ** 2 / (sigma * length) ** 2
            pull = np.full(len(views), SLACK)
        block = weight[:, None, None] * (np.eye(3) + (pull - 1)[:, None, None] * outer)
        target = (weight * pull * length)[:, None] * line
        centers = _solve_blocks(ends, block, target, roots, centers)
    return centers


def _solve_blocks(
    ends: np.ndarray, block: np.ndarray, vector: np.ndarray, roots: Sequence[int], centers: np.ndarray
) -> np.ndarray:
    """Centres that minimise the sum of (gap^T block gap - 2 vector^T gap) over pairs; roots stay."""
    free = np.setdiff1d(np.arange(len(centers)), roots)
    matrix, right = _assemble(ends, block, vector, len(centers))
    right -= np.einsum("abij,bj->ai", matrix[:, roots], centers[roots])
    size = 3 * len(free)
    flat = matrix[np.ix_(free, free)].transpose(0, 2, 1, 3).reshape(size, size)
    found = centers.copy()
    found[free] = np.linalg.solve(
        flat + 1e-12 * np.trace(flat) / max(size, 1) * np.eye(size), right[free].ravel()
    ).reshape(-1, 3)
    return found


def direction(
    turned: Float64[np.ndarray, "M 3"], target: Float64[np.ndarray, "M 3"], start: Float64[np.ndarray, " 3"]
) -> Float64[np.ndarray, " 3"]:
    """Unit translation under a known rotation: nearly orthogonal to all (R u_i) x u_j, robustly."""
    normal = np.cross(turned, target) / np.linalg.norm(turned, axis=1, keepdims=True)
    step = start
    for _ in range(DIRECTION_ROUNDS):
        distance = np.abs(normal @ step)
        scale = 2 * max(float(np.median(distance)), 1e-9)
        weighted = normal / (1 + (distance / scale) ** 2)[:, None]
        step = np.linalg.eigh(weighted.T @ normal)[1][:, 0]
    # In front of both cameras: depth along a ray and step point the same way.
    side = np.cross(target, step[None])
    return step if np.sum(np.sign((np.cross(turned, target) * side).sum(1))) >= 0 else -step


def _sigma_deg(views: Sequence[TwoView]) -> Float64[np.ndarray, " E"]:
    """Expected error of each pair's rotation and direction."""
    return np.array([max(ERROR_FLOOR_DEG, ERROR_OF_ONE_DEG / view.strength) for view in views])


def _along_tree(ends: np.ndarray, relative: np.ndarray, sigma: np.ndarray, num_frames: int) -> np.ndarray:
    cost = coo_matrix((sigma, (ends[:, 0], ends[:, 1])), shape=(num_frames, num_frames))
    tree = minimum_spanning_tree(cost)
    number = {(int(a), int(b)): index for index, (a, b) in enumerate(ends)}
    rotation = np.tile(np.eye(3), (num_frames, 1, 1))
    for root in _roots(ends, num_frames):
        order, parent = breadth_first_order(tree, root, directed=False)
        for frame in order[1:].tolist():
            above = int(parent[frame])
            down = (above, frame) in number
            step = relative[number[above, frame]] if down else relative[number[frame, above]].T
            rotation[frame] = step @ rotation[above]
    return rotation


def _roots(ends: np.ndarray, num_frames: int) -> list[int]:
    """The first frame of every component."""
    links = coo_matrix((np.ones(len(ends)), (ends[:, 0], ends[:, 1])), shape=(num_frames, num_frames))
    _, label = connected_components(links, directed=False)
    return np.unique(label, return_index=True)[1].tolist()


def _solve_laplacian(
    ends: np.ndarray, weight: np.ndarray, residual: np.ndarray, roots: Sequence[int], num_frames: int
) -> np.ndarray:
    """delta with delta_j - delta_i = residual_ij in the weighted least-squares sense; roots stay."""
    matrix, vector = _assemble(ends, weight, weight[:, None] * residual, num_frames)
    free = np.setdiff1d(np.arange(num_frames), roots)
    delta = np.zeros((num_frames, 3))
    delta[free] = np.linalg.solve(matrix[np.ix_(free, free)], vector[free])
    return delta


def _assemble(
    ends: np.ndarray, block: np.ndarray, vector: np.ndarray, num_frames: int
) -> tuple[np.ndarray, np.ndarray]:
    """Graph Laplacian and right-hand side; a block is one weight per pair, or a matrix that acts on all axes."""
    i, j = ends.T
    matrix, right = np.zeros((num_frames, num_frames, *block.shape[1:])), np.zeros((num_frames, 3))
    for a, b, sign in ((i, i, 1), (j, j, 1), (i, j, -1), (j, i, -1)):
        np.add.at(matrix, (a, b), sign * block)
    np.add.at(right, j, vector)
    np.add.at(right, i, -vector)
    return matrix, right
