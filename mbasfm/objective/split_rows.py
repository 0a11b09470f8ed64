"""Kernels of the residual split at the epipolar line: its parts, and their derivatives."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mbasfm.objective.edge_block import (
    FRAME_COLUMNS,
    POSE_COLUMNS,
    Block,
    Prediction,
    dot,
    empty_rows,
    fill_depth,
    fill_row,
    predict,
    start_points,
    wedge,
)


@dataclass(frozen=True)
class Split:
    """Residuals of a block in two parts; see reference.SplitResiduals for their meaning."""

    prediction: Prediction
    across: Float[Tensor, "e K"]
    """Distance across the line; infinite where none of the line is in front."""
    along: Float[Tensor, "e K"]
    """Error along the line; meaningless where the prediction is behind."""
    spread_squared: Float[Tensor, "e K"]
    slope: Float[Tensor, "e K"]
    normal: Float[Tensor, "e 2 K"]
    """Normal of the epipolar line."""
    direction: Float[Tensor, "e 2 K"]
    """Direction in which across is measured: the normal, or towards an end of the half-line."""
    point: Float[Tensor, "e 2 K"]
    """Point at which across is measured."""
    place_start: Float[Tensor, "e K"]
    """Factor of start: that point is place_start * start + place_step * step, with z = 1."""
    place_step: Float[Tensor, "e K"]


def split(block: Block, match_px: float, depth_error: Float[Tensor, "e 1"]) -> Split:
    """Residuals of a block, split at their epipolar lines."""
    start, step, target = start_points(block), block.step, block.target
    prediction = predict(block)
    line = torch.bmm(block.cameras.line, block.rays[:, :3])
    inverse_norm = dot(line, line).clamp_min_(1e-37).rsqrt_()
    normal = line[:, :2] * inverse_norm[:, None]
    distance = dot(normal, target).addcmul_(line[:, 2], inverse_norm).neg_()

    # Points of the line are coordinates along the tangent: predicted, matched, and the most likely between the two.
    predicted, matched, along_step = wedge(normal, prediction.pixel), wedge(normal, target), wedge(normal, step)
    along = predicted - matched
    slope = (along_step - predicted * step[:, 2]).mul_(prediction.rho).mul_(prediction.inverse_z)
    spread_squared = (slope * depth_error).square_().add_(match_px**2)
    keep = (along * match_px**2).div_(spread_squared).masked_fill_(prediction.behind, 0)  # (1 - kappa) e_along
    likely = matched + keep
    to_start = torch.addcmul(wedge(normal, start), likely, start[:, 2], value=-1)
    to_step = torch.addcmul(along_step, likely, step[:, 2], value=-1)
    inverse = (start[:, 2] * to_step).addcmul_(step[:, 2], to_start, value=-1).reciprocal_()
    place_start, place_step = to_step * inverse, (to_start * inverse).neg_()

    point = torch.addcmul(target, normal, distance[:, None])
    point[:, 0].addcmul_(keep, normal[:, 1], value=-1)
    point[:, 1].addcmul_(keep, normal[:, 0])
    parts = Split(
        prediction, distance, along, spread_squared, slope.abs_(), normal, normal, point, place_start, place_step
    )
    inside = (place_start > 0).logical_and_(place_step >= 0).logical_and_(place_start + place_step < torch.inf)
    outside = inside.logical_not_().flatten().nonzero().squeeze(-1)
    return _clamp_to_half_line(parts, start, step, to_start, to_step, outside) if len(outside) else parts


def _clamp_to_half_line(
    parts: Split, start: Tensor, step: Tensor, to_start: Tensor, to_step: Tensor, outside: Int[Tensor, " M"]
) -> Split:
    """Parts measured from the nearest end of the half-line where the likely point is not in front of the camera."""

    num_samples = parts.across.shape[1]
    first = outside + outside // num_samples * num_samples  # position of the first of two planes

    def take(plane: Tensor) -> Tensor:
        return plane.reshape(-1).index_select(0, outside)

    def put(planes: Tensor, *values: Tensor) -> Tensor:
        """Write values into one plane, or into two adjacent ones; changes ``planes`` in place."""
        where = [outside] if len(values) == 1 else [first, first + num_samples]
        for positions, value in zip(where, values, strict=True):
            planes.view(-1).index_copy_(0, positions, value)
        return planes

    start_z, step_z = take(start[:, 2]), take(step[:, 2].expand_as(parts.across))
    infinite = torch.full_like(start_z, torch.inf)
    far = torch.where(start_z > 0, take(to_start) / start_z, infinite)
    near = torch.where(step_z > 0, take(to_step) / step_z, infinite)
    is_far = far.abs() <= near.abs()
    offset = torch.where(is_far, far, near)
    lost = offset.isinf()
    distance, n_x, n_y = take(parts.across), take(parts.normal[:, 0]), take(parts.normal[:, 1])
    length = (distance.square() + offset.square() + 1e-24).sqrt()
    unit_across, unit_along = distance / length, (offset / length).masked_fill(lost, 0)
    shift = offset.masked_fill(lost, 0)
    direction = (unit_across * n_x - unit_along * n_y, unit_across * n_y + unit_along * n_x)
    point = (take(parts.point[:, 0]) - shift * n_y, take(parts.point[:, 1]) + shift * n_x)
    return replace(
        parts,
        across=put(parts.across, length),
        direction=put(parts.normal.clone(), *direction),
        point=put(parts.point, *point),
        place_start=put(parts.place_start, (1 / start_z).masked_fill(~is_far | lost, 0)),
        place_step=put(parts.place_step, (1 / step_z).masked_fill(is_far | lost, 0)),
    )


def split_rows(
    block: Block, parts: Split, root_across: Float[Tensor, "e K"], root_along: Float[Tensor, "e K"]
) -> Float[Tensor, "e C1 2 K"]:
    """Rows across (at the most likely depth, which is no unknown) and along (at the predicted depth), scaled."""
    prediction = parts.prediction
    rows = empty_rows(block)
    # Columns are linear in the direction: scaled by the root of the weight, the rows come out scaled.
    place = (parts.place_start, parts.place_step)
    fill_row(rows[:, :, 0], block, parts.direction * root_across[:, None], parts.point, place)
    rows[:, POSE_COLUMNS:FRAME_COLUMNS, 0] = 0
    torch.mul(parts.across, root_across, out=rows[:, -1, 0]).masked_fill_(parts.across.isinf(), 0)
    tangent = torch.stack([-parts.normal[:, 1], parts.normal[:, 0]], 1).mul_(root_along[:, None])
    place = (prediction.inverse_z, prediction.rho * prediction.inverse_z)
    by_rho = fill_row(rows[:, :, 1], block, tangent, prediction.pixel, place)
    fill_depth(rows[:, :, 1:], by_rho.mul_(prediction.inverse_z)[:, None], prediction)
    torch.mul(parts.along, root_along, out=rows[:, -1, 1])
    return rows
