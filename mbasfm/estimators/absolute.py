"""Pose of one frame from its matches with points of known position: candidates, their score, and false alarms.

Depth gives points too. A camera that moves sideways past something nearly flat sees much the same as one that turns, so
that poses far apart may explain the matches of a pair about equally well; RANSAC on matches takes the one with a few
more of them. Depth lifts the matches of one frame to points, and three of these place the other.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import poselib
import pycolmap
import torch
from jaxtyping import Bool, Float64, Int64

from mbasfm.estimators.two_view import (
    ESSENTIAL_POINTS,
    FEWEST_INLIERS,
    chance_near_line,
    fundamental_from_pose,
    lens_rays,
    log10_false_alarms,
    poselib_camera,
)
from mbasfm.geometry.camera import in_front, line_distances, triangulated_inverse_depth
from mbasfm.geometry.rigid import compose, invert, scale_translation
from mbasfm.types.cameras import Lens
from mbasfm.types.observations import TwoView

POSE_POINTS = 3
MIN_POINTS = 6
LIMITS_PX = (5.0, 15.0)
"""A pose is searched with a strict and a generous limit [px at a long side of 1024]: points may be rough."""
SCORE_PX = 20.0
"""tau_max of the score by which candidates are compared [px at a long side of 1024]."""
NUM_SINGLE = 3
"""Poses are also searched in this many single frames, those that share most with the new one."""
ITERATIONS = (200, 5000)
"""Smallest and largest number of samples that RANSAC draws."""
ROUGHNESS = 4.0
"""How much further than from its epipolar line a match may be from its lifted point: a network's depth is rough."""
LIFTED_BUDGET = {"max_iterations": 200, "min_iterations": 50, "seed": 0}
REFINEMENT = {"loss_type": "CAUCHY", "loss_scale": 1.0}


@dataclass(frozen=True)
class Sightings:
    """Matches of one frame's keypoints with keypoints of placed frames, and the points that those show."""

    own: Int64[np.ndarray, " M"]
    """Index of the new frame's keypoint."""
    frame: Int64[np.ndarray, " M"]
    """Number of the placed frame."""
    theirs: Int64[np.ndarray, " M"]
    """Index of the placed frame's keypoint."""
    pixels: Float64[np.ndarray, "M 2"]
    """Position of the new frame's keypoint [px]."""
    points: Float64[np.ndarray, "M 3"]
    """Point in the world; NaN where the placed frame has no depth."""

    def __len__(self) -> int:
        return len(self.own)

    def take(self, chosen: np.ndarray) -> "Sightings":
        """The chosen sightings."""
        return Sightings(*(column[chosen] for column in vars(self).values()))

    @property
    def has_point(self) -> Bool[np.ndarray, " M"]:
        """Which sightings have a point."""
        return np.isfinite(self.points).all(1)


def residuals_px(
    cam_from_world: Float64[np.ndarray, "3 4"], sightings: Sightings, lens: Lens
) -> Float64[np.ndarray, " M"]:
    """Distance of each keypoint from its point's image [px at a long side of 1024]; infinite if behind or unknown."""
    points = sightings.points @ cam_from_world[:, :3].T + cam_from_world[:, 3]
    ahead = points[:, 2] > 1e-9  # False for NaN
    seen = np.full((len(sightings), 2), np.inf)
    if ahead.any():
        seen[ahead] = poselib_camera(lens).project(points[ahead, :2] / points[ahead, 2:])
    distance = np.linalg.norm(seen - sightings.pixels, axis=1) / lens.px_per_reference_px
    return np.where(np.isfinite(distance), distance, np.inf)


def score(residuals: Float64[np.ndarray, " M"]) -> float:
    """S^m (eqn:binary_scoring_funciton_thresholds) as a share of its largest value."""
    return float(np.clip(1 - residuals / SCORE_PX, 0, None).mean()) if len(residuals) else 0.0


def best_pose(sightings: Sightings, lens: Lens, starts: Sequence[Float64[np.ndarray, "3 4"]] = ()) -> np.ndarray | None:
    """Pose with the best score, among those given and those found by RANSAC."""
    known = sightings.take(sightings.has_point)
    candidates = [*starts, *_candidates(known, lens)]
    scores = [score(residuals_px(pose, known, lens)) for pose in candidates]
    return candidates[int(np.argmax(scores))] if scores and max(scores) > 0 else None


def _candidates(known: Sightings, lens: Lens) -> Iterator[Float64[np.ndarray, "3 4"]]:
    """Poses from all points together, and from those of the frames with most of them."""
    numbers, counts = np.unique(known.frame, return_counts=True)
    largest = numbers[np.argsort(-counts, kind="stable")[:NUM_SINGLE]]
    for group in (known, *(known.take(known.frame == number) for number in largest.tolist())):
        for limit in LIMITS_PX if len(group) >= MIN_POINTS else ():
            pose, inliers = pose_from_points(group.pixels, group.points, lens, limit)
            if inliers.sum() >= MIN_POINTS:
                yield pose


def pose_from_points(
    pixels: Float64[np.ndarray, "M 2"],
    points: Float64[np.ndarray, "M 3"],
    lens: Lens,
    limit_px: float,
    iterations: tuple[int, int] = ITERATIONS,
) -> tuple[Float64[np.ndarray, "3 4"], Bool[np.ndarray, " M"]]:
    """Pose cam_from_world by P3P and poselib's LO-RANSAC, and which points agree with it; none do if there is no pose.

    ``limit_px`` at a long side of 1024.
    """
    options = {
        "max_reproj_error": limit_px * lens.px_per_reference_px,
        "min_iterations": iterations[0],
        "max_iterations": iterations[1],
        "seed": 0,
    }
    pose, info = poselib.estimate_absolute_pose(pixels, points, lens.camera(), options, {})
    return pose.Rt, np.asarray(info["inliers"], dtype=bool) & np.isfinite(pose.Rt).all()


def pose_from_pair(
    view: TwoView,
    pixels: tuple[Float64[np.ndarray, "A 2"], Float64[np.ndarray, "B 2"]],
    lenses: tuple[Lens, Lens],
    depth: Float64[np.ndarray, " A"],
    placed_from_world: Float64[np.ndarray, "3 4"],
) -> Float64[np.ndarray, "3 4"] | None:
    """Pose of a pair's second frame from two-view geometry, with the baseline from depth of the first, placed frame."""
    rays_i, rays_j = (
        torch.from_numpy(lens_rays(places[index], lens))
        for lens, places, index in zip(lenses, pixels, view.matches.T, strict=True)
    )
    j_from_i = torch.from_numpy(view.j_from_i)
    inverse_depth = triangulated_inverse_depth(j_from_i, rays_i, rays_j).numpy()  # at a baseline of 1
    baseline = inverse_depth * depth[view.matches[:, 0]]
    baseline = baseline[np.isfinite(baseline) & (baseline > 0)]
    if len(baseline) == 0:
        return None
    return compose(scale_translation(j_from_i, float(np.median(baseline))), torch.from_numpy(placed_from_world)).numpy()


def estimate_focal(sightings: Sightings, lens: Lens) -> float:
    """Focal length [px] of a frame from its points, by P4Pf and RANSAC; NaN if they do not determine it."""
    known = sightings.take(sightings.has_point)
    if len(known) < MIN_POINTS:
        return float("nan")
    estimation, refinement = pycolmap.AbsolutePoseEstimationOptions(), pycolmap.AbsolutePoseRefinementOptions()
    estimation.estimate_focal_length = refinement.refine_focal_length = True
    estimation.ransac.max_error = LIMITS_PX[-1] * lens.px_per_reference_px
    estimation.ransac.random_seed = 0
    width, height = (int(side) for side in lens.size)
    params = [float(lens.size.max()), *lens.center]
    camera = pycolmap.Camera(model="SIMPLE_PINHOLE", width=width, height=height, params=params)
    found = pycolmap.estimate_and_refine_absolute_pose(known.pixels, known.points, camera, estimation, refinement)
    focal = camera.focal_length if found is not None and found["num_inliers"] >= 2 * MIN_POINTS else float("nan")
    return focal if 0.2 * lens.size.max() < focal < 10 * lens.size.max() else float("nan")


def with_focal(lens: Lens, focal_px: float) -> Lens:
    """The same lens with another focal length."""
    return replace(lens, focal=np.full(2, focal_px))


@dataclass(frozen=True)
class Support:
    """Number of keypoints that agree with a pose."""

    num_keypoints: int
    """Number of distinct keypoints that have a point."""
    num_inliers: int
    """Number of those that lie near the image of one of their points."""
    log10_false_alarms: float

    @property
    def inlier_share(self) -> float:
        """Share of inliers among the keypoints."""
        return self.num_inliers / max(self.num_keypoints, 1)


def support_of(
    cam_from_world: Float64[np.ndarray, "3 4"], sightings: Sightings, lens: Lens, limit_px: float
) -> Support:
    """Support of a pose, counted in keypoints rather than matches: one seen in many frames is still one."""
    known = sightings.take(sightings.has_point)
    if len(known) == 0:
        return Support(0, 0, 0.0)
    _, keypoint, tries = np.unique(known.own, return_inverse=True, return_counts=True)
    inside = residuals_px(cam_from_world, known, lens) < limit_px
    inliers = len(np.unique(keypoint[inside]))
    area = np.pi * (limit_px * lens.px_per_reference_px) ** 2 / float(np.prod(lens.size))
    chance = float(np.mean(1 - (1 - min(area, 1.0)) ** tries))
    return Support(len(tries), inliers, log10_false_alarms(len(tries), inliers, POSE_POINTS, chance))


# ----------------------------------------------------------------------------------------------------------------
# Points by depth


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
        options = LIFTED_BUDGET | {"max_reproj_error": ROUGHNESS * limit}
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
