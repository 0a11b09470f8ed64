"""K correspondences with depth on every edge of the pose graph."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float32, Int64

from mbasfm.geometry.lots import lots, places
from mbasfm.polish.tracks import connect, is_doubled
from mbasfm.types.pairs import Keypoints, TwoView
from mbasfm.types.samples import Samples

WRITE_EDGES = 1024
"""Number of edges that are written at once."""


@runtime_checkable
class SampleStore(Protocol):
    """Storage of the samples of all edges."""

    def put(self, wanted: Int64[torch.Tensor, " M"], data: Float32[torch.Tensor, "M K 5"]) -> None:
        """Write the samples of some edges."""


Store = TypeVar("Store", bound=SampleStore)


def draw_samples(views: Sequence[TwoView], keypoints: Sequence[Keypoints], samples_per_edge: int, seed: int) -> Samples:
    """Samples of all edges, in memory; see ``draw_into``."""

    def create(edges: Int64[torch.Tensor, "E 2"], weight: Float32[torch.Tensor, " E"]) -> _InMemory:
        return _InMemory(edges, weight, torch.zeros(len(edges), samples_per_edge, 5))

    found = draw_into(create, views, keypoints, samples_per_edge, seed)
    return Samples(found.edges, found.data, found.weight[:, None].repeat(1, samples_per_edge))


def draw_into(
    create: Callable[[Int64[torch.Tensor, "E 2"], Float32[torch.Tensor, " E"]], Store],
    views: Sequence[TwoView],
    keypoints: Sequence[Keypoints],
    samples_per_edge: int,
    seed: int,
) -> Store:
    """Samples drawn with replacement from each edge's verified matches with depth; edges without any are left out.

    ``create`` gives storage for edges, sorted by source frame, with a weight for all samples of each. The weights of an
    edge sum to min(K, distinct matches): thirty matches must not count like three thousand.
    """
    found = [(source, target, len(matches)) for source, target, matches in _directed(views, keypoints) if len(matches)]
    source, target, count = np.array(found, dtype=np.int64).reshape(-1, 3).T
    order = np.lexsort([target, source])
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    weight = (np.minimum(count, samples_per_edge) / samples_per_edge).astype(np.float32)
    edges = np.stack([source, target], -1)
    store = create(torch.from_numpy(edges[order]), torch.from_numpy(weight[order]))
    drawn = (
        _rows(_draw(matches, (source, target), keypoints, samples_per_edge, seed), keypoints[source], keypoints[target])
        for source, target, matches in _directed(views, keypoints)
        if len(matches)
    )
    for low in range(0, len(place), WRITE_EDGES):
        rows = np.stack(list(islice(drawn, WRITE_EDGES)))
        store.put(torch.from_numpy(place[low : low + WRITE_EDGES]), torch.from_numpy(rows))
    return store


@dataclass(frozen=True)
class _InMemory:
    edges: Int64[torch.Tensor, "E 2"]
    weight: Float32[torch.Tensor, " E"]
    data: Float32[torch.Tensor, "E K 5"]

    def put(self, wanted: Int64[torch.Tensor, " M"], data: Float32[torch.Tensor, "M K 5"]) -> None:
        self.data[wanted] = data


def _directed(
    views: Sequence[TwoView], keypoints: Sequence[Keypoints]
) -> Iterator[tuple[int, int, Int64[np.ndarray, "M 2"]]]:
    """Both directions of every pair, with the matches that have depth in the source."""
    for view in views:
        for source, target in ((view.i, view.j), (view.j, view.i)):
            matches = view.matches if source == view.i else view.matches[:, ::-1]
            yield source, target, matches[np.isfinite(keypoints[source].raw_depth[matches[:, 0]])]


def _draw(
    matches: Int64[np.ndarray, "M 2"], ends: tuple[int, int], keypoints: Sequence[Keypoints], wanted: int, seed: int
) -> Int64[np.ndarray, "K 2"]:
    """Matches drawn with replacement, but none twice before all others were drawn once."""
    where = [places(keypoints[end].pixels[index]) for end, index in zip(ends, matches.T, strict=True)]
    order = np.argsort(lots(seed, *ends, *where), kind="stable")
    return matches[np.resize(order, wanted)]


def _rows(matches: Int64[np.ndarray, "K 2"], source: Keypoints, target: Keypoints) -> Float32[np.ndarray, "K 5"]:
    first, second = matches.T
    columns = [source.pixels[first], target.pixels[second], source.raw_depth[first][:, None]]
    return np.concatenate(columns, 1).astype(np.float32)


ROW = 64
"""Samples in a row; an edge with more observations stands in several rows."""


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
    pairs = _match_ends(views, keypoints)
    tangled = is_doubled(frame, track)[track]
    whole = _whole_tracks(frame, track, size, tangled, keypoints, lot)
    parts = _own_matches(pairs[tangled[pairs[:, 0]]], frame)
    sightings = whole.join(parts)
    return _in_rows(_most_seen(sightings, pairs, frame, lot, tracks_per_frame, least_per_pair), frame, keypoints)


@dataclass(frozen=True)
class _Sightings:
    """Which keypoints, numbered over all frames, are seen from which anchors, and how much each counts."""

    anchor: Int64[np.ndarray, " M"]
    match: Int64[np.ndarray, " M"]
    weight: Float32[np.ndarray, " M"]

    def join(self, other: "_Sightings") -> "_Sightings":
        return _Sightings(*(np.concatenate(both) for both in zip(vars(self).values(), vars(other).values())))

    def only(self, kept: np.ndarray) -> "_Sightings":
        return _Sightings(*(values[kept] for values in vars(self).values()))


def _match_ends(views: Sequence[TwoView], keypoints: Sequence[Keypoints]) -> Int64[np.ndarray, "M 2"]:
    first = np.concatenate([[0], np.cumsum([len(points.pixels) for points in keypoints])])
    ends = [np.stack([first[view.i] + view.matches[:, 0], first[view.j] + view.matches[:, 1]], 1) for view in views]
    return np.concatenate(ends) if ends else np.zeros((0, 2), np.int64)


def _whole_tracks(frame, track, size, tangled, keypoints, lot) -> _Sightings:
    """Every track from one of its keypoints: one with depth if there is any, else drawn by lot."""
    raw = np.concatenate([points.raw_depth for points in keypoints])
    member = np.flatnonzero((size[track] >= 2) & ~tangled)
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


def _most_seen(seen: _Sightings, pairs, frame, lot, tracks_per_frame: int, least_per_pair: int) -> _Sightings:
    """The anchors with the most sightings of each frame that is an end of theirs, and some of every pair."""
    count = np.bincount(seen.anchor, minlength=len(frame))
    priority = count + lot
    owner = np.concatenate([seen.anchor, np.unique(seen.anchor)])
    where = frame[np.concatenate([seen.match, np.unique(seen.anchor)])]
    chosen = np.zeros(len(frame), dtype=bool)
    chosen[owner[_first_of_each(where, priority[owner], tracks_per_frame)]] = True
    edge = frame[seen.anchor] * (frame.max(initial=0) + 1) + frame[seen.match]
    chosen[seen.anchor[_first_of_each(edge, priority[seen.anchor], least_per_pair)]] = True
    return seen.only(chosen[seen.anchor])


def _first_of_each(group: Int64[np.ndarray, " M"], priority: np.ndarray, count: int) -> np.ndarray:
    """Which rows are among the ``count`` of their group with the highest priority."""
    order = np.lexsort([-priority, group])
    begin = np.searchsorted(group[order], group[order])
    chosen = np.zeros(len(group), dtype=bool)
    chosen[order[np.arange(len(order)) - begin < count]] = True
    return chosen


def _in_rows(seen: _Sightings, frame: Int64[np.ndarray, " P"], keypoints: Sequence[Keypoints]) -> Samples:
    """Samples in rows of one edge each, sorted by source and target; rows are filled up with samples of no weight."""
    source, target = frame[seen.anchor], frame[seen.match]
    order = np.lexsort([seen.anchor, target, source])
    seen, source, target = seen.only(order), source[order], target[order]
    edge = source * len(keypoints) + target
    place = np.arange(len(edge)) - np.searchsorted(edge, edge)
    begins = place % ROW == 0
    row = np.cumsum(begins) - 1
    pixels = np.concatenate([points.pixels for points in keypoints])
    raw = np.concatenate([points.raw_depth for points in keypoints])
    number = np.unique(seen.anchor, return_inverse=True)[1]
    values = np.concatenate([pixels[seen.anchor], pixels[seen.match], raw[seen.anchor, None]], 1)
    data, numbers = (np.repeat(some[begins][:, None], ROW, 1) for some in (values, number))
    weight = np.zeros(numbers.shape, np.float32)
    data[row, place % ROW], numbers[row, place % ROW], weight[row, place % ROW] = values, number, seen.weight
    edges = np.stack([source, target], 1)[begins]
    return Samples(*(torch.from_numpy(some) for some in (edges, data.astype(np.float32), weight, numbers)))
