"""Rotations and rigid transforms.

Everything here is a pure function of tensors, works on any batch shape and is differentiable.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

MIN_BASELINE = 1e-12
"""Baselines are kept this far from zero, where epipolar lines have no direction; far below any unit of length."""


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
    """Return c_from_a."""
    rotation = c_from_b[..., :3] @ b_from_a[..., :3]
    translation = (c_from_b[..., :3] @ b_from_a[..., 3:]) + c_from_b[..., 3:]
    return torch.cat([rotation, translation], -1)


def invert(b_from_a: Float[Tensor, "*B 3 4"]) -> Float[Tensor, "*B 3 4"]:
    """Return a_from_b."""
    a_from_b = b_from_a[..., :3].mT
    return torch.cat([a_from_b, -(a_from_b @ b_from_a[..., 3:])], -1)


def scale_translation(b_from_a: Float[Tensor, "*B 3 4"], factor: float | Float[Tensor, ""]) -> Float[Tensor, "*B 3 4"]:
    """The transform with a translation longer by a factor."""
    return torch.cat([b_from_a[..., :3], factor * b_from_a[..., 3:]], -1)


def transform(b_from_a: Float[Tensor, "*B 3 4"], points_a: Float[Tensor, "*B K 3"]) -> Float[Tensor, "*B K 3"]:
    """Points in the coordinates of b."""
    return points_a @ b_from_a[..., :3].mT + b_from_a[..., None, :, 3]


def adjoint(b_from_a: Float[Tensor, "*B 3 4"]) -> Float[Tensor, "*B 6 6"]:
    """Ad with T exp(xi) = exp(Ad xi) T, for twists (omega, tau)."""
    rotation = b_from_a[..., :3]
    moment = skew(b_from_a[..., 3]) @ rotation
    top = torch.cat([rotation, torch.zeros_like(rotation)], -1)
    return torch.cat([top, torch.cat([moment, rotation], -1)], -2)


def relative_poses(cam_from_world: Float[Tensor, "N 3 4"], edges: Int[Tensor, "E 2"]) -> Float[Tensor, "E 3 4"]:
    """j_from_i of each edge, with a baseline that is never quite zero."""
    i, j = edges.unbind(-1)
    j_from_i = compose(cam_from_world[j], invert(cam_from_world[i]))
    nudge = torch.zeros_like(j_from_i)
    nudge[:, 0, 3] = MIN_BASELINE * (j_from_i[..., 3].norm(dim=-1) < MIN_BASELINE)
    return j_from_i + nudge


def camera_centers(cam_from_world: Float[Tensor, "*B 3 4"]) -> Float[Tensor, "*B 3"]:
    """Positions of the cameras in the world."""
    return invert(cam_from_world)[..., 3]


def rotation_angle(rotation: Float[Tensor, "*B 3 3"]) -> Float[Tensor, "*B"]:
    """Rotation angle in [0, pi]; exact also near 0 and pi, where the arc cosine of the trace is not."""
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
    """Rotation whose first two columns are the Gram-Schmidt basis of two 3-vectors."""
    first = torch.nn.functional.normalize(columns[..., :3], dim=-1)
    second = columns[..., 3:] - (first * columns[..., 3:]).sum(-1, keepdim=True) * first
    second = torch.nn.functional.normalize(second, dim=-1)
    return torch.stack([first, second, torch.linalg.cross(first, second)], -1)


def rotation_to_6d(rotation: Float[Tensor, "*B 3 3"]) -> Float[Tensor, "*B 6"]:
    """First two columns of the rotation; inverse of rotation_from_6d."""
    return rotation[..., :2].mT.flatten(-2)


def orthonormalize(rotation: Float[Tensor, "*B 3 3"]) -> Float[Tensor, "*B 3 3"]:
    """The nearest rotation: removes the drift of many multiplications."""
    u, _, vt = torch.linalg.svd(rotation)
    sign = torch.ones_like(u[..., 0])
    sign[..., 2] = torch.linalg.det(u @ vt).sign()
    return (u * sign[..., None, :]) @ vt
