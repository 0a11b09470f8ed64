"""Pose errors and their summaries; pure functions of poses."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mbasfm.geometry import camera_centers, compose, invert, rotation_angle
from mbasfm.types import Cameras

DEFAULT_THRESHOLDS_DEG = (1.0, 3.0, 5.0)


def relative_pose_errors_deg(
    cam_from_world: Float[Tensor, "N 3 4"],
    true_cam_from_world: Float[Tensor, "N 3 4"],
    registered: Bool[Tensor, " N"] | None = None,
) -> tuple[Float[Tensor, " P"], Float[Tensor, " P"]]:
    """Rotation error and sign-aware angle between translations of all pairs i < j [deg].

    Pairs with a frame that is not registered, or whose baseline is estimated as zero, are 180 degrees off.
    """
    i, j = torch.triu_indices(len(cam_from_world), len(cam_from_world), offset=1)
    estimate = compose(cam_from_world[j], invert(cam_from_world[i]))
    truth = compose(true_cam_from_world[j], invert(true_cam_from_world[i]))
    rotation = rotation_angle(estimate[..., :3] @ truth[..., :3].mT)
    a, b = estimate[..., 3], truth[..., 3]
    translation = torch.atan2(torch.linalg.cross(a, b).norm(dim=-1), (a * b).sum(-1))
    translation = translation.where(a.norm(dim=-1) > 0, torch.full_like(translation, torch.pi))
    if registered is not None:
        missing = ~(registered[i] & registered[j])
        rotation = rotation.masked_fill(missing, torch.pi)
        translation = translation.masked_fill(missing, torch.pi)
    return rotation.rad2deg().nan_to_num(nan=180.0), translation.rad2deg().nan_to_num(nan=180.0)


def pose_errors_deg(
    cam_from_world: Float[Tensor, "N 3 4"],
    true_cam_from_world: Float[Tensor, "N 3 4"],
    registered: Bool[Tensor, " N"] | None = None,
) -> Float[Tensor, " P"]:
    """The larger of rotation and translation error of all pairs i < j [deg]."""
    return torch.maximum(*relative_pose_errors_deg(cam_from_world, true_cam_from_world, registered))


def auc(errors: Float[Tensor, " P"], threshold: float) -> float:
    """Area under the recall curve up to the threshold, over the threshold: mean of max(0, 1 - error / threshold).

    This is the exact integral of the step-shaped recall; the trapezoidal rule of some evaluations differs by O(1/P).
    """
    return float((1 - errors / threshold).clamp_min(0).mean())


def pose_auc(
    cam_from_world: Float[Tensor, "N 3 4"],
    true_cam_from_world: Float[Tensor, "N 3 4"],
    registered: Bool[Tensor, " N"] | None = None,
    thresholds_deg: tuple[float, ...] = DEFAULT_THRESHOLDS_DEG,
) -> tuple[float, ...]:
    """AUC of the pose error over all pairs at each threshold."""
    errors = pose_errors_deg(cam_from_world, true_cam_from_world, registered)
    return tuple(auc(errors, threshold) for threshold in thresholds_deg)


def twists_to_truth(cameras: Cameras, truth: Cameras, root: int) -> Float[Tensor, "N 6"]:
    """xi with truth = exp(xi) estimate, to first order, after the truth was brought to the gauge of the estimate.

    That gauge is the root's pose and the mean logarithm of the depth scales, as in the covariance of an adjustment.
    """
    scale = torch.exp((cameras.depth_scale / truth.depth_scale).log().mean())
    turn = truth.cam_from_world[root, :, :3].T @ cameras.cam_from_world[root, :, :3]
    rotation = truth.cam_from_world[..., :3] @ turn
    centers = camera_centers(truth.cam_from_world)
    moved = camera_centers(cameras.cam_from_world)[root] + scale * (centers - centers[root]) @ turn
    delta = rotation @ cameras.cam_from_world[..., :3].mT
    skew = (delta - delta.mT) / 2
    omega = torch.stack([skew[:, 2, 1], skew[:, 0, 2], skew[:, 1, 0]], -1)
    tau = -(rotation @ moved[..., None] + delta @ cameras.cam_from_world[..., 3:]).squeeze(-1)
    return torch.cat([omega, tau], -1)
