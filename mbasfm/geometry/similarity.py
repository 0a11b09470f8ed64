"""Similarities between two worlds that hold the same cameras, robust to outlier cameras, and which way is up."""

from dataclasses import dataclass, replace
from itertools import combinations
from math import comb

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mbasfm.geometry.rigid import camera_centers, orthonormalize
from mbasfm.types.cameras import Cameras

MAX_TRIALS = 200
"""Largest number of camera subsets tried as a start; where fewer exist, all of them are."""
ROUNDS = 20
CAUCHY = 2.385
MAD_3D = 1.538
"""Median length of a 3-vector of standard normal numbers."""
AXES_SHARE = 0.01
"""Weight of the cameras' orientations beside their positions: enough to decide where positions lie on a line."""
TINY = 1e-12
UP_SHARE = 0.05
"""Weight of the cameras' up vectors beside their horizontal axes, which photographers keep level."""
CLEARLY_UP = 0.2
ROLL = 0.05
"""Sine of the roll at which a camera begins to count less."""


@dataclass(frozen=True)
class Similarity:
    """A similarity x_new = scale R x_old + t."""

    scale: Float[Tensor, ""]
    rigid: Float[Tensor, "3 4"]
    """[R | t]."""

    @staticmethod
    def build(scale: float, rotation: Float[Tensor, "3 3"], translation: Float[Tensor, " 3"]) -> "Similarity":
        """Similarity of the given scale, rotation and translation."""
        return Similarity(torch.tensor(scale, dtype=torch.float64), torch.cat([rotation, translation[:, None]], -1))

    def points(self, points: Float[Tensor, "*B 3"]) -> Float[Tensor, "*B 3"]:
        """Points of the old world, in the new one."""
        return self.scale * points @ self.rigid[:, :3].T + self.rigid[:, 3]

    def poses(self, cam_from_world: Float[Tensor, "N 3 4"]) -> Float[Tensor, "N 3 4"]:
        """World-to-camera poses in the new world."""
        return apply_similarity(cam_from_world, self.scale, self.rigid)

    def cameras(self, cameras: Cameras, chosen: Bool[Tensor, " N"]) -> Cameras:
        """The chosen cameras in the new world; depth grows with it, so every pixel keeps its point."""
        factor = torch.where(cameras.is_disparity, 1 / self.scale, self.scale)
        factor = torch.where(chosen, factor, torch.ones_like(factor))
        pose = torch.where(chosen[:, None, None], self.poses(cameras.cam_from_world), cameras.cam_from_world)
        return replace(
            cameras,
            cam_from_world=pose,
            depth_scale=cameras.depth_scale * factor,
            depth_shift=cameras.depth_shift * factor,
        )


@dataclass(frozen=True)
class Pairs:
    """The same cameras in two worlds: their positions, and optionally axes that must agree."""

    source: Float[Tensor, "*P M 3"]
    target: Float[Tensor, "*P M 3"]
    source_axes: Float[Tensor, "M 3 3"] | None = None
    """Columns are directions."""
    target_axes: Float[Tensor, "M 3 3"] | None = None

    @staticmethod
    def of_poses(source: Float[Tensor, "M 3 4"], target: Float[Tensor, "M 3 4"]) -> "Pairs":
        """Pairs of the poses cam_from_world in both worlds."""
        return Pairs(camera_centers(source), camera_centers(target), source[..., :3].mT, target[..., :3].mT)


def fit_similarity(
    pairs: Pairs,
    weight: Float[Tensor, "*W M"] | None = None,
    axes_weight: Float[Tensor, "*W M"] | None = None,
    symmetric: bool = False,
) -> tuple[Float[Tensor, "*B"], Float[Tensor, "*B 3 4"]]:
    """Scale and rigid part of the similarity with the least squares sum w |y - (s R x + t)|^2 + v |B - R A|^2.

    S. Umeyama, PAMI 1991, with weights; given s the axes only add to the covariance whose polar factor is R. Batches of
    positions, or of weights, give batches of similarities. Errors in x make the scale of least squares too small; the
    ``symmetric`` one, the ratio of both spreads, is exactly inverse if source and target change places (B. Horn, JOSA
    1987), and is for positions without axes.
    """
    weight = torch.ones_like(pairs.source[..., 0]) if weight is None else weight
    total = weight.sum(-1, keepdim=True).clamp_min(1e-300)
    means = [(weight[..., None] * points).sum(-2) / total for points in (pairs.source, pairs.target)]
    x, y = (points - mean[..., None, :] for points, mean in zip((pairs.source, pairs.target), means, strict=True))
    covariance = torch.einsum("...m,...mi,...mj->...ij", weight, y, x)
    spread_x, spread_y = ((weight * points.square().sum(-1)).sum(-1).clamp_min(1e-300) for points in (x, y))
    ratio = (spread_y / spread_x).sqrt()
    rotation = orthonormalize(covariance)
    scale = ratio if symmetric else (rotation * covariance).sum((-1, -2)) / spread_x
    if pairs.source_axes is not None and pairs.target_axes is not None and axes_weight is not None:
        axes = torch.einsum("...m,mij->...ij", axes_weight, pairs.target_axes @ pairs.source_axes.mT)
        scale = ratio
        for _ in range(3):
            rotation = orthonormalize(scale[..., None, None] * covariance + axes)
            scale = (rotation * covariance).sum((-1, -2)) / spread_x
    translation = means[1] - scale[..., None] * (rotation @ means[0][..., None]).squeeze(-1)
    return scale, torch.cat([rotation, translation[..., None]], -1)


def robust_similarity(pairs: Pairs, seed: int = 0) -> tuple[Similarity, Float[Tensor, " M"]]:
    """The similarity that most cameras agree with, and the weight of each (1 agrees, 0 does not).

    Starts from the subset with the smallest median error, then iterates with Cauchy weights. Positions and axes count
    as much as their own errors allow: positions on a short path tell little about how a world is turned.
    """
    spread = _spread(pairs)
    start = start_similarity(pairs, torch.ones(len(pairs.source), dtype=torch.float64), seed)
    scale, rigid = start.scale, start.rigid
    # The best of many subsets fits itself: few cameras have more noise than their median tells (P. Rousseeuw, 1984).
    few = (1 + 5 / max(len(pairs.source) - _subset_size(pairs), 1)) / MAD_3D
    distance, angle = errors_of(pairs, scale, rigid)
    noise, turn_noise = (few * distance.median()).clamp_min(TINY * spread), (few * angle.median()).clamp_min(TINY)
    for _ in range(ROUNDS):
        distance, angle = errors_of(pairs, scale, rigid)
        weight = 1 / (1 + (distance / (CAUCHY * noise)).square() + (angle / (CAUCHY * turn_noise)).square())
        scale, rigid = fit_similarity(pairs, weight, weight * (noise / turn_noise).square() / 2)
    return Similarity(scale, rigid), weight


def start_similarity(pairs: Pairs, sigma: Float[Tensor, " M"], seed: int = 0) -> Similarity:
    """The similarity of the subset of cameras under which the median error, in sigmas, is smallest."""
    chosen = _subsets(len(pairs.source), _subset_size(pairs), seed)
    scale, rigid = fit_similarity(pairs, chosen, AXES_SHARE * _spread(pairs).square() * chosen)
    errors = errors_of(pairs, scale, rigid)[0] / sigma
    best = int(errors.median(-1).values.nan_to_num(nan=torch.inf).argmin())
    return Similarity(scale[best], rigid[best])


def _spread(pairs: Pairs) -> Float[Tensor, ""]:
    return (pairs.target - pairs.target.median(0).values).norm(dim=-1).median().clamp_min(TINY)


def _subset_size(pairs: Pairs) -> int:
    return 2 if pairs.source_axes is not None else 3


def errors_of(
    pairs: Pairs, scale: Float[Tensor, "*B"], rigid: Float[Tensor, "*B 3 4"]
) -> tuple[Float[Tensor, "*B M"], Float[Tensor, "*B M"]]:
    """Distance of each position from where it should be [target's unit], and angle of its axes [rad, if small]."""
    moved = scale[..., None, None] * (pairs.source @ rigid[..., :3].mT) + rigid[..., None, :, 3]
    distance = (moved - pairs.target).norm(dim=-1)
    if pairs.source_axes is None or pairs.target_axes is None:
        return distance, torch.zeros_like(distance)
    turned = rigid[..., None, :, :3] @ pairs.source_axes - pairs.target_axes
    return distance, turned.square().sum((-1, -2)).div(2).sqrt()


def _subsets(count: int, size: int, seed: int) -> Float[Tensor, "B M"]:
    """Masks of subsets, all or some; the whole set is always one of them."""
    size = min(size, count)
    if comb(count, size) <= MAX_TRIALS:
        members = torch.tensor(list(combinations(range(count), size)))
    else:
        generator = torch.Generator().manual_seed(seed)
        members = torch.rand(MAX_TRIALS, count, generator=generator).argsort(-1)[:, :size]
    masks = torch.zeros(len(members), count, dtype=torch.float64).scatter_(1, members, 1.0)
    return torch.cat([torch.ones(1, count, dtype=torch.float64), masks])


def is_line(positions: Float[Tensor, "M 3"], share: float = 0.05) -> bool:
    """Whether positions lie on a line or in one place, and so do not determine the world's rotation."""
    spread = torch.linalg.svdvals(positions - positions.mean(0))
    return len(positions) < 3 or float(spread[1]) <= share * float(spread[0]) or float(spread[0]) < TINY


def find_up(world_from_cam: Float[Tensor, "N 3 3"]) -> Float[Tensor, " 3"]:
    """The direction against gravity: cameras look up and down but are held level, so it is square to their x axes.

    Where these are all alike, the cameras' own up vectors decide; cameras that roll count less. Of cameras that look
    straight down, the up vectors say nothing: that they look down does.
    """
    right, up, ahead = world_from_cam[..., 0], -world_from_cam[..., 1], world_from_cam[..., 2]
    outer = torch.einsum("ni,nj->nij", right, right)
    upright = torch.eye(3, dtype=up.dtype) - torch.einsum("ni,nj->nij", up, up).mean(0)
    weight = torch.ones_like(right[:, 0])
    for _ in range(ROUNDS):
        level = (weight[:, None, None] * outer).sum(0) / weight.sum()
        found = torch.linalg.eigh(level + UP_SHARE * upright).eigenvectors[:, 0]
        weight = 1 / (1 + ((right @ found) / ROLL).square())
    vote = float((up @ found).median())
    vote = vote if abs(vote) > CLEARLY_UP else -float((ahead @ found).median())
    return found if vote >= 0 else -found


def turn_to_z(up: Float[Tensor, " 3"]) -> Float[Tensor, "3 3"]:
    """The smallest rotation after which a direction is +z."""
    z = torch.tensor([0.0, 0.0, 1.0], dtype=up.dtype)
    if float(up @ z) < -1 + 1e-12:
        return torch.diag(torch.tensor([1.0, -1.0, -1.0], dtype=up.dtype))
    middle = torch.nn.functional.normalize(up + z, dim=-1)
    # A half turn about up, then one about the middle: together twice the angle between the two.
    turn = 2 * torch.outer(middle, middle) - torch.eye(3, dtype=up.dtype)
    flip = 2 * torch.outer(up, up) - torch.eye(3, dtype=up.dtype)
    return turn @ flip


def apply_similarity(
    cam_from_world: Float[Tensor, "N 3 4"], scale: Float[Tensor, ""], new_from_old: Float[Tensor, "3 4"]
) -> Float[Tensor, "N 3 4"]:
    """World-to-camera poses after the world was mapped by x_new = scale R x_old + t; cameras stay rigid."""
    rotation = cam_from_world[..., :3] @ new_from_old[:, :3].T
    translation = scale * cam_from_world[..., 3] - (rotation @ new_from_old[:, 3])
    return torch.cat([rotation, translation[..., None]], -1)
