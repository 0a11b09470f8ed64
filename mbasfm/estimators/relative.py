"""Relative poses of pairs by one call, whoever answers: ours, OpenCV's USAC_MAGSAC or PoseLib's LO-RANSAC.

The latter two work pair by pair.
"""

from collections.abc import Callable
from typing import Literal

import cv2
import numpy as np
import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from mbasfm.estimators.ransac import MINIMAL, RansacSettings, RelativePoses, estimate_poses
from mbasfm.estimators.sampson import MatchBatch, homogeneous, sampson_forms, sampson_squared
from mbasfm.estimators.scores import SCORES
from mbasfm.estimators.two_view import pose_by_poselib
from mbasfm.geometry.camera import essential_from_pose, in_front

Method = Literal["ours", "magsac", "poselib"]
MAX_ITERATIONS = 10_000
"""USAC_MAGSAC stops earlier by itself; PoseLib's own limit is ten times that and changes nothing here."""
CONFIDENCE = 0.99999
Rays = Float64[np.ndarray, "M 2"]
Peer = Callable[[Rays, Rays, tuple[float, float], float, int], np.ndarray | None]
"""Function from rays of i and j, focal lengths, threshold [px] and seed to a pose."""


def estimate_relative_poses(
    matches: MatchBatch, method: Method = "ours", settings: RansacSettings | None = None
) -> RelativePoses:
    """Relative pose of every pair. Of the settings, the peers take threshold, seed and score; the latter to compare."""
    settings = settings or RansacSettings()
    if method == "ours":
        return estimate_poses(matches, settings)
    poses = torch.eye(3, 4, dtype=torch.float64).repeat(matches.num_pairs, 1, 1)
    found = torch.zeros(matches.num_pairs, dtype=torch.bool)
    for k in range(matches.num_pairs):
        rays = [rays[k][matches.is_match[k]].numpy() for rays in (matches.rays_i, matches.rays_j)]
        if len(rays[0]) < MINIMAL:
            continue
        focal_i, focal_j = matches.focal_px[k].tolist()
        pose = PEERS[method](rays[0], rays[1], (focal_i, focal_j), settings.tau_px, settings.seed)
        if pose is not None:
            poses[k], found[k] = torch.from_numpy(pose), True
    residual = residuals_of(poses, found, matches)
    score = SCORES[settings.score]((residual / settings.tau_px).square()).sum(1)
    return RelativePoses(poses, found, score, residual, torch.zeros(len(poses), dtype=torch.int64))


def _magsac(rays_i: Rays, rays_j: Rays, focal_px: tuple[float, float], tau_px: float, seed: int) -> np.ndarray | None:
    cv2.setRNGSeed(seed)
    limit = tau_px / float(np.mean(focal_px))
    essential, inliers = cv2.findEssentialMat(
        rays_i, rays_j, np.eye(3), cv2.USAC_MAGSAC, CONFIDENCE, limit, maxIters=MAX_ITERATIONS
    )
    if essential is None or essential.shape != (3, 3):
        return None
    _, rotation, translation, _ = cv2.recoverPose(essential, rays_i, rays_j, np.eye(3), mask=inliers)
    return np.column_stack([rotation, translation])


def _poselib(rays_i: Rays, rays_j: Rays, focal_px: tuple[float, float], tau_px: float, seed: int) -> np.ndarray | None:
    cameras = [
        {"model": "PINHOLE", "width": 1024, "height": 1024, "params": [focal, focal, 0.0, 0.0]} for focal in focal_px
    ]
    options = {"max_epipolar_error": tau_px, "max_iterations": MAX_ITERATIONS, "success_prob": CONFIDENCE, "seed": seed}
    pose, inliers = pose_by_poselib((rays_i * focal_px[0], rays_j * focal_px[1]), cameras, options)
    return pose if inliers.sum() >= MINIMAL and pose[:, 3].any() else None


PEERS: dict[Method, Peer] = {"magsac": _magsac, "poselib": _poselib}


def residuals_of(poses: Float[Tensor, "P 3 4"], found: Bool[Tensor, " P"], matches: MatchBatch) -> Float[Tensor, "P M"]:
    """Sampson distances [px]; infinite for padding and for points behind a camera."""
    squared = sampson_squared(essential_from_pose(poses)[:, None], sampson_forms(matches, torch.float64))[:, 0]
    front = in_front(poses, homogeneous(matches.rays_i), homogeneous(matches.rays_j))
    return squared.sqrt().masked_fill(~(matches.is_match & front & found[:, None]), torch.inf)
