"""Normal equations: from Gram matrices of edges to frame blocks of a linear system in the free unknowns.

Every frame has its own block of unknowns (pose 6, log alpha, beta, then log focal and k1 where refined). Sharing and
fixing are one map from (frame, slot) to a column of the reduced system, -1 for fixed: the cross terms of a shared
focal come out by construction.

The positions of the blocks in a matrix over thousands of frames follow from the pairs and are the same in every step.

Several processes share the rows, so that each stores and multiplies only its own part of the matrix.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.sparse
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mbasfm.adjust.unknowns import SLOT_INTRINSIC, SLOT_SCALE, SLOT_SHIFT, Unknowns
from mbasfm.geometry.rigid import adjoint, relative_poses
from mbasfm.geometry.subsets import cluster_frames
from mbasfm.objective.anchor_stars import EDGE_COLUMNS
from mbasfm.objective.edge_block import FRAME_COLUMNS, POSE_COLUMNS
from mbasfm.objective.residual_kind import StarGram
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
        known, wanted = self._known, self._keys(torch.stack([first, second], -1))
        place = torch.searchsorted(known, wanted).clamp_max(len(known) - 1)
        if not known[place].equal(wanted):
            raise ValueError("unknowns couple frames without an edge; name these pairs in coupled_frames()")
        return place

    @cached_property
    def _known(self) -> Int[Tensor, " P"]:
        return self._keys(self.pairs)

    def _keys(self, pairs: Int[Tensor, "M 2"]) -> Int[Tensor, " M"]:
        return pairs.amin(-1) * self.num_frames + pairs.amax(-1)

    @staticmethod
    def build(edges: Int[Tensor, "E 2"], num_frames: int, coupled: Int[Tensor, "C 2"] | None = None) -> "Pairing":
        """Numbered pairs of the edges, and of frames that are coupled in other ways."""
        both = edges if coupled is None else torch.cat([edges, coupled])
        keys, number = torch.unique(both.amin(-1) * num_frames + both.amax(-1), return_inverse=True)
        pairs = torch.stack([keys // num_frames, keys % num_frames], -1)
        return Pairing(edges, pairs, number[: len(edges)], num_frames)


@dataclass(frozen=True)
class StarBlocks:
    """Normal equations of a star in frame blocks."""

    source: Float[Tensor, "D D"]
    to_targets: Float[Tensor, "M D D"]
    """Blocks of the source with each target."""
    between: Float[Tensor, "M M D D"]
    """Blocks of targets with each other and, on the diagonal, with themselves."""
    gradient: Float[Tensor, "M1 D"]
    """Of the source, then of the targets."""


class NormalEquations:
    """Sums of Gram matrices in frame blocks: the one mutable accumulator, alive during one linearisation."""

    def __init__(self, pairing: Pairing, cameras: Cameras, unknowns: Unknowns):
        num_frames, slots = unknowns.index.shape
        self.unknowns, self.pairs, self._pairing, self.cameras = unknowns, pairing.pairs, pairing, cameras
        self.diagonal = torch.zeros(num_frames, slots, slots, dtype=torch.float64)
        self.off_diagonal = torch.zeros(len(self.pairs), slots, slots, dtype=torch.float64)
        self.gradient = torch.zeros(num_frames, slots, dtype=torch.float64)

    def add(self, chunk: slice, gram: Float[Tensor, "e C1 C1"]) -> None:
        """Add a block of edges, given in the relative pose."""
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

    def add_star(self, star: StarGram) -> None:
        """Add the edges of one source frame, which eliminated unknowns couple."""
        blocks = self.star_in_frames(star)
        source, targets, number = star.source, star.targets, torch.arange(len(star.targets))
        self.diagonal[source] += blocks.source
        self.diagonal.index_add_(0, targets, blocks.between[number, number])
        self.gradient[source] += blocks.gradient[0]
        self.gradient.index_add_(0, targets, blocks.gradient[1:])
        to_target = torch.where((targets > source)[:, None, None], blocks.to_targets, blocks.to_targets.mT)
        self.off_diagonal.index_add_(0, self._pairing.number(torch.full_like(targets, source), targets), to_target)
        low, high = torch.triu_indices(len(targets), len(targets), 1)
        self.off_diagonal.index_add_(0, self._pairing.number(targets[low], targets[high]), blocks.between[low, high])

    def star_in_frames(self, star: StarGram) -> "StarBlocks":
        """Normal equations of a star in the unknowns of its frames."""
        slots, columns = self.unknowns.slots, self.unknowns.columns
        count, width = len(star.targets), EDGE_COLUMNS + 2 * columns.num_intrinsic
        own = torch.arange(POSE_COLUMNS).tolist() + [EDGE_COLUMNS + 2 * k + 1 for k in range(columns.num_intrinsic)]
        place = torch.arange(POSE_COLUMNS).tolist() + [SLOT_INTRINSIC + k for k in range(columns.num_intrinsic)]
        source = self._source_from_star(star, width)
        inner, gradient = star.gram[:-1, :-1], star.gram[:-1, -1]
        onto_source = source @ inner
        between = star.gram.new_zeros(count, count, slots, slots)
        of_targets = inner[: count * width, : count * width].view(count, width, count, width).permute(0, 2, 1, 3)
        rows, taken = torch.tensor(place)[:, None], torch.tensor(own)
        between[:, :, rows, torch.tensor(place)] = of_targets[:, :, taken[:, None], taken]
        to_targets = star.gram.new_zeros(count, slots, slots)
        to_targets[:, :, place] = onto_source[:, : count * width].view(slots, count, width)[..., own].transpose(0, 1)
        gradients = star.gram.new_zeros(1 + count, slots)
        gradients[0] = source @ gradient
        gradients[1:, place] = gradient[: count * width].view(count, width)[:, own]
        return StarBlocks(onto_source @ source.mT, to_targets, between, gradients)

    def _source_from_star(self, star: StarGram, width: int) -> Float[Tensor, "D W"]:
        """Derivative of a star's columns by the slots of its source: zeta = xi_j - Ad xi_i, the rest by selection."""
        slots, num_intrinsic = self.unknowns.slots, self.unknowns.columns.num_intrinsic
        edges = torch.stack([torch.full_like(star.targets, star.source), star.targets], -1)
        minus_adjoint_t = -adjoint(relative_poses(self.cameras.cam_from_world, edges)).mT
        per_target = star.gram.new_zeros(len(edges), slots, width)
        per_target[:, :POSE_COLUMNS, :POSE_COLUMNS] = minus_adjoint_t
        for number in range(num_intrinsic):
            per_target[:, SLOT_INTRINSIC + number, EDGE_COLUMNS + 2 * number] = 1
        depth = star.gram.new_zeros(slots, 2)
        depth[SLOT_SCALE, 0] = depth[SLOT_SHIFT, 1] = 1
        return torch.cat([per_target.transpose(0, 1).reshape(slots, -1), depth], -1)

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
