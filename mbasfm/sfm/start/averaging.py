"""All pairs together: each seen from one end, with rays and depth, and rotations and positions that agree with all.

One two-view rotation may be several degrees off, especially where matches are few and the field of view is narrow; all
pairs together are far better.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse
import scipy.sparse.linalg
import torch
from jaxtyping import Float64, Int64
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import breadth_first_order, connected_components, minimum_spanning_tree
from scipy.spatial.transform import Rotation

from mbasfm.geometry.camera import triangulated_inverse_depth, unit_rays
from mbasfm.geometry.rigid import invert
from mbasfm.geometry.subsets import cluster_frames
from mbasfm.types.cameras import Intrinsics
from mbasfm.types.observations import Keypoints, TwoView

ERROR_FLOOR_DEG, ERROR_OF_ONE_DEG = 0.3, 150.0
"""Expected error of a two-view rotation of strength s: the floor or 150 / s degrees, whichever is larger."""
TOLERANCES_DEG = (20.0, 20.0, 10.0, 10.0, 5.0, 5.0, 5.0, 5.0)
"""Angles at which a pair loses its influence, round by round."""
DENSE_LIMIT = 2000
"""Number of unknowns up to which Laplacians are solved as dense matrices."""
CG_TOLERANCE, CG_STEPS = 1e-6, 500
CONVEX_ROUNDS, POSITION_TOLERANCES_DEG = 40, (20.0, 20.0, 10.0, 10.0, 5.0, 5.0, 5.0, 5.0)
SHORTEST, SLACK = 1e-2, 1e-3
"""Floor of a deviation, in shortest baselines, and the weight of distances where directions decide."""
MIN_PARALLAX_DEG = 0.5
"""Least parallax; below it the direction of translation and triangulated depth are noise."""


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


@dataclass(frozen=True)
class Edge:
    """A verified pair seen from one of its ends: rays and depth of the matches."""

    source: int
    target: int
    target_from_source: Float64[np.ndarray, "3 4"]
    rays_source: Float64[np.ndarray, "M 3"]
    rays_target: Float64[np.ndarray, "M 3"]
    raw_source: Float64[np.ndarray, " M"]
    raw_target: Float64[np.ndarray, " M"]
    focal_target: float
    """Focal length of the target [px at a long side of 1024]."""
    is_planar: bool


@dataclass(frozen=True)
class Joined:
    """Matches of several edges, one edge after the other."""

    source: Int64[np.ndarray, " E"]
    edge: Int64[np.ndarray, " M"]
    """Which edge each match belongs to."""
    rays_source: Float64[np.ndarray, "M 3"]
    rays_target: Float64[np.ndarray, "M 3"]
    raw_source: Float64[np.ndarray, " M"]
    focal_target: Float64[np.ndarray, " M"]


def join(edges: Sequence[Edge]) -> Joined:
    """All edges as one, so that many small ones cost no more than a large one."""
    sizes = [len(edge.raw_source) for edge in edges]
    return Joined(
        np.array([edge.source for edge in edges]),
        np.repeat(np.arange(len(edges)), sizes),
        np.concatenate([edge.rays_source for edge in edges]),
        np.concatenate([edge.rays_target for edge in edges]),
        np.concatenate([edge.raw_source for edge in edges]),
        np.repeat([edge.focal_target for edge in edges], sizes),
    )


class Edges:
    """Both directions of all pairs, made on demand, so that matches are in memory only once, in the pairs."""

    def __init__(self, views: Sequence[TwoView], keypoints: Sequence[Keypoints], intrinsics: Intrinsics):
        self._views = {(view.i, view.j): view for view in views}
        self._keypoints, self._rays = keypoints, rays_of(keypoints, intrinsics)
        self._usable = [np.isfinite(rays).all(1) for rays in self._rays]
        self._focal = intrinsics.reference_focal.numpy()

    def __getitem__(self, ends: tuple[int, int]) -> Edge:
        if ends not in self._views:
            return replace(reverse(self[ends[::-1]]), focal_target=float(self._focal[ends[1]]))
        view, rays = self._views[ends], self._rays
        first, second = view.matches.T
        usable = self._usable[view.i][first] & self._usable[view.j][second]
        first, second = first[usable], second[usable]
        return Edge(
            view.i,
            view.j,
            view.j_from_i,
            rays[view.i][first],
            rays[view.j][second],
            self._keypoints[view.i].raw_depth[first].astype(np.float64),
            self._keypoints[view.j].raw_depth[second].astype(np.float64),
            float(self._focal[view.j]),
            view.is_planar,
        )

    def among(self, frames: Mapping[int, object]) -> Iterator[Edge]:
        """Edges between some frames, both directions."""
        for i, j in self._views:
            if i in frames and j in frames:
                yield self[i, j]
                yield self[j, i]


def reverse(edge: Edge) -> Edge:
    """The pair seen from its other end; its focal length is unknown here."""
    return replace(
        edge,
        source=edge.target,
        target=edge.source,
        target_from_source=invert(torch.from_numpy(edge.target_from_source)).numpy(),
        rays_source=edge.rays_target,
        rays_target=edge.rays_source,
        raw_source=edge.raw_target,
        raw_target=edge.raw_source,
    )


def triangulate(edge: Edge, target_from_source: Float64[np.ndarray, "3 4"]) -> Float64[np.ndarray, " M"]:
    """Triangulated inverse depth of each match in the source, under a pose that need not be the edge's own."""
    pose, *rays = map(torch.from_numpy, (target_from_source, edge.rays_source, edge.rays_target))
    return triangulated_inverse_depth(pose, *rays).numpy()


def parallax_deg(edge: Edge) -> float:
    """Median angle between matched rays once the rotation between the frames is undone."""
    turned = edge.rays_source @ edge.target_from_source[:, :3].T
    sine = np.linalg.norm(np.cross(turned, edge.rays_target), axis=1)
    return float(np.rad2deg(np.median(np.arctan2(sine, (turned * edge.rays_target).sum(1)))))
