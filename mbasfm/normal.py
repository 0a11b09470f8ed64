"""Normal equations: from Gram matrices of edges to a linear system in the free unknowns, and its solution.

Every frame has its own block of unknowns (pose 6, log alpha, beta, then log focal and k1 where refined). Sharing and
fixing are one map from (frame, slot) to a column of the reduced system, -1 for fixed: the cross terms of a shared
focal come out by construction.
"""

from dataclasses import dataclass

import numpy as np
import scipy.sparse
import scipy.sparse.linalg
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mbasfm.geometry import adjoint
from mbasfm.kernels import FRAME_COLUMNS, POSE_COLUMNS, Columns
from mbasfm.residuals import relative_poses
from mbasfm.types import Cameras, Fixed, Intrinsics

SLOT_SCALE, SLOT_SHIFT, SLOT_INTRINSIC = 6, 7, 8
DENSE_LIMIT = 4000
"""Unknowns up to which a dense Cholesky factorisation is the fastest."""
SPARSE_DEGREE = 12.0
"""Mean neighbours per frame up to which a sparse factorisation is used: chains fill in little, dense graphs much."""
CG_TOLERANCE = 1e-10
CG_MAX_STEPS = 1000


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

    @staticmethod
    def build(edges: Int[Tensor, "E 2"], num_frames: int) -> "Pairing":
        """Number the pairs."""
        keys, of_edge = torch.unique(edges.amin(-1) * num_frames + edges.amax(-1), return_inverse=True)
        return Pairing(edges, torch.stack([keys // num_frames, keys % num_frames], -1), of_edge)


class NormalEquations:
    """Sums of Gram matrices in frame blocks: the one mutable accumulator, alive during one linearisation."""

    def __init__(self, pairing: Pairing, cameras: Cameras, unknowns: Unknowns):
        num_frames, slots = unknowns.index.shape
        self.unknowns, self.pairs, self._pairing, self._cameras = unknowns, pairing.pairs, pairing, cameras
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
        minus_adjoint_t = -adjoint(relative_poses(self._cameras, self._pairing.edges[chunk])).mT
        matrix = torch.zeros(len(minus_adjoint_t), 2 * slots + 1, columns.total + 1, dtype=torch.float64)
        pose = torch.arange(POSE_COLUMNS)
        matrix[:, :POSE_COLUMNS, :POSE_COLUMNS] = minus_adjoint_t
        matrix[:, slots + pose, pose] = 1
        matrix[:, SLOT_SCALE, SLOT_SCALE] = matrix[:, SLOT_SHIFT, SLOT_SHIFT] = matrix[:, -1, -1] = 1
        for number in range(columns.num_intrinsic):
            column, slot = FRAME_COLUMNS + 2 * number, SLOT_INTRINSIC + number
            matrix[:, slot, column] = matrix[:, slots + slot, column + 1] = 1
        return matrix


@dataclass(frozen=True)
class System:
    """(H + diag(damping)) x = -g in the free unknowns, in whichever form can be solved fastest."""

    gradient: Float[Tensor, " U"]
    diagonal: Float[Tensor, " U"]
    matrix: "Tensor | scipy.sparse.csc_matrix | BlockMatrix"

    def solve(self, damping: Float[Tensor, " U"]) -> Float[Tensor, " U"] | None:
        """The damped step, or None where the damped matrix is not positive definite."""
        if isinstance(self.matrix, Tensor):
            return _solve_dense(self.matrix, self.gradient, damping)
        if isinstance(self.matrix, BlockMatrix):
            return self.matrix.solve(self.gradient, damping)
        return _solve_sparse(self.matrix, self.gradient, damping)


def reduce_system(
    equations: NormalEquations, prior_diagonal: Float[Tensor, " U"], prior_gradient: Float[Tensor, " U"]
) -> System:
    """Sum the frame blocks into the free unknowns, add the priors and choose dense, sparse or iterative by size."""
    unknowns = equations.unknowns
    free = unknowns.index >= 0
    gradient = prior_gradient.index_add(0, unknowns.index[free], equations.gradient[free])
    if unknowns.count <= DENSE_LIMIT:
        dense = dense_matrix(equations) + torch.diag(prior_diagonal)
        return System(gradient, torch.diagonal(dense).clone(), dense)
    if 2 * len(equations.pairs) <= SPARSE_DEGREE * len(unknowns.index):
        sparse = sparse_matrix(equations) + scipy.sparse.diags(prior_diagonal.numpy(), format="csc")
        return System(gradient, torch.from_numpy(sparse.diagonal()), sparse)
    blocks = BlockMatrix(equations, prior_diagonal)
    return System(gradient, blocks.diagonal, blocks)


def dense_matrix(equations: NormalEquations) -> Float[Tensor, "U U"]:
    """The reduced matrix without priors."""
    unknowns = equations.unknowns
    num_frames, slots = unknowns.index.shape
    full = torch.zeros(num_frames, num_frames, slots, slots, dtype=torch.float64)
    frames = torch.arange(num_frames)
    full[frames, frames] = equations.diagonal
    low, high = equations.pairs.unbind(-1)
    full[low, high] = equations.off_diagonal
    full[high, low] = equations.off_diagonal.mT
    full = full.permute(0, 2, 1, 3).reshape(num_frames * slots, num_frames * slots)
    index = unknowns.index.flatten()
    free = torch.nonzero(index >= 0).squeeze(-1)
    rows = full.new_zeros(unknowns.count, len(index)).index_add_(0, index[free], full[free])
    return full.new_zeros(unknowns.count, unknowns.count).index_add_(1, index[free], rows[:, free])


def sparse_matrix(equations: NormalEquations) -> scipy.sparse.csc_matrix:
    """The reduced matrix without priors; duplicates are summed, which also shares unknowns."""
    index = equations.unknowns.index
    low, high = equations.pairs.unbind(-1)
    rows, cols, values = [], [], []
    frames = torch.arange(len(index))
    for a, b, block in (
        (frames, frames, equations.diagonal),
        (low, high, equations.off_diagonal),
        (high, low, equations.off_diagonal.mT),
    ):
        row, col = index[a][:, :, None].expand_as(block), index[b][:, None, :].expand_as(block)
        free = (row >= 0) & (col >= 0)
        rows.append(row[free].numpy())
        cols.append(col[free].numpy())
        values.append(block[free].numpy())
    triplets = (np.concatenate(values), (np.concatenate(rows), np.concatenate(cols)))
    shape = (equations.unknowns.count, equations.unknowns.count)
    return scipy.sparse.coo_matrix(triplets, shape=shape).tocsc()


def _solve_dense(matrix: Tensor, gradient: Tensor, damping: Tensor) -> Tensor | None:
    scale = (matrix.diagonal() + damping).clamp_min(1e-300).rsqrt()  # unit diagonal: pixels and radians differ by 1e6
    scaled = scale[:, None] * (matrix + torch.diag(damping)) * scale
    factor, info = torch.linalg.cholesky_ex(scaled)
    if int(info) != 0:
        return None
    return -scale * torch.cholesky_solve((scale * gradient)[:, None], factor).squeeze(-1)


def _solve_sparse(matrix: scipy.sparse.csc_matrix, gradient: Tensor, damping: Tensor) -> Tensor | None:
    damped = matrix + scipy.sparse.diags(damping.numpy(), format="csc")
    try:
        factor = scipy.sparse.linalg.splu(
            damped, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options={"SymmetricMode": True}
        )
    except RuntimeError:  # exactly singular
        return None
    step = torch.from_numpy(factor.solve(-gradient.numpy()))
    return step if bool(step.isfinite().all()) else None


class BlockMatrix:
    """The reduced matrix as frame blocks, for conjugate gradients preconditioned by the blocks' Cholesky factors."""

    def __init__(self, equations: NormalEquations, prior_diagonal: Float[Tensor, " U"]):
        self._equations, self._prior = equations, prior_diagonal
        unknowns = equations.unknowns
        self._free = unknowns.index >= 0
        own = torch.arange(unknowns.slots) < FRAME_COLUMNS
        self._own = self._free & own
        self.diagonal = prior_diagonal.clone()
        self._scatter(equations.diagonal.diagonal(dim1=-2, dim2=-1), self.diagonal)
        self._add_shared_pairs()

    def _scatter(self, values: Float[Tensor, "N D"], out: Float[Tensor, " U"]) -> None:
        out.index_add_(0, self._equations.unknowns.index[self._free], values[self._free])

    def _add_shared_pairs(self) -> None:
        """Off-diagonal blocks reach the diagonal where both frames share the unknown."""
        index, (low, high) = self._equations.unknowns.index, self._equations.pairs.unbind(-1)
        for slot in range(FRAME_COLUMNS, index.shape[1]):
            same = (index[low, slot] == index[high, slot]) & (index[low, slot] >= 0)
            value = 2 * self._equations.off_diagonal[same, slot, slot]
            self.diagonal.index_add_(0, index[low, slot][same], value)

    def multiply(self, x: Float[Tensor, " U"]) -> Float[Tensor, " U"]:
        """H x without damping."""
        equations = self._equations
        blocks = torch.where(self._free, x[equations.unknowns.index.clamp_min(0)], 0.0)[..., None]
        low, high = equations.pairs.unbind(-1)
        product = equations.diagonal @ blocks
        product.index_add_(0, low, equations.off_diagonal @ blocks[high])
        product.index_add_(0, high, equations.off_diagonal.mT @ blocks[low])
        out = self._prior * x
        self._scatter(product.squeeze(-1), out)
        return out

    def _preconditioner(self, damping: Tensor) -> tuple[Tensor, Tensor]:
        """Cholesky factors of the damped frame blocks and the inverse diagonal of the shared unknowns."""
        extra = torch.where(self._own, (self._prior + damping)[self._equations.unknowns.index.clamp_min(0)], 1.0)
        blocks = self._equations.diagonal * (self._own[:, :, None] & self._own[:, None, :]) + torch.diag_embed(extra)
        return torch.linalg.cholesky(blocks), 1 / (self.diagonal + damping).clamp_min(1e-300)

    def solve(self, gradient: Float[Tensor, " U"], damping: Float[Tensor, " U"]) -> Float[Tensor, " U"] | None:
        """Conjugate gradients to a residual of CG_TOLERANCE, so that the last steps are as good as exact ones."""
        factors, inverse_diagonal = self._preconditioner(damping)
        index = self._equations.unknowns.index

        def precondition(r: Tensor) -> Tensor:
            out = inverse_diagonal * r
            blocks = torch.where(self._own, r[index.clamp_min(0)], 0.0)
            solved = torch.cholesky_solve(blocks[..., None], factors).squeeze(-1)
            out[index[self._own]] = solved[self._own]
            return out

        step, residual = torch.zeros_like(gradient), -gradient
        z = precondition(residual)
        direction, rz = z, residual @ z
        start = rz
        for _ in range(CG_MAX_STEPS):
            if rz <= CG_TOLERANCE**2 * start:
                break
            product = self.multiply(direction) + damping * direction
            curvature = direction @ product
            if curvature <= 0:
                return None
            alpha = rz / curvature
            step = step + alpha * direction
            residual = residual - alpha * product
            z = precondition(residual)
            rz, previous = residual @ z, rz
            direction = z + (rz / previous) * direction
        return step
