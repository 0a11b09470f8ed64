"""Rotations and positions of all frames from the relative poses of all pairs, and what they imply for each pair.

One two-view rotation may be several degrees off, especially where matches are few and the field of view is narrow; all
pairs together are far better. Under the averaged rotation a pair's translation is estimated again, linearly.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse
import scipy.sparse.linalg
import torch
from jaxtyping import Float64, Int64
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import breadth_first_order, connected_components, minimum_spanning_tree
from scipy.spatial.transform import Rotation

from mbasfm.geometry.camera import unit_rays
from mbasfm.geometry.subsets import cluster_frames
from mbasfm.types.cameras import Intrinsics
from mbasfm.types.observations import Keypoints, TwoView

ERROR_FLOOR_DEG, ERROR_OF_ONE_DEG = 0.3, 150.0
"""Expected error of a two-view rotation of strength s: the floor or 150 / s degrees, whichever is larger."""
TOLERANCES_DEG = (20.0, 20.0, 10.0, 10.0, 5.0, 5.0, 5.0, 5.0)
"""Angles at which a pair loses its influence, round by round."""
MAX_DISAGREEMENT_DEG = 15.0
"""Largest distance of a pair from the average; beyond it, it is mismatched."""
DIRECTION_ROUNDS, VIEWS_AT_ONCE = 8, 256
DENSE_LIMIT = 2000
"""Number of unknowns up to which Laplacians are solved as dense matrices."""
CG_TOLERANCE, CG_STEPS = 1e-6, 500
CONVEX_ROUNDS, POSITION_TOLERANCES_DEG = 40, (20.0, 20.0, 10.0, 10.0, 5.0, 5.0, 5.0, 5.0)
SHORTEST, SLACK = 1e-2, 1e-3
"""Floor of a deviation, in shortest baselines, and the weight of distances where directions decide."""


def rays_of(keypoints: Sequence[Keypoints], intrinsics: Intrinsics) -> list[Float64[np.ndarray, "_ 3"]]:
    """Undistorted rays (x/z, y/z, 1) of all keypoints of all frames."""
    return [
        unit_rays(torch.from_numpy(points.pixels).double(), intrinsics, torch.tensor(frame)).numpy()
        for frame, points in enumerate(keypoints)
    ]


def average_rotations(views: Sequence[TwoView], num_frames: int) -> Float64[np.ndarray, "N 3 3"]:
    """Rotations cam_from_world that agree best with all pairs; every component has its own gauge.

    Starts along the strongest spanning tree; then iteratively re-weighted least squares, in which the correction of all
    frames solves one weighted graph Laplacian (Chatterjee & Govindu, ICCV 2013). A wrong pair in the tree can hold its
    frame for ever, so pairs that contradict their triangles should be removed before. (Rounds in which all pairs pull
    would free it, but let the many wrong pairs of a scene with little texture bend the whole.)
    """
    ends = np.array([(view.i, view.j) for view in views]).reshape(-1, 2)
    relative = np.stack([view.j_from_i[:, :3] for view in views])
    sigma = expected_error_deg(views)
    rotation = _along_tree(ends, relative, sigma, num_frames)
    graph = FrameGraph.build(ends, num_frames)
    i, j = ends.T
    for tolerance in TOLERANCES_DEG:
        # World-frame residual of R_j = R_ij R_i; frames move by R <- R exp(delta).
        residual = Rotation.from_matrix(rotation[j].swapaxes(1, 2) @ relative @ rotation[i]).as_rotvec()
        angle = np.rad2deg(np.linalg.norm(residual, axis=1))
        weight = (tolerance**2 / (tolerance**2 + angle**2)) ** 2 / sigma**2  # Geman-McClure
        delta = solve_laplacian(graph, weight, residual)
        rotation = rotation @ Rotation.from_rotvec(delta).as_matrix()
    return rotation


def agree_with(
    views: Sequence[TwoView], rotation: Float64[np.ndarray, "N 3 3"], rays: Sequence[Float64[np.ndarray, "_ 3"]]
) -> list[TwoView]:
    """Pairs near the averaged rotations, with their pose replaced by the averaged one; the others are left out."""
    ends = np.array([(view.i, view.j) for view in views]).reshape(-1, 2)
    relative = np.stack([view.j_from_i[:, :3] for view in views])
    average = rotation[ends[:, 1]] @ rotation[ends[:, 0]].swapaxes(1, 2)
    angle = Rotation.from_matrix(average @ relative.swapaxes(1, 2)).magnitude()
    near = np.flatnonzero(np.rad2deg(angle) <= MAX_DISAGREEMENT_DEG)
    near = near[np.argsort([len(views[number].matches) for number in near.tolist()], kind="stable")]
    found: dict[int, TwoView] = {}
    for some in np.array_split(near, len(near) // VIEWS_AT_ONCE + 1):
        turned, target = [], []
        for number in some.tolist():
            first, second = views[number].matches.T
            one, two = rays[views[number].i][first] @ average[number].T, rays[views[number].j][second]
            known = np.isfinite(one).all(1) & np.isfinite(two).all(1)
            turned.append(one[known])
            target.append(two[known])
        if not turned:
            continue
        steps = _directions(turned, target, np.stack([views[number].j_from_i[:, 3] for number in some.tolist()]))
        for number, step in zip(some.tolist(), steps, strict=True):
            found[number] = replace(views[number], j_from_i=np.column_stack([average[number], step]))
    return [found[number] for number in sorted(found)]


def average_positions(views: Sequence[TwoView], rotation: Float64[np.ndarray, "N 3 3"]) -> Float64[np.ndarray, "N 3"]:
    """Camera centres that agree best with the directions of all pairs; the shortest baseline is about 1.

    First least unsquared deviations: min sum |gap - s line| over centres and s >= 1, which is convex, so that the start
    does not matter (Ozyesil & Singer, CVPR 2015). Then the angles themselves, with outliers cut off.
    """
    ends = np.array([(view.i, view.j) for view in views]).reshape(-1, 2)
    # The translation of j_from_i points from centre j to centre i, in the frame of j.
    line = -np.einsum("eji,ej->ei", rotation[ends[:, 1]], np.stack([view.j_from_i[:, 3] for view in views]))
    sigma = expected_error_deg(views)
    outer = line[:, :, None] * line[:, None, :]
    graph, centers = FrameGraph.build(ends, len(rotation)), np.zeros((len(rotation), 3))
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
        centers = solve_blocks(graph, block, target, centers)
    return centers


@dataclass(frozen=True)
class FrameGraph:
    """Graph of frames, and all that stays the same from round to round."""

    ends: Int64[np.ndarray, "P 2"]
    num_frames: int
    label: Int64[np.ndarray, " N"]
    """Component number of each frame."""
    roots: list[int]
    """First frame of every component."""
    free: Int64[np.ndarray, " F"]
    """Frames other than roots."""
    cluster: Int64[np.ndarray, " F"]
    """Cluster of each free frame."""

    @staticmethod
    def build(ends: Int64[np.ndarray, "P 2"], num_frames: int) -> "FrameGraph":
        """Graph with components, roots and clusters."""
        label = _label(ends, num_frames)
        roots = np.unique(label, return_index=True)[1].tolist()
        free = np.setdiff1d(np.arange(num_frames), roots)
        cluster = cluster_frames(torch.from_numpy(ends), num_frames).numpy()[free]
        return FrameGraph(ends, num_frames, label, roots, free, cluster)


def solve_blocks(graph: FrameGraph, block: np.ndarray, vector: np.ndarray, centers: np.ndarray) -> np.ndarray:
    """Centres that minimise the sum of (gap^T block gap - 2 vector^T gap) over pairs; roots stay."""
    free, three = graph.free, np.arange(3)
    matrix, right = _assemble(graph, block, vector)
    right = right - (matrix @ _only(centers, graph.roots).ravel()).reshape(-1, 3)
    axes, cluster = ((3 * numbers[:, None] + three).ravel() for numbers in (free, graph.cluster))
    inner = matrix[axes][:, axes]
    inner = inner + scipy.sparse.diags(np.full(len(axes), 1e-12 * inner.diagonal().sum() / max(len(axes), 1)))
    found, start = centers.copy(), centers[free].reshape(-1, 1)
    found[free] = _solve_positive(inner, right[free].reshape(-1, 1), start, cluster).reshape(-1, 3)
    return found


def _only(values: np.ndarray, rows: Sequence[int]) -> np.ndarray:
    """Values in the given rows, zero elsewhere."""
    kept = np.zeros_like(values)
    kept[rows] = values[rows]
    return kept


def _directions(
    turned: Sequence[np.ndarray], target: Sequence[np.ndarray], start: Float64[np.ndarray, "B 3"]
) -> Float64[np.ndarray, "B 3"]:
    """Unit translations of many pairs under known rotations: nearly orthogonal to all (R u_i) x u_j, robustly."""
    counts = np.array([len(rays) for rays in turned])
    source, match = (np.zeros((len(counts), max(int(counts.max()), 1), 3)) for _ in range(2))
    known = np.arange(source.shape[1]) < counts[:, None]
    source[known], match[known] = np.concatenate(turned), np.concatenate(target)
    cross = np.cross(source, match)
    normal = cross / np.maximum(np.linalg.norm(source, axis=-1, keepdims=True), 1e-300)
    step = start
    for _ in range(DIRECTION_ROUNDS):
        distance = np.abs((normal @ step[..., None])[..., 0])
        ranked = np.sort(np.where(known, distance, np.inf), axis=1)
        middle = np.stack([np.maximum(counts - 1, 0) // 2, np.minimum(counts // 2, ranked.shape[1] - 1)], 1)
        scale = 2 * np.maximum(np.take_along_axis(ranked, middle, 1).mean(1), 1e-9)
        weighted = normal / (1 + (distance / scale[:, None]) ** 2)[..., None]
        step = np.linalg.eigh(weighted.swapaxes(1, 2) @ normal)[1][..., 0]
    # In front of both cameras: depth along a ray and step point the same way.
    side = np.cross(match, step[:, None])
    sign = np.sign((cross * side).sum(-1)).sum(1)
    return np.where(sign[:, None] >= 0, step, -step)


def expected_error_deg(views: Sequence[TwoView]) -> Float64[np.ndarray, " E"]:
    """Expected error of each pair's rotation and direction."""
    return np.array([max(ERROR_FLOOR_DEG, ERROR_OF_ONE_DEG / view.strength) for view in views])


def _along_tree(ends: np.ndarray, relative: np.ndarray, sigma: np.ndarray, num_frames: int) -> np.ndarray:
    cost = coo_matrix((sigma, (ends[:, 0], ends[:, 1])), shape=(num_frames, num_frames))
    tree = minimum_spanning_tree(cost)
    number = {(int(a), int(b)): index for index, (a, b) in enumerate(ends)}
    rotation = np.tile(np.eye(3), (num_frames, 1, 1))
    for root in np.unique(_label(ends, num_frames), return_index=True)[1].tolist():
        order, parent = breadth_first_order(tree, root, directed=False)
        for frame in order[1:].tolist():
            above = int(parent[frame])
            down = (above, frame) in number
            step = relative[number[above, frame]] if down else relative[number[frame, above]].T
            rotation[frame] = step @ rotation[above]
    return rotation


def _label(ends: np.ndarray, num_frames: int) -> Int64[np.ndarray, " N"]:
    """Component number of each frame."""
    links = coo_matrix((np.ones(len(ends)), (ends[:, 0], ends[:, 1])), shape=(num_frames, num_frames))
    return connected_components(links, directed=False)[1].astype(np.int64)


def solve_laplacian(graph: FrameGraph, weight: np.ndarray, residual: np.ndarray) -> np.ndarray:
    """Values delta with delta_j - delta_i = residual_ij in the weighted least-squares sense; roots stay."""
    matrix, vector = _assemble(graph, weight, weight[:, None] * residual)
    free, delta = graph.free, np.zeros((graph.num_frames, residual.shape[1]))
    delta[free] = _solve_positive(matrix[free][:, free], vector[free], delta[free], graph.cluster)
    return delta


def _assemble(graph: FrameGraph, block: np.ndarray, vector: np.ndarray) -> tuple[scipy.sparse.csr_matrix, np.ndarray]:
    """Graph Laplacian and right-hand side; a block is one weight per pair, or a matrix that acts on all axes."""
    ends, num_frames = graph.ends, graph.num_frames
    i, j = ends.T
    width = block.shape[1] if block.ndim > 1 else 1
    blocks, axes = block.reshape(len(ends), width, width), np.arange(width)
    rows, columns = np.concatenate([i, j, i, j]), np.concatenate([i, j, j, i])
    values = np.concatenate([blocks, blocks, -blocks, -blocks])
    rows, columns = (width * x[:, None, None] + y for x, y in ((rows, axes[:, None]), (columns, axes)))
    rows, columns = (np.broadcast_to(x, values.shape).ravel() for x in (rows, columns))
    size = width * num_frames
    right = np.zeros((num_frames, vector.shape[1]))
    np.add.at(right, j, vector)
    np.add.at(right, i, -vector)
    return coo_matrix((values.ravel(), (rows, columns)), shape=(size, size)).tocsr(), right


def _solve_positive(
    matrix: scipy.sparse.csr_matrix, right: np.ndarray, start: np.ndarray, cluster: np.ndarray
) -> np.ndarray:
    """Solution for every column: dense if small, else by conjugate gradients from a start.

    What converges slowly is the arrangement of parts of the graph, so shifts of whole clusters are solved for
    directly in every step (the second level of the preconditioner).
    """
    if len(right) <= DENSE_LIMIT:
        return np.linalg.solve(matrix.toarray(), right)
    members = coo_matrix((np.ones(len(cluster)), (np.arange(len(cluster)), cluster))).tocsr()
    gather = members.T.tocsr()
    coarse = (gather @ matrix @ members).toarray()
    coarse_inverse = np.linalg.inv(coarse + np.diag(np.full(len(coarse), 1e-9 * coarse.diagonal().max())))
    fine_inverse = 1 / np.maximum(matrix.diagonal(), 1e-300)

    def precondition(residual: np.ndarray) -> np.ndarray:
        return fine_inverse * residual + members @ (coarse_inverse @ (gather @ residual))

    inverse = scipy.sparse.linalg.LinearOperator(matrix.shape, precondition, dtype=np.float64)
    columns = [
        scipy.sparse.linalg.cg(matrix, b, x0=x, rtol=CG_TOLERANCE, maxiter=CG_STEPS, M=inverse)[0]
        for b, x in zip(right.T, start.T, strict=True)
    ]
    return np.stack(columns, 1)
