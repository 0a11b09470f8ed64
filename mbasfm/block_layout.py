"""Where the blocks of a matrix over thousands of frames lie: given by the pairs, the same in every step.

Several processes share the rows, so that each keeps and multiplies its own part of the matrix only.
"""

from dataclasses import dataclass

import numpy as np
import scipy.sparse
import torch
from jaxtyping import Float, Int
from scipy.sparse.csgraph import dijkstra
from torch import Tensor

from mbasfm.distributed import own_part

CLUSTER_FRAMES, MAX_CLUSTERS = 40, 160


@dataclass(frozen=True)
class BlockLayout:
    """This process's rows of frames, both triangles, columns in order: the fastest form to multiply with."""

    num_frames: int
    rows: slice
    start: Int[np.ndarray, " R1"]
    """First block of each row, and the number of all."""
    column: Int[np.ndarray, " B"]
    upper: Int[Tensor, " A"]
    """Pairs whose first frame has its row here."""
    lower: Int[Tensor, " C"]
    """Pairs whose second frame has."""
    place: Int[Tensor, " B"]
    """Where blocks go: those of the diagonal, of ``upper``, of ``lower``."""
    cluster: Int[Tensor, " N"]

    @staticmethod
    def build(pairs: Int[Tensor, "P 2"], num_frames: int) -> "BlockLayout":
        """Sort the blocks by row and column."""
        rows = own_part(num_frames)
        low, high = pairs.unbind(-1)
        upper, lower = (torch.nonzero((end >= rows.start) & (end < rows.stop)).flatten() for end in (low, high))
        frames = torch.arange(rows.start, rows.stop)
        row, column = torch.cat([frames, low[upper], high[lower]]), torch.cat([frames, high[upper], low[lower]])
        order = (row * num_frames + column).argsort()
        place = torch.empty_like(order)
        place[order] = torch.arange(len(order))
        start = torch.searchsorted(row[order], torch.arange(rows.start, rows.stop + 1))
        cluster = cluster_frames(pairs, num_frames)
        return BlockLayout(num_frames, rows, start.numpy(), column[order].numpy(), upper, lower, place, cluster)

    def assemble(
        self, diagonal: Float[Tensor, "N D D"], off_diagonal: Float[Tensor, "P D D"]
    ) -> scipy.sparse.bsr_matrix:
        """This process's rows of the matrix."""
        slots = diagonal.shape[-1]
        data = diagonal.new_empty(len(self.place), slots, slots)
        places = self.place.split([self.rows.stop - self.rows.start, len(self.upper), len(self.lower)])
        parts = diagonal[self.rows], off_diagonal[self.upper], off_diagonal[self.lower].mT
        for place, part in zip(places, parts, strict=True):
            data.index_copy_(0, place, part)
        shape = ((self.rows.stop - self.rows.start) * slots, self.num_frames * slots)
        return scipy.sparse.bsr_matrix((data.numpy(), self.column, self.start), shape=shape)


def cluster_frames(pairs: Int[Tensor, "P 2"], num_frames: int) -> Int[Tensor, " N"]:
    """Number of a cluster for every frame: each belongs to the nearest of some frames, by steps in the graph."""
    count = min(max(num_frames // CLUSTER_FRAMES, 1), MAX_CLUSTERS)
    low, high = pairs.numpy().T
    links = scipy.sparse.coo_matrix((np.ones(len(low)), (low, high)), shape=(num_frames, num_frames)).tocsr()
    seeds = np.random.default_rng(0).choice(num_frames, count, replace=False)
    _, _, nearest = dijkstra(
        links, directed=False, indices=seeds, unweighted=True, min_only=True, return_predecessors=True
    )
    # Frames that no seed reaches are in other components; they make one more cluster.
    return torch.from_numpy(np.unique(nearest, return_inverse=True)[1].astype(np.int64))
