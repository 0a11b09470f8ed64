"""K correspondences with depth on every edge of the pose graph."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float32, Int64

from mbasfm.geometry.lots import lots, places
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
