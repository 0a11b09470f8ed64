"""Epipolar lines, and how far matches lie from them."""

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from mbasfm.geometry.camera import unit_rays
from mbasfm.geometry.rigid import compose, invert
from mbasfm.types.cameras import Cameras


def epipolar_lines(rays_i: Float[Tensor, "K 3"], j_from_i: Float[Tensor, "3 4"]) -> Float[Tensor, "K 3"]:
    """Lines in frame j of rays of frame i: line . ray is the distance of a ray with z = 1 from the line."""
    base = rays_i @ j_from_i[:, :3].T
    line = torch.linalg.cross(base, j_from_i[:, 3].expand_as(base))
    return line / line[:, :2].norm(dim=-1, keepdim=True).clamp_min(1e-15)


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
    return ((epipolar_lines(rays[0], j_from_i) * rays[1]).sum(-1).abs() * focal).numpy()
