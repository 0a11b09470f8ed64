"""Samples on disk: the data matrix in memory-mapped files, of which one block of edges is in memory at a time."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mbasfm.errors import InputError
from mbasfm.io.files import read_arrays
from mbasfm.types.observations import Samples

COLUMNS = 7
"""Numbers kept of a sample: those of the data matrix, its weight, and the bits of its anchor's number."""
SHARD_BYTES = 1 << 28
INDEX_NAME = "index.npz"


@dataclass(frozen=True)
class StoredSamples:
    """Samples of a folder, usable in place of ``Samples``. Maps are closed after every read, which frees memory."""

    folder: Path
    edges: Int[Tensor, "E 2"]
    mass: Float[Tensor, " E"]
    """Sum of the weights of each edge."""
    row: Int[Tensor, " E"]
    """Row in which each edge is stored."""
    samples_per_edge: int
    num_rows: int
    num_anchors: int
    """One more than the largest number of a pixel."""
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
        values, bits = torch.from_numpy(data), torch.from_numpy(data[..., 6].view(np.int32))
        return Samples(self.edges[chunk], values[..., :5], values[..., 5], bits.long())

    def select(self, wanted: Bool[Tensor, " E"] | Int[Tensor, " M"]) -> "StoredSamples":
        """Samples of some edges, by a mask or by number; nothing is copied on disk."""
        return replace(self, edges=self.edges[wanted], mass=self.mass[wanted], row=self.row[wanted])

    def edge_mass(self) -> Float[Tensor, " E"]:
        """Sum of the weights of each edge."""
        return self.mass

    def put(self, wanted: Int[Tensor, " M"], samples: Samples) -> None:
        """Write the samples of some edges."""
        row = self.row[wanted]
        anchor = samples.anchor
        if anchor is None:  # numbered as in all samples together
            anchor = row[:, None] * self.samples_per_edge + torch.arange(self.samples_per_edge)
        values = np.empty((*samples.weight.shape, COLUMNS), np.float32)
        values[..., :5], values[..., 5] = samples.data.numpy(), samples.weight.numpy()
        values[..., 6] = anchor.to(torch.int32).numpy().view(np.float32)
        for shard, some, local in self._by_shard(row.numpy()):
            self._map(shard, "r+")[local] = values[some]

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
    mass: Float[Tensor, " E"],
    samples_per_edge: int,
    block_edges: int,
    num_anchors: int | None = None,
) -> StoredSamples:
    """Empty samples of all edges on disk, which ``put`` fills; without a number of anchors, each sample is its own."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("samples-*.f32"):
        old.unlink()
    num_anchors = len(edges) * samples_per_edge if num_anchors is None else num_anchors
    sizes = np.array([samples_per_edge, len(edges), num_anchors, max(1, block_edges)])
    stored = StoredSamples(folder, edges, mass.double(), torch.arange(len(edges)), *sizes.tolist())
    for shard in range(-(-len(edges) // stored._shard_rows)):
        stored._map(shard, "w+")
    np.savez(folder / INDEX_NAME, edges=edges.numpy(), mass=stored.mass.numpy(), sizes=sizes)
    return stored


def open_samples(folder: Path) -> StoredSamples:
    """Samples stored earlier."""
    try:
        index = read_arrays(folder / INDEX_NAME)
        edges, mass = torch.from_numpy(index["edges"]), torch.from_numpy(index["mass"])
        samples_per_edge, num_rows, num_anchors, block_edges = index["sizes"].tolist()
    except (InputError, ValueError, KeyError) as error:
        raise InputError(f"{folder}: no samples there ({error}); draw them again") from error
    return StoredSamples(
        folder, edges, mass, torch.arange(num_rows), samples_per_edge, num_rows, num_anchors, block_edges
    )
