"""Lenses and projection, with exact derivatives.

Everything here is a pure function of tensors, works on any batch shape and is differentiable.
"""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mbasfm.geometry.fisheye import distort_fisheye, fisheye_by_k1, fisheye_jacobian, undistort_fisheye
from mbasfm.types.cameras import Intrinsics

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
