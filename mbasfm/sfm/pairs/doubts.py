"""Pairs in doubt: those whose depth is in the wrong order may get another pose, those that look alike leave.

For a pair that depth speaks against depth suggests a pose; it is taken if hardly fewer matches agree with it.

Pairs may show different places with things in them that look alike. Their matches agree with one pose, and depth
confirms it: the things are alike in shape too. What gives them away is around these, where a true pair would match as
well (missing correspondences; Zach, Klopschitz & Pollefeys, CVPR 2010). A wide baseline also leaves much unmatched, so
that alone condemns nothing. But pairs that match nearly all they should are true, and cameras placed by them alone tell
where every point of any other pair is: a pair that needs the same point in two places is left out.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float32, Float64, Int64
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import minimum_spanning_tree, shortest_path

from mbasfm.estimators.absolute import with_lifted_pose
from mbasfm.estimators.two_view import LN_10
from mbasfm.geometry.camera import project, triangulated_inverse_depth
from mbasfm.geometry.rigid import compose, invert
from mbasfm.runtime.parallel import in_parallel
from mbasfm.sfm.intrinsics import lenses_of
from mbasfm.sfm.pairs.judge import MIN_DEPTH_SPREAD, PRIOR, TWIN_LOG10, DepthWitness, depth_log_ratio
from mbasfm.sfm.pairs.pose_graph import agree_with, drop_inconsistent, find_groups
from mbasfm.sfm.start.averaging import average_rotations, rays_of
from mbasfm.sfm.start.candidates import global_start
from mbasfm.types.cameras import Cameras, Intrinsics
from mbasfm.types.observations import Keypoints, Observations, TwoView

ENOUGH = 0.8
"""Share of the former pose's inliers with which another may be right. Set on tum_fr3_cabinet58, where 23 of the 35
pairs that have it become right and 3 stay so; with 0.7 it is 27 and 3 of 48, with 0.9 19 and 3 of 27."""
DOUBT_LOG10 = 0.25
"""How much depth must speak against a pair to be asked for another pose. Set on tum_fr3_cabinet58, to save time."""
USUAL_SHIFT = 0.5
"""What is added to disparity before it is inverted [medians], as zero is not infinitely far in networks' maps. Any
number from 0.25 to 1 leads to the same poses there, mostly within a degree."""
MAX_MISSING = 0.15
"""Share of what a pair should match up to which it is whole. Of 51 wrong pairs of two equal piles of books 2 miss less,
with few matches; along a street of equal houses (0.33 at least) and at a castle (0.4) none does, and most true pairs of
neighbours do. Set on the first two (dup_books21, dup_street19)."""
HARDLY_MISSING, TINY = 0.075, 1e-9
"""Whole pairs that miss more than the first are only gone by where they are needed. Set on dup_books21 with a weak
network, where wrong pairs that are whole held the averaged rotations; 0 to 0.075 leave out the same pairs there."""
GRID = 16
"""Cells per side; keypoints of a cell are missing if none of them is matched."""
MARGIN = 0.03
"""Width of the border of an image in which nothing is expected [long sides]."""
MAX_ASTRAY, ASTRAY_PER_STEP = 0.15, 0.1
"""Distance from where a pair finds its points to where whole pairs put them, from which it contradicts them [long
sides]: the larger of the first, and the second times the square root of the number of whole pairs in between, as errors
add up. Set on dup_books21, dup_street19 and strecha_castle19, where true pairs stay below 0.08 and most that look alike
are beyond 0.2, half of them beyond 0.7."""
USUAL_SHARE, USUAL_FACTOR = 0.9, 5.0
"""Where whole pairs are astray themselves, as depth is rough, others may be by so many times as much as most."""
MOST_MATCHES, FRAMES_AT_ONCE = 200, 256


class SecondOpinion:
    """All that is needed to find another pose of a pair."""

    def __init__(self, observations: Observations, intrinsics: Intrinsics, max_error_px: float):
        self._lenses, self._max_error_px = lenses_of(intrinsics), max_error_px
        self._pixels = [points.pixels.astype(np.float64) for points in observations.keypoints]
        self._inverse = [_lifting_depth(observations, frame) for frame in range(len(self._pixels))]
        pairs = map(tuple, observations.pairs.tolist())
        self._matches = dict(zip(pairs, observations.matches, strict=True))

    def ask(self, views: Sequence[TwoView], witness: DepthWitness) -> list[TwoView]:
        """Pairs, some with another pose: depth makes it far more likely, and hardly fewer matches agree with it.

        Where the two poses of a plane compete, these are left to decide.
        """
        before = depth_log_ratio(witness.ask(views), PRIOR) / LN_10
        against = np.flatnonzero(before < -DOUBT_LOG10).tolist()
        doubted = [number for number in against if views[number].rival is None]
        found = zip(doubted, in_parallel(lambda number: self._find(views[number]), doubted), strict=True)
        others = {number: other for number, other in found if other is not None}
        after = depth_log_ratio(witness.ask(list(others.values())), PRIOR) / LN_10
        settled = list(views)
        for (number, other), likely in zip(others.items(), after.tolist(), strict=True):
            if likely - before[number] > TWIN_LOG10:
                settled[number] = other
        return settled

    def _find(self, view: TwoView) -> TwoView | None:
        ends = view.i, view.j
        pixels, lenses = (self._pixels[view.i], self._pixels[view.j]), (self._lenses[view.i], self._lenses[view.j])
        depth, matches = (self._inverse[view.i], self._inverse[view.j]), self._matches[ends]
        other = with_lifted_pose(view, pixels, depth, matches, lenses, self._max_error_px)
        return other if other is not None and other.num_inliers >= ENOUGH * view.num_inliers else None


def _lifting_depth(observations: Observations, frame: int) -> Float64[np.ndarray, " M"]:
    """Inverse depth at a frame's keypoints, in a unit of its own; NaN where unknown."""
    raw = observations.keypoints[frame].raw_depth.astype(np.float64)
    raw = np.where(raw > 0, raw, np.nan)
    if not observations.depths[frame].is_disparity:
        return 1 / raw
    known = raw[np.isfinite(raw)]
    return raw + USUAL_SHIFT * float(np.median(known)) if len(known) else raw


# ----------------------------------------------------------------------------------------------------------------
# Look-alikes


@dataclass(frozen=True)
class Sights:
    """All keypoints, with what is needed to see them from another frame."""

    keypoints: Sequence[Keypoints]
    rays: Sequence[Float64[np.ndarray, "_ 3"]]
    intrinsics: Intrinsics
    is_disparity: Bool[torch.Tensor, " N"]

    @staticmethod
    def of(keypoints: Sequence[Keypoints], intrinsics: Intrinsics, is_disparity: Bool[torch.Tensor, " N"]) -> "Sights":
        """Keypoints with their rays."""
        return Sights(keypoints, rays_of(keypoints, intrinsics), intrinsics, is_disparity)

    def raw_inverse_depth(self, frame: int) -> Float64[np.ndarray, " M"]:
        """Inverse depth by the frame's map, up to scale and shift, at its keypoints; where unknown, the median."""
        with np.errstate(divide="ignore", invalid="ignore"):
            raw = self.keypoints[frame].raw_depth.astype(np.float64)
            inverse = raw if self.is_disparity[frame] else 1 / raw
        usable = np.isfinite(inverse) & (inverse > 0)
        return np.where(usable, inverse, np.median(inverse[usable]) if usable.any() else 1.0)

    def pixels_in(
        self,
        other: int,
        rays: Float64[np.ndarray, "M 3"],
        inverse_depth: Float64[np.ndarray, " M"],
        other_from_own: Float64[np.ndarray, "3 4"],
    ) -> Float64[np.ndarray, "M 2"]:
        """Where the other frame sees points on rays; NaN behind it."""
        points = rays @ other_from_own[:, :3].T + inverse_depth[:, None] * other_from_own[:, 3]
        return project(torch.from_numpy(points), self.intrinsics, torch.tensor(other)).numpy()


@dataclass(frozen=True)
class _Side:
    """A pair seen from one of its frames."""

    own: int
    other: int
    matches: Int64[np.ndarray, "M 2"]
    """Keypoints of this frame and of the other."""
    other_from_own: Float64[np.ndarray, "3 4"]


def _sides(view: TwoView) -> tuple[_Side, _Side]:
    i_from_j = invert(torch.from_numpy(view.j_from_i)).numpy()
    return _Side(view.i, view.j, view.matches, view.j_from_i), _Side(view.j, view.i, view.matches[:, ::-1], i_from_j)


def leave_out_lookalikes(
    views: Sequence[TwoView], certain: Bool[np.ndarray, " P"], sights: Sights
) -> tuple[list[TwoView], list[TwoView]]:
    """Split pairs into those kept and those that contradict the pairs that are whole, and certain besides.

    Where whole pairs do not connect two frames they say nothing about the pairs of these.
    """
    numbers, num_frames = np.flatnonzero(certain), len(sights.rays)
    missing = missing_shares(views, sights, numbers.tolist())
    numbers, missing = numbers[missing < MAX_MISSING], missing[missing < MAX_MISSING]
    numbers = numbers[_are_needed([views[number] for number in numbers.tolist()], missing, num_frames)]
    whole, _ = drop_inconsistent([views[number] for number in numbers.tolist()], num_frames)
    if not whole:
        return list(views), []
    whole = agree_with(whole, average_rotations(whole, num_frames), sights.rays)
    cameras = global_start(whole, sights.keypoints, sights.intrinsics, sights.is_disparity)
    astray = distances_astray(views, cameras, sights)
    usual = float(np.quantile(astray[numbers], USUAL_SHARE))
    limit = np.maximum(_limits(views, whole, num_frames), USUAL_FACTOR * usual)
    kept = ~(astray > limit)
    good, wrong = ([views[number] for number in np.flatnonzero(part).tolist()] for part in (kept, ~kept))
    return good, wrong


def _are_needed(
    views: Sequence[TwoView], missing: Float64[np.ndarray, " W"], num_frames: int
) -> Bool[np.ndarray, " W"]:
    """Which whole pairs to go by: those that miss no more than is needed to connect their group, or hardly anything."""
    ends = np.array([(view.i, view.j) for view in views], dtype=np.int64).reshape(-1, 2)
    costs = coo_matrix((missing + TINY, (ends[:, 0], ends[:, 1])), shape=(num_frames, num_frames))
    tree, label = minimum_spanning_tree(costs).tocoo(), find_groups(views, num_frames)
    needed = np.full(num_frames, HARDLY_MISSING)
    np.maximum.at(needed, label[tree.row], tree.data)
    return np.asarray(missing <= needed[label[ends[:, 0]]])


def missing_shares(
    views: Sequence[TwoView], sights: Sights, asked: Sequence[int] | None = None
) -> Float64[np.ndarray, " A"]:
    """Share of the keypoints that a pair should match whose surroundings it does not match at all, beyond chance.

    Expected are those that other pairs match and that the other frame should see, by the pair's own pose and the depth
    map, in the unit of what it triangulates. Chance would spread as many matches evenly. Of the two frames the one that
    misses more counts. By default all pairs are asked.
    """
    pairs_of = [np.zeros(len(points.pixels), dtype=np.int64) for points in sights.keypoints]
    for side in (side for view in views for side in _sides(view)):
        pairs_of[side.own][side.matches[:, 0]] += 1  # once for each keypoint
    sizes = sights.intrinsics.sizes.numpy()
    cells = [_cells(points, size) for points, size in zip(sights.keypoints, sizes, strict=True)]
    inverse = [sights.raw_inverse_depth(frame) for frame in range(len(cells))]
    shares = [
        _missing_share(side, pairs_of[side.own], cells[side.own], inverse[side.own], sights)
        for number in (range(len(views)) if asked is None else asked)
        for side in _sides(views[number])
    ]
    return np.array(shares).reshape(-1, 2).max(1, initial=0.0)


def _cells(points: Keypoints, size: Int64[np.ndarray, " 2"]) -> Int64[np.ndarray, " M"]:
    column, row = np.clip((points.pixels / size * GRID).astype(np.int64), 0, GRID - 1).T
    return row * GRID + column


def _missing_share(
    side: _Side,
    num_pairs: Int64[np.ndarray, " M"],
    cell: Int64[np.ndarray, " M"],
    inverse: Float64[np.ndarray, " M"],
    sights: Sights,
) -> float:
    matched = np.zeros(len(cell), dtype=bool)
    matched[side.matches[:, 0]] = True
    others = np.flatnonzero(num_pairs > matched)
    expected = others[_in_view(side, others, inverse, sights)]
    there, found = (np.bincount(cell[some], minlength=GRID**2) for some in (expected, expected[matched[expected]]))
    total = max(int(there.sum()), 1)
    missing, by_chance = there[found == 0].sum(), there @ (1 - found.sum() / total) ** there
    return float(max(missing - by_chance, 0.0) / max(total - by_chance, 1.0))


def _in_view(
    side: _Side, asked: Int64[np.ndarray, " A"], inverse: Float64[np.ndarray, " M"], sights: Sights
) -> Bool[np.ndarray, " A"]:
    """Which of some keypoints of this frame the other should see."""
    own, other = side.matches.T
    rays = torch.from_numpy(sights.rays[side.own][own]), torch.from_numpy(sights.rays[side.other][other])
    triangulated = triangulated_inverse_depth(torch.from_numpy(side.other_from_own), *rays).numpy()
    unit = max(float(np.nanmedian(triangulated / inverse[own])), 0.0)
    pixels = sights.pixels_in(side.other, sights.rays[side.own][asked], unit * inverse[asked], side.other_from_own)
    size = sights.intrinsics.sizes[side.other].numpy()
    margin = MARGIN * size.max()
    return np.asarray(((pixels > margin) & (pixels < size - margin)).all(1))


def distances_astray(views: Sequence[TwoView], cameras: Cameras, sights: Sights) -> Float64[np.ndarray, " P"]:
    """Median distance of a pair's matches from where cameras and depth put them, in the frame where it is smaller.

    In long sides of the image; 0 where depth is unknown or flat, infinite where most points are behind the camera.
    """
    inverse = [_inverse_depth(cameras, points, frame) for frame, points in enumerate(sights.keypoints)]
    distances = [_distance(side, cameras, inverse[side.own], sights) for view in views for side in _sides(view)]
    return np.array(distances).reshape(-1, 2).min(1, initial=np.inf)


def _inverse_depth(cameras: Cameras, points: Keypoints, frame: int) -> Float64[np.ndarray, " M"]:
    """Inverse depth of a frame's keypoints in the unit of the cameras; NaN where unknown, or where the map is flat."""
    if _is_flat(points.raw_depth):
        return np.full(len(points.raw_depth), np.nan)
    scale, shift = float(cameras.depth_scale[frame]), float(cameras.depth_shift[frame])
    value = scale * points.raw_depth.astype(np.float64) + shift
    return np.maximum(value, 0.0) if cameras.is_disparity[frame] else 1 / np.where(value > 0, value, np.nan)


def _is_flat(raw_depth: Float32[np.ndarray, " M"]) -> bool:
    known = raw_depth[np.isfinite(raw_depth)]
    low, middle, high = np.quantile(known, (0.1, 0.5, 0.9)) if len(known) else (0.0, 1.0, 0.0)
    return bool(high - low < MIN_DEPTH_SPREAD * middle)


def _distance(side: _Side, cameras: Cameras, inverse: Float64[np.ndarray, " M"], sights: Sights) -> float:
    known = side.matches[np.isfinite(inverse[side.matches[:, 0]])]
    own, other = known[np.linspace(0, len(known) - 1, min(len(known), MOST_MATCHES)).astype(np.int64)].T
    if not len(own):
        return 0.0
    poses = cameras.cam_from_world[side.other], cameras.cam_from_world[side.own]
    other_from_own = compose(poses[0], invert(poses[1])).numpy()
    pixels = sights.pixels_in(side.other, sights.rays[side.own][own], inverse[own], other_from_own)
    distance = np.linalg.norm(pixels - sights.keypoints[side.other].pixels[other], axis=1)
    long_side = float(sights.intrinsics.sizes[side.other].max())
    return float(np.median(np.where(np.isnan(distance), np.inf, distance / long_side)))


def _limits(views: Sequence[TwoView], whole: Sequence[TwoView], num_frames: int) -> Float64[np.ndarray, " P"]:
    """How far each pair may be astray; infinite where whole pairs do not connect its frames."""
    i, j = np.array([(view.i, view.j) for view in whole]).T
    links = coo_matrix((np.ones(len(i)), (i, j)), shape=(num_frames, num_frames)).tocsr()
    label = find_groups(whole, num_frames)
    first, second = np.array([(view.i, view.j) for view in views]).T
    steps = np.full(len(views), np.inf)
    for frames in np.array_split(np.unique(first), num_frames // FRAMES_AT_ONCE + 1):
        some = np.isin(first, frames) & (label[first] == label[second])
        found = shortest_path(links, directed=False, unweighted=True, indices=frames)
        steps[some] = found[np.searchsorted(frames, first[some]), second[some]]
    return np.maximum(MAX_ASTRAY, ASTRAY_PER_STEP * np.sqrt(steps))
