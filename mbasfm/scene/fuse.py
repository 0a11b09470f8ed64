"""One coloured cloud from many depth maps: points that another photograph confirms."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float32, Float64, Int64
from scipy.sparse import coo_array

from mbasfm.scene.depth_fit import depth_edges
from mbasfm.types.outcome import View

MAX_JUMP = 0.05
"""Largest difference between neighbouring pixels, as a share of depth; beyond it is an edge, where maps smear."""
MAX_DISAGREEMENT = 0.05
"""Largest difference between a point's depth and another map's there, as a share of depth."""
NUM_NEIGHBOURS = 4
VIEWS_AT_ONCE = 256
MIN_SHARED = 10
"""Least number of shared points that makes photographs neighbours."""


def confirmed_points(
    view: View,
    depth: Float32[np.ndarray, "h w"],
    others: Sequence[tuple[View, Float32[np.ndarray, "_ _"]]],
    count: int,
) -> tuple[Float64[np.ndarray, "M 3"], Float64[np.ndarray, "M 2"]]:
    """At most ``count`` points of a depth map, and their pixels.

    Points at depth edges are left out, and those that no other map confirms or more maps deny than confirm.
    """
    height, width = depth.shape
    row, column = np.nonzero(~depth_edges(depth, MAX_JUMP))
    relative = np.stack([(column + 0.5) / width, (row + 0.5) / height], -1)
    pixels = relative * np.array(view.size)
    points = view.lift(pixels, depth[row, column].astype(np.float64))
    votes = [_agreement(points, *other) for other in others]
    balance = np.sum([agrees.astype(np.int64) - denies for agrees, denies in votes], axis=0) + np.zeros(len(points))
    confirmed = np.any([agrees for agrees, _ in votes] or [np.zeros(len(points), bool)], axis=0)
    kept = np.flatnonzero(confirmed & (balance >= 0))
    if len(kept) > count:
        kept = kept[np.linspace(0, len(kept) - 1, count).round().astype(np.int64)]
    return points[kept], pixels[kept]


def _agreement(
    points: Float64[np.ndarray, "M 3"], view: View, depth: Float32[np.ndarray, "h w"]
) -> tuple[Bool[np.ndarray, " M"], Bool[np.ndarray, " M"]]:
    """Which points a map confirms, and which it denies: it sees through them. A point behind a surface is hidden."""
    pixels, ahead = view.project(points)
    height, width = depth.shape
    index = np.floor(pixels / view.size * (width, height))
    inside = (ahead > 0) & (index >= 0).all(1) & (index < (width, height)).all(1)
    column, row = np.where(inside[:, None], index, 0).astype(np.int64).T
    ratio = np.where(inside, ahead, np.nan) / depth[row, column]
    return np.abs(ratio - 1) <= MAX_DISAGREEMENT, ratio < 1 - MAX_DISAGREEMENT


def neighbours_of(seen: Sequence[Int64[np.ndarray, " _"]]) -> list[list[int]]:
    """Views that share most points with each view, given the numbers of the points that each sees.

    Views are compared with all others some at a time: of thousands, the whole table would not fit into the memory.
    """
    view = np.repeat(np.arange(len(seen)), [len(numbers) for numbers in seen])
    _, point = np.unique(np.concatenate([*seen, np.zeros(0, np.int64)]), return_inverse=True)
    sees = coo_array((np.ones(len(view), np.int64), (view, point)), shape=(len(seen), point.max(initial=0) + 1)).tocsr()
    others, found = sees.T.tocsr(), []
    for begin in range(0, len(seen), VIEWS_AT_ONCE):
        shared = (sees[begin : begin + VIEWS_AT_ONCE] @ others).toarray()
        for own, row in enumerate(shared, start=begin):
            row[own] = 0
            order = np.argsort(-row, kind="stable")[:NUM_NEIGHBOURS]
            found.append([int(other) for other in order if row[other] >= MIN_SHARED])
    return found
