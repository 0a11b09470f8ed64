"""Tracks as anchors: one keypoint of each is the anchor, all others observe it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float32, Float64, Int64, Integer

from mbasfm.geometry.subsets import lots, places
from mbasfm.polish.tracks import connect, first_of_each, is_doubled, match_ends
from mbasfm.types.observations import Keypoints, Samples, TwoView

FEW_TRACKS = 200
"""Tracks per frame that tell which of several starts is the best."""
LEAST_PER_PAIR = 20
ROWS = (8, 16, 32, 64)
"""Numbers of samples that a row may have; an edge with more observations stands in several rows."""
ROW_COST = 8
"""What a row costs beside its samples, in samples."""


def draw_anchors(
    views: Sequence[TwoView], keypoints: Sequence[Keypoints], tracks_per_frame: int, least_per_pair: int, seed: int
) -> Samples:
    """The longest tracks of every frame, each anchored in one of its frames and observed in all others.

    Every pair keeps some tracks, however short, so that weak pairs have a voice. Where wrong matches join keypoints to
    something that is in two places of one photograph, every keypoint is an anchor with its own matches only; these
    overlap, so that they count less.
    """
    frame, track, size = connect(views, keypoints)
    pixels = np.concatenate([points.pixels for points in keypoints])
    lot = lots(seed, 0, frame, places(pixels))
    pairs = match_ends(views, keypoints)
    tangled = is_doubled(frame, track)[track]
    whole = _whole_tracks(track, (size[track] >= 2) & ~tangled, keypoints, lot)
    parts = _own_matches(pairs[tangled[pairs[:, 0]]], frame)
    chosen = _most_seen(whole.join(parts), frame, lot, tracks_per_frame, least_per_pair)
    return _in_rows(chosen, frame, keypoints)


@dataclass(frozen=True)
class _Sightings:
    """Which keypoints, numbered over all frames, are seen from which anchors, and how much each counts."""

    anchor: Int64[np.ndarray, " M"]
    match: Int64[np.ndarray, " M"]
    weight: Float32[np.ndarray, " M"]

    def join(self, other: "_Sightings") -> "_Sightings":
        return _Sightings(
            *(np.concatenate(both) for both in zip(vars(self).values(), vars(other).values(), strict=True))
        )

    def only(self, kept: Integer[np.ndarray, " K"] | Bool[np.ndarray, " M"]) -> "_Sightings":
        return _Sightings(*(values[kept] for values in vars(self).values()))


def _whole_tracks(
    track: Integer[np.ndarray, " P"],
    is_member: Bool[np.ndarray, " P"],
    keypoints: Sequence[Keypoints],
    lot: Float64[np.ndarray, " P"],
) -> _Sightings:
    """Every track from one of its keypoints: one with depth if there is any, else drawn by lot."""
    raw = np.concatenate([points.raw_depth for points in keypoints])
    member = np.flatnonzero(is_member)
    member = member[np.lexsort([lot[member], ~np.isfinite(raw[member]), track[member]])]
    _, begin, count = np.unique(track[member], return_index=True, return_counts=True)
    anchor = np.repeat(member[begin], count)
    seen = anchor != member
    return _Sightings(anchor[seen], member[seen], np.ones(int(seen.sum()), np.float32))


def _own_matches(pairs: Int64[np.ndarray, "M 2"], frame: Int64[np.ndarray, " P"]) -> _Sightings:
    """Every keypoint with its own matches; one at most in another photograph, the first."""
    both = np.concatenate([pairs, pairs[:, ::-1]])
    key = both[:, 0] * (frame.max(initial=0) + 1) + frame[both[:, 1]]
    anchor, match = both[np.unique(key, return_index=True)[1]].T
    count = np.bincount(anchor, minlength=len(frame))
    return _Sightings(anchor, match, (1 / (1 + count[anchor])).astype(np.float32))


def _most_seen(
    seen: _Sightings,
    frame: Int64[np.ndarray, " P"],
    lot: Float64[np.ndarray, " P"],
    tracks_per_frame: int,
    least_per_pair: int,
) -> _Sightings:
    """The anchors with the most sightings of each frame that is an end of theirs, and some of every pair."""
    count = np.bincount(seen.anchor, minlength=len(frame))
    priority = count + lot
    owner = np.concatenate([seen.anchor, np.unique(seen.anchor)])
    where = frame[np.concatenate([seen.match, np.unique(seen.anchor)])]
    chosen = np.zeros(len(frame), dtype=bool)
    chosen[owner[first_of_each(where, priority[owner], tracks_per_frame)]] = True
    edge = frame[seen.anchor] * (frame.max(initial=0) + 1) + frame[seen.match]
    chosen[seen.anchor[first_of_each(edge, priority[seen.anchor], least_per_pair)]] = True
    return seen.only(chosen[seen.anchor])


def _in_rows(seen: _Sightings, frame: Int64[np.ndarray, " P"], keypoints: Sequence[Keypoints]) -> Samples:
    """Samples in rows of one edge each, sorted by source and target; rows are filled up with samples of no weight."""
    source, target = frame[seen.anchor], frame[seen.match]
    order = np.lexsort([seen.anchor, target, source])
    seen, source, target = seen.only(order), source[order], target[order]
    edge = source * len(keypoints) + target
    place = np.arange(len(edge)) - np.searchsorted(edge, edge)
    size = _row_size(np.unique(edge, return_counts=True)[1])
    begins = place % size == 0
    row = np.cumsum(begins) - 1
    pixels = np.concatenate([points.pixels for points in keypoints])
    raw = np.concatenate([points.raw_depth for points in keypoints])
    number = np.unique(seen.anchor, return_inverse=True)[1]
    values = np.concatenate([pixels[seen.anchor], pixels[seen.match], raw[seen.anchor, None]], 1)
    data, numbers = (np.repeat(some[begins][:, None], size, 1) for some in (values, number))
    weight = np.zeros(numbers.shape, np.float32)
    data[row, place % size], numbers[row, place % size], weight[row, place % size] = values, number, seen.weight
    edges = np.stack([source, target], 1)[begins]
    return Samples(*(torch.from_numpy(some) for some in (edges, data.astype(np.float32), weight, numbers)))


def _row_size(count: Int64[np.ndarray, " E"]) -> int:
    """Number of samples of a row with which edges with these numbers of observations cost least."""
    cost = [np.ceil(count / size).sum() * (size + ROW_COST) for size in ROWS]
    return ROWS[int(np.argmin(cost))]
