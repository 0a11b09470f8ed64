"""Removal of matches that agree with the cameras but not with depth.

Where a pattern repeats, such as the windows of a wall, a match with the neighbouring repetition lies on the epipolar
line as the right one does and triangulates to a clean point at a wrong distance. Whole rows of them agree with each
other and bend the cameras. Depth tells them apart, even rough depth: it is off by percents, they by a factor. Where
depth itself is off by a factor, as networks are in the background, all matches around contradict it alike and are kept.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64

from mbasfm.estimators.two_view import GRID, MIN_INLIERS
from mbasfm.geometry.camera import unit_rays
from mbasfm.geometry.epipolar import triangulated_inverse_depth
from mbasfm.geometry.rigid import compose, invert
from mbasfm.objective.distribution import MAD_TO_SIGMA
from mbasfm.polish.keypoint_depth import gather, inverse_depths
from mbasfm.types.cameras import Cameras
from mbasfm.types.pairs import Keypoints, TwoView

MAX_SIGMAS = 4.0
MATCH_PX = 1.0
"""Error of a match along its line [px at a long side of 1024], which limits triangulation at small parallax."""
MIN_CONSENSUS = 5
"""Number of matches in one cell of an image that can overrule its depth map."""
FARTHEST = 1e-3
"""Least ratio of triangulated to expected inverse depth; points behind the camera count as this far."""


def drop_contradictions(views: Sequence[TwoView], cameras: Cameras, keypoints: Sequence[Keypoints]) -> list[TwoView]:
    """Pairs without the matches whose triangulated depth is far from the depth map of one of their frames.

    Far is measured by the frame's own spread, so that bad depth, or none, leaves everything as it is. A pair that would
    keep too few matches keeps them all: then it is not a few of its matches that are wrong.
    """
    if not views:
        return []
    ends = np.repeat([(view.i, view.j) for view in views], [view.num_inliers for view in views], axis=0)
    matches = np.concatenate([view.matches for view in views])
    # Both directions at once: all that is seen in a frame counts there, whichever end of a pair it is.
    both = _agrees(
        np.concatenate([ends, ends[:, ::-1]]), np.concatenate([matches, matches[:, ::-1]]), cameras, keypoints
    )
    agrees = both[: len(ends)] & both[len(ends) :]
    pieces = np.split(agrees, np.cumsum([view.num_inliers for view in views])[:-1])
    return [
        replace(view, matches=view.matches[kept]) if kept.sum() >= MIN_INLIERS else view
        for view, kept in zip(views, pieces, strict=True)
    ]


def _agrees(
    ends: Int64[np.ndarray, "M 2"], matches: Int64[np.ndarray, "M 2"], cameras: Cameras, keypoints: Sequence[Keypoints]
) -> Bool[np.ndarray, " M"]:
    """Whether triangulation agrees with the depth of the first end; True where depth is unknown."""
    source, target = torch.from_numpy(ends).T
    pixels = [gather([points.pixels for points in keypoints], *pair) for pair in zip(ends.T, matches.T, strict=True)]
    rays = [
        unit_rays(torch.from_numpy(places).double(), cameras.intrinsics, frame)
        for places, frame in zip(pixels, (source, target), strict=True)
    ]
    expected = torch.from_numpy(gather(inverse_depths(keypoints, cameras), ends[:, 0], matches[:, 0]))
    relative = compose(cameras.cam_from_world[target], invert(cameras.cam_from_world[source]))
    found = triangulated_inverse_depth(relative, rays[0][:, None], rays[1][:, None])[:, 0]
    focal = cameras.intrinsics.reference_focal[target]
    parallax_px = focal * expected * torch.linalg.cross(rays[1], relative[:, :, 3]).norm(dim=-1)
    error = (found / expected).clamp_min(FARTHEST).log().numpy()
    sizes = cameras.intrinsics.sizes[source].numpy()
    column, row = np.clip((pixels[0] / sizes * GRID).astype(np.int64), 0, GRID - 1).T
    around = _medians(error, (ends[:, 0] * GRID + row) * GRID + column, MIN_CONSENSUS)
    floor = MATCH_PX / parallax_px.clamp_min(1e-12).numpy()
    return ~(_is_far(error, ends[:, 0], floor) & _is_far(error - around, ends[:, 0], floor))


def _is_far(
    error: Float64[np.ndarray, " M"], frame: Int64[np.ndarray, " M"], floor: Float64[np.ndarray, " M"]
) -> Bool[np.ndarray, " M"]:
    """Whether an error is larger than the others of its frame, and its own parallax, make likely."""
    spread = MAD_TO_SIGMA * _medians(np.abs(error), frame, 1)
    return np.abs(error) > MAX_SIGMAS * np.hypot(spread, floor)


def _medians(
    values: Float64[np.ndarray, " M"], group: Int64[np.ndarray, " M"], min_count: int
) -> Float64[np.ndarray, " M"]:
    """Median of each value's group, without NaN; zero where the group has too few values."""
    number = np.unique(group, return_inverse=True)[1]
    known = ~np.isnan(values)
    order = np.lexsort((values[known], number[known]))
    ranked, members = values[known][order], np.bincount(number[known], minlength=number.max(initial=-1) + 1)
    middle = np.cumsum(members) - members + members // 2
    padded = np.append(ranked, np.zeros(1))
    return np.where(members >= min_count, padded[np.minimum(middle, len(ranked))], 0.0)[number]
