"""Intrinsics to start from: the user's, else a network's, else those of the metadata, else a search over pairs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64

from mbasfm.config import BENT, Grouping, LensKind
from mbasfm.estimators.focal_votes import search_focal
from mbasfm.io.calibration import KnownCamera
from mbasfm.types.cameras import Fixed, Intrinsics, Lens
from mbasfm.types.outcome import FocalSource
from mbasfm.types.pairs import TwoView
from mbasfm.types.photos import DepthEstimate, Photo

NEARLY_SQUARE = 0.01
"""Relative difference of focal lengths in x and y up to which rough intrinsics mean square pixels."""


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
