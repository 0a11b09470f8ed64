"""Tracks: the matches for bundle adjustment, those held out to check it, and the error of cameras on these."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64, Integer
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from mbasfm.geometry.epipolar import line_distances_px
from mbasfm.geometry.lots import lots, places
from mbasfm.types.cameras import Cameras
from mbasfm.types.pairs import Keypoints, TwoView

HELD_OUT_SHARE, MAX_HELD_OUT_SHARE = 0.05, 0.2
MIN_HELD_OUT = 30


@dataclass(frozen=True)
class Split:
    """For every pair, which of its matches bundle adjustment uses and which are held out to check it."""

    used: list[Bool[np.ndarray, " _"]]
    held: list[Bool[np.ndarray, " _"]]


def split_matches(views: Sequence[TwoView], keypoints: Sequence[Keypoints], tracks_per_frame: int, seed: int) -> Split:
    """Split with a seeded share of all tracks held out, if there are many; of the rest each frame's longest are used.

    A track is all keypoints that matches connect. Beyond some hundreds per frame further tracks cost time but hardly
    add precision. A component with two places in one photograph is no track: wrong matches join thousands of keypoints,
    and one match more or less would decide about all of them at once. It is never held out.
    """
    frame, track, size = connect(views, keypoints)
    first = track[_first_ends(views, keypoints)]
    number, order = _lots_of_tracks(frame, keypoints, track, seed)
    share = np.clip(1.5 * MIN_HELD_OUT / max(len(first), 1), HELD_OUT_SHARE, MAX_HELD_OUT_SHARE)
    held = (number < share) & ~is_doubled(frame, track)
    held &= held[first].sum() >= MIN_HELD_OUT
    priority = np.where(held, 0, size) + order
    chosen = longest_tracks(frame, track, priority, tracks_per_frame) & ~held
    pieces = np.cumsum([view.num_inliers for view in views])[:-1]
    return Split(np.split(chosen[first], pieces), np.split(held[first], pieces))


def connect(
    views: Sequence[TwoView], keypoints: Sequence[Keypoints]
) -> tuple[Int64[np.ndarray, " K"], Int64[np.ndarray, " K"], Int64[np.ndarray, " T"]]:
    """Frame and track of every keypoint, frame after frame, and the number of keypoints of each track."""
    num_keypoints = [len(points.pixels) for points in keypoints]
    offset = _offsets(keypoints)
    ends = _first_ends(views, keypoints), np.concatenate([offset[view.j] + view.matches[:, 1] for view in views])
    links = coo_matrix((np.ones(len(ends[0]), dtype=bool), ends), shape=(int(offset[-1]),) * 2)
    num_tracks, track = connected_components(links, directed=False)
    frame = np.repeat(np.arange(len(num_keypoints)), num_keypoints)
    return frame, track.astype(np.int64), np.bincount(track, minlength=num_tracks)


def _first_ends(views: Sequence[TwoView], keypoints: Sequence[Keypoints]) -> Int64[np.ndarray, " M"]:
    """Index of the first keypoint of every match among all keypoints."""
    offset = _offsets(keypoints)
    return np.concatenate([offset[view.i] + view.matches[:, 0] for view in views])


def _offsets(keypoints: Sequence[Keypoints]) -> Int64[np.ndarray, " _"]:
    return np.concatenate([[0], np.cumsum([len(points.pixels) for points in keypoints])])


def is_doubled(frame: Int64[np.ndarray, " K"], track: Integer[np.ndarray, " K"]) -> Bool[np.ndarray, " T"]:
    """Whether a track has several keypoints in one photograph."""
    seen, count = np.unique(np.stack([track, frame]), axis=1, return_counts=True)
    doubled = np.zeros(track.max(initial=-1) + 1, dtype=bool)
    doubled[seen[0, count > 1]] = True
    return doubled


def _lots_of_tracks(
    frame: Int64[np.ndarray, " K"], keypoints: Sequence[Keypoints], track: Integer[np.ndarray, " K"], seed: int
) -> tuple[Float64[np.ndarray, " T"], Float64[np.ndarray, " T"]]:
    """Two random numbers for every track, determined by its position in its first photograph."""
    first = np.unique(track, return_index=True)[1]
    where = places(np.concatenate([points.pixels for points in keypoints])[first])
    return lots(seed, 0, frame[first], where), lots(seed, 1, frame[first], where)


def longest_tracks(
    frame: Int64[np.ndarray, " K"], track: Integer[np.ndarray, " K"], priority: Float64[np.ndarray, " T"], count: int
) -> Bool[np.ndarray, " T"]:
    """Tracks that are among the first ``count``, by priority, of at least one of their frames."""
    order = np.lexsort((-priority[track], frame))
    begin = np.searchsorted(frame[order], np.arange(frame.max(initial=0) + 1))
    rank = np.arange(len(order)) - begin[frame[order]]
    chosen = np.zeros(len(priority), dtype=bool)
    chosen[track[order[rank < count]]] = True
    return chosen


def held_out_error_px(
    cameras: Cameras,
    views: Sequence[TwoView],
    keypoints: Sequence[Keypoints],
    held: Sequence[Bool[np.ndarray, " _"]],
) -> float:
    """Median distance of held-out matches to their epipolar lines, at a long side of 1024; robust to mismatches."""
    distances = []
    for view, chosen in zip(views, held, strict=True):
        if not chosen.any():
            continue
        ends, (first, second) = (view.i, view.j), view.matches[chosen].T
        pixels = keypoints[view.i].pixels[first], keypoints[view.j].pixels[second]
        distances.append(torch.from_numpy(line_distances_px(cameras, ends, pixels)).nan_to_num(nan=torch.inf))
    return float(torch.cat(distances).median()) if distances else float("nan")
