"""Intrinsics to start from: the user's, else a network's, else those of the metadata, else a search over pairs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64, Int64

from mbasfm.config import Config
from mbasfm.errors import InputError
from mbasfm.intrinsics import search_focal
from mbasfm.io.calibration import KnownCamera, read_calibration
from mbasfm.io.colmap import UNDISTORT
from mbasfm.io.images import Photo
from mbasfm.models.base import DepthEstimate
from mbasfm.twoview import Lens, TwoView
from mbasfm.types import Intrinsics


@dataclass(frozen=True)
class Start:
    """Intrinsics before adjustment, and where they come from."""

    intrinsics: Intrinsics
    is_known: torch.Tensor
    """Frames whose intrinsics the user gave: they are held."""
    is_exif: torch.Tensor


def known_intrinsics(photos: Sequence[Photo], config: Config, depths: Sequence[DepthEstimate] = ()) -> Start:
    """Intrinsics from the user, else from point maps, else from the metadata; the focal length is NaN where none is.

    Frames of one camera have the median of what is said about them.
    """
    known = _user_calibration(photos, config)
    sizes = torch.tensor([[photo.width, photo.height] for photo in photos])
    group = torch.tensor(group_photos(photos, config.intrinsics, known))
    exif = _per_camera([photo.exif_focal_px for photo in photos], group.numpy())
    seen = _per_camera([depth.focal_px for depth in depths] or [None] * len(photos), group.numpy())
    intrinsics = Intrinsics.pinhole(torch.from_numpy(np.where(np.isnan(seen), exif, seen)), sizes, group)
    for index, photo in enumerate(photos):
        camera = known.get(photo.name)
        if camera is not None:
            if camera.is_fisheye:
                raise InputError(f"{photo.name}: fisheye lenses are not supported; {UNDISTORT}")
            intrinsics.focal[index] = torch.tensor(camera.focal, dtype=torch.float64)
            intrinsics.center[index] = torch.tensor(camera.center, dtype=torch.float64)
            intrinsics.distortion[index] = torch.tensor(camera.distortion, dtype=torch.float64)
    is_known = torch.tensor([photo.name in known for photo in photos])
    return Start(intrinsics, is_known, torch.from_numpy(np.isnan(seen) & ~np.isnan(exif)) & ~is_known)


def _per_camera(focal_px: Sequence[float | None], group: Int64[np.ndarray, " N"]) -> Float64[np.ndarray, " N"]:
    """The median of what is known about each camera, for its frames; NaN where nothing is."""
    given = np.array([value or np.nan for value in focal_px], dtype=np.float64)
    found = np.full(len(given), np.nan)
    for number in np.unique(group[~np.isnan(given)]):
        found[group == number] = np.nanmedian(given[group == number])
    return found


def _user_calibration(photos: Sequence[Photo], config: Config) -> dict[str, KnownCamera]:
    if config.cameras is not None:
        return read_calibration(Path(config.cameras), photos)
    if config.focal is None:
        return {}
    focal = float(config.focal)
    return {
        photo.name: KnownCamera((focal, focal), (photo.width / 2, photo.height / 2), (0.0, 0.0, 0.0, 0.0), "focal")
        for photo in photos
    }


def group_photos(photos: Sequence[Photo], grouping: str, known: dict[str, KnownCamera]) -> list[int]:
    """Number of the camera of each photograph."""
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


def lenses_of(intrinsics: Intrinsics) -> list[Lens]:
    """One lens per frame."""
    rows = zip(intrinsics.focal, intrinsics.center, intrinsics.distortion, intrinsics.sizes, strict=True)
    return [Lens(*(value.numpy() for value in row)) for row in rows]


def with_searched_focal(start: Start, views: Sequence[TwoView]) -> Start:
    """Fill in the focal lengths that are still unknown."""
    old = start.intrinsics
    focal, _ = search_focal(views, old.sizes.numpy(), old.group.numpy(), old.focal[:, 0].numpy())
    missing = torch.isnan(old.focal)
    filled = torch.where(missing, torch.from_numpy(focal)[:, None], old.focal)
    return replace(start, intrinsics=replace(old, focal=filled))
