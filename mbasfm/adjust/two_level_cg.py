"""The reduced matrix of thousands of frames as sparse blocks, solved by conjugate gradients on two levels.

Blocks of single frames precondition what neighbours disagree about. What is left are slow bends of the whole: parts of
the graph that move, turn and grow against each other. These are the unknowns of a second, coarse level: one similarity
for each of some dozens of clusters of frames, together with the unknowns that frames share, the border of the matrix.
It is small, dense and solved exactly (two-level additive Schwarz with the null space of a pose graph).
"""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mbasfm.adjust.normal_equations import NormalEquations
from mbasfm.adjust.unknowns import SLOT_SCALE, SLOT_SHIFT
from mbasfm.geometry.rigid import adjoint, camera_centers
from mbasfm.objective.edge_block import FRAME_COLUMNS, POSE_COLUMNS
from mbasfm.runtime.parallel import add_up, join_parts

CG_TOLERANCE = 1e-10
CG_MAX_STEPS = 1000
SIMILARITY = POSE_COLUMNS + 1
PAIRS_AT_ONCE = 1 << 14
LEAST_EIGENVALUE = 1e-10
"""Smallest eigenvalue, for a unit diagonal, of blocks that are inverted for the preconditioner."""


class BlockMatrix:
    """The matrix H of the free unknowns, without damping."""

    def __init__(self, equations: NormalEquations, prior_diagonal: Float[Tensor, " U"]):
        self._equations, self._prior = equations, prior_diagonal
        self._index = equations.unknowns.index
        self._free = self._index >= 0
        uses = torch.bincount(self._index[self._free], minlength=equations.unknowns.count)
        self._own = self._free & (uses[self._index.clamp_min(0)] == 1)
        self._shared = torch.nonzero(uses > 1).flatten()
        layout = equations.layout
        self._blocks, self._cluster = layout.assemble(equations.diagonal, equations.off_diagonal), layout.cluster
        self.diagonal = self._diagonal()
        self._basis, self._coarse_index = self._coarse_basis()
        self._coarse = self._coarse_matrix()

    def _diagonal(self) -> Float[Tensor, " U"]:
        """Diagonal of H; off-diagonal blocks contribute where both frames share an unknown."""
        equations, index = self._equations, self._index
        diagonal = self._prior.clone()
        self._scatter(equations.diagonal.diagonal(dim1=-2, dim2=-1), diagonal)
        low, high = equations.pairs.unbind(-1)
        for slot in range(FRAME_COLUMNS, index.shape[1]):
            same = (index[low, slot] == index[high, slot]) & (index[low, slot] >= 0)
            diagonal.index_add_(0, index[low, slot][same], 2 * equations.off_diagonal[same, slot, slot])
        return diagonal

    def _scatter(self, values: Float[Tensor, "N D"], out: Float[Tensor, " U"]) -> None:
        out.index_add_(0, self._index[self._free], values[self._free])

    def _gather(self, x: Float[Tensor, " U"], wanted: Tensor) -> Float[Tensor, "N D"]:
        return torch.where(wanted, x[self._index.clamp_min(0)], 0.0)

    def multiply(self, x: Float[Tensor, " U"]) -> Float[Tensor, " U"]:
        """The product H x."""
        own_rows = torch.from_numpy(self._blocks @ self._gather(x, self._free).numpy().ravel())
        out = self._prior * x
        self._scatter(join_parts(own_rows.view(-1, self._index.shape[1]), len(self._index)), out)
        return out

    def solve(self, gradient: Float[Tensor, " U"], damping: Float[Tensor, " U"]) -> Float[Tensor, " U"] | None:
        """Solution by conjugate gradients to a residual of CG_TOLERANCE, so that the last steps are nearly exact."""
        precondition = self._preconditioner(damping)
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

    # ------------------------------------------------------------------------------------------------------------
    # Two levels. Columns of the coarse basis are given per frame, with the coarse unknown that each belongs to.

    def _preconditioner(self, damping: Float[Tensor, " U"]) -> Callable[[Tensor], Tensor]:
        """Approximate inverse of the damped matrix: blocks of frames plus the coarse level."""
        extra = self._prior + damping
        fine = self._fine_inverse(extra)
        coarse_inverse = self._coarse_inverse(extra)
        basis, index = self._basis[..., :SIMILARITY], self._coarse_index[:, :SIMILARITY]
        first_shared = len(coarse_inverse) - len(self._shared)

        def precondition(residual: Tensor) -> Tensor:
            slots = self._gather(residual, self._own)[..., None]
            coarse = torch.zeros(len(coarse_inverse), dtype=torch.float64)
            coarse.index_add_(0, index.flatten(), (basis.mT @ slots).flatten())
            coarse[first_shared:] = residual[self._shared]
            coarse = coarse_inverse @ coarse
            moved = (fine @ slots + basis @ coarse[index][..., None]).squeeze(-1)
            out = torch.zeros_like(residual)
            out[self._index[self._own]] = moved[self._own]
            out[self._shared] = coarse[first_shared:]
            return out

        return precondition

    def _fine_inverse(self, extra: Float[Tensor, " U"]) -> Float[Tensor, "N D D"]:
        """Inverses of the damped blocks of frames, in the unknowns that no other frame shares."""
        inside = self._own[:, :, None] & self._own[:, None, :]
        added = torch.where(self._own, extra[self._index.clamp_min(0)], 1.0)
        blocks = self._equations.diagonal * inside + torch.diag_embed(added)
        scale = blocks.diagonal(dim1=-2, dim2=-1).clamp_min(1e-300).rsqrt()
        # Sums of float32 rows may be a little indefinite where a frame has few inliers; a preconditioner must not be.
        values, vectors = torch.linalg.eigh(scale[:, :, None] * blocks * scale[:, None, :])
        vectors = scale[:, :, None] * vectors
        return (vectors / values.clamp_min(LEAST_EIGENVALUE)[:, None, :]) @ vectors.mT * inside

    def _coarse_basis(self) -> tuple[Float[Tensor, "N D C"], Int[Tensor, "N C"]]:
        """Motion of each frame with a similarity of its cluster and with shared unknowns, and the columns of these."""
        cameras, (num_frames, slots) = self._equations.cameras, self._index.shape
        intrinsic = torch.arange(slots - FRAME_COLUMNS)
        basis = torch.zeros(num_frames, slots, SIMILARITY + len(intrinsic), dtype=torch.float64)
        basis[:, :POSE_COLUMNS, :POSE_COLUMNS] = adjoint(cameras.cam_from_world)
        growth = -cameras.cam_from_world[..., :3] @ camera_centers(cameras.cam_from_world)[..., None]
        basis[:, 3:POSE_COLUMNS, POSE_COLUMNS] = growth.squeeze(-1)
        sign = torch.where(cameras.is_disparity, -1.0, 1.0).double()
        basis[:, SLOT_SCALE, POSE_COLUMNS], basis[:, SLOT_SHIFT, POSE_COLUMNS] = sign, sign * cameras.depth_shift
        basis *= self._own[..., None]
        is_shared = (self._free & ~self._own)[:, FRAME_COLUMNS:]
        basis[:, FRAME_COLUMNS + intrinsic, SIMILARITY + intrinsic] = is_shared.double()
        similarity = SIMILARITY * self._cluster[:, None] + torch.arange(SIMILARITY)
        shared = torch.searchsorted(self._shared, self._index[:, FRAME_COLUMNS:].contiguous())
        first = SIMILARITY * (int(self._cluster.max()) + 1)
        return basis, torch.cat([similarity, torch.where(is_shared, first + shared, 0)], -1)

    def _coarse_matrix(self) -> Float[Tensor, "S S"]:
        """The coarse matrix basis^T H basis."""
        equations, basis = self._equations, self._basis
        size = SIMILARITY * (int(self._cluster.max()) + 1) + len(self._shared)
        matrix = torch.zeros(size, size, dtype=torch.float64)
        own_pairs = equations.layout.upper
        for some in own_pairs.split(PAIRS_AT_ONCE):
            low, high = equations.pairs[some].unbind(-1)
            self._add_coarse(matrix, low, high, basis[low].mT @ equations.off_diagonal[some] @ basis[high])
        add_up(matrix)
        matrix = matrix + matrix.T
        frames = torch.arange(len(basis))
        self._add_coarse(matrix, frames, frames, basis.mT @ equations.diagonal @ basis)
        return matrix

    def _add_coarse(self, matrix: Tensor, a: Tensor, b: Tensor, blocks: Float[Tensor, "M C C"]) -> None:
        rows, columns = self._coarse_index[a], self._coarse_index[b]
        flat = rows[:, :, None] * len(matrix) + columns[:, None, :]
        matrix.view(-1).index_add_(0, flat.flatten(), blocks.flatten())

    def _coarse_inverse(self, extra: Float[Tensor, " U"]) -> Float[Tensor, "S S"]:
        """Inverse of the coarse matrix with priors and damping."""
        matrix, frames = self._coarse.clone(), torch.arange(len(self._basis))
        weighted = self._gather(extra, self._own)[..., None] * self._basis
        self._add_coarse(matrix, frames, frames, self._basis.mT @ weighted)
        matrix.diagonal()[len(matrix) - len(self._shared) :] += extra[self._shared]
        empty = matrix.diagonal() <= 0  # clusters in which nothing is free
        matrix.diagonal()[empty] = 1
        scale = matrix.diagonal().rsqrt()
        values, vectors = torch.linalg.eigh(scale[:, None] * matrix * scale)
        vectors = scale[:, None] * vectors
        return (vectors / values.clamp_min(LEAST_EIGENVALUE)) @ vectors.T
