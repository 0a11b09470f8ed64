"""Epipolar geometry of many pairs at once: essential matrices and poses, Sampson distances.

The Sampson distance is a ratio of forms that are linear in E and in E's products, so that all hypotheses meet all
matches of a pair in two matrix products.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import normalize

from mbasfm.geometry.camera import essential_from_pose, in_front
from mbasfm.geometry.rigid import exp_so3, skew

TINY = 1e-20


@dataclass(frozen=True)
class MatchBatch:
    """Matches of P pairs of frames (i, j) with known intrinsics; rows are padded to the same length."""

    rays_i: Float[Tensor, "P M 2"]
    """Undistorted x/z, y/z."""
    rays_j: Float[Tensor, "P M 2"]
    is_match: Bool[Tensor, "P M"]
    """False for padding, which comes after all matches."""
    focal_px: Float[Tensor, "P 2"]
    """Focal lengths of i and j, in the pixels of the thresholds."""

    @property
    def num_pairs(self) -> int:
        """Number of pairs, P."""
        return len(self.rays_i)

    def pairs(self, chosen: Tensor | slice) -> "MatchBatch":
        """The chosen pairs."""
        return MatchBatch(self.rays_i[chosen], self.rays_j[chosen], self.is_match[chosen], self.focal_px[chosen])

    @staticmethod
    def stack(
        rays_i: list[Float[Tensor, "_ 2"]], rays_j: list[Float[Tensor, "_ 2"]], focal_px: Float[Tensor, "P 2"]
    ) -> "MatchBatch":
        """One batch of pairs with different numbers of matches."""
        pad = torch.nn.utils.rnn.pad_sequence
        is_match = pad([torch.ones(len(rays), dtype=torch.bool) for rays in rays_i], batch_first=True)
        first, second = (pad([item.double() for item in rays], batch_first=True) for rays in (rays_i, rays_j))
        return MatchBatch(first, second, is_match, focal_px.double())


def homogeneous(rays: Float[Tensor, "*B 2"]) -> Float[Tensor, "*B 3"]:
    """Rays with z = 1 appended."""
    return torch.cat([rays, torch.ones_like(rays[..., :1])], -1)


# ----------------------------------------------------------------------------------------------------------------
# Sampson distances


@dataclass(frozen=True)
class Forms:
    """Products of the matches that Sampson distances need, computed once."""

    bilinear: Float[Tensor, "P 9 M"]
    """Products of the rays of j and i."""
    squares: Float[Tensor, "P 12 M"]
    """Products of a ray with itself, of i over j's focal length squared, and of j over i's."""


SQUARES = ((0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 2))


def sampson_forms(matches: MatchBatch, dtype: torch.dtype) -> Forms:
    """Forms of the matches; float32 is good to about 1e-4 px."""
    first, second = homogeneous(matches.rays_i).mT, homogeneous(matches.rays_j).mT
    bilinear = (second[:, :, None] * first[:, None]).flatten(1, 2)
    focal_i, focal_j = matches.focal_px[:, :1, None], matches.focal_px[:, 1:, None]
    squares = [
        torch.stack([rays[:, m] * rays[:, n] for m, n in SQUARES], 1) / focal**2
        for rays, focal in ((first, focal_j), (second, focal_i))
    ]
    return Forms(bilinear.to(dtype), torch.cat(squares, 1).to(dtype))


def _quadratic(left: Float[Tensor, "*B 3 3"], right: Float[Tensor, "*B 3 3"]) -> Float[Tensor, "*B 12"]:
    """Coefficients of (left x)_12 . (right x)_12 and (left^T x)_12 . (right^T x)_12 in the products of SQUARES."""
    parts = []
    for a, b in ((left, right), (left.mT, right.mT)):
        product = a[..., :2, :].mT @ b[..., :2, :]
        product = product + product.mT
        parts += [product[..., m, n] * (0.5 if m == n else 1.0) for m, n in SQUARES]
    return torch.stack(parts, -1)


def sampson_squared(essential: Float[Tensor, "P H 3 3"], forms: Forms) -> Float[Tensor, "P H M"]:
    """Squared Sampson distance [px^2]: to first order, how far both points move until they fit."""
    numerator = essential.flatten(2).to(forms.bilinear) @ forms.bilinear
    return numerator.square_() / (_quadratic(essential, essential).to(forms.squares) @ forms.squares).clamp_min_(TINY)


def sampson_linearized(
    j_from_i: Float[Tensor, "P 3 4"], forms: Forms
) -> tuple[Float[Tensor, "P M"], Float[Tensor, "P 5 M"]]:
    """Signed Sampson distances [px] and their derivatives by the five unknowns of ``moved``."""
    essential = essential_from_pose(j_from_i)
    rotation, translation = j_from_i[..., :3], j_from_i[..., 3]
    axes = torch.eye(3, dtype=rotation.dtype, device=rotation.device)
    turned = skew(translation)[:, None] @ skew(axes) @ rotation[:, None]
    shifted = skew(tangents(translation)) @ rotation[:, None]
    change = torch.cat([turned, shifted], 1)
    numerator = (essential.flatten(1)[:, None].to(forms.bilinear) @ forms.bilinear).squeeze(1)
    squared = (_quadratic(essential, essential)[:, None].to(forms.squares) @ forms.squares).squeeze(1).clamp_min(TINY)
    scale = squared.rsqrt()
    residual = numerator * scale
    slope = change.flatten(2).to(forms.bilinear) @ forms.bilinear
    bend = _quadratic(essential[:, None].expand_as(change), change).to(forms.squares) @ forms.squares
    return residual, (slope - (residual * scale)[:, None] * bend) * scale[:, None]


# ----------------------------------------------------------------------------------------------------------------
# Poses with a translation of unit length


def tangents(direction: Float[Tensor, "P 3"]) -> Float[Tensor, "P 2 3"]:
    """Two unit vectors perpendicular to a unit vector and to each other."""
    smallest = torch.zeros_like(direction).scatter_(1, direction.abs().argmin(1, keepdim=True), 1)
    first = normalize(torch.linalg.cross(direction, smallest), dim=-1)
    return torch.stack([first, torch.linalg.cross(direction, first)], 1)


def moved(j_from_i: Float[Tensor, "P 3 4"], step: Float[Tensor, "P 5"]) -> Float[Tensor, "P 3 4"]:
    """Pose with its rotation turned by the first three unknowns and its direction moved along the tangents by two."""
    rotation = exp_so3(step[:, :3]) @ j_from_i[..., :3]
    along = (step[:, 3:, None] * tangents(j_from_i[..., 3])).sum(1)
    return torch.cat([rotation, normalize(j_from_i[..., 3] + along, dim=-1)[..., None]], -1)


def poses_from_essential(essential: Float[Tensor, "*B 3 3"]) -> Float[Tensor, "*B 4 3 4"]:
    """The four poses of an essential matrix: (R, t), (R, -t), (R', t), (R', -t).

    With t of unit length and E = [t]x R, the cofactors of E are t t^T R, and -[t]x E is the rest of R.
    """
    columns = essential.mT
    crosses = torch.linalg.cross(columns, columns.roll(-1, -2))
    widest = crosses.square().sum(-1).argmax(-1)[..., None, None].expand(*essential.shape[:-2], 1, 3)
    t = normalize(crosses.gather(-2, widest).squeeze(-2), dim=-1)
    unit = essential * (2**0.5 / essential.flatten(-2).norm(dim=-1).clamp_min(TINY))[..., None, None]
    rows = unit.unbind(-2)
    cofactors = torch.stack([torch.linalg.cross(rows[k], rows[(k + 1) % 3]) for k in (1, 2, 0)], -2)
    rest = skew(t) @ unit
    rotations = torch.stack([cofactors - rest, cofactors + rest], -3).repeat_interleave(2, -3)
    translations = torch.stack([t, -t, t, -t], -2)
    return torch.cat([rotations, translations[..., None]], -1)


def minimal_poses(
    essential: Float[Tensor, "R 3 3"], rays_i: Float[Tensor, "R 5 3"], rays_j: Float[Tensor, "R 5 3"]
) -> tuple[Float[Tensor, "R 3 4"], Bool[Tensor, " R"]]:
    """The pose of each essential matrix that has its own sample in front of both cameras, and whether there is one."""
    poses = poses_from_essential(essential)
    shape = (-1, 4, -1, -1)
    front = in_front(poses, rays_i[:, None].expand(shape), rays_j[:, None].expand(shape)).all(-1)
    return poses[torch.arange(len(poses), device=poses.device), front.to(torch.uint8).argmax(-1)], front.any(-1)
