"""Verified pairs seen from one of their ends, with rays and depth, from which frames are placed."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float64, Int64

from mbasfm.geometry.camera import triangulated_inverse_depth
from mbasfm.geometry.rigid import invert
from mbasfm.sfm.start.averaging import rays_of
from mbasfm.types.cameras import Intrinsics
from mbasfm.types.observations import Keypoints, TwoView

MIN_PARALLAX_DEG = 0.5
"""Least parallax; below it the direction of translation and triangulated depth are noise."""


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
