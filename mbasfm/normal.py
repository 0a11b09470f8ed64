"""Normal equations: from Gram matrices of edges to frame blocks of a linear system in the free unknowns.

Every frame has its own block of unknowns (pose 6, log alpha, beta, then log focal and k1 where refined). Sharing and
fixing are one map from (frame, slot) to a column of the reduced system, -1 for fixed: the cross terms of a shared
focal come out by construction.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mbasfm.block_layout import BlockLayout
from mbasfm.geometry import adjoint
from mbasfm.kernels import FRAME_COLUMNS, POSE_COLUMNS, Columns
from mbasfm.residuals import relative_poses
from mbasfm.types import Cameras, Fixed, Intrinsics

SLOT_SCALE, SLOT_SHIFT, SLOT_INTRINSIC = 6, 7, 8


@dataclass(frozen=True)
class Unknowns:
    """Which column of the reduced system each slot of each frame belongs to."""

    columns: Columns
    index: Int[Tensor, "N D"]
    """-1: fixed."""
    count: int

    @property
    def slots(self) -> int:
        """D: unknowns a frame could have."""
        return self.index.shape[1]


def number_unknowns(fixed: Fixed, intrinsics: Intrinsics) -> Unknowns:
    """Number the free unknowns: those of frames first, then those shared by camera groups."""
    num_frames = len(fixed.pose)
    _, group = intrinsics.group.unique(return_inverse=True)
    num_groups = int(group.max()) + 1 if num_frames else 0
    free_focal = ~_any_in_group(fixed.focal, group, num_groups)
    free_radial = ~_any_in_group(fixed.radial, group, num_groups)
    columns = Columns(focal=bool(free_focal.any()), radial=bool(free_radial.any()))
    free = torch.zeros(num_frames, FRAME_COLUMNS, dtype=torch.bool)
    free[:, :POSE_COLUMNS] = ~fixed.pose[:, None]
    free[:, SLOT_SCALE] = ~fixed.scale
    free[:, SLOT_SHIFT] = ~fixed.shift
    index = torch.where(free, free.flatten().cumsum(0).view_as(free) - 1, -1)
    count = int(free.sum())
    for is_refined, is_free in ((columns.focal, free_focal), (columns.radial, free_radial)):
        if is_refined:
            shared = torch.where(is_free, is_free.cumsum(0) - 1 + count, -1)
            index = torch.cat([index, shared[group][:, None]], -1)
            count += int(is_free.sum())
    return Unknowns(columns, index, count)


def _any_in_group(flag: Tensor, group: Tensor, num_groups: int) -> Tensor:
    return torch.zeros(num_groups, dtype=torch.long).index_add_(0, group, flag.long()) > 0


@dataclass(frozen=True)
class Pairing:
    """The unordered pairs of frames that edges connect."""

    edges: Int[Tensor, "E 2"]
    pairs: Int[Tensor, "P 2"]
    """low, high."""
    of_edge: Int[Tensor, " E"]
    num_frames: int

    @cached_property
    def layout(self) -> BlockLayout:
        """Of a matrix with a block for each pair."""
        return BlockLayout.build(self.pairs, self.num_frames)

    @staticmethod
    def build(edges: Int[Tensor, "E 2"], num_frames: int) -> "Pairing":
        """Number the pairs."""
        keys, of_edge = torch.unique(edges.amin(-1) * num_frames + edges.amax(-1), return_inverse=True)
        return Pairing(edges, torch.stack([keys // num_frames, keys % num_frames], -1), of_edge, num_frames)


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
        cross = torch.where((i < j)[:, None, None], local[:, of_i, of_j], local[:, of_j, of_i])
        self.off_diagonal.index_add_(0, self._pairing.of_edge[chunk], cross)
        self.gradient.index_add_(0, i, local[:, of_i, -1])
        self.gradient.index_add_(0, j, local[:, of_j, -1])

    @property
    def layout(self) -> BlockLayout:
        """Of the matrix."""
        return self._pairing.layout

    @property
    def sums(self) -> tuple[Tensor, Tensor, Tensor]:
        """All that was added up."""
        return self.diagonal, self.off_diagonal, self.gradient

    def in_frames(self, chunk: slice, gram: Float[Tensor, "e C1 C1"]) -> Float[Tensor, "e F F"]:
        """Gram matrices in the unknowns of both frames: slots of i, slots of j, residual."""
        frames = self._frames_from_edge(chunk)
        return frames @ gram @ frames.mT

    def _frames_from_edge(self, chunk: slice) -> Float[Tensor, "e F C1"]:
        """Which slot of which frame moves which column of an edge: zeta = xi_j - Ad xi_i, the rest by selection."""
        slots, columns = self.unknowns.slots, self.unknowns.columns
        minus_adjoint_t = -adjoint(relative_poses(self.cameras, self._pairing.edges[chunk])).mT
        matrix = torch.zeros(len(minus_adjoint_t), 2 * slots + 1, columns.total + 1, dtype=torch.float64)
        pose = torch.arange(POSE_COLUMNS)
        matrix[:, :POSE_COLUMNS, :POSE_COLUMNS] = minus_adjoint_t
        matrix[:, slots + pose, pose] = 1
        matrix[:, SLOT_SCALE, SLOT_SCALE] = matrix[:, SLOT_SHIFT, SLOT_SHIFT] = matrix[:, -1, -1] = 1
        for number in range(columns.num_intrinsic):
            column, slot = FRAME_COLUMNS + 2 * number, SLOT_INTRINSIC + number
            matrix[:, slot, column] = matrix[:, slots + slot, column + 1] = 1
        return matrix
