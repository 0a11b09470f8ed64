"""Stray frames, which most of their pairs contradict, and their placement by the rest."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool

from mbasfm.geometry.epipolar import line_distances_px
from mbasfm.sfm.start.initialize import initialize_cameras
from mbasfm.sfm.start.race import mix
from mbasfm.types.cameras import Cameras
from mbasfm.types.pairs import Keypoints, TwoView

MOST = 0.5
"""Share of matches above which a pair contradicts, and of pairs above which a frame is astray."""


def find_astray(
    cameras: Cameras, views: Sequence[TwoView], keypoints: Sequence[Keypoints], limit_px: float
) -> Bool[np.ndarray, " N"]:
    """Frames that contradict most of their pairs: most matches are further than the limit from their epipolar lines.

    The worst frame is removed first, with its pairs, so that its neighbours are not blamed for it.
    """
    ends = np.array([(view.i, view.j) for view in views]).reshape(-1, 2)
    against = np.array([_share_beyond(cameras, view, keypoints, limit_px) > MOST for view in views])
    astray = np.zeros(cameras.num_frames, dtype=bool)
    while True:
        left = ~astray[ends].any(1)
        total, bad = (np.bincount(ends[rows].ravel(), minlength=len(astray)) for rows in (left, left & against))
        share = bad / np.maximum(total, 1)
        if share.max(initial=0.0) <= MOST:
            return astray
        astray[np.lexsort([-bad, -share])[0]] = True


def place_again(
    cameras: Cameras, views: Sequence[TwoView], keypoints: Sequence[Keypoints], astray: Bool[np.ndarray, " N"]
) -> Cameras:
    """Cameras with stray frames placed again by their pairs with the others."""
    rest = {frame: cameras.cam_from_world[frame].numpy() for frame in np.flatnonzero(~astray).tolist()}
    (placed, *_), _ = initialize_cameras(views, keypoints, cameras.intrinsics, cameras.is_disparity, given=rest)
    return mix([cameras, placed], astray.astype(np.int64))


def _share_beyond(cameras: Cameras, view: TwoView, keypoints: Sequence[Keypoints], limit_px: float) -> float:
    first, second = view.matches.T
    pixels = keypoints[view.i].pixels[first], keypoints[view.j].pixels[second]
    distance = line_distances_px(cameras, (view.i, view.j), pixels)
    return float(np.mean(~(distance <= limit_px)))
