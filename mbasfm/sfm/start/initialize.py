"""Cameras to start from: frames join one after the other, placed by two-view geometry and depth.

A two-view pose has no scale; the depth of the frame that is already placed gives it: the median over the matches of the
depth that the map has over the depth that triangulation with a unit baseline would give.
"""

import heapq
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64

from mbasfm.config import Tree
from mbasfm.estimators.absolute import pose_from_points
from mbasfm.geometry.camera import line_distances
from mbasfm.geometry.rigid import compose, invert, scale_translation
from mbasfm.sfm.start.averaging import (
    MIN_PARALLAX_DEG,
    Edge,
    Edges,
    Joined,
    average_positions,
    join,
    parallax_deg,
    reverse,
    triangulate,
)
from mbasfm.types.cameras import REFERENCE_LONG_SIDE, Cameras, Intrinsics, Lens
from mbasfm.types.observations import Keypoints, TwoView

MAX_NEIGHBOURS = 4
"""Number of placed neighbours, the strongest, that propose poses of a new frame."""
MAX_JUDGES = 10
"""Number of placed neighbours whose edges score a proposal."""
ACROSS_PX, ALONG_PX, BEHIND_PX = 8.0, 100.0, 1e4
"""Errors across and along the epipolar line beyond which they count logarithmically, and the error of a point behind
the camera [px at a long side of 1024]."""
MAX_WITNESSES = 20_000
"""Largest number of pairs that decide which start is better."""
EDGES_AT_ONCE = 1000
CLEARLY_WORSE = 1.05
"""Factor on the sum of logarithmic errors beyond which a start is left out."""
PNP_ERROR_PX = 20.0
"""Threshold of poses from monocular depth, which is rough [px at a long side of 1024]."""
PNP_ITERATIONS = (100, 1000)


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
    edges = Edges(views, keypoints, intrinsics)
    # The shift of disparity is unknown, and without it lifted planes are bent: no pose follows from them.
    can_lift = np.ones(num_frames, dtype=bool) if tree == "paper" else ~is_disparity.numpy()
    placing = _Placing(edges, is_disparity.numpy(), can_lift)
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
    near: dict[int, dict[int, float]] = {}
    for view in views:
        worth = 1.0 if tree == "paper" else view.strength
        near.setdefault(view.i, {})[view.j] = near.setdefault(view.j, {})[view.i] = worth
    total = {frame: sum(around.values()) for frame, around in near.items()}
    is_placed, reach = placed.copy(), dict.fromkeys(near, 0.0)
    # Roots wait behind everything that touches the tree; outdated entries are skipped.
    queue = [(1, -worth, frame) for frame, worth in total.items()]

    def touch(frame: int) -> None:
        is_placed[frame] = True
        for other, worth in near.get(frame, {}).items():
            reach[other] += worth
            if not is_placed[other]:
                heapq.heappush(queue, (0, -(total[other] if tree == "paper" else reach[other]), other))

    heapq.heapify(queue)
    for frame in np.flatnonzero(placed).tolist():
        touch(frame)
    while queue:
        _, _, frame = heapq.heappop(queue)
        if is_placed[frame]:
            continue
        around = near[frame]
        neighbours = sorted(other for other in around if is_placed[other])
        key = total if tree == "paper" else around
        yield frame, sorted(neighbours, key=lambda other: -key[other])
        touch(frame)


class _Placing:
    """Frames placed so far: the only state of this stage."""

    def __init__(self, edges: Edges, is_disparity: Bool[np.ndarray, " N"], can_lift: Bool[np.ndarray, " N"]):
        self._edges, self._is_disparity, self._can_lift = edges, is_disparity, can_lift
        num_frames = len(is_disparity)
        self.cam_from_world = np.tile(np.eye(4)[:3], (num_frames, 1, 1))
        self.scale = np.ones(num_frames)
        self.placed = np.zeros(num_frames, dtype=bool)
        self.root_of = np.arange(num_frames)

    def root(self, frame: int, keypoints: Keypoints) -> None:
        """Place a frame at the origin, with the scale of its own depth (disparity: median depth 1)."""
        raw = keypoints.raw_depth[np.isfinite(keypoints.raw_depth)]
        if self._is_disparity[frame] and len(raw):
            self.scale[frame] = 1 / max(float(np.median(raw)), 1e-12)
        self.placed[frame] = True

    def take(self, given: Mapping[int, Float64[np.ndarray, "3 4"]]) -> None:
        """Place frames at given poses. Depth scale from triangulation, else the others' median."""
        for frame, pose in given.items():
            self.cam_from_world[frame], self.placed[frame] = pose, True
        ratios: dict[int, list[Float64[np.ndarray, " _"]]] = {}
        for edge in self._edges.among(given):
            if parallax_deg(edge) >= MIN_PARALLAX_DEG:
                ratios.setdefault(edge.target, []).append(self._scale_ratios(edge))
        merged = {frame: np.concatenate(values) for frame, values in ratios.items()}
        positive = {frame: values[np.isfinite(values) & (values > 0)] for frame, values in merged.items()}
        scales = {frame: float(np.median(values)) for frame, values in positive.items() if len(values)}
        usual = float(np.median([*scales.values()])) if scales else 1.0
        for frame in given:
            self.scale[frame] = scales.get(frame, usual)

    def attach(self, frame: int, parents: list[int]) -> None:
        """Place a frame by the proposal that most matches to placed frames agree with."""
        judges = join([self._edges[parent, frame] for parent in parents[:MAX_JUDGES]])
        proposals = [pose for parent in parents[:MAX_NEIGHBOURS] for pose in self._propose(self._edges[parent, frame])]
        scores = [self._score(judges, pose) for pose in proposals]
        self.cam_from_world[frame] = proposals[int(np.argmax(scores))]
        self.scale[frame] = self._own_scale(frame, parents[:MAX_NEIGHBOURS])
        self.root_of[frame] = self.root_of[parents[0]]
        self.placed[frame] = True

    def settle(self, views: Sequence[TwoView]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Poses and depth scales along the tree and with averaged positions, the one that agrees better first.

        Where one agrees clearly better with matches and depth, the other is left out.
        """
        along_tree = self._agreement(views), self.cam_from_world.copy(), self.scale.copy()
        rotation = self.cam_from_world[:, :, :3]
        centers = -np.einsum("nji,nj->ni", rotation, self.cam_from_world[:, :, 3])
        averaged = average_positions(views, rotation)
        members: dict[int, list[TwoView]] = {}
        for view in views:
            members.setdefault(int(self.root_of[view.i]), []).append(view)
        for root, mine in members.items():
            if len(mine) >= 2:
                self._move(root, mine, centers, averaged)
        settled = self._agreement(views), self.cam_from_world, self.scale
        better, worse = sorted((along_tree, settled), key=lambda state: -state[0])
        chosen = [better] if worse[0] < better[0] * CLEARLY_WORSE else [better, worse]
        return [(pose, scale) for _, pose, scale in chosen]

    def _move(self, root: int, views: Sequence[TwoView], old: np.ndarray, new: np.ndarray) -> None:
        """Move a component to its averaged positions, keeping its root and size, and rescale its depth."""
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
        """Score of all placed frames on all pairs or, if there are very many, on evenly spaced ones."""
        count = min(len(views), MAX_WITNESSES)
        views = [views[number * len(views) // count] for number in range(count)]
        ends = [end for view in views for end in ((view.i, view.j), (view.j, view.i))]
        total = 0.0
        for first in range(0, len(ends), EDGES_AT_ONCE):
            some = ends[first : first + EDGES_AT_ONCE]
            matches = join([self._edges[end] for end in some])
            total += self._score(matches, self.cam_from_world[[target for _, target in some]])
        return total

    def _propose(self, edge: Edge) -> list[Float64[np.ndarray, "3 4"]]:
        """World-to-camera poses of the target that one placed neighbour suggests."""
        relative = [scale_translation(torch.from_numpy(edge.target_from_source), self._baseline(edge))]
        if edge.is_planar and self._can_lift[edge.source]:
            relative += map(torch.from_numpy, self._pose_from_depth(edge))
        placed = torch.from_numpy(self.cam_from_world[edge.source])
        return [compose(pose, placed).numpy() for pose in relative]

    def _from_sources(
        self, source: int | Int64[np.ndarray, " E"], target_from_world: Float64[np.ndarray, "*T 3 4"]
    ) -> Float64[torch.Tensor, "*P 3 4"]:
        """Poses of targets relative to placed sources."""
        placed = torch.from_numpy(self.cam_from_world[source])
        return compose(torch.from_numpy(target_from_world), invert(placed))

    def _baseline(self, edge: Edge) -> float:
        """Length of the translation: triangulated inverse depth over that of the placed frame's map."""
        if parallax_deg(edge) < MIN_PARALLAX_DEG:
            return 0.0
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = triangulate(edge, edge.target_from_source) / self._inverse_depth(edge.source, edge.raw_source)
        ratio = ratio[np.isfinite(ratio) & (ratio > 0)]
        return float(np.median(ratio)) if len(ratio) else 0.0

    def _pose_from_depth(self, edge: Edge) -> list[Float64[np.ndarray, "3 4"]]:
        """Pose by P3P and RANSAC from the placed frame's depth, which needs neither parallax nor relief."""
        with np.errstate(divide="ignore"):
            depth = 1 / self._inverse_depth(edge.source, edge.raw_source)
        known = np.isfinite(depth) & (depth > 0)
        if known.sum() < 4:
            return []
        points = edge.rays_source[known] * depth[known, None]
        # Rays as pixels of a camera with a long side of 1024, where the threshold is given.
        focal, side = edge.focal_target, int(REFERENCE_LONG_SIDE)
        lens = Lens(np.full(2, focal), np.zeros(2), np.zeros(4), np.full(2, side))
        pixels = edge.rays_target[known, :2] * focal
        pose, inliers = pose_from_points(pixels, points, lens, PNP_ERROR_PX, PNP_ITERATIONS)
        return [pose] if inliers.sum() >= 4 else []

    def _score(self, matches: Joined, cam_from_world: Float64[np.ndarray, "*E 3 4"]) -> float:
        """Score of poses, at most 0: how well edges from placed frames agree, across and along epipolar lines."""
        source, edge = matches.source, matches.edge
        relative = self._from_sources(source, cam_from_world)[edge]
        rays = (torch.from_numpy(rays)[:, None] for rays in (matches.rays_source, matches.rays_target))
        across = line_distances(relative, *rays)[:, 0].numpy()
        inverse_depth = self._inverse_depth(source[edge], matches.raw_source)
        inverse_depth = _fill_by_median(inverse_depth, edge)
        turn, step = relative[..., :3].numpy(), relative[..., 3].numpy()
        points = (turn @ matches.rays_source[..., None])[..., 0] + inverse_depth[:, None] * step
        ahead = points[:, 2] > 1e-9
        difference = points[:, :2] / np.where(ahead, points[:, 2], np.nan)[:, None] - matches.rays_target[:, :2]
        along = np.linalg.norm(difference, axis=1)
        # With almost no baseline the line is undefined: the distance to the point is taken instead.
        across = np.where(np.linalg.norm(step, axis=1) < 1e-9, along, np.minimum(across, along))
        along, across = (np.where(ahead, part * matches.focal_target, BEHIND_PX) for part in (along, across))
        return -float(np.log1p(across / ACROSS_PX).sum() + np.log1p(along / ALONG_PX).sum())

    def _own_scale(self, frame: int, parents: list[int]) -> float:
        """Scale of the frame's depth map that agrees best with the frames around it."""
        ratios = [self._scale_ratios(self._edges[parent, frame]) for parent in parents]
        merged = np.concatenate(ratios)
        merged = merged[np.isfinite(merged) & (merged > 0)]
        return float(np.median(merged)) if len(merged) else float(self.scale[parents[0]])

    def _scale_ratios(self, edge: Edge) -> Float64[np.ndarray, " M"]:
        """Scale at which each raw value of the target would be correct."""
        relative = self._from_sources(edge.source, self.cam_from_world[edge.target]).numpy()
        if parallax_deg(edge) < MIN_PARALLAX_DEG or np.linalg.norm(relative[:, 3]) < 1e-9:
            inverse_depth = self._inverse_depth(edge.source, edge.raw_source)
            near = (edge.rays_source @ relative[:, :3].T)[:, 2] + relative[2, 3] * inverse_depth
            inverse = inverse_depth / np.where(near > 0, near, np.nan)
        else:
            source_from_target = self._from_sources(edge.target, self.cam_from_world[edge.source]).numpy()
            inverse = triangulate(reverse(edge), source_from_target)
        raw = edge.raw_target
        with np.errstate(divide="ignore", invalid="ignore"):
            return inverse / raw if self._is_disparity[edge.target] else 1 / (inverse * raw)

    def _inverse_depth(
        self, frame: int | Int64[np.ndarray, " M"], raw: Float64[np.ndarray, " M"]
    ) -> Float64[np.ndarray, " M"]:
        scaled_raw = self.scale[frame] * raw
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(self._is_disparity[frame], scaled_raw, 1 / scaled_raw)


def _fill_by_median(values: Float64[np.ndarray, " M"], edge: Int64[np.ndarray, " M"]) -> Float64[np.ndarray, " M"]:
    """Values with missing ones replaced by the median of their edge, or 0."""
    known = np.isfinite(values)
    filled = values.copy()
    for number in np.unique(edge[~known]).tolist():
        mine = edge == number
        own = values[mine & known]
        filled[mine & ~known] = np.median(own) if len(own) else 0.0
    return filled
