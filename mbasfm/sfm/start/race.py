"""Choice among several sets of cameras, by points that two frames triangulate and a third one sees.

Pairs alone cannot tell the relative lengths of baselines, and depth would judge its own result. A point that two
frames triangulate must appear in the third where it was observed there.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from mbasfm.geometry.camera import unit_rays
from mbasfm.geometry.epipolar import triangulated_inverse_depth
from mbasfm.geometry.lots import lots, places
from mbasfm.geometry.rigid import compose, invert
from mbasfm.polish.tracks import connect, is_doubled
from mbasfm.types.cameras import Cameras
from mbasfm.types.pairs import Keypoints, TwoView

PER_FRAME = 200
"""Largest number of points that each frame checks."""
MIN_TRANSFERS = 30
"""Least number of checks in a component; with fewer it is undecided."""
DOUBT = 2.0
"""Standard deviations of the mean gain over frames by which a candidate must be better than another."""
LIMITS_PX = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
"""Limits of the error; the score is the mean share of points within them [px at a long side of 1024]."""


@dataclass(frozen=True)
class Transfers:
    """Tracks in three frames: two triangulate, the third checks."""

    frames: Int64[Tensor, "T 3"]
    """Frames, first the one that checks."""
    pixels: Float64[Tensor, "T 3 2"]


def find_transfers(views: Sequence[TwoView], keypoints: Sequence[Keypoints], seed: int) -> Transfers:
    """Transfers that check each observation of a track over three or more frames once, from two others drawn by lot.

    Tracks with two places in one frame are wrong somewhere and left out.
    """
    frame, track, size = connect(views, keypoints)
    pixels = np.concatenate([points.pixels for points in keypoints]).astype(np.float64)
    number = np.flatnonzero(size[track] >= 3)
    number = number[~is_doubled(frame, track)[track[number]]]
    number = number[np.lexsort([lots(seed, 2, frame[number], places(pixels[number])), track[number]])]
    _, begin, count = np.unique(track[number], return_index=True, return_counts=True)
    begin, count = np.repeat(begin, count), np.repeat(count, count)
    place = np.arange(len(number)) - begin
    triple = np.stack([number[begin + (place + step) % count] for step in range(3)], 1)
    kept = triple[_first_of_each(frame[triple[:, 0]], lots(seed, 3, frame[number], places(pixels[number])))]
    return Transfers(torch.from_numpy(frame[kept]), torch.from_numpy(pixels[kept]))


def transfer_errors_px(cameras: Cameras, transfers: Transfers) -> Float[Tensor, " T"]:
    """Distance of each observation from its transferred point [px at a long side of 1024]; infinite behind the camera.

    Inverse depth in the second frame, at least 0, is that with which the point comes nearest to its match in the third.
    """
    seen, near, far = transfers.frames.unbind(1)
    rays = unit_rays(transfers.pixels, cameras.intrinsics, transfers.frames)
    world_from_near = invert(cameras.cam_from_world[near])
    far_from_near, seen_from_near = (compose(cameras.cam_from_world[k], world_from_near) for k in (far, seen))
    inverse_depth = triangulated_inverse_depth(far_from_near, rays[:, 1:2], rays[:, 2:])[:, 0].clamp_min(0.0)
    point = (seen_from_near[..., :3] @ rays[:, 1, :, None])[..., 0] + inverse_depth[:, None] * seen_from_near[..., 3]
    error = (point[:, :2] / point[:, 2:] - rays[:, 0, :2]).norm(dim=-1) * cameras.intrinsics.reference_focal[seen]
    return error.where((point[:, 2] > 0) & error.isfinite(), torch.full_like(error, torch.inf))


def agreement(cameras: Cameras, transfers: Transfers) -> Float64[np.ndarray, " N"]:
    """Share of each frame's points within the limits, averaged over the limits, in [0, 1]; NaN without points."""
    error = transfer_errors_px(cameras, transfers)
    within = (error[:, None] <= torch.tensor(LIMITS_PX)).double().mean(1).numpy()
    seen = transfers.frames[:, 0].numpy()
    count = np.bincount(seen, minlength=cameras.num_frames)
    total = np.bincount(seen, within, minlength=cameras.num_frames)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def choose(
    candidates: Sequence[Cameras], transfers: Transfers, component: Int64[np.ndarray, " N"], otherwise: int
) -> Int64[np.ndarray, " N"]:
    """Number of the best candidate for each frame's component; a later one must be better beyond doubt.

    It is ``otherwise`` in components where hardly any track has three frames.
    """
    scores = np.stack([agreement(cameras, transfers) for cameras in candidates])
    asked = np.bincount(transfers.frames[:, 0].numpy(), minlength=len(component))
    chosen = np.full(len(component), otherwise)
    for part in np.unique(component[component >= 0]).tolist():
        mine = component == part
        if asked[mine].sum() >= MIN_TRANSFERS:
            chosen[mine] = _winner(scores[:, mine & (asked > 0)])
    return chosen


def _winner(scores: Float64[np.ndarray, "C F"]) -> int:
    """Candidate that frames agree with most; a later one wins only beyond doubt, by gains of single frames."""
    best = 0
    for number in range(1, len(scores)):
        gain = scores[number] - scores[best]
        if gain.mean() > DOUBT * gain.std(ddof=1) / np.sqrt(len(gain)):
            best = number
    return best


def mix(candidates: Sequence[Cameras], chosen: Int64[np.ndarray, " N"]) -> Cameras:
    """Cameras of each frame from its chosen candidate; lenses are those of the first."""
    rows, number = torch.arange(len(chosen)), torch.from_numpy(chosen)

    def take(values: Sequence[Tensor]) -> Tensor:
        return torch.stack(list(values))[number, rows]

    return replace(
        candidates[0],
        cam_from_world=take([cameras.cam_from_world for cameras in candidates]),
        depth_scale=take([cameras.depth_scale for cameras in candidates]),
        depth_shift=take([cameras.depth_shift for cameras in candidates]),
    )


def _first_of_each(group: Int64[np.ndarray, " M"], lot: Float64[np.ndarray, " M"]) -> Int64[np.ndarray, " K"]:
    """Rows with the smallest lots of each group, at most PER_FRAME."""
    order = np.lexsort([lot, group])
    begin = np.searchsorted(group[order], group[order])
    return np.sort(order[np.arange(len(order)) - begin < PER_FRAME])
