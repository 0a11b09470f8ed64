"""Matched rays of two frames: epipolar lines and distances from them, triangulated depth, cheirality.

Rays have z = 1. Rows of rays share a pose, (*B, M, 3) with (*B, 3, 4); a pose for every match is a row of one ray each.
"""

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from mbasfm.geometry.camera import unit_rays
from mbasfm.geometry.rigid import compose, invert
from mbasfm.types.cameras import Cameras


def epipolar_lines(j_from_i: Float[Tensor, "*B 3 4"], rays_i: Float[Tensor, "*B M 3"]) -> Float[Tensor, "*B M 3"]:
    """Lines in frame j of rays of frame i: line . ray is the signed distance of a ray of j from the line."""
    turned = rays_i @ j_from_i[..., :3].mT
    line = torch.linalg.cross(turned, j_from_i[..., None, :, 3].expand_as(turned))
    return line / line[..., :2].norm(dim=-1, keepdim=True).clamp_min(1e-15)


def line_distances(
    j_from_i: Float[Tensor, "*B 3 4"], rays_i: Float[Tensor, "*B M 3"], rays_j: Float[Tensor, "*B M 3"]
) -> Float[Tensor, "*B M"]:
    """Distance of each ray of j from the epipolar line of its match, in focal lengths of j."""
    return (epipolar_lines(j_from_i, rays_i) * rays_j).sum(-1).abs()


def line_distances_px(
    cameras: Cameras, ends: tuple[int, int], pixels: tuple[np.ndarray, np.ndarray]
) -> Float64[np.ndarray, " M"]:
    """Distance of the second frame's pixels from the epipolar lines of the first's [px at a long side of 1024]."""
    rays = [
        unit_rays(torch.from_numpy(places).double(), cameras.intrinsics, torch.tensor(end))
        for end, places in zip(ends, pixels, strict=True)
    ]
    j_from_i = compose(cameras.cam_from_world[ends[1]], invert(cameras.cam_from_world[ends[0]]))
    focal = cameras.intrinsics.reference_focal[ends[1]]
    return (line_distances(j_from_i, rays[0], rays[1]) * focal).numpy()


def triangulated_inverse_depth(
    j_from_i: Float[Tensor, "*B 3 4"], rays_i: Float[Tensor, "*B M 3"], rays_j: Float[Tensor, "*B M 3"]
) -> Float[Tensor, "*B M"]:
    """Inverse depth in i of the point whose image in j is nearest to the match: the foot on its epipolar line.

    Negative if that point is behind i. Distances count times depth in j, which matters only far beside the line.
    """
    turned = rays_i @ j_from_i[..., :3].mT
    # The image of turned + q step is the match where offset + q slope vanishes.
    slope = _slope(j_from_i, rays_j)
    offset = turned[..., :2] - rays_j[..., :2] * turned[..., 2:]
    return -(offset * slope).sum(-1) / slope.square().sum(-1).clamp_min(1e-18)


def inverse_depth_error(
    j_from_i: Float[Tensor, "*B 3 4"], rays_i: Float[Tensor, "*B M 3"], rays_j: Float[Tensor, "*B M 3"]
) -> Float[Tensor, "*B M"]:
    """Change of the triangulated inverse depth if the match in j moves along its line by one unit at z = 1."""
    turned = rays_i @ j_from_i[..., :3].mT
    return turned[..., 2].abs() / _slope(j_from_i, rays_j).norm(dim=-1).clamp_min(1e-9)


def _slope(j_from_i: Float[Tensor, "*B 3 4"], rays_j: Float[Tensor, "*B M 3"]) -> Float[Tensor, "*B M 2"]:
    """How the image in j moves with inverse depth in i, times depth in j over depth in i."""
    step = j_from_i[..., None, :, 3]
    return step[..., :2] - rays_j[..., :2] * step[..., 2:]


def in_front(
    j_from_i: Float[Tensor, "*B 3 4"], rays_i: Float[Tensor, "*B M 3"], rays_j: Float[Tensor, "*B M 3"]
) -> Bool[Tensor, "*B M"]:
    """Whether matched rays meet, or are nearest to each other, in front of both cameras."""
    turned = rays_i @ j_from_i[..., :3].mT
    step = j_from_i[..., None, :, 3].expand_as(turned)
    # depth_j ray_j = depth_i turned + step: crossed with either ray, the other's depth is left.
    between = torch.linalg.cross(turned, rays_j)
    before_i = (between * torch.linalg.cross(rays_j, step)).sum(-1) > 0
    before_j = (between * torch.linalg.cross(turned, step)).sum(-1) > 0
    return before_i & before_j
