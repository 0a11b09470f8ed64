"""Transforms, projection with exact derivatives, and similarity alignment.

Everything here is a pure function of tensors, works on any batch shape and is differentiable.
"""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mbasfm.fisheye import distort_fisheye, fisheye_by_k1, fisheye_jacobian, undistort_fisheye
from mbasfm.types import Intrinsics

UNDISTORT_STEPS = 12
"""Newton steps; the cubic of a real lens needs 4 to 6 in float64."""


# ----------------------------------------------------------------------------------------------------------------
# Rigid transforms


def skew(v: Float[Tensor, "*B 3"]) -> Float[Tensor, "*B 3 3"]:
    """The matrix [v]x with [v]x w = v x w."""
    x, y, z = v.unbind(-1)
    zero = torch.zeros_like(x)
    return torch.stack([zero, -z, y, z, zero, -x, -y, x, zero], -1).unflatten(-1, (3, 3))


def exp_so3(omega: Float[Tensor, "*B 3"]) -> Float[Tensor, "*B 3 3"]:
    """Rotation by the angle |omega| about omega (Rodrigues)."""
    return torch.linalg.matrix_exp(skew(omega))


def exp_se3(xi: Float[Tensor, "*B 6"]) -> Float[Tensor, "*B 3 4"]:
    """Rigid transform of the twist (omega, tau)."""
    omega, tau = xi[..., :3], xi[..., 3:]
    twist = torch.cat([torch.cat([skew(omega), tau[..., None]], -1), xi.new_zeros(*xi.shape[:-1], 1, 4)], -2)
    return torch.linalg.matrix_exp(twist)[..., :3, :]


def compose(c_from_b: Float[Tensor, "*B 3 4"], b_from_a: Float[Tensor, "*C 3 4"]) -> Float[Tensor, "*D 3 4"]:
    """c_from_a."""
    rotation = c_from_b[..., :3] @ b_from_a[..., :3]
    translation = (c_from_b[..., :3] @ b_from_a[..., 3:]) + c_from_b[..., 3:]
    return torch.cat([rotation, translation], -1)


def invert(b_from_a: Float[Tensor, "*B 3 4"]) -> Float[Tensor, "*B 3 4"]:
    """a_from_b."""
    a_from_b = b_from_a[..., :3].mT
    return torch.cat([a_from_b, -(a_from_b @ b_from_a[..., 3:])], -1)


def transform(b_from_a: Float[Tensor, "*B 3 4"], points_a: Float[Tensor, "*B K 3"]) -> Float[Tensor, "*B K 3"]:
    """The same points in coordinates of b."""
    return points_a @ b_from_a[..., :3].mT + b_from_a[..., None, :, 3]


def adjoint(b_from_a: Float[Tensor, "*B 3 4"]) -> Float[Tensor, "*B 6 6"]:
    """Ad with T exp(xi) = exp(Ad xi) T, for twists (omega, tau)."""
    rotation = b_from_a[..., :3]
    moment = skew(b_from_a[..., 3]) @ rotation
    top = torch.cat([rotation, torch.zeros_like(rotation)], -1)
    return torch.cat([top, torch.cat([moment, rotation], -1)], -2)


def camera_centers(cam_from_world: Float[Tensor, "*B 3 4"]) -> Float[Tensor, "*B 3"]:
    """Where the cameras stand in the world."""
    return invert(cam_from_world)[..., 3]


def rotation_angle(rotation: Float[Tensor, "*B 3 3"]) -> Float[Tensor, "*B"]:
    """Angle in [0, pi]; exact also near 0 and pi, where the arc cosine of the trace is not."""
    sine = torch.stack(
        [
            rotation[..., 2, 1] - rotation[..., 1, 2],
            rotation[..., 0, 2] - rotation[..., 2, 0],
            rotation[..., 1, 0] - rotation[..., 0, 1],
        ],
        -1,
    ).norm(dim=-1)
    cosine = rotation.diagonal(dim1=-2, dim2=-1).sum(-1) - 1
    return torch.atan2(sine, cosine)


def rotation_from_6d(columns: Float[Tensor, "*B 6"]) -> Float[Tensor, "*B 3 3"]:
    """Gram-Schmidt of two 3-vectors, which become the first two columns."""
    first = torch.nn.functional.normalize(columns[..., :3], dim=-1)
    second = columns[..., 3:] - (first * columns[..., 3:]).sum(-1, keepdim=True) * first
    second = torch.nn.functional.normalize(second, dim=-1)
    return torch.stack([first, second, torch.linalg.cross(first, second)], -1)


def rotation_to_6d(rotation: Float[Tensor, "*B 3 3"]) -> Float[Tensor, "*B 6"]:
    """The first two columns; rotation_from_6d brings the rotation back."""
    return rotation[..., :2].mT.flatten(-2)


def orthonormalize(rotation: Float[Tensor, "*B 3 3"]) -> Float[Tensor, "*B 3 3"]:
    """The nearest rotation: removes the drift of many multiplications."""
    u, _, vt = torch.linalg.svd(rotation)
    sign = torch.ones_like(u[..., 0])
    sign[..., 2] = torch.linalg.det(u @ vt).sign()
    return (u * sign[..., None, :]) @ vt


# ----------------------------------------------------------------------------------------------------------------
# Projection. "rays" are x/z, y/z without distortion; "distorted rays" are those after the lens.


def distort(rays: Float[Tensor, "*B 2"], coefficients: Float[Tensor, "*C 4"]) -> Float[Tensor, "*B 2"]:
    """COLMAP's OPENCV lens: radial k1, k2 and tangential p1, p2."""
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
    """Cramer's rule: a batched LU costs far more than it saves here."""
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
    """Distorted rays, through whichever lens."""
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
    """One function or the other per row; neither sees coefficients that are not its own."""
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


# ----------------------------------------------------------------------------------------------------------------
# Alignment


def epipolar_lines(rays_i: Float[Tensor, "K 3"], j_from_i: Float[Tensor, "3 4"]) -> Float[Tensor, "K 3"]:
    """Lines in frame j of rays of frame i: line . ray is the distance of a ray with z = 1 from the line."""
    base = rays_i @ j_from_i[:, :3].T
    line = torch.linalg.cross(base, j_from_i[:, 3].expand_as(base))
    return line / line[:, :2].norm(dim=-1, keepdim=True).clamp_min(1e-15)


def align_similarity(
    source: Float[Tensor, "M 3"], target: Float[Tensor, "M 3"]
) -> tuple[Float[Tensor, ""], Float[Tensor, "3 4"]]:
    """Scale s and rigid transform (R, t) that minimise sum |target - (s R source + t)|^2.

    S. Umeyama, "Least-squares estimation of transformation parameters between two point patterns", PAMI 1991.
    Returns (s, target_from_source) with the scale kept apart from the rotation.
    """
    source_mean, target_mean = source.mean(0), target.mean(0)  # Eq. 34, 35
    centered = source - source_mean
    variance = centered.square().sum(-1).mean()  # Eq. 36
    covariance = (target - target_mean).T @ centered / len(source)  # Eq. 38
    u, d, vt = torch.linalg.svd(covariance)
    sign = torch.ones(3, dtype=source.dtype, device=source.device)
    sign[2] = torch.linalg.det(u @ vt).sign()  # Eq. 39, 43: a reflection is not a rotation
    rotation = (u * sign) @ vt  # Eq. 40
    scale = (d * sign).sum() / variance.clamp_min(torch.finfo(source.dtype).tiny)  # Eq. 42
    translation = target_mean - scale * (rotation @ source_mean)  # Eq. 41
    return scale, torch.cat([rotation, translation[:, None]], -1)


def apply_similarity(
    cam_from_world: Float[Tensor, "N 3 4"], scale: Float[Tensor, ""], new_from_old: Float[Tensor, "3 4"]
) -> Float[Tensor, "N 3 4"]:
    """World-to-camera poses after the world was mapped by x_new = scale R x_old + t; cameras stay rigid."""
    rotation = cam_from_world[..., :3] @ new_from_old[:, :3].T
    translation = scale * cam_from_world[..., 3] - (rotation @ new_from_old[:, 3])
    return torch.cat([rotation, translation[..., None]], -1)
