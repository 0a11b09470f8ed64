"""Two photographs to one relative pose: matches, intrinsics, RANSAC, and depth where there is some."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float64
from torch import Tensor

from mbasfm.adjust.adjust import Adjustment, adjust
from mbasfm.adjust.stage import ANCHORED, FINE
from mbasfm.config import Config
from mbasfm.errors import InputError
from mbasfm.estimators.depth_pose import estimate_metric_poses, rotation_alone, with_unit_translation
from mbasfm.estimators.focal_ransac import estimate_with_focal
from mbasfm.estimators.ransac import PAPER_BUDGET, RansacSettings, RelativePoses, sigma_px
from mbasfm.estimators.relative import Method, estimate_relative_poses, residuals_of
from mbasfm.estimators.sampson import MatchBatch, homogeneous
from mbasfm.estimators.two_view import (
    ESSENTIAL_POINTS,
    MAX_LOG10_FALSE_ALARMS,
    MIN_INLIERS,
    chance_near_line,
    log10_false_alarms,
)
from mbasfm.geometry.camera import pixel_rays, triangulated_inverse_depth
from mbasfm.geometry.rigid import compose, invert, rotation_angle, scale_translation
from mbasfm.io.files import Cache
from mbasfm.io.images import inspect_photos, with_masks
from mbasfm.matching.observe import WantedPairs, load_depth, load_matchers, observe
from mbasfm.models.base import looking_in
from mbasfm.objective.residual_kind import Anchoring
from mbasfm.runtime.parallel import one_core
from mbasfm.runtime.progress import Progress
from mbasfm.scene.derived import is_constant
from mbasfm.sfm.inputs import cameras_alone
from mbasfm.sfm.intrinsics import StartIntrinsics, focal_source, known_intrinsics
from mbasfm.types.cameras import REFERENCE_LONG_SIDE, Cameras, Fixed, Intrinsics
from mbasfm.types.observations import Observations, Samples
from mbasfm.types.outcome import FocalSource

Estimator = Literal["adaptive", "paper", "magsac", "poselib"]
"""Ours with as many samples as needed or with the paper's 64, OpenCV's USAC_MAGSAC, PoseLib's LO-RANSAC."""
METHODS: dict[Estimator, Method] = {"adaptive": "ours", "paper": "ours", "magsac": "magsac", "poselib": "poselib"}
INLIER_SIGMAS = 3.0
MAX_TURN_SHARE = 0.9
"""Where a turn alone explains this share of the inliers, the direction of translation is not determined."""
MAX_LOG_RATIO = 0.1
"""Metric depth maps whose factor is nearer to one than this have the same unit."""
RELATIVE = replace(ANCHORED, anchoring=Anchoring(prior="fixed", sigma=0.1))
"""Stage of a network's depth. Its error is assumed: where two photographs alone had to tell it, depth could bend the
pose."""
MIN_DEPTHS = 20
"""Matches with depth in both photographs that a pose with scale needs."""


@dataclass(frozen=True)
class PairPose:
    """Relative pose of two photographs and what supports it."""

    names: tuple[str, str]
    found: bool
    """False: the matches agree no better than chance; the pose means nothing then."""
    j_from_i: Float64[np.ndarray, "3 4"]
    """x_j = R x_i + t for the first photograph i and the second j; t has unit length without depth."""
    has_scale: bool
    """The translation is in the unit of the first photograph's depth (metres, if that is metric)."""
    has_direction: bool
    """False: a turn alone explains the matches, so that the direction of the translation is not to be trusted."""
    pixels_i: Float64[np.ndarray, "M 2"]
    pixels_j: Float64[np.ndarray, "M 2"]
    inliers: Bool[np.ndarray, " M"]
    score: float
    """Mean over the matches of S^m, between 0 and 1."""
    sigma_px: float
    """Scale of the inliers' Sampson distances, at a long side of 1024."""
    log10_false_alarms: float
    intrinsics: Intrinsics
    focal_from: tuple[FocalSource, FocalSource]
    depth_ratio: float | None = None
    """Factor on the second depth map that makes it agree with the first, where they were used."""
    notes: list[str] = field(default_factory=list)

    @property
    def rotation_deg(self) -> float:
        """Angle of the rotation."""
        return float(rotation_angle(torch.from_numpy(self.j_from_i[:, :3])).rad2deg())

    def summary(self) -> dict[str, Any]:
        """All but the matches, for JSON."""
        centers, focals = self.intrinsics.center.tolist(), self.intrinsics.focal.tolist()
        cameras = [
            {"image": name, "fx": f[0], "fy": f[1], "cx": c[0], "cy": c[1], "focal_from": source.value}
            for name, f, c, source in zip(self.names, focals, centers, self.focal_from, strict=True)
        ]
        return {
            "found": self.found,
            "R": self.j_from_i[:, :3].tolist(),
            "t": self.j_from_i[:, 3].tolist(),
            "has_scale": self.has_scale,
            "has_direction": self.has_direction,
            "rotation_deg": self.rotation_deg,
            "matches": len(self.inliers),
            "inliers": int(self.inliers.sum()),
            "score": self.score,
            "sigma_px": self.sigma_px,
            "log10_false_alarms": self.log10_false_alarms if np.isfinite(self.log10_false_alarms) else None,
            "depth_ratio": self.depth_ratio,
            "cameras": cameras,
            "notes": self.notes,
        }


@one_core()
def two_view(
    first: Path | str,
    second: Path | str,
    config: Config | None = None,
    estimator: Estimator = "adaptive",
    cache: Path | str | None = None,
    progress: Progress | None = None,
) -> PairPose:
    """Relative pose of two photographs; with depth that says something, also its scale.

    Of the configuration, matcher, depth, cameras, focal, masks, min_confidence and seed count.
    """
    config, progress = config or Config(), progress or Progress()
    photos = with_masks(
        inspect_photos([Path(first), Path(second)]), None if config.masks is None else Path(config.masks)
    )
    if photos[0].digest == photos[1].digest:
        raise InputError(f"{photos[0].name} and {photos[1].name} are the same photograph; give two")
    given, store = cameras_alone(photos, config.cameras, config.focal), Cache(None if cache is None else Path(cache))
    with progress.active(), store.active(), looking_in(config.weights, config.models_path):
        matchers, depth_model = load_matchers(config.matcher), load_depth(config.depth)
        confidences = config.min_confidence, config.min_depth_confidence
        observations = observe(photos, depth_model, matchers, WantedPairs("exhaustive"), *confidences)
    with progress.stage("pose") as facts:
        start = known_intrinsics(photos, given, config.intrinsics, config.lens, observations.depths)
        found = _estimate(observations, start, estimator, config.seed)
        facts.update(matches=len(found.inliers), inliers=int(found.inliers.sum()))
    return found


def _estimate(observations: Observations, start: StartIntrinsics, estimator: Estimator, seed: int) -> PairPose:
    pixels = _matched(observations)
    settings = replace(PAPER_BUDGET if estimator == "paper" else RansacSettings(), seed=seed)
    intrinsics, poses = _pose(pixels, start.intrinsics, estimator, settings)
    first, second = (focal_source(start, end, not start.intrinsics.focal[end].isnan().any()) for end in (0, 1))
    sigma = float(sigma_px(poses, settings.tau_px))
    limit = max(INLIER_SIGMAS * sigma, 0.5 * settings.tau_px)
    result = PairPose(
        names=(observations.photos[0].name, observations.photos[1].name),
        found=True,
        j_from_i=poses.j_from_i[0].numpy(),
        has_scale=False,
        has_direction=True,
        pixels_i=pixels[0].numpy(),
        pixels_j=pixels[1].numpy(),
        inliers=poses.inliers(limit)[0].numpy(),
        score=float(poses.score) / max(len(pixels[0]), 1),
        sigma_px=sigma,
        log10_false_alarms=np.inf,
        intrinsics=intrinsics,
        focal_from=(first, second),
    )
    result = _judged(result, bool(poses.found), limit)
    if not result.found:
        return result
    matches = as_batch(pixels, intrinsics)
    result = _with_direction_checked(result, matches, settings.tau_px)
    return _with_depth(result, observations, matches, settings)


def _matched(observations: Observations) -> tuple[Float64[Tensor, "M 2"], Float64[Tensor, "M 2"]]:
    indices = observations.matches[0] if observations.matches else np.zeros((0, 2), dtype=np.int64)
    first, second = (observations.keypoints[end].pixels[indices[:, end]].astype(np.float64) for end in (0, 1))
    return torch.from_numpy(first), torch.from_numpy(second)


def as_batch(pixels: Sequence[Tensor], intrinsics: Intrinsics) -> MatchBatch:
    """One pair as the estimators take it."""
    rays = [pixel_rays(points, intrinsics, torch.tensor(end)) for end, points in enumerate(pixels)]
    focal = intrinsics.reference_focal
    is_match = (rays[0].isfinite() & rays[1].isfinite()).all(-1)  # beyond the range of a lens there are no rays
    return MatchBatch(rays[0].nan_to_num()[None], rays[1].nan_to_num()[None], is_match[None], focal[None])


def _pose(
    pixels: Sequence[Tensor], intrinsics: Intrinsics, estimator: Estimator, settings: RansacSettings
) -> tuple[Intrinsics, RelativePoses]:
    """The pose, and the intrinsics with focal lengths that had to be searched."""
    focal = intrinsics.focal.mean(1)
    if focal.isnan().any():
        offsets = [points - center for points, center in zip(pixels, intrinsics.center, strict=True)]
        long_side = intrinsics.sizes.amax(1).double()
        searched, poses = estimate_with_focal(offsets[0], offsets[1], focal, long_side, settings)
        filled = torch.where(intrinsics.focal.isnan(), searched[:, None], intrinsics.focal)
        intrinsics = replace(intrinsics, focal=filled)
        if METHODS[estimator] == "ours":
            return intrinsics, poses
    return intrinsics, estimate_relative_poses(as_batch(pixels, intrinsics), METHODS[estimator], settings)


def _judged(result: PairPose, has_pose: bool, limit_px: float) -> PairPose:
    """Whether the inliers are more than chance."""
    count, total = int(result.inliers.sum()), len(result.inliers)
    if not has_pose or count < MIN_INLIERS:
        note = f"only {count} of {total} matches agree; at least {MIN_INLIERS} are needed"
        return replace(result, found=False, notes=[f"no pose: {note}; the photographs may not overlap"])
    ends = zip((result.pixels_i, result.pixels_j), result.intrinsics.sizes.amax(1).tolist(), strict=True)
    chance = max(chance_near_line(points, limit_px * side / REFERENCE_LONG_SIDE) for points, side in ends)
    alarms = log10_false_alarms(total, count, ESSENTIAL_POINTS, chance)
    if alarms <= MAX_LOG10_FALSE_ALARMS:
        return replace(result, log10_false_alarms=alarms)
    note = f"no pose: {count} of {total} matches agree, which chance explains; the photographs may not overlap"
    return replace(result, found=False, log10_false_alarms=alarms, notes=[note])


def _with_direction_checked(result: PairPose, matches: MatchBatch, tau_px: float) -> PairPose:
    """Say so if the camera may only have turned: then its rotation is known and its translation is not."""
    weight = torch.from_numpy(result.inliers)[None].double()
    start = torch.from_numpy(result.j_from_i)[None, :, :3]
    rotation, residual = rotation_alone(matches, start, weight, tau_px)
    limit = max(INLIER_SIGMAS * result.sigma_px, 0.5 * tau_px) * 2**0.5  # distances in the plane, not across a line
    share = float(((residual < limit) * weight).sum() / weight.sum())
    if share < MAX_TURN_SHARE:
        return result
    note = f"no parallax: a turn alone explains {share:.0%} of the inliers; the translation is not determined"
    turned = torch.cat([rotation[0], torch.from_numpy(result.j_from_i)[:, 3:]], -1).numpy()
    return replace(result, j_from_i=turned, has_direction=False, notes=[*result.notes, note])


# ----------------------------------------------------------------------------------------------------------------
# Depth


def _with_depth(
    result: PairPose, observations: Observations, matches: MatchBatch, settings: RansacSettings
) -> PairPose:
    """Scale, from the depth of both photographs, by marginalized bundle adjustment of the two frames."""
    if any(is_constant(depth.values) for depth in observations.depths):
        return result
    raw = [
        torch.from_numpy(observations.keypoints[end].raw_depth[observations.matches[0][:, end]]).double()
        for end in (0, 1)
    ]
    known = matches.is_match[0] & (raw[0] > 0) & (raw[1] > 0) & raw[0].isfinite() & raw[1].isfinite()
    if int(known.sum()) < MIN_DEPTHS:
        note = f"no scale: only {int(known.sum())} matches have depth in both photographs; {MIN_DEPTHS} are needed"
        return replace(result, notes=[*result.notes, note])
    depth = [1 / value if flag else value for value, flag in zip(raw, observations.is_disparity, strict=True)]
    metric = estimate_metric_poses(matches, depth[0][None], depth[1][None], settings)
    starts = [metric.j_from_i[0]] if bool(metric.found) else []
    if result.has_direction:
        agreeing = known & torch.from_numpy(result.inliers)
        starts.append(_scaled(torch.from_numpy(result.j_from_i), matches, depth, agreeing))
    is_metric = all(estimate.is_metric for estimate in observations.depths)
    ratio = float(metric.depth_ratio)
    maps_agree = is_metric and abs(math.log(max(ratio, 1e-12))) < MAX_LOG_RATIO
    cameras = [
        _cameras(pose, 1.0 if maps_agree else ratio, result.intrinsics, observations.is_disparity) for pose in starts
    ]
    fixed = Fixed.build(2, focal=True, scale=maps_agree, shift=is_metric)
    # A sensor's depth is as good as the matches; a network's tells little about where a point is seen.
    stage = FINE if is_metric else RELATIVE
    samples = _samples(result, raw, known)
    ends = [adjust(start, samples, stage, fixed) for start in cameras]
    best = max(ends, key=lambda end: end.steps[-1][1].score if end.steps else -np.inf)
    return _scaled_result(result, best, matches, settings)


def _samples(result: PairPose, raw: Sequence[Tensor], chosen: Tensor) -> Samples:
    """The matches once in each direction, half a match each."""
    ends = [torch.from_numpy(pixels)[chosen] for pixels in (result.pixels_i, result.pixels_j)]
    forth = torch.cat([*ends, raw[0][chosen, None]], -1)
    back = torch.cat([*ends[::-1], raw[1][chosen, None]], -1)
    data = torch.stack([forth, back]).float()
    return Samples(torch.tensor([[0, 1], [1, 0]]), data, torch.full(data.shape[:2], 0.5))


def _scaled(j_from_i: Tensor, matches: MatchBatch, depth: Sequence[Tensor], chosen: Tensor) -> Tensor:
    """The pose with the length of translation that agrees with the depth of i."""
    inverse_depth = triangulated_inverse_depth(j_from_i, homogeneous(matches.rays_i[0]), homogeneous(matches.rays_j[0]))
    ratio = (depth[0] * inverse_depth)[chosen & (inverse_depth > 0)]
    length = float(ratio.median()) if len(ratio) else 1.0
    return scale_translation(j_from_i, length)


def _cameras(j_from_i: Tensor, ratio: float, intrinsics: Intrinsics, is_disparity: Tensor) -> Cameras:
    poses = torch.stack([torch.eye(3, 4, dtype=torch.float64), j_from_i])
    scale = torch.tensor([1.0, 1 / ratio if bool(is_disparity[1]) else ratio], dtype=torch.float64)
    return Cameras(poses, intrinsics, scale, torch.zeros(2, dtype=torch.float64), is_disparity)


def _scaled_result(result: PairPose, end: Adjustment, matches: MatchBatch, settings: RansacSettings) -> PairPose:
    """The adjusted pose and the matches that agree with it."""
    if not bool(end.registered.all()):
        return replace(result, notes=[*result.notes, "no scale: the depth of the two photographs does not agree"])
    cameras = end.cameras
    pose = compose(cameras.cam_from_world[1], invert(cameras.cam_from_world[0]))
    ratio = float(cameras.depth_scale[1] / cameras.depth_scale[0])
    ratio = 1 / ratio if bool(cameras.is_disparity[1]) else ratio
    unit = cameras.depth_scale[0] if bool(cameras.is_disparity[0]) else 1 / cameras.depth_scale[0]
    pose = scale_translation(pose, unit)
    scaled = replace(result, has_scale=True, depth_ratio=ratio, j_from_i=pose.numpy())
    if not result.has_direction:
        return scaled
    residual = residuals_of(with_unit_translation(pose[None]), torch.tensor([True]), matches)[0]
    limit = max(INLIER_SIGMAS * result.sigma_px, 0.5 * settings.tau_px)
    return replace(scaled, inliers=(residual < limit).numpy())
