"""Two frames: their relative pose, and the matches that agree with it.

RANSAC is poselib's (LO-RANSAC with the five-point or seven-point solver), with lenses as poselib computes them. Whether
a pair is more than chance is decided by the expected number of false alarms, so that few but clean matches count and
many random ones do not.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import poselib
import torch
from jaxtyping import Bool, Float64, Int64
from scipy.special import gammaln

from mbasfm.geometry.camera import essential_from_pose, in_front, line_distances
from mbasfm.geometry.fisheye import undistort_fisheye
from mbasfm.types.cameras import Lens
from mbasfm.types.observations import TwoView

MIN_INLIERS = 12
"""Fewest matches that are believed on their own."""
FEWEST_INLIERS, LEAST_LOG10_FALSE_ALARMS = 8, 0.0
"""What a pair must have at least: a second witness may speak for it."""
MIN_INLIER_RATIO = 0.25
BUDGET = {"max_iterations": 2000, "min_iterations": 100, "seed": 0}
PLANE_SHARE = 0.9
"""Share of inliers on one homography from which a pair says little about its translation."""
RIVAL_SHARE = 0.7
"""Share of inliers with which a second pose may be the right one: the others may be wrong matches."""
MIN_RIVAL_DEG = 3.0
"""Poses that differ by less are the same."""
GRID = 16
"""Cells per side in which matches are counted to estimate co-visibility."""
MAX_LOG10_FALSE_ALARMS = -3.0
ESSENTIAL_POINTS, FUNDAMENTAL_POINTS = 5, 7
LN_10 = float(np.log(10.0))


def pack(view: TwoView | None) -> dict[str, np.ndarray]:
    """Arrays that store a pair, or that there is none; its frames' numbers are left out."""
    if view is None:
        return {}
    numbers = [view.is_planar, view.log10_false_alarms, view.inlier_ratio, *view.covisibility]
    rival = np.zeros((0, 3, 4)) if view.rival is None else view.rival[None]
    poses = {"j_from_i": view.j_from_i, "fundamental": view.fundamental, "rival": rival}
    return {"matches": view.matches, "numbers": np.array(numbers, dtype=np.float64)} | poses


def unpack(frames: tuple[int, int], arrays: Mapping[str, np.ndarray]) -> TwoView | None:
    """Pair from the arrays that ``pack`` returned."""
    if "matches" not in arrays:
        return None
    planar, alarms, ratio, *shares = arrays["numbers"].tolist()
    rival = arrays["rival"][0] if len(arrays["rival"]) else None
    poses = arrays["matches"], arrays["j_from_i"], arrays["fundamental"]
    return TwoView(*frames, *poses, bool(planar), alarms, ratio, (shares[0], shares[1]), rival)


def sees(lens: Lens, pixels: Float64[np.ndarray, "M 2"]) -> Bool[np.ndarray, " M"]:
    """Which pixels have usable rays: a fisheye also sees what is beside it, or behind."""
    if not lens.is_fisheye:
        return np.ones(len(pixels), dtype=bool)
    radius = torch.from_numpy((pixels - lens.center) / lens.focal)
    return np.isfinite(undistort_fisheye(radius, torch.from_numpy(lens.distortion)).numpy()).all(1)


def verify(
    frames: tuple[int, int],
    pixels: tuple[Float64[np.ndarray, "A 2"], Float64[np.ndarray, "B 2"]],
    matches: Int64[np.ndarray, "M 2"],
    lenses: tuple[Lens, Lens],
    max_error_px: float,
    calibrated: bool,
) -> TwoView | None:
    """Verified pair, or None if its matches agree no more than by chance. ``max_error_px`` at a long side of 1024."""
    view = propose(frames, pixels, matches, lenses, max_error_px, calibrated)
    return view if view is not None and stands_alone(view) else None


def stands_alone(view: TwoView) -> bool:
    """Whether a pair's matches agree more than by chance, so that it needs no second witness."""
    return view.num_inliers >= MIN_INLIERS and view.log10_false_alarms <= MAX_LOG10_FALSE_ALARMS


def propose(
    frames: tuple[int, int],
    pixels: tuple[Float64[np.ndarray, "A 2"], Float64[np.ndarray, "B 2"]],
    matches: Int64[np.ndarray, "M 2"],
    lenses: tuple[Lens, Lens],
    max_error_px: float,
    calibrated: bool,
) -> TwoView | None:
    """Pair whose matches agree on a pose, be it by chance; None if there are too few to ask anybody else."""
    matches = matches[sees(lenses[0], pixels[0][matches[:, 0]]) & sees(lenses[1], pixels[1][matches[:, 1]])]
    if len(matches) < FEWEST_INLIERS:
        return None
    points_i, points_j = pixels[0][matches[:, 0]], pixels[1][matches[:, 1]]
    scale = float(np.sqrt(lenses[0].px_per_reference_px * lenses[1].px_per_reference_px))
    limit = max_error_px * scale
    estimate = _essential if calibrated else _fundamental
    j_from_i, fundamental, inliers = estimate(points_i, points_j, lenses, limit)
    minimal = ESSENTIAL_POINTS if calibrated else FUNDAMENTAL_POINTS
    chance = max(chance_near_line(points_i, limit), chance_near_line(points_j, limit))
    alarms = log10_false_alarms(len(matches), int(inliers.sum()), minimal, chance)
    if inliers.sum() < FEWEST_INLIERS or inliers.mean() < MIN_INLIER_RATIO or alarms > LEAST_LOG10_FALSE_ALARMS:
        return None
    straight_i, straight_j = _straighten(points_i[inliers], lenses[0]), _straighten(points_j[inliers], lenses[1])
    homography, on_plane = _homography(straight_i, straight_j, limit)
    planar = on_plane >= PLANE_SHARE
    rival = None
    if on_plane >= RIVAL_SHARE and calibrated:
        rays = [lens_rays(points[inliers], lens) for points, lens in zip((points_i, points_j), lenses, strict=True)]
        rival = _rival(j_from_i, homography, rays, lenses, limit)
    covisibility = (
        covered_share(pixels[0], points_i[inliers], lenses[0].size),
        covered_share(pixels[1], points_j[inliers], lenses[1].size),
    )
    ratio = float(inliers.mean())
    return TwoView(*frames, matches[inliers], j_from_i, fundamental, planar, alarms, ratio, covisibility, rival)


def inherit(found: TwoView, earlier: TwoView) -> TwoView:
    """The second estimate of a pair, with false alarms and inlier ratio relative to all matches of the first."""
    ratio = earlier.inlier_ratio * found.inlier_ratio
    return replace(found, log10_false_alarms=earlier.log10_false_alarms, inlier_ratio=ratio)


def _essential(
    points_i: Float64[np.ndarray, "M 2"], points_j: Float64[np.ndarray, "M 2"], lenses: tuple[Lens, Lens], limit: float
) -> tuple[Float64[np.ndarray, "3 4"], Float64[np.ndarray, "3 3"], Bool[np.ndarray, " M"]]:
    cameras = [lens.camera() for lens in lenses]
    j_from_i, inliers = pose_by_poselib((points_i, points_j), cameras, {**BUDGET, "max_epipolar_error": limit})
    return j_from_i, fundamental_from_pose(j_from_i, lenses), inliers


def _fundamental(
    points_i: Float64[np.ndarray, "M 2"], points_j: Float64[np.ndarray, "M 2"], lenses: tuple[Lens, Lens], limit: float
) -> tuple[Float64[np.ndarray, "3 4"], Float64[np.ndarray, "3 3"], Bool[np.ndarray, " M"]]:
    del lenses
    matrix, info = poselib.estimate_fundamental(points_i, points_j, {**BUDGET, "max_epipolar_error": limit}, {})
    return np.full((3, 4), np.nan), np.asarray(matrix), np.asarray(info["inliers"], dtype=bool)


def fundamental_from_pose(
    j_from_i: Float64[np.ndarray, "3 4"], lenses: tuple[Lens, Lens]
) -> Float64[np.ndarray, "3 3"]:
    """Fundamental matrix K_j^-T [t]x R K_i^-1, without lens distortion."""
    essential = essential_from_pose(torch.from_numpy(j_from_i)).numpy()
    inverse_i, inverse_j = (np.linalg.inv(calibration_matrix(lens)) for lens in lenses)
    matrix = inverse_j.T @ essential @ inverse_i
    return matrix / max(float(np.linalg.norm(matrix)), 1e-300)


def calibration_matrix(lens: Lens) -> Float64[np.ndarray, "3 3"]:
    """Calibration matrix K."""
    (fx, fy), (cx, cy) = lens.focal, lens.center
    return np.array([[fx, 0, cx], [0, fy, cy], [0, 0, 1.0]])


def _straighten(points: Float64[np.ndarray, "M 2"], lens: Lens) -> Float64[np.ndarray, "M 2"]:
    """Pixels without lens distortion: only then does a plane give a homography."""
    if not lens.is_fisheye and not lens.distortion.any():
        return points
    return lens_rays(points, lens)[:, :2] * lens.focal + lens.center


def _homography(
    points_i: Float64[np.ndarray, "M 2"], points_j: Float64[np.ndarray, "M 2"], limit: float
) -> tuple[Float64[np.ndarray, "3 3"], float]:
    """Homography with most inliers, and their share."""
    options = {"max_reproj_error": limit, "max_iterations": 500, "min_iterations": 50, "seed": 0}
    matrix, info = poselib.estimate_homography(points_i, points_j, options, {})
    return np.asarray(matrix), float(np.mean(info["inliers"]))


def _rival(
    j_from_i: Float64[np.ndarray, "3 4"],
    homography: Float64[np.ndarray, "3 3"],
    rays: Sequence[Float64[np.ndarray, "M 3"]],
    lenses: tuple[Lens, Lens],
    limit: float,
) -> Float64[np.ndarray, "3 4"] | None:
    """Second pose that a plane allows, if most points lie near their epipolar lines and in front of both cameras."""
    first, second = (calibration_matrix(lens) for lens in lenses)
    poses, _ = poselib.motion_from_homography(np.linalg.inv(second) @ homography @ first)
    best, best_share = None, RIVAL_SHARE
    for pose in poses:
        length = float(np.linalg.norm(pose.t))
        cosine = (np.trace(pose.R.T @ j_from_i[:, :3]) - 1) / 2
        if length < 1e-9 or cosine > np.cos(np.deg2rad(MIN_RIVAL_DEG)):
            continue
        candidate = np.column_stack([pose.R, pose.t / length])
        share = float(_is_possible(candidate, rays, limit / float(lenses[1].focal.mean())).mean())
        if share >= best_share:
            best, best_share = candidate, share
    return best


def _is_possible(
    j_from_i: Float64[np.ndarray, "3 4"], rays: Sequence[Float64[np.ndarray, "M 3"]], limit: float
) -> Bool[np.ndarray, " M"]:
    """Which rays meet, within the limit at z = 1, in front of both cameras."""
    pose, first, second = map(torch.from_numpy, (j_from_i, *rays))
    return ((line_distances(pose, first, second) < limit) & in_front(pose, first, second)).numpy()


def covered_share(
    features: Float64[np.ndarray, "A 2"], matched: Float64[np.ndarray, "M 2"], size: Int64[np.ndarray, " 2"]
) -> float:
    """Share of the cells that hold features which also hold a match, or lie between matches.

    Cells without features are left out: sky and bare walls say nothing about what the other frame sees.
    """
    occupied, seen = _cells(features, size), _cells(matched, size)
    between = _filled(seen, axis=0) & _filled(seen, axis=1)
    return float((occupied & (seen | between)).sum() / max(int(occupied.sum()), 1))


def _cells(pixels: Float64[np.ndarray, "M 2"], size: Int64[np.ndarray, " 2"]) -> Bool[np.ndarray, "16 16"]:
    index = np.clip((pixels / size * GRID).astype(np.int64), 0, GRID - 1)
    cells = np.zeros((GRID, GRID), dtype=bool)
    cells[index[:, 1], index[:, 0]] = True
    return cells


def _filled(cells: Bool[np.ndarray, "16 16"], axis: int) -> Bool[np.ndarray, "16 16"]:
    """Cells between the first and the last set one, along an axis."""
    forward = np.logical_or.accumulate(cells, axis)
    backward = np.flip(np.logical_or.accumulate(np.flip(cells, axis), axis), axis)
    return forward & backward


def poselib_camera(lens: Lens) -> poselib.Camera:
    """The lens as poselib's camera."""
    camera = lens.camera()
    return poselib.Camera(camera["model"], camera["params"], camera["width"], camera["height"])


def lens_rays(pixels: Float64[np.ndarray, "M 2"], lens: Lens) -> Float64[np.ndarray, "M 3"]:
    """Undistorted rays (x/z, y/z, 1) of pixels."""
    return np.column_stack([poselib_camera(lens).unproject(pixels), np.ones(len(pixels))])


def pose_by_poselib(
    pixels: Sequence[Float64[np.ndarray, "M 2"]],
    cameras: Sequence[Mapping[str, object]],
    options: Mapping[str, int | float],
) -> tuple[Float64[np.ndarray, "3 4"], Bool[np.ndarray, " M"]]:
    """Pose j_from_i of one pair by PoseLib, its translation of unit length or zero, and which matches agree with it."""
    pose, info = poselib.estimate_relative_pose(*pixels, *map(dict, cameras), dict(options), {})
    translation = pose.t / max(float(np.linalg.norm(pose.t)), 1e-12)
    return np.column_stack([pose.R, translation]), np.asarray(info["inliers"], dtype=bool)


def log10_false_alarms(num_matches: int, num_inliers: int, minimal: int, chance: float) -> float:
    """Expected number of models that random matches would support as well (Moisan & Stival, IJCV 2004).

    Chance is the probability that a random match lies near a given epipolar line.
    """
    if num_inliers <= minimal:
        return np.inf
    tests = np.log((num_matches - minimal) * (3 if minimal == FUNDAMENTAL_POINTS else 10))
    subsets = _log_binomial(num_matches, num_inliers) + _log_binomial(num_inliers, minimal)
    return float((tests + subsets + (num_inliers - minimal) * np.log(chance)) / LN_10)


def _log_binomial(n: int, k: int) -> float:
    return float(gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1))


def chance_near_line(points: Float64[np.ndarray, "M 2"], limit: float) -> float:
    """Probability that a match lies near a given line, within the area that matches cover, not the whole image."""
    width, height = np.maximum(np.sqrt(12) * points.std(0), 4 * limit)  # sides of a uniform box with this spread
    return float(min(0.5, 2 * limit * np.hypot(width, height) / (width * height)))
