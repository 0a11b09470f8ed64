"""Intrinsics to start from: the user's, else a network's, else those of the metadata, else a search over pairs.

A fundamental matrix becomes an essential one, with two equal singular values, only under the right focal length, and
every verified pair votes for the focal lengths that make it so. A lens that bends is the one under which the strongest
pairs have most inliers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64

from mbasfm.config import BENT, Grouping, LensKind
from mbasfm.estimators.two_view import verify
from mbasfm.geometry.focal import MAX_FOCAL, MIN_FOCAL
from mbasfm.io.calibration import KnownCamera
from mbasfm.runtime.parallel import in_parallel
from mbasfm.types.cameras import Fixed, Intrinsics, Lens
from mbasfm.types.observations import DepthEstimate, Observations, Photo, TwoView
from mbasfm.types.outcome import FocalSource

NUM_CANDIDATES = 150
FALLBACK_FOCAL = 1.2
"""COLMAP's guess, for scenes in which no pair has a vote."""
TOLERANCE = 0.03
"""Relative difference of the singular values at which a pair's vote has fallen to 1/e."""
MAX_VOTES = 100
"""Inliers beyond this number make a fundamental matrix hardly more reliable."""
ROUNDS = 8
STARTS = (0.6, 0.9, 1.4, 2.2, 3.5)
"""Starts of the search if cameras differ [image widths]: changing one camera at a time ends in local optima."""
CANDIDATES = np.geomspace(MIN_FOCAL, MAX_FOCAL, NUM_CANDIDATES)
FACTORS = np.geomspace(0.5, 2.0, 121)
NEARLY_SQUARE = 0.01
"""Relative difference of focal lengths in x and y up to which rough intrinsics mean square pixels."""
MANY_PAIRS = 8
"""So many pairs, those with most matches, judge a lens."""
LENS_ROUNDS = {
    True: (((0.5, 0.6, 0.72, 0.86, 1.0, 1.2, 1.44, 1.73), (0.0,)), ((1.0,), (-0.1, -0.05, 0.0, 0.05, 0.1))),
    False: (((1.0,), (-0.45, -0.35, -0.25, -0.15, -0.07, 0.0, 0.07, 0.15)), ((0.8, 0.9, 1.0, 1.1, 1.25), (0.0,))),
}
"""Of a fisheye and of another lens: factors of the focal length and changes of k1 to try from the best so far."""
LAST_ROUNDS = (((0.94, 1.0, 1.06), (0.0,)), ((1.0,), (-0.03, 0.0, 0.03)))


def search_focal(
    views: Sequence[TwoView],
    sizes: Int64[np.ndarray, "N 2"],
    group: Int64[np.ndarray, " N"],
    known_px: Float64[np.ndarray, " N"],
) -> tuple[Float64[np.ndarray, " N"], Bool[np.ndarray, " N"]]:
    """Focal length of every frame [px] and whether any pair spoke for it; ``known_px`` is NaN where unknown.

    The principal point is taken as the image's middle. Frames of a group share the focal length in pixels.
    """
    long_side = sizes.max(1).astype(np.float64)
    usable = [view for view in views if not view.is_planar]
    focal = np.where(np.isnan(known_px), FALLBACK_FOCAL * long_side, known_px)
    spoken = ~np.isnan(known_px)
    unknown = [number for number in np.unique(group) if np.isnan(known_px[group == number]).all()]
    if not usable or not unknown:
        return focal, spoken
    is_free = np.isin(group, unknown)
    starts = STARTS if len(unknown) > 1 else STARTS[:1]
    found = [_climb(usable, sizes, group, np.where(is_free, s * long_side, focal), is_free) for s in starts]
    focal = max(found, key=lambda trial: float(_votes(usable, sizes, trial[:, None])[0]))
    heard = is_free & np.isin(group, group[np.array([(view.i, view.j) for view in usable])])
    if heard.any():
        # A camera without pairs gets the field of view of the others.
        common = np.median((focal / long_side)[heard])
        focal = np.where(is_free & ~heard, common * long_side, focal)
    return focal, spoken | heard


def _climb(
    views: Sequence[TwoView],
    sizes: Int64[np.ndarray, "N 2"],
    group: Int64[np.ndarray, " N"],
    focal: Float64[np.ndarray, " N"],
    is_free: Bool[np.ndarray, " N"],
) -> Float64[np.ndarray, " N"]:
    """Focal lengths with more votes, by turns: each camera for itself, then one factor for all."""
    long_side = sizes.max(1)
    for _ in range(ROUNDS):
        before = focal
        for number in np.unique(group[is_free]):
            mine = group == number
            touching = [view for view in views if mine[view.i] or mine[view.j]]
            if touching:
                trial = np.where(mine[:, None], CANDIDATES * long_side[:, None], focal[:, None])
                focal = np.where(mine, _peak(CANDIDATES, _votes(touching, sizes, trial)) * long_side, focal)
        trial = np.where(is_free[:, None], FACTORS * focal[:, None], focal[:, None])
        focal = np.where(is_free, _peak(FACTORS, _votes(views, sizes, trial)) * focal, focal)
        if np.allclose(before, focal, rtol=1e-3):
            break
    return focal


def _votes(
    views: Sequence[TwoView], sizes: Int64[np.ndarray, "N 2"], trial: Float64[np.ndarray, "N F"]
) -> Float64[np.ndarray, " F"]:
    """Sum of the pairs' votes if frames had each of the trial focal lengths [px]."""
    ends = np.array([(view.i, view.j) for view in views])
    matrices = np.stack([view.fundamental for view in views])[:, None]
    left, right = (_matrices(trial[ends[:, end]], sizes[ends[:, end]] / 2) for end in (1, 0))
    essential = left.swapaxes(-1, -2) @ matrices @ right
    gram = essential @ essential.swapaxes(-1, -2)
    # Singular values s, t, 0 without a decomposition: trace(E E^T) = s^2 + t^2 and |E E^T|^2 = s^4 + t^4.
    total, fourth = np.trace(gram, axis1=-2, axis2=-1), (gram * gram).sum((-1, -2))
    evenness = np.sqrt(np.clip(2 * (1 - fourth / total**2), 1e-12, 1))  # 2 s t / (s^2 + t^2)
    ratio = (1 - np.sqrt(1 - evenness**2)) / evenness  # t / s
    strength = np.minimum([view.num_inliers for view in views], MAX_VOTES)
    return (strength[:, None] * np.exp((ratio - 1) / TOLERANCE)).sum(0)


def _matrices(focal: Float64[np.ndarray, "P F"], center: Float64[np.ndarray, "P 2"]) -> Float64[np.ndarray, "P F 3 3"]:
    matrices = np.zeros((*focal.shape, 3, 3))
    matrices[..., 0, 0] = matrices[..., 1, 1] = focal
    matrices[..., :2, 2] = center[:, None]
    matrices[..., 2, 2] = 1
    return matrices


def _peak(candidates: Float64[np.ndarray, " F"], votes: Float64[np.ndarray, " F"]) -> float:
    """The candidate with most votes, between grid points by a parabola in log focal."""
    top = int(votes.argmax())
    if top in (0, len(votes) - 1):
        return float(candidates[top])
    left, middle, right = votes[top - 1 : top + 2]
    bend = left - 2 * middle + right
    offset = 0.5 * (left - right) / bend if bend < 0 else 0.0
    return float(candidates[top] * (candidates[1] / candidates[0]) ** offset)


@dataclass(frozen=True)
class StartIntrinsics:
    """Intrinsics before adjustment, and where they come from."""

    intrinsics: Intrinsics
    is_known: torch.Tensor
    """Frames whose intrinsics the user gave, which are held."""
    is_exif: torch.Tensor
    is_init: torch.Tensor
    """Frames whose intrinsics come from the initial model; they are refined, like those from metadata."""

    @property
    def is_told(self) -> bool:
        """Whether every frame's focal length is known, so that none has to be searched for."""
        return bool((self.is_exif | self.is_init | self.is_known).all())

    def held(self, lens: LensKind) -> Fixed:
        """Unknowns that adjustment holds: the user's intrinsics, and the radial term of a lens without distortion."""
        fixed = replace(Fixed.build(len(self.is_known), radial=lens not in BENT), focal=self.is_known)
        return replace(fixed, radial=fixed.radial | self.is_known)


@dataclass(frozen=True)
class GivenCameras:
    """Intrinsics from the user's files, by name of the photograph."""

    held: dict[str, KnownCamera]
    """Intrinsics that the user vouches for."""
    rough: dict[str, KnownCamera]
    """Intrinsics of the initial model, which are refined."""


def known_intrinsics(
    photos: Sequence[Photo],
    given: GivenCameras,
    grouping: Grouping,
    lens: LensKind = "auto",
    depths: Sequence[DepthEstimate] = (),
) -> StartIntrinsics:
    """Intrinsics from the user, else from the initial model, else from point maps, else from the metadata.

    Only the user's are held. Frames of one camera get the median of what is known about them; where nothing is, the
    focal length is NaN.
    """
    held, rough = given.held, {} if given.held else given.rough
    sizes = torch.tensor([[photo.width, photo.height] for photo in photos])
    group = torch.tensor(group_photos(photos, grouping, held))
    exif = _per_camera([photo.exif_focal_px for photo in photos], group.numpy())
    seen = _per_camera([depth.focal_px for depth in depths] or [None] * len(photos), group.numpy())
    intrinsics = Intrinsics.pinhole(torch.from_numpy(np.where(np.isnan(seen), exif, seen)), sizes, group)
    intrinsics.fisheye[:] = lens == "fisheye"
    is_held, is_init = (torch.tensor([photo.name in names for photo in photos]) for names in (held, rough))
    for index, photo in enumerate(photos):
        if photo.name in held or photo.name in rough:
            _set(intrinsics, index, held.get(photo.name) or rough[photo.name])
    is_init = _share(intrinsics, is_init)
    is_exif = torch.from_numpy(np.isnan(seen) & ~np.isnan(exif)) & ~is_held & ~is_init
    return StartIntrinsics(intrinsics, is_held, is_exif, is_init)


def _set(intrinsics: Intrinsics, index: int, camera: KnownCamera) -> None:
    """Write one camera into its row."""
    intrinsics.focal[index] = torch.tensor(camera.focal, dtype=torch.float64)
    intrinsics.center[index] = torch.tensor(camera.center, dtype=torch.float64)
    intrinsics.distortion[index] = torch.tensor(camera.distortion, dtype=torch.float64)
    intrinsics.fisheye[index] = camera.is_fisheye


def _share(intrinsics: Intrinsics, chosen: Bool[torch.Tensor, " N"]) -> Bool[torch.Tensor, " N"]:
    """Give all frames of a camera the median of the chosen ones, in place; returns the frames that got one."""
    found = torch.zeros_like(chosen)
    for number in intrinsics.group[chosen].unique():
        mine = intrinsics.group == number
        for values in (intrinsics.focal, intrinsics.center, intrinsics.distortion):
            values[mine] = values[mine & chosen].median(0).values
        intrinsics.fisheye[mine] = intrinsics.fisheye[mine & chosen].all()
        fx, fy = intrinsics.focal[mine][0].tolist()
        if abs(fx / fy - 1) < NEARLY_SQUARE:
            intrinsics.focal[mine] = (fx + fy) / 2
        found |= mine
    return found


def _per_camera(focal_px: Sequence[float | None], group: Int64[np.ndarray, " N"]) -> Float64[np.ndarray, " N"]:
    """Median of the known focal lengths of each camera, for all its frames; NaN where none is known."""
    given = np.array([value or np.nan for value in focal_px], dtype=np.float64)
    found = np.full(len(given), np.nan)
    for number in np.unique(group[~np.isnan(given)]):
        found[group == number] = np.nanmedian(given[group == number])
    return found


def group_photos(photos: Sequence[Photo], grouping: str, known: dict[str, KnownCamera]) -> list[int]:
    """Number of each photograph's camera."""
    numbers: dict[Any, int] = {}
    groups = []
    for index, photo in enumerate(photos):
        key: tuple[Any, ...] = (photo.width, photo.height, photo.device, photo.exif_focal_px)
        if photo.name in known:
            key += (known[photo.name].camera_id, known[photo.name].focal)
        if grouping == "per-image":
            key += (index,)
        elif grouping == "per-folder":
            key += (str(Path(photo.name).parent),)
        groups.append(numbers.setdefault(key, len(numbers)))
    return groups


def focal_source(start: StartIntrinsics, frame: int, from_depth: bool) -> FocalSource:
    """Source of a frame's focal length; with ``from_depth``, the depth model supplies unknown ones."""
    if bool(start.is_known[frame]):
        return FocalSource.GIVEN
    if bool(start.is_exif[frame]):
        return FocalSource.METADATA
    if bool(start.is_init[frame]):
        return FocalSource.INITIAL_MODEL
    return FocalSource.DEPTH_MODEL if from_depth else FocalSource.SEARCH


def lenses_of(intrinsics: Intrinsics) -> list[Lens]:
    """One lens per frame."""
    return [intrinsics.lens(frame) for frame in range(len(intrinsics.focal))]


def with_searched_focal(start: StartIntrinsics, views: Sequence[TwoView]) -> StartIntrinsics:
    """Start with the unknown focal lengths filled in by search."""
    old = start.intrinsics
    focal, _ = search_focal(views, old.sizes.numpy(), old.group.numpy(), old.focal[:, 0].numpy())
    missing = torch.isnan(old.focal)
    filled = torch.where(missing, torch.from_numpy(focal)[:, None], old.focal)
    return replace(start, intrinsics=replace(old, focal=filled))


def search_lens(
    observations: Observations, start: StartIntrinsics, lens: LensKind, max_error_px: float
) -> StartIntrinsics:
    """The focal length and k1 under which the strongest pairs have most inliers, the same for all that are not given.

    A straight pinhole loses the matches near the border of a lens that bends, and with them what would tell the bend.
    """
    free = ~start.is_known
    order = np.argsort([-len(found) for found in observations.matches], kind="stable")
    chosen = [n for n in order.tolist() if bool(free[observations.pairs[n]].any())][:MANY_PAIRS]
    pixels = [points.pixels.astype(np.float64) for points in observations.keypoints]
    is_rough = start.is_told

    def inliers(intrinsics: Intrinsics) -> int:
        lenses = lenses_of(intrinsics)

        def count(number: int) -> int:
            i, j = observations.pairs[number].tolist()
            ends = (pixels[i], pixels[j]), observations.matches[number], (lenses[i], lenses[j])
            view = verify((i, j), *ends, max_error_px / 2, True)
            return 0 if view is None else view.num_inliers

        return sum(in_parallel(count, chosen))

    best = start.intrinsics
    for factors, changes in (*LENS_ROUNDS[lens == "fisheye"], *LAST_ROUNDS):
        trials = [_changed(best, free, f, change) for f in (factors if not is_rough else (1.0,)) for change in changes]
        best = max(trials, key=inliers)
    return replace(start, intrinsics=best)


def _changed(intrinsics: Intrinsics, free: Bool[torch.Tensor, " N"], factor: float, change: float) -> Intrinsics:
    focal = torch.where(free[:, None], factor * intrinsics.focal, intrinsics.focal)
    distortion = intrinsics.distortion.clone()
    distortion[free, 0] += change
    return replace(intrinsics, focal=focal, distortion=distortion)
