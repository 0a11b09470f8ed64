"""The pose graph: which verified pairs become edges, and which of them contradict the others."""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Bool, Int64
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components, minimum_spanning_tree

from mbasfm.twoview import TwoView
from mbasfm.types import PoseGraph

MAX_TRIPLET_ERROR_DEG = 10.0
"""Three relative rotations around a triangle of true pairs come back to themselves within a few degrees."""
MIN_TRIPLETS = 2
"""A pair is only judged where several triangles can speak."""


def select_edges(views: Sequence[TwoView], num_frames: int, min_covisibility: float) -> list[TwoView]:
    """Pairs that see enough of each other (the paper's nu), and those without which a frame would be cut off."""
    wide = [max(view.covisibility) >= min_covisibility for view in views]
    forest = _strongest_forest(views, num_frames, wide)
    return [view for view, enough in zip(views, wide, strict=True) if enough or (view.i, view.j) in forest]


def drop_inconsistent(views: Sequence[TwoView], num_frames: int) -> tuple[list[TwoView], list[TwoView]]:
    """Split pairs into those kept and those whose rotation disagrees in most of their triangles.

    A triangle speaks as loud as the weaker of its two other pairs. One pair leaves at a time, the weakest that most of
    its triangles speak against, and takes its triangles with it: a good pair must not fall because of bad ones.
    """
    triangles, closes = _triangles(views, num_frames)
    strength = np.array([view.strength for view in views])
    around = strength[triangles]
    voice = np.stack([np.delete(around, side, axis=1).min(1) for side in range(3)], 1)
    kept = np.ones(len(views), dtype=bool)
    while True:
        count = np.bincount(triangles.ravel(), minlength=len(views))
        total, bad = (
            np.bincount(triangles[some].ravel(), voice[some].ravel(), minlength=len(views))
            for some in (slice(None), ~closes)
        )
        suspects = np.flatnonzero(kept & (count >= MIN_TRIPLETS) & (bad > 0.5 * total))
        if len(suspects) == 0:
            good, wrong = ([views[number] for number in np.flatnonzero(part).tolist()] for part in (kept, ~kept))
            return good, wrong
        worst = suspects[np.argmin(strength[suspects])]
        kept[worst] = False
        left = (triangles != worst).all(1)
        triangles, closes, voice = triangles[left], closes[left], voice[left]


def _triangles(views: Sequence[TwoView], num_frames: int) -> tuple[Int64[np.ndarray, "T 3"], Bool[np.ndarray, " T"]]:
    """All triangles as numbers of their three pairs, and whether their rotations come back to where they began."""
    index = -np.ones((num_frames, num_frames), dtype=np.int64)
    rotation = np.zeros((num_frames, num_frames, 3, 3))
    for number, view in enumerate(views):
        index[view.i, view.j] = index[view.j, view.i] = number
        rotation[view.i, view.j] = view.j_from_i[:, :3]
        rotation[view.j, view.i] = view.j_from_i[:, :3].T
    found, closed = [np.zeros((0, 3), dtype=np.int64)], [np.zeros(0, dtype=bool)]
    for number, view in enumerate(views):
        third = np.flatnonzero((index[view.i] >= 0) & (index[view.j] >= 0))
        third = third[third > view.j]
        loop = rotation[third, view.i] @ rotation[view.j, third] @ rotation[view.i, view.j]
        cosine = (np.trace(loop, axis1=1, axis2=2) - 1) / 2
        found.append(np.column_stack([np.full(len(third), number), index[view.i, third], index[view.j, third]]))
        closed.append(cosine > np.cos(np.deg2rad(MAX_TRIPLET_ERROR_DEG)))
    return np.concatenate(found), np.concatenate(closed)


def find_components(views: Sequence[TwoView], num_frames: int) -> Int64[np.ndarray, " N"]:
    """Number of the connected component of each frame, the largest first; -1 for frames without any edge."""
    matrix = _weights(views, num_frames, [1.0] * len(views))
    _, label = connected_components(matrix, directed=False)
    sizes = np.bincount(label)
    order = np.argsort(-sizes[label], kind="stable")
    number = {old: new for new, old in enumerate(dict.fromkeys(label[order])) if sizes[old] > 1}
    return np.array([number.get(old, -1) for old in label], dtype=np.int64)


def pose_graph(views: Sequence[TwoView]) -> PoseGraph:
    """Both directions of every pair."""
    edges = [(view.i, view.j) for view in views] + [(view.j, view.i) for view in views]
    covisibility = [view.covisibility[end] for end in (0, 1) for view in views]
    return PoseGraph(
        edges=torch.tensor(edges, dtype=torch.int64).reshape(-1, 2),
        covisibility=torch.tensor(covisibility, dtype=torch.float32),
    )


def _strongest_forest(views: Sequence[TwoView], num_frames: int, wide: Sequence[bool]) -> set[tuple[int, int]]:
    """Pairs of a spanning forest that prefers wide pairs, then strong ones."""
    cost = [1 / (1 + view.strength) + (0 if enough else 1) for view, enough in zip(views, wide, strict=True)]
    tree = minimum_spanning_tree(_weights(views, num_frames, cost)).tocoo()
    return {(min(a, b), max(a, b)) for a, b in zip(tree.row.tolist(), tree.col.tolist(), strict=True)}


def _weights(views: Sequence[TwoView], num_frames: int, values: Sequence[float]) -> coo_matrix:
    rows, columns = np.array([(view.i, view.j) for view in views], dtype=np.int64).reshape(-1, 2).T
    return coo_matrix((np.asarray(values, dtype=np.float64), (rows, columns)), shape=(num_frames, num_frames))
