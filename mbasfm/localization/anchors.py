"""Matches of queries as anchors: keypoints of the map, whose depth is known, and those of the queries themselves."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float32, Int64

from mbasfm.geometry.subsets import lots, places
from mbasfm.types.observations import Keypoints, Samples, TwoView

ROW = 64
"""Samples in a row; an edge with more observations stands in several rows."""


def anchor_matches(views: Sequence[TwoView], keypoints: Sequence[Keypoints], most_per_pair: int, seed: int) -> Samples:
    """Every match of a frame of the map (i) with a query (j) from both ends; of a pair so many at most, drawn by lot.

    A keypoint of the map has depth, and all queries that see it share what is left of its error. A keypoint of a query
    has none: the frames of the map that see it tell where it is. However many these are, it counts once, half from
    either side, because its own error is in all its matches.
    """
    pairs = _drawn(views, keypoints, most_per_pair, seed)
    weight = 0.5 / np.bincount(pairs[:, 1])[pairs[:, 1]]
    anchor, match = np.concatenate([pairs, pairs[:, ::-1]]).T
    return _in_rows(_Sightings(anchor, match, np.tile(weight, 2).astype(np.float32)), keypoints)


def _drawn(views: Sequence[TwoView], keypoints: Sequence[Keypoints], most: int, seed: int) -> Int64[np.ndarray, "_ 2"]:
    """Both keypoints of the matches drawn, numbered over all frames."""
    begin = np.concatenate([[0], np.cumsum([len(points.pixels) for points in keypoints])])
    found = [np.zeros((0, 2), np.int64)]
    for view in views:
        ends = zip((view.i, view.j), view.matches.T, strict=True)
        where = (places(keypoints[end].pixels[index]) for end, index in ends)
        order = np.argsort(lots(seed, view.i, view.j, *where), kind="stable")
        found.append(view.matches[order[:most]] + begin[[view.i, view.j]])
    return np.concatenate(found)


@dataclass(frozen=True)
class _Sightings:
    """Which keypoints, numbered over all frames, are seen from which anchors, and how much each counts."""

    anchor: Int64[np.ndarray, " M"]
    match: Int64[np.ndarray, " M"]
    weight: Float32[np.ndarray, " M"]


def _in_rows(seen: _Sightings, keypoints: Sequence[Keypoints]) -> Samples:
    """Samples in rows of one edge each, sorted by source and target; rows are filled up with samples of no weight."""
    frame = np.repeat(np.arange(len(keypoints)), [len(points.pixels) for points in keypoints])
    edge = frame[seen.anchor] * len(keypoints) + frame[seen.match]
    order = np.lexsort([seen.anchor, edge])
    anchor, match, edge = seen.anchor[order], seen.match[order], edge[order]
    place = np.arange(len(edge)) - np.searchsorted(edge, edge)
    begins, column = place % ROW == 0, place % ROW
    row = np.cumsum(begins) - 1
    pixels = np.concatenate([points.pixels for points in keypoints])
    raw = np.concatenate([points.raw_depth for points in keypoints])
    values = np.concatenate([pixels[anchor], pixels[match], raw[anchor, None]], 1).astype(np.float32)
    number = np.unique(anchor, return_inverse=True)[1]
    data, numbers = (np.repeat(some[begins][:, None], ROW, 1) for some in (values, number))
    weight = np.zeros(numbers.shape, np.float32)
    data[row, column], numbers[row, column], weight[row, column] = values, number, seen.weight[order]
    edges = np.stack(np.divmod(edge[begins], len(keypoints)), 1)
    return Samples(*(torch.from_numpy(some) for some in (edges, data, weight, numbers)))
