"""Which of several sets of cameras is best, by points that two frames triangulate and a third one sees.

Pairs alone cannot tell how long baselines are to each other, and depth would judge what it has made itself. A point
that two frames triangulate must appear in the third where it was found there.
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
"""Points that each frame is asked about, at most."""
MIN_TRANSFERS = 30
"""Fewer in a component decide nothing."""
DOUBT = 2.0
"""Standard deviations of the mean gain over frames by which one candidate must be better than another."""
LIMITS_PX = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
"""What counts is the share of points within each, on average [px at a long side of 1024]."""


@dataclass(frozen=True)
class Transfers:
    """Tracks in three frames: two triangulate, the third checks."""

    frames: Int64[Tensor, "T 3"]
    """The one that checks first."""
    pixels: Float64[Tensor, "T 3 2"]


def find_transfers(views: Sequence[TwoView], keypoints: Sequence[Keypoints], seed: int) -> Transfers:
    """Each observation of a track over three or more frames once as the one to be found, from two others by lot.

    Tracks that show two places in one frame are wrong somewhere and left out.
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
    """How far from its observation a point appears in the third frame [px at a long side of 1024]; infinite behind it.

    Inverse depth in the second is where the match is nearest in the first of the two; none is less than 0.
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
    """For each frame the share of points within the limits, on average over limits, in [0, 1]; NaN without points."""
    error = transfer_errors_px(cameras, transfers)
    within = (error[:, None] <= torch.tensor(LIMITS_PX)).double().mean(1).numpy()
    seen = transfers.frames[:, 0].numpy()
    count = np.bincount(seen, minlength=cameras.num_frames)
    total = np.bincount(seen, within, minlength=cameras.num_frames)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def choose(
    candidates: Sequence[Cameras], transfers: Transfers, component: Int64[np.ndarray, " N"], otherwise: int
) -> Int64[np.ndarray, " N"]:
    """Number of the best candidate for every frame's component; a later one must be better beyond doubt.

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
    """Candidate that frames agree with most; what they agree with about equally, frame by frame, is equal."""
    best = 0
    for number in range(1, len(scores)):
        gain = scores[number] - scores[best]
        if gain.mean() > DOUBT * gain.std(ddof=1) / np.sqrt(len(gain)):
            best = number
    return best


def mix(candidates: Sequence[Cameras], chosen: Int64[np.ndarray, " N"]) -> Cameras:
    """Cameras of each frame from the candidate of its number; lenses are those of the first."""
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
    """Rows with the smallest lots of each group, at most so many as a frame is asked about."""
    order = np.lexsort([lot, group])
    begin = np.searchsorted(group[order], group[order])
    return np.sort(order[np.arange(len(order)) - begin < PER_FRAME])
