"""Lenses and projection with exact derivatives, and what two cameras see of one point.

All functions are pure, work on any batch shape and, if they take tensors, are differentiable. Rays have z = 1. Of two
cameras, rows of rays share a pose, (*B, M, 3) with (*B, 3, 4); a pose for every match is a row of one ray each.
"""

from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Float64
from torch import Tensor

from mbasfm.geometry.fisheye import distort_fisheye, fisheye_by_k1, fisheye_jacobian, undistort_fisheye
from mbasfm.geometry.rigid import compose, invert, skew
from mbasfm.types.cameras import Cameras, Intrinsics

UNDISTORT_STEPS = 12
"""Newton steps; the cubic of a real lens needs 4 to 6 in float64."""


# ----------------------------------------------------------------------------------------------------------------
# Projection. "rays" are x/z, y/z without distortion; "distorted rays" are those after the lens.


def distort(rays: Float[Tensor, "*B 2"], coefficients: Float[Tensor, "*C 4"]) -> Float[Tensor, "*B 2"]:
    """Rays distorted by COLMAP's OPENCV lens: radial k1, k2 and tangential p1, p2."""
    k1, k2, p1, p2 = coefficients.unbind(-1)
    x, y = rays.unbind(-1)
    xx, yy, xy = x * x, y * y, x * y
    squared = xx + yy
    radial = squared * (k1 + k2 * squared)
    return torch.stack(
        [
            x + x * radial + 2 * p1 * xy + p2 * (squared + 2 * xx),
            y + y * radial + 2 * p2 * xy + p1 * (squared + 2 * yy),
        ],
        -1,
    )


def distort_jacobian(rays: Float[Tensor, "*B 2"], coefficients: Float[Tensor, "*C 4"]) -> Float[Tensor, "*B 2 2"]:
    """Derivative of the distorted rays by the rays; symmetric for this lens."""
    k1, k2, p1, p2 = coefficients.unbind(-1)
    x, y = rays.unbind(-1)
    squared = x * x + y * y
    radial = 1 + squared * (k1 + k2 * squared)
    slope = 2 * (k1 + 2 * k2 * squared)
    cross = slope * x * y + 2 * p1 * x + 2 * p2 * y
    return torch.stack(
        [
            radial + slope * x * x + 2 * p1 * y + 6 * p2 * x,
            cross,
            cross,
            radial + slope * y * y + 2 * p2 * x + 6 * p1 * y,
        ],
        -1,
    ).unflatten(-1, (2, 2))


def solve_2x2(matrix: Float[Tensor, "*B 2 2"], vector: Float[Tensor, "*B 2"]) -> Float[Tensor, "*B 2"]:
    """Solution of a 2x2 system by Cramer's rule: a batched LU costs far more than it saves here."""
    (a, b), (c, d) = ((row.unbind(-1)) for row in matrix.unbind(-2))
    x, y = vector.unbind(-1)
    return torch.stack([d * x - b * y, a * y - c * x], -1) / (a * d - b * c)[..., None]


def undistort(distorted: Float[Tensor, "*B 2"], coefficients: Float[Tensor, "*C 4"]) -> Float[Tensor, "*B 2"]:
    """Inverse of distort by Newton's method; one exact step more than needed keeps it differentiable.

    Outside the lens' own range (where the radial polynomial turns back) there is no inverse and the result is NaN.
    """
    with torch.no_grad():
        rays = distorted.clone()
        for _ in range(UNDISTORT_STEPS):
            rays = rays - solve_2x2(distort_jacobian(rays, coefficients), distort(rays, coefficients) - distorted)
        found = (distort(rays, coefficients) - distorted).abs().amax(-1) < 1e-4
        found &= _before_the_turn(rays, coefficients) & ((rays * distorted).sum(-1) >= 0)
        # A pixel without inverse must not reach the arithmetic below: its NaN would spoil the gradient of all others.
        rays = rays.where(found[..., None], torch.zeros_like(rays))
    jacobian = distort_jacobian(rays, coefficients).detach()
    rays = rays - solve_2x2(jacobian, distort(rays, coefficients) - distorted)
    return rays.where(found[..., None], torch.full_like(rays, torch.nan))


def _before_the_turn(rays: Float[Tensor, "*B 2"], coefficients: Float[Tensor, "*C 4"]) -> Bool[Tensor, "*B"]:
    """Whether the distorted radius grows all the way out to the ray: 1 + 3 k1 s + 5 k2 s^2 > 0 for s up to r^2."""
    k1, k2 = coefficients[..., 0], coefficients[..., 1]
    squared = rays.square().sum(-1)
    lowest = torch.where(k2 > 0, -0.3 * k1 / k2.clamp_min(1e-30), squared).clamp_min(0).minimum(squared)
    return torch.stack([1 + 3 * k1 * s + 5 * k2 * s * s for s in (lowest, squared)]).amin(0) > 0


def bend(
    rays: Float[Tensor, "*B 2"], coefficients: Float[Tensor, "*C 4"], is_fisheye: Bool[Tensor, "*C"]
) -> Float[Tensor, "*B 2"]:
    """Distorted rays, through either kind of lens."""
    return _choose(distort, distort_fisheye, rays, coefficients, is_fisheye)


def bend_jacobian(
    rays: Float[Tensor, "*B 2"], coefficients: Float[Tensor, "*C 4"], is_fisheye: Bool[Tensor, "*C"]
) -> Float[Tensor, "*B 2 2"]:
    """Derivative of distorted rays by rays."""
    return _choose(distort_jacobian, fisheye_jacobian, rays, coefficients, is_fisheye)


def bend_by_k1(rays: Float[Tensor, "*B 2"], is_fisheye: Bool[Tensor, "*C"]) -> Float[Tensor, "*B 2"]:
    """Derivative of distorted rays by k1."""
    usual = rays * rays.square().sum(-1, keepdim=True)
    return torch.where(is_fisheye[..., None], fisheye_by_k1(rays), usual) if bool(is_fisheye.any()) else usual


def straighten(
    distorted: Float[Tensor, "*B 2"], coefficients: Float[Tensor, "*C 4"], is_fisheye: Bool[Tensor, "*C"]
) -> Float[Tensor, "*B 2"]:
    """Inverse of bend; NaN where there is none."""
    return _choose(undistort, undistort_fisheye, distorted, coefficients, is_fisheye)


def _choose(
    usual: Callable[[Tensor, Tensor], Tensor],
    fisheye: Callable[[Tensor, Tensor], Tensor],
    rays: Tensor,
    coefficients: Tensor,
    is_fisheye: Tensor,
) -> Tensor:
    """Apply one function or the other to each row; neither sees coefficients that are not its own."""
    if not bool(is_fisheye.any()):
        return usual(rays, coefficients)
    if bool(is_fisheye.all()):
        return fisheye(rays, coefficients)
    mask, zero = is_fisheye[..., None], torch.zeros_like(coefficients)
    first, second = usual(rays, coefficients.where(~mask, zero)), fisheye(rays, coefficients.where(mask, zero))
    return torch.where(mask[..., None] if first.ndim > rays.ndim else mask, second, first)


def project(points: Float[Tensor, "*B 3"], intrinsics: Intrinsics, frame: Tensor) -> Float[Tensor, "*B 2"]:
    """Pixels of camera-frame points seen by the given frames; points behind the camera give NaN.

    ``frame`` indexes rows of ``intrinsics`` and broadcasts against the batch of ``points``.
    """
    depth = points[..., 2:]
    rays = points[..., :2] / depth.where(depth > 0, torch.full_like(depth, torch.nan))
    distorted = bend(rays, intrinsics.distortion[frame].to(points), intrinsics.fisheye[frame])
    return intrinsics.focal[frame].to(points) * distorted + intrinsics.center[frame].to(points)


def pixel_rays(pixels: Float[Tensor, "*B 2"], intrinsics: Intrinsics, frame: Tensor) -> Float[Tensor, "*B 2"]:
    """Undistorted x/z, y/z of pixels."""
    distorted = (pixels - intrinsics.center[frame].to(pixels)) / intrinsics.focal[frame].to(pixels)
    if not intrinsics.distortion.requires_grad and intrinsics.is_straight:
        return distorted
    return straighten(distorted, intrinsics.distortion[frame].to(pixels), intrinsics.fisheye[frame])


def unit_rays(pixels: Float[Tensor, "*B 2"], intrinsics: Intrinsics, frame: Tensor) -> Float[Tensor, "*B 3"]:
    """Camera-frame points of pixels with z = 1."""
    rays = pixel_rays(pixels, intrinsics, frame)
    return torch.cat([rays, torch.ones_like(rays[..., :1])], -1)


def unproject(
    pixels: Float[Tensor, "*B 2"], depth: Float[Tensor, "*B"], intrinsics: Intrinsics, frame: Tensor
) -> Float[Tensor, "*B 3"]:
    """Camera-frame points of pixels with z = depth."""
    return unit_rays(pixels, intrinsics, frame) * depth[..., None]


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


def essential_from_pose(j_from_i: Float[Tensor, "*B 3 4"]) -> Float[Tensor, "*B 3 3"]:
    """Essential matrix [t]x R."""
    return skew(j_from_i[..., 3]) @ j_from_i[..., :3]


def values_at(image: np.ndarray, relative: Float32[np.ndarray, "M 2"]) -> np.ndarray:
    """Values at positions given as shares of width and height: a map, or a picture, spans the whole image."""
    height, width = image.shape[:2]
    column = np.clip((relative[:, 0] * width).astype(np.int64), 0, width - 1)
    row = np.clip((relative[:, 1] * height).astype(np.int64), 0, height - 1)
    return image[row, column]
