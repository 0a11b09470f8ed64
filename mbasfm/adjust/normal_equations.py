"""Normal equations: from Gram matrices of edges to frame blocks of a linear system in the free unknowns.

Every frame has its own block of unknowns (pose 6, log alpha, beta, then log focal and k1 where refined). Sharing and
fixing are one map from (frame, slot) to a column of the reduced system, -1 for fixed: the cross terms of a shared
focal come out by construction.

The positions of the blocks in a matrix over thousands of frames follow from the pairs and are the same in every step.

Several processes share the rows, so that each stores and multiplies only its own part of the matrix.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mbasfm.adjust.unknowns import SLOT_INTRINSIC, SLOT_SCALE, SLOT_SHIFT, Unknowns
from mbasfm.geometry.rigid import adjoint, relative_poses
from mbasfm.geometry.subsets import cluster_frames
from mbasfm.objective.edge_block import FRAME_COLUMNS, POSE_COLUMNS
from mbasfm.objective.residual_kind import CrossGram
from mbasfm.runtime.parallel import own_part
from mbasfm.types.cameras import Cameras


@dataclass(frozen=True)
class BlockLayout:
    """Layout of this process's rows of frames: both triangles, columns sorted, the fastest form to multiply with."""

    num_frames: int
    rows: slice
    start: Int[np.ndarray, " R1"]
    """First block of each row, then the total number of blocks."""
    column: Int[np.ndarray, " B"]
    upper: Int[Tensor, " A"]
    """Pairs whose first frame has its row in this process."""
    lower: Int[Tensor, " C"]
    """Pairs whose second frame has its row in this process."""
    place: Int[Tensor, " B"]
    """Positions of the blocks: those of the diagonal, of ``upper``, of ``lower``."""
    cluster: Int[Tensor, " N"]

    @staticmethod
    def build(pairs: Int[Tensor, "P 2"], num_frames: int) -> "BlockLayout":
        """Layout with the blocks sorted by row and column."""
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


@dataclass(frozen=True)
class Pairing:
    """The unordered pairs of frames that edges connect or eliminated unknowns couple."""

    edges: Int[Tensor, "E 2"]
    pairs: Int[Tensor, "P 2"]
    """Pairs (low, high), sorted."""
    of_edge: Int[Tensor, " E"]
    num_frames: int

    @cached_property
    def layout(self) -> BlockLayout:
        """Layout of a matrix with a block for each pair."""
        return BlockLayout.build(self.pairs, self.num_frames)

    @property
    def num_neighbours(self) -> Int[Tensor, " N"]:
        """Number of frames that edges connect each frame with."""
        return torch.bincount(self.pairs[self.of_edge.unique()].flatten(), minlength=self.num_frames)

    def number(self, first: Int[Tensor, " M"], second: Int[Tensor, " M"]) -> Int[Tensor, " M"]:
        """Positions of the given pairs of different frames; ValueError if one is missing."""
        known, wanted = self._keys(self.pairs), self._keys(torch.stack([first, second], -1))
        place = torch.searchsorted(known, wanted).clamp_max(len(known) - 1)
        if not known[place].equal(wanted):
            raise ValueError("unknowns couple frames without an edge; name these pairs in coupled_frames()")
        return place

    def _keys(self, pairs: Int[Tensor, "M 2"]) -> Int[Tensor, " M"]:
        return pairs.amin(-1) * self.num_frames + pairs.amax(-1)

    @staticmethod
    def build(edges: Int[Tensor, "E 2"], num_frames: int, coupled: Int[Tensor, "C 2"] | None = None) -> "Pairing":
        """Numbered pairs of the edges, and of frames that are coupled in other ways."""
        both = edges if coupled is None else torch.cat([edges, coupled])
        keys, number = torch.unique(both.amin(-1) * num_frames + both.amax(-1), return_inverse=True)
        pairs = torch.stack([keys // num_frames, keys % num_frames], -1)
        return Pairing(edges, pairs, number[: len(edges)], num_frames)


class NormalEquations:
    """Sums of Gram matrices in frame blocks: the one mutable accumulator, alive during one linearisation."""

    def __init__(self, pairing: Pairing, cameras: Cameras, unknowns: Unknowns):
        num_frames, slots = unknowns.index.shape
        self.unknowns, self.pairs, self._pairing, self.cameras = unknowns, pairing.pairs, pairing, cameras
        self.diagonal = torch.zeros(num_frames, slots, slots, dtype=torch.float64)
        self.off_diagonal = torch.zeros(len(self.pairs), slots, slots, dtype=torch.float64)
        self.gradient = torch.zeros(num_frames, slots, dtype=torch.float64)
        self.eliminated: Any = None
        """What the kind of residual keeps about its own unknowns, which are not in these equations."""

    def add(self, chunk: slice, gram: Float[Tensor, "e C1 C1"], cross: CrossGram | None = None) -> None:
        """Add a block of edges, given in the relative pose, and the cross terms between them."""
        slots = self.unknowns.slots
        local = self.in_frames(chunk, gram)
        i, j = self._pairing.edges[chunk].unbind(-1)
        of_i, of_j = slice(0, slots), slice(slots, 2 * slots)
        self.diagonal.index_add_(0, i, local[:, of_i, of_i])
        self.diagonal.index_add_(0, j, local[:, of_j, of_j])
        upper = torch.where((i < j)[:, None, None], local[:, of_i, of_j], local[:, of_j, of_i])
        self.off_diagonal.index_add_(0, self._pairing.of_edge[chunk], upper)
        self.gradient.index_add_(0, i, local[:, of_i, -1])
        self.gradient.index_add_(0, j, local[:, of_j, -1])
        if cross is not None:
            self._add_cross(cross)

    def _add_cross(self, cross: CrossGram) -> None:
        """Add the cross terms between edges: a block at every pair of their ends, and at its transpose."""
        slots, local = self.unknowns.slots, self.cross_in_frames(cross)
        first, second = self._pairing.edges[cross.first], self._pairing.edges[cross.second]
        for row in range(2):
            of_row = slice(row * slots, (row + 1) * slots)
            self.gradient.index_add_(0, first[:, row], local[:, of_row, -1])
            self.gradient.index_add_(0, second[:, row], local[:, -1, of_row])
            for column in range(2):
                of_column = slice(column * slots, (column + 1) * slots)
                self._add_blocks(first[:, row], second[:, column], local[:, of_row, of_column])

    def _add_blocks(self, row: Int[Tensor, " P"], column: Int[Tensor, " P"], block: Float[Tensor, "P D D"]) -> None:
        """Add blocks and their transposes; both fall on the diagonal where row and column are the same frame."""
        same = row == column
        self.diagonal.index_add_(0, row[same], block[same] + block[same].mT)
        row, column, block = row[~same], column[~same], block[~same]
        upper = torch.where((row < column)[:, None, None], block, block.mT)
        self.off_diagonal.index_add_(0, self._pairing.number(row, column), upper)

    @property
    def layout(self) -> BlockLayout:
        """Layout of the matrix."""
        return self._pairing.layout

    @property
    def sums(self) -> tuple[Tensor, Tensor, Tensor]:
        """All accumulated sums."""
        return self.diagonal, self.off_diagonal, self.gradient

    def in_frames(self, chunk: slice, gram: Float[Tensor, "e C1 C1"]) -> Float[Tensor, "e F F"]:
        """Gram matrices in the unknowns of both frames: slots of i, slots of j, residual."""
        frames = self._frames_from_edge(chunk)
        return frames @ gram @ frames.mT

    def cross_in_frames(self, cross: CrossGram) -> Float[Tensor, "P F F"]:
        """Cross terms in the same unknowns: rows for the first edge's frames, columns for the second's."""
        return self._frames_from_edge(cross.first) @ cross.gram @ self._frames_from_edge(cross.second).mT

    def edge_step(self, step: Float[Tensor, " U"], chunk: slice) -> Float[Tensor, "e C"]:
        """A step of the free unknowns in the columns of a block of edges."""
        index = self.unknowns.index
        slots = torch.where(index >= 0, step[index.clamp_min(0)], 0.0)
        ends = slots[self._pairing.edges[chunk]].flatten(1)
        return (ends[:, None] @ self._frames_from_edge(chunk)[:, :-1, :-1]).squeeze(1)

    def _frames_from_edge(self, chunk: slice | Int[Tensor, " e"]) -> Float[Tensor, "e F C1"]:
        """Derivative of each edge's columns by its frames' slots: zeta = xi_j - Ad xi_i, the rest by selection."""
        slots, columns = self.unknowns.slots, self.unknowns.columns
        minus_adjoint_t = -adjoint(relative_poses(self.cameras.cam_from_world, self._pairing.edges[chunk])).mT
        matrix = torch.zeros(len(minus_adjoint_t), 2 * slots + 1, columns.total + 1, dtype=torch.float64)
        pose = torch.arange(POSE_COLUMNS)
        matrix[:, :POSE_COLUMNS, :POSE_COLUMNS] = minus_adjoint_t
        matrix[:, slots + pose, pose] = 1
        matrix[:, SLOT_SCALE, SLOT_SCALE] = matrix[:, SLOT_SHIFT, SLOT_SHIFT] = matrix[:, -1, -1] = 1
        for number in range(columns.num_intrinsic):
            column, slot = FRAME_COLUMNS + 2 * number, SLOT_INTRINSIC + number
            matrix[:, slot, column] = matrix[:, slots + slot, column + 1] = 1
        return matrix
