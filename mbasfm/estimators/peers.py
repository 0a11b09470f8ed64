"""Relative-pose estimators of other libraries behind the same call: OpenCV's USAC_MAGSAC and PoseLib.

They work pair by pair. Input and output are those of ``mbasfm.estimators.ransac``.
"""

from collections.abc import Callable
from typing import Literal

import cv2
import numpy as np
import poselib
import torch
from jaxtyping import Float64
from torch import Tensor

from mbasfm.estimators.ransac import MINIMAL, RelativePoses
from mbasfm.estimators.sampson import (
    MatchBatch,
    essential_from_pose,
    homogeneous,
    in_front,
    sampson_forms,
    sampson_squared,
)
from mbasfm.estimators.scores import SCORES

RivalName = Literal["magsac", "poselib"]
MAX_ITERATIONS = 10_000
"""USAC_MAGSAC stops earlier by itself; PoseLib's own limit is ten times that and changes nothing here."""
CONFIDENCE = 0.99999
Rays = Float64[np.ndarray, "M 2"]
Estimator = Callable[[Rays, Rays, tuple[float, float], float, int], np.ndarray | None]


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
    pose, info = poselib.estimate_relative_pose(rays_i * focal_px[0], rays_j * focal_px[1], *cameras, options, {})
    length = float(np.linalg.norm(pose.t))
    return np.column_stack([pose.R, pose.t / length]) if info["num_inliers"] >= MINIMAL and length > 0 else None


RIVALS: dict[RivalName, Estimator] = {"magsac": _magsac, "poselib": _poselib}


def estimate_by_rival(matches: MatchBatch, name: RivalName, tau_px: float, seed: int = 0) -> RelativePoses:
    """Relative pose of every pair by another estimator; its score is ours, S^m, so that it can be compared."""
    poses = torch.eye(3, 4, dtype=torch.float64).repeat(matches.num_pairs, 1, 1)
    found = torch.zeros(matches.num_pairs, dtype=torch.bool)
    for k in range(matches.num_pairs):
        rays = [rays[k][matches.is_match[k]].numpy() for rays in (matches.rays_i, matches.rays_j)]
        if len(rays[0]) < MINIMAL:
            continue
        focal_i, focal_j = matches.focal_px[k].tolist()
        pose = RIVALS[name](rays[0], rays[1], (focal_i, focal_j), tau_px, seed)
        if pose is not None:
            poses[k], found[k] = torch.from_numpy(pose), True
    residual = residuals_of(poses, found, matches)
    score = SCORES["marginalized"]((residual / tau_px).square()).sum(1)
    return RelativePoses(poses, found, score, residual, torch.zeros(len(poses), dtype=torch.int64))


def residuals_of(poses: Tensor, found: Tensor, matches: MatchBatch) -> Tensor:
    """Sampson distances [px]; infinite for padding and for points behind a camera."""
    squared = sampson_squared(essential_from_pose(poses)[:, None], sampson_forms(matches, torch.float64))[:, 0]
    front = in_front(poses, homogeneous(matches.rays_i), homogeneous(matches.rays_j))
    return squared.sqrt().masked_fill(~(matches.is_match & front & found[:, None]), torch.inf)
