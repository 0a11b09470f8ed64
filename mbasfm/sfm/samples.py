"""K correspondences with depth on every edge of the pose graph, as many as memory allows.

Where there is too little memory, pairs and samples are reduced, and a large data matrix goes to disk. What stays in
memory grows with edges (normal equations, their copy for the solver) and with anchors, where there are any (their
unknowns, and what matches and depth say about them).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float32, Int64

from mbasfm.errors import ConfigError
from mbasfm.geometry.subsets import lots, places
from mbasfm.runtime.parallel import from_main, is_main, wait_for_all
from mbasfm.runtime.progress import present_memory_mb, say
from mbasfm.sfm.pairs.pose_graph import strongest_pairs
from mbasfm.sfm.sample_store import create_samples, open_samples
from mbasfm.types.observations import BLOCK_SAMPLES, Keypoints, Samples, SampleSource, TwoView

WRITE_EDGES = 1024
"""Number of edges that are written at once."""
GB = 1e9
BYTES_AT_FIRST = 50e6
"""Bytes of code loaded with the first step, however small the problem is."""
BYTES_PER_EDGE = 2400
"""Bytes per edge: normal equations of 9 unknowns per frame, the solver's copy, and indices of edges and pairs."""
BYTES_PER_FRAME = 40_000
"""Bytes per frame: histograms and their tables."""
BYTES_PER_SAMPLE = 24
"""Bytes per sample that is kept in memory."""
BYTES_PER_ANCHOR = 300
"""Bytes per anchor: where it is, its unknowns before and after a step, and what its depth is compared with."""
BYTES_PER_COUPLED = 2100
"""Bytes per pair of frames that see anchors of a third: a block of the matrix, and both triangles for the solver."""
COUPLED_PAIRS = 2
"""Number of such pairs per edge: where neighbours lie in a plane, there are four times as many within twice the reach,
and every pair has two edges."""
BYTES_PER_BLOCK_SAMPLE = 900
"""Bytes per sample of a block in progress: residuals, rows and intermediate values."""
LEAST_BLOCK, LEAST_SAMPLES, LEAST_PAIRS = 1 << 14, 40, 8
LARGE_MATRIX = 512e6
"""Bytes above which samples go to disk."""
FOLDER = "samples"


@runtime_checkable
class SampleStore(Protocol):
    """Storage of the samples of all edges."""

    def put(self, wanted: Int64[torch.Tensor, " M"], samples: Samples) -> None:
        """Write the samples of some edges."""


Store = TypeVar("Store", bound=SampleStore)


def draw_samples(views: Sequence[TwoView], keypoints: Sequence[Keypoints], samples_per_edge: int, seed: int) -> Samples:
    """Samples of all edges, in memory; see ``draw_into``."""

    def create(edges: Int64[torch.Tensor, "E 2"], mass: Float32[torch.Tensor, " E"]) -> _InMemory:
        count = len(edges), samples_per_edge
        return _InMemory(Samples(edges, torch.zeros(*count, 5), torch.zeros(count)))

    return draw_into(create, views, keypoints, samples_per_edge, seed).samples


def draw_into(
    create: Callable[[Int64[torch.Tensor, "E 2"], Float32[torch.Tensor, " E"]], Store],
    views: Sequence[TwoView],
    keypoints: Sequence[Keypoints],
    samples_per_edge: int,
    seed: int,
) -> Store:
    """Samples drawn with replacement from each edge's verified matches with depth; edges without any are left out.

    ``create`` gives storage for edges, sorted by source frame, whose samples have the given mass together:
    min(K, distinct matches), as thirty matches must not count like three thousand.
    """
    found = [(source, target, len(matches)) for source, target, matches in _directed(views, keypoints) if len(matches)]
    source, target, count = np.array(found, dtype=np.int64).reshape(-1, 3).T
    order = np.lexsort([target, source])
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    mass = torch.from_numpy(np.minimum(count, samples_per_edge).astype(np.float32))
    edges = torch.from_numpy(np.stack([source, target], -1))
    store = create(edges[order], mass[order])
    drawn = (
        _rows(_draw(matches, (source, target), keypoints, samples_per_edge, seed), keypoints[source], keypoints[target])
        for source, target, matches in _directed(views, keypoints)
        if len(matches)
    )
    for low in range(0, len(place), WRITE_EDGES):
        some = slice(low, low + WRITE_EDGES)
        rows = torch.from_numpy(np.stack(list(islice(drawn, WRITE_EDGES))))
        weight = (mass[some, None] / samples_per_edge).expand(rows.shape[:2])
        store.put(torch.from_numpy(place[some]), Samples(edges[some], rows, weight))
    return store


@dataclass(frozen=True)
class _InMemory:
    samples: Samples

    def put(self, wanted: Int64[torch.Tensor, " M"], samples: Samples) -> None:
        self.samples.data[wanted], self.samples.weight[wanted] = samples.data, samples.weight


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


@dataclass(frozen=True)
class Plan:
    """Plan that fits into memory."""

    samples_per_edge: int
    anchors_per_frame: int
    pairs_per_frame: int
    block_samples: int
    is_on_disk: bool
    bytes_needed: float

    def sentence(self, num_pairs: int) -> str:
        """Description of the plan for the user."""
        where = "on disk" if self.is_on_disk else "in memory"
        return (
            f"samples {where}, {self.samples_per_edge} per pair and direction, at most {self.pairs_per_frame} pairs per"
            f" photograph ({num_pairs} in all), {self.block_samples} samples at a time: about"
            f" {self.bytes_needed / GB:.1f} GB"
        )


@dataclass(frozen=True)
class Demand:
    """What adjustment would use without a limit."""

    num_frames: int
    degree: int
    """Number of pairs of the frame that has most."""
    num_edges: int
    samples_per_edge: int
    anchors_per_frame: int = 0
    """Number of anchors of a frame; 0 where the residual has none."""


def plan_memory(demand: Demand, budget: float | None = None, used: float = 0.0) -> Plan:
    """The richest plan within the budget (all in bytes; ``used`` is already taken).

    Small blocks only cost time, so they come first; then samples of a pair, of which there are many; pairs come last.
    """
    needed, num_frames = 0.0, demand.num_frames
    for pairs in _halvings(demand.degree, LEAST_PAIRS):
        edges = min(demand.num_edges, pairs * num_frames)
        for samples in _halvings(demand.samples_per_edge, LEAST_SAMPLES):
            for block in _halvings(BLOCK_SAMPLES, LEAST_BLOCK):
                matrix = float(edges) * samples * BYTES_PER_SAMPLE
                room = float("inf") if budget is None else budget - used
                # Samples in memory are processed in blocks of the usual size.
                on_disk = block < BLOCK_SAMPLES or matrix > min(LARGE_MATRIX, 0.3 * room)
                needed = used + BYTES_AT_FIRST + BYTES_PER_EDGE * edges + BYTES_PER_FRAME * num_frames
                needed += BYTES_PER_BLOCK_SAMPLE * block + (0 if on_disk else matrix)
                anchors = -(-demand.anchors_per_frame * samples // demand.samples_per_edge)
                coupled = COUPLED_PAIRS * edges if anchors else 0
                needed += BYTES_PER_ANCHOR * anchors * num_frames + BYTES_PER_COUPLED * coupled
                if budget is None or needed <= budget:
                    return Plan(samples, anchors, pairs, block, on_disk, needed)
    assert budget is not None
    raise ConfigError(
        f"max_memory_gb {budget / GB:g} is too little: {num_frames} photographs need at least {needed / GB:.1f} GB;"
        " raise it, or reconstruct in parts"
    )


def _halvings(value: int, least: int) -> list[int]:
    found = [value]
    while found[-1] // 2 >= least:
        found.append(found[-1] // 2)
    return found


@dataclass(frozen=True)
class Stock:
    """Storage of samples as planned."""

    plan: Plan
    folder: Path | None

    def draw(self, views: Sequence[TwoView], keypoints: Sequence[Keypoints], seed: int) -> SampleSource:
        """Samples in memory or, where they are many, on disk, written by one process and read by all."""
        count = self.plan.samples_per_edge
        if not self.plan.is_on_disk or self.folder is None:
            return draw_samples(views, keypoints, count, seed)
        folder, block_edges = self.folder / FOLDER, self.plan.block_samples // count
        if is_main():
            create = partial(create_samples, folder, samples_per_edge=count, block_edges=block_edges)
            draw_into(create, views, keypoints, count, seed)
        wait_for_all()
        return open_samples(folder)

    def keep(self, samples: Samples) -> SampleSource:
        """The samples themselves or, where there are many, a copy on disk, written by one process and read by all."""
        if not self.plan.is_on_disk or self.folder is None:
            return samples
        folder, count = self.folder / FOLDER, samples.samples_per_edge
        if is_main():
            sizes = count, self.plan.block_samples // count, samples.num_anchors
            stored = create_samples(folder, samples.edges, samples.edge_mass(), *sizes)
            for some in torch.arange(samples.num_edges).split(WRITE_EDGES):
                stored.put(some, samples.select(some))
        wait_for_all()
        return open_samples(folder)


def within_budget(
    views: list[TwoView],
    num_frames: int,
    samples_per_edge: int,
    anchors_per_frame: int,
    max_memory_gb: float | None,
    folder: Path | None,
) -> tuple[list[TwoView], Stock]:
    """The pairs that fit into memory, and the storage of their samples."""
    degree = int(np.bincount([end for view in views for end in (view.i, view.j)], minlength=1).max())
    budget, used = None if max_memory_gb is None else max_memory_gb * GB, present_memory_mb() * (1 << 20)
    demand = Demand(num_frames, degree, 2 * len(views), samples_per_edge, anchors_per_frame)
    plan = from_main(lambda: plan_memory(demand, budget, used))  # the same on all, whatever memory each has in use
    if plan.pairs_per_frame < degree:
        views = strongest_pairs(views, num_frames, plan.pairs_per_frame)
    if budget is not None:
        say(f"for {max_memory_gb:g} GB: {plan.sentence(len(views))}")
    return views, Stock(plan, folder)
