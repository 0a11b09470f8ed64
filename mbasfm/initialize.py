"""Cameras to start from: frames join one after the other, placed by two-view geometry and depth.

A two-view pose has no scale; the depth of the frame that is already placed gives it: the median over the matches of the
depth that the map has over the depth that triangulation with a unit baseline would give.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import poselib
import torch
from jaxtyping import Bool, Float64

from mbasfm.config import Tree
from mbasfm.residuals import REFERENCE_LONG_SIDE
from mbasfm.rotations import average_positions, rays_of
from mbasfm.sampling import Keypoints
from mbasfm.twoview import TwoView
from mbasfm.types import Cameras, Intrinsics

MAX_NEIGHBOURS = 4
"""A new frame is proposed from this many placed neighbours, the strongest."""
MAX_JUDGES = 10
"""Proposals are scored on the edges to this many placed neighbours."""
MIN_PARALLAX_DEG = 0.5
"""Below it the direction of translation, and triangulated depth, are noise."""
ACROSS_PX, ALONG_PX, BEHIND_PX = 8.0, 100.0, 1e4
"""Scale at which errors across and along the epipolar line begin to count as logarithms only, and what a point behind
the camera counts [px at a long side of 1024]."""
CLEARLY_WORSE = 1.05
"""Factor on the sum of logarithmic errors."""
PNP_ERROR_PX = 20.0
"""Monocular depth is rough, so is the threshold of poses from it [px at a long side of 1024]."""


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
    """[px at a long side of 1024]"""
    is_planar: bool


def initialize_cameras(
    views: Sequence[TwoView],
    keypoints: Sequence[Keypoints],
    intrinsics: Intrinsics,
    is_disparity: Bool[torch.Tensor, " N"],
    tree: Tree = "consistent",
    given: Mapping[int, Float64[np.ndarray, "3 4"]] | None = None,
) -> tuple[list[Cameras], Bool[torch.Tensor, " N"]]:
    """Starts that are worth adjusting, most promising first, and which frames were placed.

    Every connected component has its own root at the origin. There is a second start where positions along the tree and
    positions averaged over all pairs agree about equally well with matches and depth. Frames with a ``given``
    cam_from_world begin there and the others join them; then there is one start.
    """
    num_frames = len(keypoints)
    edges = _edges(views, keypoints, intrinsics)
    placing = _Placing(edges, is_disparity.numpy(), num_frames)
    placing.take(given or {})
    for frame, parents in _order(views, placing.placed.copy(), tree):
        if parents:
            placing.attach(frame, parents[:1] if tree == "paper" else parents)
        else:
            placing.root(frame, keypoints[frame])
    states = [(placing.cam_from_world, placing.scale)]
    if tree == "consistent" and views and not given:
        states = placing.settle(views)
    starts = [
        Cameras(
            cam_from_world=torch.from_numpy(cam_from_world),
            intrinsics=intrinsics,
            depth_scale=torch.from_numpy(scale),
            depth_shift=torch.zeros(num_frames, dtype=torch.float64),
            is_disparity=is_disparity,
        )
        for cam_from_world, scale in states
    ]
    return starts, torch.from_numpy(placing.placed)


def _order(views: Sequence[TwoView], placed: Bool[np.ndarray, " N"], tree: Tree) -> Iterator[tuple[int, list[int]]]:
    """Frames in the order in which they join, each with its placed neighbours, best first; roots have none.

    ``paper``: root of highest degree, next the frame of highest degree that touches the tree. ``consistent``: the same
    with the strength of pairs, counted towards the placed frames.
    """
    strength = np.zeros((len(placed), len(placed)))
    for view in views:
        strength[view.i, view.j] = strength[view.j, view.i] = 1 if tree == "paper" else view.strength
    total = strength.sum(1)
    while True:
        reach = strength[placed].sum(0) * ~placed
        if reach.any():
            frame = int(np.where(reach > 0, total, -1).argmax() if tree == "paper" else reach.argmax())
        else:
            rest = np.where(placed, -1, total)
            frame = int(rest.argmax())
            if rest[frame] <= 0:
                return
        neighbours = np.flatnonzero(placed & (strength[frame] > 0))
        key = total if tree == "paper" else strength[frame]
        yield frame, neighbours[np.argsort(-key[neighbours], kind="stable")].tolist()
        placed[frame] = True


class _Placing:
    """Frames placed so far: the only state of this stage."""

    def __init__(self, edges: dict[tuple[int, int], Edge], is_disparity: Bool[np.ndarray, " N"], num_frames: int):
        self._edges, self._is_disparity = edges, is_disparity
        self.cam_from_world = np.tile(np.eye(4)[:3], (num_frames, 1, 1))
        self.scale = np.ones(num_frames)
        self.placed = np.zeros(num_frames, dtype=bool)
        self.root_of = np.arange(num_frames)

    def root(self, frame: int, keypoints: Keypoints) -> None:
        """Place a frame at the origin, at the scale of its own depth (disparity: at median depth 1)."""
        raw = keypoints.raw_depth[np.isfinite(keypoints.raw_depth)]
        if self._is_disparity[frame] and len(raw):
            self.scale[frame] = 1 / max(float(np.median(raw)), 1e-12)
        self.placed[frame] = True

    def take(self, given: Mapping[int, Float64[np.ndarray, "3 4"]]) -> None:
        """Place frames where somebody says they are. Their depth is as large as triangulation says, or others."""
        for frame, pose in given.items():
            self.cam_from_world[frame], self.placed[frame] = pose, True
        ratios: dict[int, list[Float64[np.ndarray, " _"]]] = {}
        for edge in self._edges.values():
            if edge.source in given and edge.target in given and _parallax_deg(edge) >= MIN_PARALLAX_DEG:
                ratios.setdefault(edge.target, []).append(self._scale_ratios(edge))
        merged = {frame: np.concatenate(values) for frame, values in ratios.items()}
        positive = {frame: values[np.isfinite(values) & (values > 0)] for frame, values in merged.items()}
        scales = {frame: float(np.median(values)) for frame, values in positive.items() if len(values)}
        usual = float(np.median([*scales.values()])) if scales else 1.0
        for frame in given:
            self.scale[frame] = scales.get(frame, usual)

    def attach(self, frame: int, parents: list[int]) -> None:
        """Place a frame by the proposal that most matches to placed frames agree with."""
        judges = [self._edges[parent, frame] for parent in parents[:MAX_JUDGES]]
        proposals = [pose for parent in parents[:MAX_NEIGHBOURS] for pose in self._propose(self._edges[parent, frame])]
        scores = [sum(self._score(edge, pose) for edge in judges) for pose in proposals]
        self.cam_from_world[frame] = proposals[int(np.argmax(scores))]
        self.scale[frame] = self._own_scale(frame, parents[:MAX_NEIGHBOURS])
        self.root_of[frame] = self.root_of[parents[0]]
        self.placed[frame] = True

    def settle(self, views: Sequence[TwoView]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Poses and depth scales along the tree and with averaged positions, the one that agrees more first.

        Where one agrees clearly more with matches and depth the other is left out.
        """
        along_tree = self._agreement(views), self.cam_from_world.copy(), self.scale.copy()
        rotation = self.cam_from_world[:, :, :3]
        centers = -np.einsum("nji,nj->ni", rotation, self.cam_from_world[:, :, 3])
        averaged = average_positions(views, rotation)
        for root in np.unique(self.root_of[self.placed]).tolist():
            mine = [view for view in views if self.root_of[view.i] == root]
            if len(mine) >= 2:
                self._move(root, mine, centers, averaged)
        settled = self._agreement(views), self.cam_from_world, self.scale
        better, worse = sorted((along_tree, settled), key=lambda state: -state[0])
        chosen = [better] if worse[0] < better[0] * CLEARLY_WORSE else [better, worse]
        return [(pose, scale) for _, pose, scale in chosen]

    def _move(self, root: int, views: Sequence[TwoView], old: np.ndarray, new: np.ndarray) -> None:
        """Give a component its averaged positions, its old root and size, and scale its depth anew."""
        i, j = np.array([(view.i, view.j) for view in views]).T
        length = [float(np.median(np.linalg.norm(c[j] - c[i], axis=1))) for c in (old, new)]
        members = np.flatnonzero(self.placed & (self.root_of == root))
        centers = (new[members] - new[root]) * (length[0] / max(length[1], 1e-12))
        self.cam_from_world[members, :, 3] = -np.einsum("nij,nj->ni", self.cam_from_world[members, :, :3], centers)
        around: dict[int, list[int]] = {}
        for view in sorted(views, key=lambda view: -view.strength):
            around.setdefault(view.i, []).append(view.j)
            around.setdefault(view.j, []).append(view.i)
        root_scale = self.scale[root]
        scale = {frame: self._own_scale(frame, near[:MAX_NEIGHBOURS]) for frame, near in around.items()}
        growth = root_scale / scale[root]
        growth = 1 / growth if self._is_disparity[root] else growth
        self.cam_from_world[members, :, 3] *= growth
        for frame, value in scale.items():
            self.scale[frame] = value / growth if self._is_disparity[frame] else value * growth

    def _agreement(self, views: Sequence[TwoView]) -> float:
        ends = [end for view in views for end in ((view.i, view.j), (view.j, view.i))]
        return sum(self._score(self._edges[end], self.cam_from_world[end[1]]) for end in ends)

    def _propose(self, edge: Edge) -> list[Float64[np.ndarray, "3 4"]]:
        """World-to-camera poses of the target that one placed neighbour suggests."""
        relative = [_scaled(edge.target_from_source, self._baseline(edge))]
        if edge.is_planar:
            relative += self._pose_from_depth(edge)
        return [_compose(pose, self.cam_from_world[edge.source]) for pose in relative]

    def _baseline(self, edge: Edge) -> float:
        """Length of the translation: triangulated inverse depth over that of the placed frame's map."""
        if _parallax_deg(edge) < MIN_PARALLAX_DEG:
            return 0.0
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = _triangulate(edge, edge.target_from_source) / self._inverse_depth(edge.source, edge.raw_source)
        ratio = ratio[np.isfinite(ratio) & (ratio > 0)]
        return float(np.median(ratio)) if len(ratio) else 0.0

    def _pose_from_depth(self, edge: Edge) -> list[Float64[np.ndarray, "3 4"]]:
        """Pose by P3P and RANSAC from the placed frame's depth: needs no parallax and no relief."""
        with np.errstate(divide="ignore"):
            depth = 1 / self._inverse_depth(edge.source, edge.raw_source)
        known = np.isfinite(depth) & (depth > 0)
        if known.sum() < 4:
            return []
        points = edge.rays_source[known] * depth[known, None]
        focal = edge.focal_target
        camera = {"model": "SIMPLE_PINHOLE", "width": -1, "height": -1, "params": [focal, 0.0, 0.0]}
        options = {"max_reproj_error": PNP_ERROR_PX, "max_iterations": 1000, "min_iterations": 100, "seed": 0}
        pose, info = poselib.estimate_absolute_pose(edge.rays_target[known, :2] * focal, points, camera, options, {})
        return [pose.Rt] if info["num_inliers"] >= 4 and np.isfinite(pose.Rt).all() else []

    def _score(self, edge: Edge, cam_from_world: Float64[np.ndarray, "3 4"]) -> float:
        """How much an edge from a placed frame agrees, across and along the epipolar line."""
        relative = _compose(cam_from_world, _invert(self.cam_from_world[edge.source]))
        inverse_depth = self._inverse_depth(edge.source, edge.raw_source)
        known = np.isfinite(inverse_depth)
        inverse_depth = np.where(known, inverse_depth, np.median(inverse_depth[known]) if known.any() else 0.0)
        base = edge.rays_source @ relative[:, :3].T
        points = base + inverse_depth[:, None] * relative[:, 3]
        ahead = points[:, 2] > 1e-9
        difference = points[:, :2] / np.where(ahead, points[:, 2], np.nan)[:, None] - edge.rays_target[:, :2]
        line = np.cross(base, relative[:, 3])
        across = np.abs((line * edge.rays_target).sum(1)) / np.maximum(np.linalg.norm(line[:, :2], axis=1), 1e-12)
        along = np.linalg.norm(difference, axis=1)
        # Where the baseline is nearly nothing the line is undefined: the distance itself is the distance to it.
        across = np.where(np.linalg.norm(relative[:, 3]) < 1e-9, along, np.minimum(across, along))
        along, across = (np.where(ahead, part * edge.focal_target, BEHIND_PX) for part in (along, across))
        return -float(np.log1p(across / ACROSS_PX).sum() + np.log1p(along / ALONG_PX).sum())

    def _own_scale(self, frame: int, parents: list[int]) -> float:
        """Scale of the frame's own depth map, so that it agrees with the frames around it."""
        ratios = [self._scale_ratios(self._edges[parent, frame]) for parent in parents]
        merged = np.concatenate(ratios)
        merged = merged[np.isfinite(merged) & (merged > 0)]
        return float(np.median(merged)) if len(merged) else float(self.scale[parents[0]])

    def _scale_ratios(self, edge: Edge) -> Float64[np.ndarray, " M"]:
        """Scale at which each raw value of the target would be right."""
        relative = _compose(self.cam_from_world[edge.target], _invert(self.cam_from_world[edge.source]))
        if _parallax_deg(edge) < MIN_PARALLAX_DEG or np.linalg.norm(relative[:, 3]) < 1e-9:
            inverse_depth = self._inverse_depth(edge.source, edge.raw_source)
            near = (edge.rays_source @ relative[:, :3].T)[:, 2] + relative[2, 3] * inverse_depth
            inverse = inverse_depth / np.where(near > 0, near, np.nan)
        else:
            inverse = _triangulate(_reversed(edge), _invert(relative))
        raw = edge.raw_target
        with np.errstate(divide="ignore", invalid="ignore"):
            return inverse / raw if self._is_disparity[edge.target] else 1 / (inverse * raw)

    def _inverse_depth(self, frame: int, raw: Float64[np.ndarray, " M"]) -> Float64[np.ndarray, " M"]:
        with np.errstate(divide="ignore", invalid="ignore"):
            return self.scale[frame] * raw if self._is_disparity[frame] else 1 / (self.scale[frame] * raw)


def _edges(
    views: Sequence[TwoView], keypoints: Sequence[Keypoints], intrinsics: Intrinsics
) -> dict[tuple[int, int], Edge]:
    rays = rays_of(keypoints, intrinsics)
    focal = intrinsics.focal[:, 0].numpy() * REFERENCE_LONG_SIDE / intrinsics.sizes.amax(1).numpy()
    edges = {}
    for view in views:
        first, second = view.matches[
            np.isfinite(rays[view.i][view.matches[:, 0]]).all(1) & np.isfinite(rays[view.j][view.matches[:, 1]]).all(1)
        ].T
        edge = Edge(
            view.i,
            view.j,
            view.j_from_i,
            rays[view.i][first],
            rays[view.j][second],
            keypoints[view.i].raw_depth[first].astype(np.float64),
            keypoints[view.j].raw_depth[second].astype(np.float64),
            float(focal[view.j]),
            view.is_planar,
        )
        edges[view.i, view.j] = edge
        edges[view.j, view.i] = replace(_reversed(edge), focal_target=float(focal[view.i]))
    return edges


def _reversed(edge: Edge) -> Edge:
    return replace(
        edge,
        source=edge.target,
        target=edge.source,
        target_from_source=_invert(edge.target_from_source),
        rays_source=edge.rays_target,
        rays_target=edge.rays_source,
        raw_source=edge.raw_target,
        raw_target=edge.raw_source,
    )


def _triangulate(edge: Edge, target_from_source: Float64[np.ndarray, "3 4"]) -> Float64[np.ndarray, " M"]:
    """Inverse depth in the source at which the match is nearest (design: the foot on the epipolar line)."""
    base = edge.rays_source @ target_from_source[:, :3].T
    step = target_from_source[:, 3]
    match = edge.rays_target[:, :2]
    slope = step[:2] - match * step[2]
    offset = base[:, :2] - match * base[:, 2:]
    return -(offset * slope).sum(1) / np.maximum((slope * slope).sum(1), 1e-18)


def _parallax_deg(edge: Edge) -> float:
    """Median angle between matched rays after the rotation between the frames is undone."""
    turned = edge.rays_source @ edge.target_from_source[:, :3].T
    sine = np.linalg.norm(np.cross(turned, edge.rays_target), axis=1)
    return float(np.rad2deg(np.median(np.arctan2(sine, (turned * edge.rays_target).sum(1)))))


def _scaled(pose: Float64[np.ndarray, "3 4"], length: float) -> Float64[np.ndarray, "3 4"]:
    return np.column_stack([pose[:, :3], pose[:, 3] * length])


def _compose(c_from_b: Float64[np.ndarray, "3 4"], b_from_a: Float64[np.ndarray, "3 4"]) -> Float64[np.ndarray, "3 4"]:
    return np.column_stack([c_from_b[:, :3] @ b_from_a[:, :3], c_from_b[:, :3] @ b_from_a[:, 3] + c_from_b[:, 3]])


def _invert(b_from_a: Float64[np.ndarray, "3 4"]) -> Float64[np.ndarray, "3 4"]:
    return np.column_stack([b_from_a[:, :3].T, -b_from_a[:, :3].T @ b_from_a[:, 3]])
