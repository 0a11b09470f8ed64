"""The pose graph: which verified pairs become edges, and which of them contradict triangles or averaged rotations."""

import heapq
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components, minimum_spanning_tree
from scipy.spatial.transform import Rotation

from mbasfm.types.observations import PoseGraph, TwoView

MAX_TRIPLET_ERROR_DEG = 10.0
"""Three relative rotations around a triangle of true pairs come back to themselves within a few degrees."""
SAME_ANSWER_DEG, ANSWER_ROUNDS = 3.0, 10
"""How well rotations around a triangle must close to support one of two answers."""
PAIRS_AT_ONCE, TRIANGLES_AT_ONCE = 1 << 14, 1 << 18
MIN_TRIPLETS = 2
"""A pair is only judged where several triangles can speak."""
MAX_DISAGREEMENT_DEG = 15.0
"""Largest distance of a pair from the average; beyond it, it is mismatched."""
DIRECTION_ROUNDS, VIEWS_AT_ONCE = 8, 256


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
    closes = np.concatenate(
        [
            _closing_deg(*(rotation[some[:, side]] for side in range(3))).ravel() < MAX_TRIPLET_ERROR_DEG
            for some in np.array_split(triangles, len(triangles) // TRIANGLES_AT_ONCE + 1)
        ]
    )
    kept = _Vote(triangles, closes, _voices(views, triangles), np.array([view.strength for view in views])).settle()
    good, wrong = ([views[number] for number in np.flatnonzero(part).tolist()] for part in (kept, ~kept))
    return good, wrong


class _Vote:
    """Triangles speak about their pairs; what a pair that leaves takes with it is subtracted, never counted anew."""

    def __init__(self, triangles: np.ndarray, closes: np.ndarray, voice: np.ndarray, strength: np.ndarray):
        self._triangles, self._voice, self._strength = triangles, voice, strength
        count = len(strength)
        self._count = np.bincount(triangles.ravel(), minlength=count)
        self._total = np.bincount(triangles.ravel(), voice.ravel(), minlength=count)
        self._bad = np.bincount(triangles[~closes].ravel(), voice[~closes].ravel(), minlength=count)
        self._closes, self._speaks = closes, np.ones(len(triangles), dtype=bool)
        order = np.argsort(triangles.ravel(), kind="stable")
        self._of_pair, self._start = order // 3, np.concatenate([[0], np.cumsum(self._count)])

    def settle(self) -> Bool[np.ndarray, " P"]:
        """Which pairs stay. The weakest suspect leaves first; that may clear others, or make them suspects."""
        kept = np.ones(len(self._strength), dtype=bool)
        queue = [(self._strength[pair], pair) for pair in np.flatnonzero(self._is_suspect(slice(None))).tolist()]
        heapq.heapify(queue)
        while queue:
            _, worst = heapq.heappop(queue)
            if not kept[worst] or not self._is_suspect(worst):
                continue
            kept[worst] = False
            for pair in self._remove(worst):
                if kept[pair] and self._is_suspect(pair):
                    heapq.heappush(queue, (self._strength[pair], pair))
        return kept

    def _is_suspect(self, pair: Any) -> Any:
        # Sums of many voices are only as exact as their rounding; a tie is no suspicion.
        return (self._count[pair] >= MIN_TRIPLETS) & (self._bad[pair] > (0.5 + 1e-9) * self._total[pair])

    def _remove(self, pair: int) -> list[int]:
        """Silence the triangles of a pair; returns the pairs they spoke about."""
        mine = self._of_pair[self._start[pair] : self._start[pair + 1]]
        mine = mine[self._speaks[mine]]
        self._speaks[mine] = False
        sides, voice = self._triangles[mine].ravel(), self._voice[mine].ravel()
        np.subtract.at(self._count, sides, 1)
        np.subtract.at(self._total, sides, voice)
        np.subtract.at(self._bad, sides, voice * np.repeat(~self._closes[mine], 3))
        return np.unique(sides).tolist()


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
    ends = np.array([(view.i, view.j) for view in views], dtype=np.int64).reshape(-1, 2)
    first, second = ends.min(1), ends.max(1)
    order = np.argsort(first * num_frames + second, kind="stable")
    key = (first * num_frames + second)[order]
    start = np.searchsorted(first[order], np.arange(num_frames + 1))
    above, number = second[order], order  # neighbours of i above i, and the pair's number, from start[i] on
    found = [np.zeros((0, 3), dtype=np.int64)]
    for some in np.array_split(np.arange(len(views)), len(views) // PAIRS_AT_ONCE + 1):
        i, j = first[some], second[some]
        # Every neighbour k of j above j closes a triangle if i has it too.
        count = start[j + 1] - start[j]
        which = np.repeat(np.arange(len(some)), count)
        position = np.arange(len(which)) - np.repeat(np.cumsum(count) - count, count) + start[j][which]
        wanted = i[which] * num_frames + above[position]
        place = np.searchsorted(key, wanted)
        closed = (place < len(key)) & (key[np.minimum(place, len(key) - 1)] == wanted)
        found.append(np.stack([some[which], number[np.minimum(place, len(key) - 1)], number[position]], 1)[closed])
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


def strongest_pairs(views: Sequence[TwoView], num_frames: int, per_frame: int) -> list[TwoView]:
    """At most so many pairs of every frame, the strongest of either end, and those of a strongest spanning forest."""
    forest = _strongest_forest(views, num_frames, [True] * len(views))
    count, kept = np.zeros(num_frames, dtype=np.int64), np.zeros(len(views), dtype=bool)
    in_forest = [(view.i, view.j) in forest for view in views]
    for number in sorted(range(len(views)), key=lambda n: (not in_forest[n], -views[n].strength)):
        ends = [views[number].i, views[number].j]
        if in_forest[number] or bool((count[ends] < per_frame).all()):
            kept[number] = True
            count[ends] += 1
    return [view for view, keep in zip(views, kept.tolist(), strict=True) if keep]


def find_components(views: Sequence[TwoView], num_frames: int) -> Int64[np.ndarray, " N"]:
    """Number of the connected component of each frame, the largest first; -1 for frames without any edge."""
    label = find_groups(views, num_frames)
    sizes = np.bincount(label)
    order = np.argsort(-sizes[label], kind="stable")
    number = {old: new for new, old in enumerate(dict.fromkeys(label[order])) if sizes[old] > 1}
    return np.array([number.get(old, -1) for old in label], dtype=np.int64)


def find_groups(views: Sequence[TwoView], num_frames: int) -> Int64[np.ndarray, " N"]:
    """Number of the group of each frame; frames without any edge are groups of one."""
    _, label = connected_components(_weights(views, num_frames, [1.0] * len(views)), directed=False)
    return label.astype(np.int64)


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
