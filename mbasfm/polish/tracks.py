"""Tracks: what matches connect, which of them are adjusted as anchors, and which judge cameras by third views.

One keypoint of an adjusted track is its anchor; all others observe it. Held-out tracks judge: pairs alone cannot tell
the relative lengths of baselines, and depth would judge its own result, but a point that two frames triangulate must
appear in a third one where it was observed there.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Float64, Int64, Integer
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from mbasfm.geometry.camera import triangulated_inverse_depth, unit_rays
from mbasfm.geometry.rigid import compose, invert
from mbasfm.geometry.subsets import lots, places
from mbasfm.types.cameras import Cameras
from mbasfm.types.observations import Keypoints, Samples, TwoView

HELD_OUT_SHARE, MAX_HELD_OUT_SHARE, FEW_TRACKS = 0.05, 0.2, 1000
"""Share of the tracks over three or more frames that is held out; more where there are fewer of them than that."""
PER_FRAME = 200
"""Largest number of points that each frame checks."""
MIN_HELD_OUT = 30
"""Least number of held-out points that say something."""
RACE_TRACKS = 200
"""Tracks per frame that tell which of several starts is the best."""
LEAST_PER_PAIR = 20
ROWS = (8, 16, 32, 64)
"""Numbers of samples that a row may have; an edge with more observations stands in several rows."""
ROW_COST = 8
"""What a row costs beside its samples, in samples."""


def connect(
    views: Sequence[TwoView], keypoints: Sequence[Keypoints]
) -> tuple[Int64[np.ndarray, " K"], Int64[np.ndarray, " K"], Int64[np.ndarray, " T"]]:
    """Frame and track of every keypoint, frame after frame, and the number of keypoints of each track."""
    num_keypoints = [len(points.pixels) for points in keypoints]
    ends = match_ends(views, keypoints)
    links = coo_matrix((np.ones(len(ends), dtype=bool), ends.T), shape=(sum(num_keypoints),) * 2)
    num_tracks, track = connected_components(links, directed=False)
    frame = np.repeat(np.arange(len(num_keypoints)), num_keypoints)
    return frame, track.astype(np.int64), np.bincount(track, minlength=num_tracks)


def match_ends(views: Sequence[TwoView], keypoints: Sequence[Keypoints]) -> Int64[np.ndarray, "M 2"]:
    """Both keypoints of every match, numbered over all frames."""
    first = np.concatenate([[0], np.cumsum([len(points.pixels) for points in keypoints])])
    return np.concatenate([np.zeros((0, 2), np.int64), *(view.matches + first[[view.i, view.j]] for view in views)])


def is_doubled(frame: Int64[np.ndarray, " K"], track: Integer[np.ndarray, " K"]) -> Bool[np.ndarray, " T"]:
    """Whether a track has several keypoints in one photograph."""
    seen, count = np.unique(np.stack([track, frame]), axis=1, return_counts=True)
    doubled = np.zeros(track.max(initial=-1) + 1, dtype=bool)
    doubled[seen[0, count > 1]] = True
    return doubled


def longest(
    views: Sequence[TwoView], keypoints: Sequence[Keypoints], tracks_per_frame: int, seed: int
) -> list[Int64[np.ndarray, "_ 2"]]:
    """Matches of every pair on tracks that are among the longest of at least one of their frames.

    Beyond some hundreds per frame further tracks cost time but hardly add precision.
    """
    frame, track, size = connect(views, keypoints)
    chosen = np.zeros(len(size), dtype=bool)
    priority = size + _lot_of_tracks(frame, keypoints, track, seed)
    chosen[track[first_of_each(frame, priority[track], tracks_per_frame)]] = True
    kept = chosen[track[match_ends(views, keypoints)[:, 0]]]
    pieces = np.split(kept, np.cumsum([view.num_inliers for view in views])[:-1])
    return [view.matches[mine] for view, mine in zip(views, pieces, strict=True)]


def first_of_each(
    group: Int64[np.ndarray, " M"], priority: Float64[np.ndarray, " M"], count: int
) -> Bool[np.ndarray, " M"]:
    """Which rows are among the ``count`` of their group with the highest priority."""
    order = np.lexsort([-priority, group])
    begin = np.searchsorted(group[order], group[order])
    chosen = np.zeros(len(group), dtype=bool)
    chosen[order[np.arange(len(order)) - begin < count]] = True
    return chosen


def _lot_of_tracks(
    frame: Int64[np.ndarray, " K"], keypoints: Sequence[Keypoints], track: Integer[np.ndarray, " K"], seed: int
) -> Float64[np.ndarray, " T"]:
    """A random number for every track, determined by its position in its first photograph."""
    first = np.unique(track, return_index=True)[1]
    where = places(np.concatenate([points.pixels for points in keypoints])[first])
    return lots(seed, 0, frame[first], where)


# ----------------------------------------------------------------------------------------------------------------
# Third views


@dataclass(frozen=True)
class Transfers:
    """Tracks in three frames: two triangulate, the third checks."""

    frames: Int64[Tensor, "T 3"]
    """Frames, first the one that checks."""
    pixels: Float64[Tensor, "T 3 2"]


@dataclass(frozen=True)
class HeldOut:
    """Tracks that no adjustment sees."""

    keypoints: tuple[Bool[np.ndarray, " _"], ...]
    """Of every frame, the keypoints on such tracks."""
    transfers: Transfers

    def used(self, views: Sequence[TwoView]) -> list[TwoView]:
        """Pairs without the matches of held-out tracks."""
        return [replace(view, matches=view.matches[~self._is_held(view)]) for view in views]

    def draw(
        self, views: Sequence[TwoView], keypoints: Sequence[Keypoints], tracks_per_frame: int, seed: int
    ) -> Samples:
        """Anchors of the other tracks."""
        return draw_anchors(self.used(views), keypoints, tracks_per_frame, LEAST_PER_PAIR, seed)

    def _is_held(self, view: TwoView) -> Bool[np.ndarray, " M"]:
        first, second = view.matches.T
        return self.keypoints[view.i][first] | self.keypoints[view.j][second]

    def inside(self, frames: Sequence[int]) -> "HeldOut":
        """The same tracks, checked only where all three frames are among these."""
        inside = torch.isin(self.transfers.frames, torch.tensor(frames)).all(1)
        return replace(self, transfers=Transfers(self.transfers.frames[inside], self.transfers.pixels[inside]))

    def error_px(self, cameras: Cameras) -> float:
        """Median error of third views [px at a long side of 1024]; NaN where there are too few."""
        error = transfer_errors_px(cameras, self.transfers)
        return float(error.median()) if len(error) >= MIN_HELD_OUT else float("nan")


def hold_out(views: Sequence[TwoView], keypoints: Sequence[Keypoints], seed: int) -> HeldOut:
    """A seeded share of the tracks over three or more frames.

    A component with two places in one photograph is no track: wrong matches join thousands of keypoints, and one match
    more or less would decide about all of them at once. It is never held out.
    """
    frame, track, size = connect(views, keypoints)
    whole = (size >= 3) & ~is_doubled(frame, track)
    share = np.clip(HELD_OUT_SHARE * FEW_TRACKS / max(int(whole.sum()), 1), HELD_OUT_SHARE, MAX_HELD_OUT_SHARE)
    held = (whole & (_lot_of_tracks(frame, keypoints, track, seed + 1) < share))[track]
    pieces = np.cumsum([len(points.pixels) for points in keypoints])[:-1]
    return HeldOut(tuple(np.split(held, pieces)), _transfers(frame, track, np.flatnonzero(held), keypoints, seed))


def _transfers(
    frame: Int64[np.ndarray, " K"],
    track: Integer[np.ndarray, " K"],
    number: Int64[np.ndarray, " H"],
    keypoints: Sequence[Keypoints],
    seed: int,
) -> Transfers:
    """Transfers that check every keypoint from two others of its track, drawn by lot."""
    pixels = np.concatenate([points.pixels for points in keypoints]).astype(np.float64)
    number = number[np.lexsort([lots(seed, 2, frame[number], places(pixels[number])), track[number]])]
    _, begin, count = np.unique(track[number], return_index=True, return_counts=True)
    begin, count = np.repeat(begin, count), np.repeat(count, count)
    place = np.arange(len(number)) - begin
    triple = np.stack([number[begin + (place + step) % np.maximum(count, 1)] for step in range(3)], 1)
    kept = triple[first_of_each(frame[number], lots(seed, 3, frame[number], places(pixels[number])), PER_FRAME)]
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


def draw_anchors(
    views: Sequence[TwoView], keypoints: Sequence[Keypoints], tracks_per_frame: int, least_per_pair: int, seed: int
) -> Samples:
    """The longest tracks of every frame, each anchored in one of its frames and observed in all others.

    Every pair keeps some tracks, however short, so that weak pairs have a voice. Where wrong matches join keypoints to
    something that is in two places of one photograph, every keypoint is an anchor with its own matches only; these
    overlap, so that they count less.
    """
    frame, track, size = connect(views, keypoints)
    pixels = np.concatenate([points.pixels for points in keypoints])
    lot = lots(seed, 0, frame, places(pixels))
    pairs = match_ends(views, keypoints)
    tangled = is_doubled(frame, track)[track]
    whole = _whole_tracks(track, (size[track] >= 2) & ~tangled, keypoints, lot)
    parts = _own_matches(pairs[tangled[pairs[:, 0]]], frame)
    chosen = _most_seen(whole.join(parts), frame, lot, tracks_per_frame, least_per_pair)
    return _in_rows(chosen, frame, keypoints)


@dataclass(frozen=True)
class _Sightings:
    """Which keypoints, numbered over all frames, are seen from which anchors, and how much each counts."""

    anchor: Int64[np.ndarray, " M"]
    match: Int64[np.ndarray, " M"]
    weight: Float32[np.ndarray, " M"]

    def join(self, other: "_Sightings") -> "_Sightings":
        return _Sightings(
            *(np.concatenate(both) for both in zip(vars(self).values(), vars(other).values(), strict=True))
        )

    def only(self, kept: Integer[np.ndarray, " K"] | Bool[np.ndarray, " M"]) -> "_Sightings":
        return _Sightings(*(values[kept] for values in vars(self).values()))


def _whole_tracks(
    track: Integer[np.ndarray, " P"],
    is_member: Bool[np.ndarray, " P"],
    keypoints: Sequence[Keypoints],
    lot: Float64[np.ndarray, " P"],
) -> _Sightings:
    """Every track from one of its keypoints: one with depth if there is any, else drawn by lot."""
    raw = np.concatenate([points.raw_depth for points in keypoints])
    member = np.flatnonzero(is_member)
    member = member[np.lexsort([lot[member], ~np.isfinite(raw[member]), track[member]])]
    _, begin, count = np.unique(track[member], return_index=True, return_counts=True)
    anchor = np.repeat(member[begin], count)
    seen = anchor != member
    return _Sightings(anchor[seen], member[seen], np.ones(int(seen.sum()), np.float32))


def _own_matches(pairs: Int64[np.ndarray, "M 2"], frame: Int64[np.ndarray, " P"]) -> _Sightings:
    """Every keypoint with its own matches; one at most in another photograph, the first."""
    both = np.concatenate([pairs, pairs[:, ::-1]])
    key = both[:, 0] * (frame.max(initial=0) + 1) + frame[both[:, 1]]
    anchor, match = both[np.unique(key, return_index=True)[1]].T
    count = np.bincount(anchor, minlength=len(frame))
    return _Sightings(anchor, match, (1 / (1 + count[anchor])).astype(np.float32))


def _most_seen(
    seen: _Sightings,
    frame: Int64[np.ndarray, " P"],
    lot: Float64[np.ndarray, " P"],
    tracks_per_frame: int,
    least_per_pair: int,
) -> _Sightings:
    """The anchors with the most sightings of each frame that is an end of theirs, and some of every pair."""
    count = np.bincount(seen.anchor, minlength=len(frame))
    priority = count + lot
    owner = np.concatenate([seen.anchor, np.unique(seen.anchor)])
    where = frame[np.concatenate([seen.match, np.unique(seen.anchor)])]
    chosen = np.zeros(len(frame), dtype=bool)
    chosen[owner[first_of_each(where, priority[owner], tracks_per_frame)]] = True
    edge = frame[seen.anchor] * (frame.max(initial=0) + 1) + frame[seen.match]
    chosen[seen.anchor[first_of_each(edge, priority[seen.anchor], least_per_pair)]] = True
    return seen.only(chosen[seen.anchor])


def _in_rows(seen: _Sightings, frame: Int64[np.ndarray, " P"], keypoints: Sequence[Keypoints]) -> Samples:
    """Samples in rows of one edge each, sorted by source and target; rows are filled up with samples of no weight."""
    source, target = frame[seen.anchor], frame[seen.match]
    order = np.lexsort([seen.anchor, target, source])
    seen, source, target = seen.only(order), source[order], target[order]
    edge = source * len(keypoints) + target
    place = np.arange(len(edge)) - np.searchsorted(edge, edge)
    size = _row_size(np.unique(edge, return_counts=True)[1])
    begins = place % size == 0
    row = np.cumsum(begins) - 1
    pixels = np.concatenate([points.pixels for points in keypoints])
    raw = np.concatenate([points.raw_depth for points in keypoints])
    number = np.unique(seen.anchor, return_inverse=True)[1]
    values = np.concatenate([pixels[seen.anchor], pixels[seen.match], raw[seen.anchor, None]], 1)
    data, numbers = (np.repeat(some[begins][:, None], size, 1) for some in (values, number))
    weight = np.zeros(numbers.shape, np.float32)
    data[row, place % size], numbers[row, place % size], weight[row, place % size] = values, number, seen.weight
    edges = np.stack([source, target], 1)[begins]
    return Samples(*(torch.from_numpy(some) for some in (edges, data.astype(np.float32), weight, numbers)))


def _row_size(count: Int64[np.ndarray, " E"]) -> int:
    """Number of samples of a row with which edges with these numbers of observations cost least."""
    cost = [np.ceil(count / size).sum() * (size + ROW_COST) for size in ROWS]
    return ROWS[int(np.argmin(cost))]
