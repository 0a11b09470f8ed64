"""Solution of the linear system of a step: dense, sparse, or by conjugate gradients, depending on its size."""

from dataclasses import dataclass

import numpy as np
import scipy.sparse
import scipy.sparse.linalg
import torch
from jaxtyping import Float
from torch import Tensor

from mbasfm.adjust.normal_equations import NormalEquations
from mbasfm.adjust.two_level_cg import BlockMatrix

DENSE_LIMIT = 2000
"""Number of unknowns up to which a dense Cholesky factorisation is the fastest."""
SPARSE_DEGREE = 12.0
"""Mean neighbours per frame up to which the sparse solver is used: chains have little fill-in, dense graphs much."""


@dataclass(frozen=True)
class System:
    """(H + diag(damping)) x = -g in the free unknowns, in whichever form can be solved fastest."""

    gradient: Float[Tensor, " U"]
    diagonal: Float[Tensor, " U"]
    matrix: Tensor | scipy.sparse.csc_matrix | BlockMatrix

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
    """The reduced matrix as a dense one, without priors."""
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
    """The reduced matrix as a sparse one, without priors; duplicates are summed, which also merges shared unknowns."""
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
