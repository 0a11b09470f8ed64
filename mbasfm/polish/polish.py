"""Classical bundle adjustment from our cameras: tracks, triangulation, pycolmap, outlier removal, repeated.

The matches of some tracks are held out. Polish is accepted only if it does not worsen their epipolar distances. Where
cameras are known, more matches are found near epipolar lines: among all features of a photograph with little texture
many look alike, and the ratio test leaves few, but near a line there are fewer rivals.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pycolmap
import torch
from jaxtyping import Bool, Float32, Float64, Int64, Integer
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from mbasfm.adjust.pose_priors import PosePriors
from mbasfm.geometry.camera import epipolar_lines, line_distances_px, unit_rays
from mbasfm.geometry.rigid import compose, invert, rotation_angle
from mbasfm.geometry.subsets import lots, places
from mbasfm.models.matchers.sift import mutual_nearest
from mbasfm.polish.colmap_mapper import HELD, MAX_ERROR_PX, Freedom, Mapper, build_model, focals_of, read_back
from mbasfm.polish.depth import weigh_depth
from mbasfm.types.cameras import REFERENCE_LONG_SIDE, Cameras
from mbasfm.types.observations import Keypoints, TwoView
from mbasfm.types.outcome import NotPolished, Reason

MAX_PASSES, FAR_DEG = 2, 0.2
"""Number of passes, and the turn of cameras beyond which tracks, chosen by worse cameras, are triangulated again."""
MIN_POINTS = 30
MIN_LEFT = 0.5
"""Least share of the points that must survive: with fewer, cameras have moved to fit a few."""
WORSE = 1.15
"""Factor by which held-out matches may get worse: adjustment has seen them, polish has not."""
HELD_OUT_SHARE, MAX_HELD_OUT_SHARE = 0.05, 0.2
MIN_HELD_OUT = 30
RATIO = 0.8
"""Largest ratio of the distances of the best and the second-best feature near the line."""
MIN_SIMILARITY = 0.755
"""Least similarity of unit descriptors (a distance of 0.7): the only feature near the line may still be wrong."""


@dataclass(frozen=True)
class Polished:
    """Result of polishing one component."""

    model: pycolmap.Reconstruction
    cameras: Cameras
    reason: Reason[NotPolished] | None
    """Why the cameras were left as they were; None if polish was used."""
    held_out_px: tuple[float, float]
    """Median epipolar distance of held-out matches before and after."""
    used_depth: bool = False
    """Whether depth was good enough to be adjusted with the tracks."""

    @property
    def used(self) -> bool:
        """Whether the cameras are the polished ones."""
        return self.reason is None


@dataclass(frozen=True)
class PolishSettings:
    """Settings of polish."""

    freedom: Freedom
    tracks_per_frame: int = 1000
    """Number of tracks per frame, the longest, that bundle adjustment uses."""
    seed: int = 0
    priors: PosePriors | None = None
    """Priors in the world of the cameras. Only positions are used; adjustment has taken care of rotations."""


def triangulate(
    names: Sequence[str],
    frames: Sequence[int],
    cameras: Cameras,
    views: Sequence[TwoView],
    keypoints: Sequence[Keypoints],
) -> pycolmap.Reconstruction:
    """A model with all tracks that fit the present cameras."""
    mine = _inside(views, frames)
    mapper = Mapper(build_model(names, frames, cameras, keypoints, HELD), mine, [view.matches for view in mine])
    mapper.triangulate()
    mapper.filter(MAX_ERROR_PX * _px(cameras, frames))
    mapper.model.update_point_3d_errors()
    return mapper.model


def polish(
    names: Sequence[str],
    frames: Sequence[int],
    cameras: Cameras,
    views: Sequence[TwoView],
    keypoints: Sequence[Keypoints],
    settings: PolishSettings,
) -> Polished:
    """Refined cameras of one component, or the same with a reason; the model has all tracks in either case."""
    mine = _inside(views, frames)
    split = split_matches(mine, keypoints, settings.tracks_per_frame, settings.seed)
    before = held_out_error_px(cameras, mine, keypoints, split.held)
    used = [view.matches[chosen] for view, chosen in zip(mine, split.used, strict=True)]
    reason: Reason[NotPolished] | None = None
    after, polished, prior_focal = float("nan"), cameras, None
    for _ in range(MAX_PASSES):
        model = build_model(names, frames, polished, keypoints, settings.freedom)
        prior_focal = prior_focal or focals_of(model)
        mapper = Mapper(model, mine, used, prior_focal, settings.priors)
        mapper.triangulate()
        num_points = mapper.model.num_points3D()
        if num_points < MIN_POINTS:
            reason = Reason(NotPolished.FEW_POINTS, (num_points, MIN_POINTS))
            break
        mapper.depth = weigh_depth(mapper.model, cameras, keypoints)
        mapper.settle(settings.freedom, _px(cameras, frames))
        if mapper.model.num_points3D() < MIN_LEFT * num_points:
            reason = Reason(NotPolished.FEW_POINTS_LEFT, (mapper.model.num_points3D(), num_points))
            break
        earlier, polished = polished, read_back(mapper.model, polished)
        if _turned_deg(earlier, polished, mine) < FAR_DEG:
            break
    if reason is None:
        after = held_out_error_px(polished, mine, keypoints, split.held)
        if after > WORSE * before:
            reason = Reason(NotPolished.HELD_OUT_WORSE, (before, after))
    polished = polished if reason is None else cameras
    model = triangulate(names, frames, polished, views, keypoints)
    return Polished(model, polished, reason, (before, after), reason is None and mapper.depth is not None)


def _turned_deg(before: Cameras, after: Cameras, views: Sequence[TwoView]) -> float:
    """Median change of the relative rotation of pairs."""
    i, j = torch.tensor([(view.i, view.j) for view in views]).T
    relative = [c.cam_from_world[j, :, :3] @ c.cam_from_world[i, :, :3].mT for c in (before, after)]
    return float(rotation_angle(relative[0] @ relative[1].mT).rad2deg().median())


def _inside(views: Sequence[TwoView], frames: Sequence[int]) -> list[TwoView]:
    chosen = set(frames)
    return [view for view in views if view.i in chosen and view.j in chosen]


def _px(cameras: Cameras, frames: Sequence[int]) -> float:
    """Size of one pixel at a long side of 1024, in pixels of the largest photograph."""
    return float(cameras.intrinsics.sizes[list(frames)].max()) / REFERENCE_LONG_SIDE


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
