"""Pose errors and their summaries; pure functions of poses.

What is not registered is wrong: 180 degrees off in every pair, infinitely far away as a frame.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from mbasfm.geometry.rigid import camera_centers, compose, invert, rotation_angle
from mbasfm.geometry.similarity import Pairs, Similarity, apply_similarity, fit_similarity
from mbasfm.types.cameras import Cameras

DEFAULT_THRESHOLDS_DEG = (1.0, 3.0, 5.0)
PAIRS_AT_ONCE = 1_000_000
"""Bounds the memory of scenes with thousands of frames."""
MIN_TO_ALIGN = 3
"""Smallest number of camera centres to align; fewer fit any others."""

# ----------------------------------------------------------------------------------------------------------------
# Pairs of frames


@dataclass(frozen=True)
class PairErrors:
    """Relative pose errors of pairs of frames."""

    rotation_deg: Float[Tensor, "*P"]
    translation_deg: Float[Tensor, "*P"]
    """Sign-aware: a reversed baseline is 180 degrees off."""
    known: Bool[Tensor, "*P"]
    """Whether both frames have a pose, at different positions."""

    @property
    def folded_deg(self) -> Float[Tensor, "*P"]:
        """Translation errors that ignore the sign of t."""
        folded = torch.minimum(self.translation_deg, 180 - self.translation_deg)
        return folded.where(self.known, torch.full_like(folded, 180.0))

    def pose_deg(self, folded: bool = False) -> Float[Tensor, "*P"]:
        """The larger of rotation and translation error."""
        return torch.maximum(self.rotation_deg, self.folded_deg if folded else self.translation_deg)


def all_pairs(num_frames: int, ordered: bool = False) -> Int64[Tensor, "P 2"]:
    """Pairs i < j; if ordered, followed by the pairs (j, i).

    The order matters: the baseline of (i, j) is seen by camera j, and turns with the error of its rotation.
    """
    pairs = torch.triu_indices(num_frames, num_frames, offset=1).T.contiguous()
    return torch.cat([pairs, pairs.flip(1)]) if ordered else pairs


def pair_errors(
    cam_from_world: Float[Tensor, "N 3 4"],
    true_cam_from_world: Float[Tensor, "N 3 4"],
    registered: Bool[Tensor, " N"] | None = None,
    pairs: Int64[Tensor, "P 2"] | None = None,
) -> PairErrors:
    """Errors of the given pairs, by default of all i < j.

    Where the true baseline is zero its direction means nothing, and the translation counts as right.
    """
    pairs = all_pairs(len(cam_from_world)) if pairs is None else pairs
    has_pose = cam_from_world.isfinite().flatten(1).all(-1)
    has_pose = has_pose if registered is None else has_pose & registered
    estimate = cam_from_world.where(has_pose[:, None, None], torch.zeros_like(cam_from_world))
    parts = [_errors_of_some(estimate, true_cam_from_world, has_pose, part) for part in pairs.split(PAIRS_AT_ONCE)]
    rotation, translation, known = (torch.cat(column) for column in zip(*parts, strict=True))
    return PairErrors(rotation, translation, known)


def _errors_of_some(
    estimate: Float[Tensor, "N 3 4"],
    truth: Float[Tensor, "N 3 4"],
    has_pose: Bool[Tensor, " N"],
    pairs: Int64[Tensor, "P 2"],
) -> tuple[Float[Tensor, " P"], Float[Tensor, " P"], Bool[Tensor, " P"]]:
    i, j = pairs.unbind(-1)
    j_from_i, true_j_from_i = (compose(poses[j], invert(poses[i])) for poses in (estimate, truth))
    errors = relative_errors(j_from_i, true_j_from_i, has_pose[i] & has_pose[j])
    return errors.rotation_deg, errors.translation_deg, errors.known


def relative_errors(
    j_from_i: Float[Tensor, "*P 3 4"], true_j_from_i: Float[Tensor, "*P 3 4"], found: Bool[Tensor, "*P"]
) -> PairErrors:
    """Errors of relative poses, one per pair."""
    rotation = rotation_angle(j_from_i[..., :3] @ true_j_from_i[..., :3].mT).rad2deg()
    a, b = j_from_i[..., 3], true_j_from_i[..., 3]
    translation = torch.atan2(torch.linalg.cross(a, b).norm(dim=-1), (a * b).sum(-1)).rad2deg()
    known = found & (a.norm(dim=-1) > 0)
    wrong = torch.full_like(rotation, 180.0)
    return PairErrors(rotation.where(found, wrong), translation.where(known, wrong), known)


def relative_pose_errors_deg(
    cam_from_world: Float[Tensor, "N 3 4"],
    true_cam_from_world: Float[Tensor, "N 3 4"],
    registered: Bool[Tensor, " N"] | None = None,
) -> tuple[Float[Tensor, " P"], Float[Tensor, " P"]]:
    """Rotation error and sign-aware angle between translations of all pairs i < j [deg]."""
    errors = pair_errors(cam_from_world, true_cam_from_world, registered)
    return errors.rotation_deg, errors.translation_deg


def pose_errors_deg(
    cam_from_world: Float[Tensor, "N 3 4"],
    true_cam_from_world: Float[Tensor, "N 3 4"],
    registered: Bool[Tensor, " N"] | None = None,
) -> Float[Tensor, " P"]:
    """The larger of rotation and translation error of all pairs i < j [deg]."""
    return pair_errors(cam_from_world, true_cam_from_world, registered).pose_deg()


def cosine_rounded_deg(angle_deg: Float[Tensor, " P"]) -> Float[Tensor, " P"]:
    """Angles as in FastMap's evaluation: the cosine is rounded to 4 decimals, so that 0.57 degrees become 0."""
    return torch.acos(torch.round(torch.cos(angle_deg.deg2rad()), decimals=4).clamp(-1, 1)).rad2deg()


# ----------------------------------------------------------------------------------------------------------------
# Summaries of errors


def accuracy(errors: Float[Tensor, " P"], threshold: float) -> float:
    """Share of errors below the threshold: RRA, RTA and ACC."""
    return float((errors < threshold).double().mean())


def auc(errors: Float[Tensor, " P"], threshold: float) -> float:
    """Area under the recall curve up to the threshold, over the threshold: mean of max(0, 1 - error / threshold).

    This is the exact integral of the step-shaped recall; the trapezoidal rule of some evaluations differs by O(1/P).
    """
    return float((1 - errors / threshold).clamp_min(0).mean())


def auc_trapezoid(errors: Float[Tensor, " P"], threshold: float) -> float:
    """Area with straight lines between the errors, as SuperGlue, LoFTR, DF-SfM and FastMap report it."""
    inside = errors[errors < threshold].sort().values
    # From (0, 0) through (error k, k / P), and level from the last one to the threshold.
    x = torch.cat([inside.new_zeros(1), inside, inside.new_tensor([threshold])])
    y = torch.arange(len(inside) + 1, dtype=errors.dtype) / len(errors)
    return float(torch.trapezoid(torch.cat([y, y[-1:]]), x)) / threshold


def recall_curve(errors: Float[Tensor, " P"], thresholds: Sequence[float]) -> list[float]:
    """Accuracy at each threshold, for plots."""
    return [accuracy(errors, threshold) for threshold in thresholds]


def pose_auc(
    cam_from_world: Float[Tensor, "N 3 4"],
    true_cam_from_world: Float[Tensor, "N 3 4"],
    registered: Bool[Tensor, " N"] | None = None,
    thresholds_deg: tuple[float, ...] = DEFAULT_THRESHOLDS_DEG,
) -> tuple[float, ...]:
    """AUC of the pose error over all pairs at each threshold."""
    errors = pose_errors_deg(cam_from_world, true_cam_from_world, registered)
    return tuple(auc(errors, threshold) for threshold in thresholds_deg)


def pooled(values: Sequence[float], num_pairs: Sequence[int]) -> float:
    """Accuracy or AUC over the pairs of all scenes, from those of each scene: large scenes weigh more."""
    return sum(value * count for value, count in zip(values, num_pairs, strict=True)) / sum(num_pairs)


# ----------------------------------------------------------------------------------------------------------------
# Frames


@dataclass(frozen=True)
class FrameErrors:
    """Errors of camera poses in the world of the truth; infinite where there is no pose."""

    rotation_deg: Float[Tensor, " N"]
    distance: Float[Tensor, " N"]
    """Distance between camera centres, not between translation vectors [world units]."""

    def share_within(self, distance: float, angle_deg: float) -> float:
        """Share of frames with both errors below their limits."""
        return float(((self.distance < distance) & (self.rotation_deg < angle_deg)).double().mean())

    def share_beyond(self, distance: float, angle_deg: float) -> float:
        """Share of frames with a pose that exceeds one of the limits: worse than none."""
        wrong = (self.distance > distance) | (self.rotation_deg > angle_deg)
        return float((wrong & self.distance.isfinite()).double().mean())

    @property
    def median_distance(self) -> float:
        """Median distance; infinite if half of the frames have no pose."""
        return _median(self.distance)

    @property
    def median_rotation_deg(self) -> float:
        """Median rotation error; infinite if half of the frames have no pose."""
        return _median(self.rotation_deg)


def frame_errors(
    cam_from_world: Float[Tensor, "N 3 4"],
    true_cam_from_world: Float[Tensor, "N 3 4"],
    registered: Bool[Tensor, " N"] | None = None,
) -> FrameErrors:
    """Errors without any alignment: both sets of poses are in one world."""
    rotation = rotation_angle(cam_from_world[..., :3] @ true_cam_from_world[..., :3].mT).rad2deg()
    distance = (camera_centers(cam_from_world) - camera_centers(true_cam_from_world)).norm(dim=-1)
    has_pose = cam_from_world.isfinite().flatten(1).all(-1)
    has_pose = has_pose if registered is None else has_pose & registered
    missing = torch.full_like(distance, torch.inf)
    return FrameErrors(rotation.where(has_pose, missing), distance.where(has_pose, missing))


def registration_rate(registered: Bool[Tensor, " N"]) -> float:
    """Share of frames with a pose."""
    return float(registered.double().mean())


def align_to_truth(
    cam_from_world: Float[Tensor, "N 3 4"], true_cam_from_world: Float[Tensor, "N 3 4"], registered: Bool[Tensor, " N"]
) -> Float[Tensor, "N 3 4"]:
    """Poses in the world of the truth, by the similarity that fits the centres of registered cameras best."""
    source, target = (camera_centers(poses)[registered] for poses in (cam_from_world, true_cam_from_world))
    return apply_similarity(cam_from_world, *fit_similarity(Pairs(source, target)))


def absolute_trajectory_error(
    cam_from_world: Float[Tensor, "N 3 4"], true_cam_from_world: Float[Tensor, "N 3 4"], registered: Bool[Tensor, " N"]
) -> float:
    """ATE: root mean square distance of registered centres after similarity alignment; NaN for fewer than three."""
    if int(registered.sum()) < MIN_TO_ALIGN:
        return math.nan
    aligned = align_to_truth(cam_from_world, true_cam_from_world, registered)
    return float(frame_errors(aligned, true_cam_from_world).distance[registered].square().mean().sqrt())


def normalised_trajectory_error(
    cam_from_world: Float[Tensor, "N 3 4"], true_cam_from_world: Float[Tensor, "N 3 4"], registered: Bool[Tensor, " N"]
) -> float:
    """ATE as in FastMap: true centres scaled to a sum of squares of 1, root mean square per coordinate.

    Unregistered cameras stand where the first registered one does, as in FastMap's evaluation.
    """
    if int(registered.sum()) < MIN_TO_ALIGN:
        return math.nan
    centers, target = camera_centers(cam_from_world), camera_centers(true_cam_from_world)
    centers = centers.where(registered[:, None], centers[registered][0])
    target = target - target.mean(0)
    target = target / target.norm()
    aligned = Similarity(*fit_similarity(Pairs(centers, target))).points(centers)
    return float((aligned - target).square().mean().sqrt())


def _median(values: Float[Tensor, " N"]) -> float:
    """Median; for an even number of values, the mean of the two in the middle."""
    ordered = values.sort().values
    low, high = ordered[(len(values) - 1) // 2], ordered[len(values) // 2]
    return float(high) if torch.isinf(high) else float((low + high) / 2)


# ----------------------------------------------------------------------------------------------------------------
# Against a covariance


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
