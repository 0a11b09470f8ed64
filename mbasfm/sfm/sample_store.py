"""Samples on disk: the data matrix in memory-mapped files, of which one block of edges is in memory at a time."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Int
from torch import Tensor

from mbasfm.errors import InputError
from mbasfm.io.files import read_arrays
from mbasfm.types.observations import Samples

COLUMNS = 5
SHARD_BYTES = 1 << 28
INDEX_NAME = "index.npz"


@dataclass(frozen=True)
class StoredSamples:
    """Samples of a folder, usable in place of ``Samples``. Maps are closed after every read, which frees memory."""

    folder: Path
    edges: Int[Tensor, "E 2"]
    weight: Float32[Tensor, " E"]
    """Weight of every sample of the edge."""
    row: Int[Tensor, " E"]
    """Row in which each edge is stored."""
    samples_per_edge: int
    num_rows: int
    block_edges: int
    """Number of edges that are read and processed at once."""

    @property
    def num_edges(self) -> int:
        """Number of edges E."""
        return len(self.edges)

    @property
    def dtype(self) -> torch.dtype:
        """Type of the data."""
        return torch.float32

    def rows(self, chunk: slice) -> Samples:
        """Samples of consecutive edges, read into memory."""
        parts = list(self._by_shard(self.row[chunk].numpy()))
        if len(parts) == 1 and isinstance(parts[0][2], slice):  # all in one run: the map itself, closed with the block
            data = self._map(parts[0][0], "c")[parts[0][2]]
        else:
            data = np.empty((len(self.row[chunk]), self.samples_per_edge, COLUMNS), np.float32)
            for shard, wanted, local in parts:
                data[wanted] = self._map(shard, "r")[local]
        weight = self.weight[chunk, None].expand(-1, self.samples_per_edge)
        return Samples(self.edges[chunk], torch.from_numpy(data), weight)

    def select(self, wanted: Bool[Tensor, " E"] | Int[Tensor, " M"]) -> "StoredSamples":
        """Samples of some edges, by a mask or by number; nothing is copied on disk."""
        return replace(self, edges=self.edges[wanted], weight=self.weight[wanted], row=self.row[wanted])

    def edge_mass(self) -> Float[Tensor, " E"]:
        """Sum of the weights of each edge."""
        return self.weight.double() * self.samples_per_edge

    def put(self, wanted: Int[Tensor, " M"], data: Float32[Tensor, "M K 5"]) -> None:
        """Write the samples of some edges."""
        for shard, some, local in self._by_shard(self.row[wanted].numpy()):
            self._map(shard, "r+")[local] = data[torch.from_numpy(some)].numpy()

    @property
    def _shard_rows(self) -> int:
        return max(1, SHARD_BYTES // (4 * COLUMNS * self.samples_per_edge))

    def _map(self, shard: int, mode: str) -> np.memmap:
        count = min(self._shard_rows, self.num_rows - shard * self._shard_rows)
        path = self.folder / f"samples-{shard:05d}.f32"
        return np.memmap(path, np.float32, mode, shape=(count, self.samples_per_edge, COLUMNS))  # type: ignore[call-overload]

    def _by_shard(self, row: np.ndarray) -> Iterator[tuple[int, np.ndarray, slice | np.ndarray]]:
        """Number of a shard, which of the rows are in it, and where in it; a slice where they are consecutive."""
        shards = row // self._shard_rows
        for shard in np.unique(shards).tolist():
            (some,) = np.nonzero(shards == shard)
            local = row[some] - shard * self._shard_rows
            is_run = bool((np.diff(local) == 1).all())
            yield shard, some, slice(int(local[0]), int(local[-1]) + 1) if is_run else local


def create_samples(
    folder: Path,
    edges: Int[Tensor, "E 2"],
    weight: Float32[Tensor, " E"],
    samples_per_edge: int,
    block_edges: int,
) -> StoredSamples:
    """Empty samples of all edges on disk, which ``put`` fills."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("samples-*.f32"):
        old.unlink()
    stored = StoredSamples(
        folder, edges, weight, torch.arange(len(edges)), samples_per_edge, len(edges), max(1, block_edges)
    )
    for shard in range(-(-len(edges) // stored._shard_rows)):
        stored._map(shard, "w+")
    sizes = np.array([samples_per_edge, stored.block_edges])
    np.savez(folder / INDEX_NAME, edges=edges.numpy(), weight=weight.numpy(), sizes=sizes)
    return stored


def open_samples(folder: Path) -> StoredSamples:
    """Samples stored earlier."""
    try:
        index = read_arrays(folder / INDEX_NAME)
        edges, weight = torch.from_numpy(index["edges"]), torch.from_numpy(index["weight"])
        samples_per_edge, block_edges = index["sizes"].tolist()
    except (InputError, ValueError, KeyError) as error:
        raise InputError(f"{folder}: no samples there ({error}); draw them again") from error
    return StoredSamples(folder, edges, weight, torch.arange(len(edges)), samples_per_edge, len(edges), block_edges)
