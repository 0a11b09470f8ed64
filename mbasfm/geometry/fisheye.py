"""COLMAP's OPENCV_FISHEYE lens: radius = theta (1 + k1 theta^2 + k2 theta^4 + k3 theta^6 + k4 theta^8).

theta is the angle of a ray from the axis. "rays" are x/z, y/z: only what is in front of the camera has one.
"""

import torch
from jaxtyping import Float
from torch import Tensor

MAX_ANGLE = 1.4
"""Rays farther from the axis are not used [rad]: at 80 degrees a pixel is 33 pixels of a pinhole camera."""
NEWTON_STEPS = 12
TINY = 1e-12


def fisheye_radius(theta: Float[Tensor, "*B"], coefficients: Float[Tensor, "*C 4"]) -> Float[Tensor, "*B"]:
    """Radius, in focal lengths, at which a ray is seen."""
    k1, k2, k3, k4 = coefficients.unbind(-1)
    s = theta * theta
    return theta * (1 + s * (k1 + s * (k2 + s * (k3 + s * k4))))


def _slope(theta: Float[Tensor, "*B"], coefficients: Float[Tensor, "*C 4"]) -> Float[Tensor, "*B"]:
    k1, k2, k3, k4 = coefficients.unbind(-1)
    s = theta * theta
    return 1 + s * (3 * k1 + s * (5 * k2 + s * (7 * k3 + s * 9 * k4)))


def _polar(rays: Float[Tensor, "*B 2"]) -> tuple[Float[Tensor, "*B"], Float[Tensor, "*B 2"]]:
    """Length of rays, never quite zero, and their direction."""
    length = (rays.square().sum(-1) + TINY**2).sqrt()
    return length, rays / length[..., None]


def distort_fisheye(rays: Float[Tensor, "*B 2"], coefficients: Float[Tensor, "*C 4"]) -> Float[Tensor, "*B 2"]:
    """Rays distorted by the lens, in focal lengths from the principal point."""
    length, direction = _polar(rays)
    return direction * fisheye_radius(length.atan(), coefficients)[..., None]


def fisheye_jacobian(rays: Float[Tensor, "*B 2"], coefficients: Float[Tensor, "*C 4"]) -> Float[Tensor, "*B 2 2"]:
    """Derivative of distort_fisheye by the rays: one slope along the radius, another across it."""
    length, direction = _polar(rays)
    theta = length.atan()
    along = _slope(theta, coefficients) / (1 + length.square())
    across = fisheye_radius(theta, coefficients) / length
    outer = direction[..., :, None] * direction[..., None, :]
    return across[..., None, None] * torch.eye(2, dtype=rays.dtype) + (along - across)[..., None, None] * outer


def fisheye_by_k1(rays: Float[Tensor, "*B 2"]) -> Float[Tensor, "*B 2"]:
    """Derivative of distort_fisheye by k1."""
    length, direction = _polar(rays)
    return direction * length.atan()[..., None] ** 3


def undistort_fisheye(distorted: Float[Tensor, "*B 2"], coefficients: Float[Tensor, "*C 4"]) -> Float[Tensor, "*B 2"]:
    """Inverse of distort_fisheye by Newton's method, the last step differentiable; NaN beyond MAX_ANGLE."""
    radius, direction = _polar(distorted)
    with torch.no_grad():
        theta = radius.clamp_max(MAX_ANGLE)
        for _ in range(NEWTON_STEPS):
            slope = _slope(theta, coefficients).clamp_min(0.1)
            theta = (theta - (fisheye_radius(theta, coefficients) - radius) / slope).clamp(0, 1.1 * MAX_ANGLE)
        found = (fisheye_radius(theta, coefficients) - radius).abs() < 1e-4
        found &= (theta <= MAX_ANGLE) & (_slope(theta, coefficients) > 0)
        # A pixel without inverse must not reach the arithmetic below: its NaN would spoil the gradient of all others.
        theta = theta.where(found, torch.zeros_like(theta))
        slope = _slope(theta, coefficients).clamp_min(0.1)
        wanted = radius.where(found, torch.zeros_like(radius))
    exact = theta - (fisheye_radius(theta, coefficients) - (radius - radius.detach() + wanted)) / slope
    rays = direction * exact.tan()[..., None]
    return rays.where(found[..., None], torch.full_like(rays, torch.nan))
