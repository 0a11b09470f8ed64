"""Pose of two frames by depth: it lifts the matches of one to points, and three of these place the other.

A camera that moves sideways past something nearly flat sees much the same as one that turns, so that poses far apart
may explain the matches of a pair about equally well. RANSAC on matches takes the one with a few more of them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import poselib
import torch
from jaxtyping import Bool, Float64, Int64

from mbasfm.estimators.two_view import (
    ESSENTIAL_POINTS,
    FEWEST_INLIERS,
    chance_near_line,
    fundamental_from_pose,
    lens_rays,
    log10_false_alarms,
)
from mbasfm.geometry.camera import in_front, line_distances
from mbasfm.geometry.rigid import invert
from mbasfm.types.cameras import Lens
from mbasfm.types.observations import TwoView

ROUGHNESS = 4.0
"""How much further than from its epipolar line a match may be from its lifted point: a network's depth is rough."""
BUDGET = {"max_iterations": 200, "min_iterations": 50, "seed": 0}
REFINEMENT = {"loss_type": "CAUCHY", "loss_scale": 1.0}


def with_lifted_pose(
    view: TwoView,
    pixels: tuple[Float64[np.ndarray, "A 2"], Float64[np.ndarray, "B 2"]],
    inverse_depth: tuple[Float64[np.ndarray, " A"], Float64[np.ndarray, " B"]],
    matches: Int64[np.ndarray, "M 2"],
    lenses: tuple[Lens, Lens],
    max_error_px: float,
) -> TwoView | None:
    """The pair with that of the poses by depth, of either frame, that most of all its matches agree with.

    Inverse depth may have any scale, and is NaN where unknown. None if hardly any match agrees.
    """
    points = pixels[0][matches[:, 0]], pixels[1][matches[:, 1]]
    depth = inverse_depth[0][matches[:, 0]], inverse_depth[1][matches[:, 1]]
    limit = max_error_px * float(np.sqrt(lenses[0].px_per_reference_px * lenses[1].px_per_reference_px))
    agrees = [(pose, agree_with_pose(pose, points, lenses, limit)) for pose in _poses(points, depth, lenses, limit)]
    pose, inliers = max(agrees, key=lambda found: int(found[1].sum()), default=(view.j_from_i, np.zeros(1, dtype=bool)))
    if inliers.sum() < FEWEST_INLIERS:
        return None
    chance = max(chance_near_line(places, limit) for places in points)
    return replace(
        view,
        matches=matches[inliers],
        j_from_i=pose,
        fundamental=fundamental_from_pose(pose, lenses),
        log10_false_alarms=log10_false_alarms(len(matches), int(inliers.sum()), ESSENTIAL_POINTS, chance),
        inlier_ratio=float(inliers.mean()),
        rival=None,
        is_by_depth=True,
    )


def agree_with_pose(
    j_from_i: Float64[np.ndarray, "3 4"],
    points: Sequence[Float64[np.ndarray, "M 2"]],
    lenses: Sequence[Lens],
    limit: float,
) -> Bool[np.ndarray, " M"]:
    """Which matches are within the limit [px] of the pose, to first order, and in front of both cameras."""
    rays = [torch.from_numpy(lens_rays(places, lens)) for places, lens in zip(points, lenses, strict=True)]
    pose, (focal_i, focal_j) = torch.from_numpy(j_from_i), (float(lens.focal.mean()) for lens in lenses)
    # Moving both ends of a match, each has to move less.
    there, back = line_distances(pose, *rays) * focal_j, line_distances(invert(pose), *reversed(rays)) * focal_i
    distance = there * back / torch.hypot(there, back).clamp_min(1e-12)
    return ((distance < limit) & in_front(pose, *rays)).numpy()


def _poses(
    points: Sequence[Float64[np.ndarray, "M 2"]],
    depth: Sequence[Float64[np.ndarray, " M"]],
    lenses: Sequence[Lens],
    limit: float,
) -> Iterator[Float64[np.ndarray, "3 4"]]:
    """Poses j_from_i by the depth of i and of j, each as found and as refined by the matches that agree with it."""
    for own, other in ((0, 1), (1, 0)):
        known = np.flatnonzero(np.isfinite(depth[own]) & (depth[own] > 0))
        if len(known) < FEWEST_INLIERS:
            continue
        lifted = lens_rays(points[own][known], lenses[own]) / depth[own][known, None]
        options = BUDGET | {"max_reproj_error": ROUGHNESS * limit}
        pose, info = poselib.estimate_absolute_pose(points[other][known], lifted, lenses[other].camera(), options, {})
        other_from_own = torch.from_numpy(np.column_stack([pose.R, pose.t]))
        j_from_i = _with_unit_step((other_from_own if other else invert(other_from_own)).numpy())
        near = known[np.asarray(info["inliers"], dtype=bool)]
        if len(near) >= FEWEST_INLIERS:
            yield j_from_i
            yield _refined(j_from_i, [places[near] for places in points], lenses)


def _refined(
    j_from_i: Float64[np.ndarray, "3 4"], points: Sequence[Float64[np.ndarray, "M 2"]], lenses: Sequence[Lens]
) -> Float64[np.ndarray, "3 4"]:
    start = poselib.CameraPose()
    start.R, start.t = j_from_i[:, :3], j_from_i[:, 3]
    cameras = [lens.camera() for lens in lenses]
    pose, _ = poselib.refine_relative_pose(*points, start, *cameras, dict(REFINEMENT))
    return _with_unit_step(np.column_stack([pose.R, pose.t]))


def _with_unit_step(pose: Float64[np.ndarray, "3 4"]) -> Float64[np.ndarray, "3 4"]:
    return np.column_stack([pose[:, :3], pose[:, 3] / max(float(np.linalg.norm(pose[:, 3])), 1e-12)])
