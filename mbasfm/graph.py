"""The pose graph: which verified pairs become edges, and which of them contradict the others."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Float64, Int64
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components, minimum_spanning_tree

from mbasfm.twoview import TwoView
from mbasfm.types import PoseGraph

MAX_TRIPLET_ERROR_DEG = 10.0
"""Three relative rotations around a triangle of true pairs come back to themselves within a few degrees."""
SAME_ANSWER_DEG, ANSWER_ROUNDS = 3.0, 10
"""How well rotations around a triangle must close to support one of two answers."""
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
    triangles = _sides(views, num_frames)
    rotation = np.stack([view.j_from_i[None, :, :3] for view in views]) if views else np.zeros((0, 1, 3, 3))
    closes = _closing_deg(*(rotation[triangles[:, side]] for side in range(3))).ravel() < MAX_TRIPLET_ERROR_DEG
    voice = _voices(views, triangles)
    strength = np.array([view.strength for view in views])
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


def choose_answers(views: Sequence[TwoView], num_frames: int) -> list[TwoView]:
    """Give each pair that sees one plane that of its two poses with which more triangles close.

    Answers are believed as much as the triangles they close with answers that are believed; some rounds of that settle
    the matter (relaxation labelling, Rosenfeld et al. 1976).
    """
    if all(view.rival is None for view in views):
        return list(views)
    sides = _sides(views, num_frames)
    is_open = np.array([view.rival is not None for view in views])
    sides = sides[is_open[sides].any(1)]
    answers = np.stack(
        [[pose[:, :3] for pose in (v.j_from_i, v.j_from_i if v.rival is None else v.rival)] for v in views]
    )
    angle = _closing_deg(*(answers[sides[:, side]] for side in range(3)))
    support = np.exp(-((angle / SAME_ANSWER_DEG) ** 2)) * _voices(views, sides).min(1)[:, None, None, None]
    sure = np.where(is_open[:, None], [0.5, 0.5], [1.0, 0.0])
    belief = sure
    for _ in range(ANSWER_ROUNDS):
        a, b, c = (belief[sides[:, side]] for side in range(3))
        votes = np.full((len(views), 2), 1e-9)
        np.add.at(votes, sides[:, 0], np.einsum("tabc,tb,tc->ta", support, b, c))
        np.add.at(votes, sides[:, 1], np.einsum("tabc,ta,tc->tb", support, a, c))
        np.add.at(votes, sides[:, 2], np.einsum("tabc,ta,tb->tc", support, a, b))
        belief = np.where(is_open[:, None], votes / votes.sum(1, keepdims=True), sure)
    swap = belief[:, 1] > belief[:, 0]
    return [
        replace(view, j_from_i=view.rival, rival=view.j_from_i) if other and view.rival is not None else view
        for view, other in zip(views, swap, strict=True)
    ]


def _sides(views: Sequence[TwoView], num_frames: int) -> Int64[np.ndarray, "T 3"]:
    """All triangles i < j < k as numbers of their pairs ij, ik and jk."""
    index = -np.ones((num_frames, num_frames), dtype=np.int64)
    for number, view in enumerate(views):
        index[view.i, view.j] = index[view.j, view.i] = number
    found = [np.zeros((0, 3), dtype=np.int64)]
    for number, view in enumerate(views):
        third = np.flatnonzero((index[view.i] >= 0) & (index[view.j] >= 0))
        third = third[third > view.j]
        found.append(np.column_stack([np.full(len(third), number), index[view.i, third], index[view.j, third]]))
    return np.concatenate(found)


def _voices(views: Sequence[TwoView], sides: Int64[np.ndarray, "T 3"]) -> Float64[np.ndarray, "T 3"]:
    """How loud a triangle speaks about each of its pairs: as loud as the weaker of the two others."""
    around = np.array([view.strength for view in views])[sides]
    return np.stack([np.delete(around, side, axis=1).min(1) for side in range(3)], 1)


def _closing_deg(
    j_from_i: Float64[np.ndarray, "T A 3 3"], k_from_i: Float64[np.ndarray, "T B 3 3"], k_from_j: np.ndarray
) -> Float64[np.ndarray, "T A B C"]:
    """Angle by which the rotations around each triangle miss, for all combinations of answers."""
    # trace(k_from_i^T k_from_j j_from_i)
    trace = np.einsum("tbxy,tcxz,tazy->tabc", k_from_i, k_from_j, j_from_i)
    return np.rad2deg(np.arccos(np.clip((trace - 1) / 2, -1, 1)))


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
