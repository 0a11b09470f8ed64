"""More matches where cameras are known: a feature is compared only with those near its epipolar line.

Among all features of a photograph with little texture many look alike, and the ratio test leaves few. Near a line
there are fewer rivals.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Float32, Int64

from mbasfm.geometry.camera import unit_rays
from mbasfm.geometry.epipolar import epipolar_lines
from mbasfm.geometry.rigid import compose, invert
from mbasfm.models.matchers.mutual_nearest import mutual_nearest
from mbasfm.types.cameras import Cameras
from mbasfm.types.pairs import Keypoints, TwoView

RATIO = 0.8
"""Largest ratio of the distances of the best and the second-best feature near the line."""
MIN_SIMILARITY = 0.755
"""Least similarity of unit descriptors (a distance of 0.7): the only feature near the line may still be wrong."""


def match_along_lines(
    views: Sequence[TwoView],
    cameras: Cameras,
    keypoints: Sequence[Keypoints],
    descriptors: Mapping[int, Float32[np.ndarray, "_ C"]],
    max_error_px: float,
) -> list[TwoView]:
    """Pairs with further matches that their cameras allow; pairs without descriptors are unchanged.

    Descriptors are those of a frame's first keypoints. ``max_error_px`` at a long side of 1024.
    """
    return [
        _with_more(view, cameras, keypoints, descriptors, max_error_px)
        if view.i in descriptors and view.j in descriptors
        else view
        for view in views
    ]


def _with_more(
    view: TwoView,
    cameras: Cameras,
    keypoints: Sequence[Keypoints],
    descriptors: Mapping[int, Float32[np.ndarray, "_ C"]],
    max_error_px: float,
) -> TwoView:
    ends = (view.i, view.j)
    pixels = [torch.from_numpy(keypoints[end].pixels[: len(descriptors[end])]).double() for end in ends]
    rays_i, rays_j = (
        unit_rays(places, cameras.intrinsics, torch.tensor(end)) for places, end in zip(pixels, ends, strict=True)
    )
    relative = compose(cameras.cam_from_world[view.j], invert(cameras.cam_from_world[view.i]))
    focal = cameras.intrinsics.reference_focal[view.j]
    near = (epipolar_lines(relative, rays_i) * focal @ rays_j.T).abs() < max_error_px
    found = mutual_nearest(descriptors[view.i], descriptors[view.j], RATIO, MIN_SIMILARITY, near).indices
    return replace(view, matches=_join(view.matches, found))


def _join(old: Int64[np.ndarray, "A 2"], new: Int64[np.ndarray, "B 2"]) -> Int64[np.ndarray, "M 2"]:
    """Old matches, and new ones of features without a match."""
    taken = np.isin(new[:, 0], old[:, 0]) | np.isin(new[:, 1], old[:, 1])
    return np.concatenate([old, new[~taken]])
