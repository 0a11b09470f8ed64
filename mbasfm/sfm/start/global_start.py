"""A start from all pairs at once: averaged rotations, lengths from depth, positions from directions with lengths."""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64

from mbasfm.sfm.start.averaging import FrameGraph, average_positions, average_rotations
from mbasfm.sfm.start.directed_pair import Edges
from mbasfm.sfm.start.lengths import Lengths, PairDepths, depths_of_pairs, measure_lengths, scales_at
from mbasfm.sfm.start.positions import positions_with_lengths
from mbasfm.types.cameras import Cameras, Intrinsics
from mbasfm.types.pairs import Keypoints, TwoView


def global_start(
    views: Sequence[TwoView],
    keypoints: Sequence[Keypoints],
    intrinsics: Intrinsics,
    is_disparity: Bool[torch.Tensor, " N"],
) -> Cameras:
    """Cameras that agree best with all pairs and all depth maps together.

    The first frame of every component is at the origin, and mean depth is that of the maps. Where maps carry no
    information on lengths, positions follow from directions alone.
    """
    num_frames, kind = len(keypoints), is_disparity.numpy()
    rotation = average_rotations(views, num_frames)
    depths = depths_of_pairs(views, Edges(views, keypoints, intrinsics))
    lengths = measure_lengths(depths, kind)
    label = FrameGraph.build(depths.ends, num_frames).label
    told = _is_told(depths, lengths, label)
    centers = positions_with_lengths(views, rotation, depths, lengths)
    if not told.all():
        centers = np.where(told[:, None], centers, average_positions(views, rotation))
    log_scale, centers = _in_unit_of_depth(scales_at(depths, lengths, centers, kind), centers, label)
    scale = np.exp(np.where(kind, log_scale, -log_scale))
    pose = np.concatenate([rotation, -rotation @ centers[..., None]], -1)
    shift = torch.from_numpy(scale * lengths.shift)
    return Cameras(torch.from_numpy(pose), intrinsics, torch.from_numpy(scale), shift, is_disparity)


def _is_told(depths: PairDepths, lengths: Lengths, label: Int64[np.ndarray, " N"]) -> Bool[np.ndarray, " N"]:
    """Whether depth determines the lengths of a frame's component: maps of more than one value, all in one unit."""
    known = np.isfinite(depths.raw)
    high, low = (f(depths.raw, axis=1, where=known, initial=i) for f, i in ((np.max, -np.inf), (np.min, np.inf)))
    is_varied = np.isin(label, label[depths.frame[high > low]])
    units = np.unique(np.stack([label, lengths.part], 1)[lengths.part >= 0], axis=0)[:, 0]
    has_one_unit = np.bincount(units, minlength=len(label))[label] == 1
    is_lonely = ~np.isin(np.arange(len(label)), depths.ends)
    return (is_varied & has_one_unit) | is_lonely


def _in_unit_of_depth(
    log_scale: Float64[np.ndarray, " N"], centers: Float64[np.ndarray, "N 3"], label: Int64[np.ndarray, " N"]
) -> tuple[Float64[np.ndarray, " N"], Float64[np.ndarray, "N 3"]]:
    """Scales and centres, every component as large as its maps say on average, which replaces unknown scales."""
    known = np.isfinite(log_scale)
    middle = np.zeros(len(log_scale))
    for part in np.unique(label[known]).tolist():
        middle[label == part] = np.median(log_scale[known & (label == part)])
    return np.where(known, log_scale - middle, 0.0), centers * np.exp(middle)[:, None]
