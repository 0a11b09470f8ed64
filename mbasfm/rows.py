"""Jacobian rows of a block and their Gram matrices.

Rows are (e, C + 1, 2, K): C columns and, last, the residual; two components per sample. Columns are the relative pose
zeta (6), log alpha, beta, then a pair (frame i, frame j) for each intrinsic unknown.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from mbasfm.kernels import FRAME_COLUMNS, POSE_COLUMNS, Block, Isotropic, Prediction, Split, dot


def isotropic_rows(block: Block, parts: Isotropic, root_weight: Float[Tensor, "e K"]) -> Float[Tensor, "e C1 2 K"]:
    """Both components of the residual vectors with their derivatives, scaled by the root of the weight."""
    prediction, step, root = parts.prediction, block.step, root_weight[:, None]
    # All columns are linear in the pair (focal, pixel): scaled once, the rows come out scaled.
    focal, pixel = block.cameras.focal_j * root, prediction.pixel * root
    ray, place_step = prediction.pixel / block.cameras.focal_j, (prediction.rho * prediction.inverse_z)[:, None]
    rows = _empty_rows(block)
    torch.mul(pixel, -ray[:, 1:], out=rows[:, 0])  # rotation: (a, b, 1) x (f_x, f_y, -pixel) by component
    rows[:, 0, 1].sub_(focal[:, 1])
    torch.mul(pixel, ray[:, :1], out=rows[:, 1])
    rows[:, 1, 0].add_(focal[:, 0])
    torch.mul(focal[:, 0], -ray[:, 1], out=rows[:, 2, 0])
    torch.mul(focal[:, 1], ray[:, 0], out=rows[:, 2, 1])
    rows[:, 3, 1] = rows[:, 4, 0] = 0  # translation
    torch.mul(focal[:, :1], place_step, out=rows[:, 3, :1])
    torch.mul(focal[:, 1:], place_step, out=rows[:, 4, 1:])
    torch.mul(pixel, -place_step, out=rows[:, 5])
    inverse_z = prediction.inverse_z[:, None]
    by_rho = (step[:, :2] * root).addcmul_(pixel, step[:, 2:], value=-1).mul_(inverse_z)
    _fill_depth(rows, by_rho, prediction)
    for number, intrinsic in enumerate(block.intrinsic_steps):
        column = FRAME_COLUMNS + 2 * number
        moved = (intrinsic.start[:, :2] * root).addcmul_(pixel, intrinsic.start[:, 2:], value=-1)
        torch.mul(moved, inverse_z, out=rows[:, column])
        rows[:, column + 1] = pixel if intrinsic.scales_image else 0
        if intrinsic.target is not None:
            rows[:, column + 1].addcmul_(intrinsic.target, root, value=-1)
    torch.mul(parts.error, root, out=rows[:, -1])
    return rows


def split_rows(
    block: Block, parts: Split, root_across: Float[Tensor, "e K"], root_along: Float[Tensor, "e K"]
) -> Float[Tensor, "e C1 2 K"]:
    """Across (at the most likely depth, which is no unknown) and along (at the predicted depth), scaled."""
    prediction = parts.prediction
    rows = _empty_rows(block)
    # Columns are linear in the direction: scaled by the root of the weight, the rows come out scaled.
    place = (parts.place_start, parts.place_step)
    _fill_row(rows[:, :, 0], block, parts.direction * root_across[:, None], parts.point, place)
    rows[:, POSE_COLUMNS:FRAME_COLUMNS, 0] = 0
    torch.mul(parts.across, root_across, out=rows[:, -1, 0]).masked_fill_(parts.across.isinf(), 0)
    tangent = torch.stack([-parts.normal[:, 1], parts.normal[:, 0]], 1).mul_(root_along[:, None])
    place = (prediction.inverse_z, prediction.rho * prediction.inverse_z)
    by_rho = _fill_row(rows[:, :, 1], block, tangent, prediction.pixel, place)
    _fill_depth(rows[:, :, 1:], by_rho.mul_(prediction.inverse_z)[:, None], prediction)
    torch.mul(parts.along, root_along, out=rows[:, -1, 1])
    return rows


def _fill_row(
    out: Tensor, block: Block, direction: Tensor, point: Tensor, place: tuple[Tensor, Tensor]
) -> Float[Tensor, "e K"]:
    """Pose and intrinsic columns of direction . pixel at the point place[0] * start + place[1] * step.

    Returns the derivative by rho, times z.
    """
    place_start, place_step = place
    h = direction * block.cameras.focal_j
    h_z = dot(direction, point).neg_()
    a, b = (point / block.cameras.focal_j).unbind(1)
    torch.mul(b, h_z, out=out[:, 0]).sub_(h[:, 1])  # rotation: (a, b, 1) x h
    torch.addcmul(h[:, 0], a, h_z, value=-1, out=out[:, 1])
    torch.mul(a, h[:, 1], out=out[:, 2]).addcmul_(b, h[:, 0], value=-1)
    torch.mul(h, place_step[:, None], out=out[:, 3:5])  # translation
    torch.mul(h_z, place_step, out=out[:, 5])
    for number, intrinsic in enumerate(block.intrinsic_steps):
        column = FRAME_COLUMNS + 2 * number
        moved = dot(direction, intrinsic.start).addcmul_(h_z, intrinsic.start[:, 2])
        torch.mul(moved, place_start, out=out[:, column])
        out[:, column + 1] = -h_z if intrinsic.scales_image else 0
        if intrinsic.target is not None:
            out[:, column + 1].sub_(dot(direction, intrinsic.target))
    return dot(direction, block.step).addcmul_(h_z, block.step[:, 2])


def _fill_depth(rows: Tensor, by_rho: Tensor, prediction: Prediction) -> None:
    torch.mul(by_rho, prediction.rho_by_scale[:, None], out=rows[:, POSE_COLUMNS])
    torch.mul(by_rho, prediction.rho_by_shift[:, None], out=rows[:, POSE_COLUMNS + 1])


def _empty_rows(block: Block) -> Tensor:
    num_edges, num_samples = block.raw.shape
    num_columns = FRAME_COLUMNS + 2 * len(block.intrinsic_steps)
    return block.raw.new_empty(num_edges, num_columns + 1, 2, num_samples)


def gram(rows: Float[Tensor, "e C1 2 K"]) -> Float[Tensor, "e C1 C1"]:
    """J^T W J, J^T W r and r^T W r of each edge from rows scaled by the root of their weight."""
    flat = rows.flatten(2)
    return torch.bmm(flat, flat.mT).double()
