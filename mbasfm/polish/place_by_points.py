"""Second attempt to place frames that no single pair could place, by all their matches to placed frames at once.

Matches with frames whose keypoints have 3D points give 2D-3D pairs; a pose that many of them agree with, far more than
chance would, is accepted. Matches that agree become verified pairs, so that polish sees the frame like any other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pycolmap
from jaxtyping import Float64, Int64

from mbasfm.estimators.absolute import POSE_POINTS, Sightings, pose_from_points
from mbasfm.estimators.two_view import MAX_LOG10_FALSE_ALARMS, covered_share, fundamental_from_pose, log10_false_alarms
from mbasfm.types.cameras import Lens
from mbasfm.types.observations import Keypoints, TwoView

MIN_INLIERS = 8
MAX_ERROR_PX = 6.0
"""Largest error of a 3D point in the new frame [px at a long side of 1024]."""


@dataclass(frozen=True)
class RegisteredFrame:
    """A frame that was registered by its matches with 3D points."""

    frame: int
    cam_from_world: Float64[np.ndarray, "3 4"]
    views: list[TwoView]


def place_by_points(
    frame: int,
    model: pycolmap.Reconstruction,
    matches: Mapping[int, Int64[np.ndarray, "M 2"]],
    keypoints: Sequence[Keypoints],
    lenses: Sequence[Lens],
) -> RegisteredFrame | None:
    """Pose of a frame from its matches (own keypoint, other's keypoint) with frames of the model; None if not found."""
    seen = _sightings(model, matches, keypoints[frame])
    if len(seen) < MIN_INLIERS:
        return None
    lens = lenses[frame]
    pose, inliers = pose_from_points(seen.pixels, seen.points, lens, MAX_ERROR_PX)
    distinct = len(np.unique(seen.own[inliers]))
    chance = np.pi * (MAX_ERROR_PX * lens.px_per_reference_px) ** 2 / float(np.prod(lens.size))
    alarms = log10_false_alarms(len(np.unique(seen.own)), distinct, POSE_POINTS, chance)
    if distinct < MIN_INLIERS or alarms > MAX_LOG10_FALSE_ALARMS:
        return None
    views = []
    for neighbour in np.unique(seen.frame[inliers]).tolist():
        chosen = seen.take(inliers & (seen.frame == neighbour))
        pairs = np.column_stack([chosen.own, chosen.theirs])
        other_from_frame = model.images[neighbour + 1].cam_from_world() * pycolmap.Rigid3d(pose).inverse()
        view = _view((frame, neighbour), pairs, other_from_frame, keypoints, lenses)
        views.append(replace(view, log10_false_alarms=alarms))
    return RegisteredFrame(frame, pose, views)


def _sightings(
    model: pycolmap.Reconstruction, matches: Mapping[int, Int64[np.ndarray, "_ 2"]], keypoints: Keypoints
) -> Sightings:
    """All matches of a frame with a keypoint that has a 3D point."""
    rows: list[tuple[int, int, int]] = []
    points: list[np.ndarray] = []
    for neighbour, pairs in matches.items():
        if neighbour + 1 not in model.images:
            continue
        image = model.images[neighbour + 1]
        for mine, theirs in pairs.tolist():
            observation = image.points2D[theirs]
            if observation.has_point3D():
                rows.append((mine, neighbour, theirs))
                points.append(model.points3D[observation.point3D_id].xyz)
    own, frame, theirs = np.array(rows, dtype=np.int64).reshape(-1, 3).T
    pixels = keypoints.pixels[own].astype(np.float64)
    return Sightings(own, frame, theirs, pixels, np.array(points, dtype=np.float64).reshape(-1, 3))


def _view(
    ends: tuple[int, int],
    pairs: Int64[np.ndarray, "M 2"],
    second_from_first: pycolmap.Rigid3d,
    keypoints: Sequence[Keypoints],
    lenses: Sequence[Lens],
) -> TwoView:
    """Verified pair, as two-view geometry would return it."""
    in_order = ends[0] < ends[1]
    i, j = ends if in_order else ends[::-1]
    matches = np.ascontiguousarray(pairs if in_order else pairs[:, ::-1])
    j_from_i = (second_from_first if in_order else second_from_first.inverse()).matrix()
    j_from_i[:, 3] /= max(float(np.linalg.norm(j_from_i[:, 3])), 1e-12)
    shares = [
        covered_share(keypoints[f].pixels.astype(float), keypoints[f].pixels[m].astype(float), lenses[f].size)
        for f, m in zip((i, j), matches.T, strict=True)
    ]
    fundamental = fundamental_from_pose(j_from_i, (lenses[i], lenses[j]))
    view = TwoView.of_matches(i, j, matches)
    return replace(view, j_from_i=j_from_i, fundamental=fundamental, covisibility=(shares[0], shares[1]))
