"""What the user knows about poses: where cameras start, and which world the result shall be in."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float64

from mbasfm.config import Config
from mbasfm.errors import InputError
from mbasfm.geometry import camera_centers
from mbasfm.io.gps import gps_positions
from mbasfm.io.images import Photo
from mbasfm.io.poses import read_poses
from mbasfm.io.video import read_times

MIN_POSITIONS, MIN_POSES = 3, 2
"""Cameras that two worlds must share: with their positions alone, or with orientation."""


@dataclass(frozen=True)
class World:
    """What is known about the wanted world, by number of the frame."""

    frame: str
    """up, gps or model."""
    positions: dict[int, Float[torch.Tensor, " 3"]]
    poses: dict[int, Float[torch.Tensor, "3 4"]]
    """cam_from_world of the same frames; empty where positions alone are known."""
    facts: dict[str, Any]
    """For the report."""

    @property
    def min_cameras(self) -> int:
        """So many must be shared."""
        return MIN_POSES if self.poses else MIN_POSITIONS


@dataclass(frozen=True)
class Given:
    """All that was given."""

    poses: dict[int, Float64[np.ndarray, "3 4"]]
    """cam_from_world to start from, by number of the frame."""
    world: World | None
    """None: the result stays where adjustment put it."""


def read_given(photos: Sequence[Photo], config: Config) -> Given:
    """Read all files before anything is computed, so that what is wrong with them is said at once."""
    poses = {} if config.init is None else _poses_of(config.init, photos)
    align = config.align or config.init
    return Given(poses, None if align is None else _world(align, photos))


def _poses_of(path: str, photos: Sequence[Photo]) -> dict[int, Float64[np.ndarray, "3 4"]]:
    file, names = read_poses(Path(path)), [photo.name for photo in photos]
    rows = file.rows_of(names, _times(photos))
    return {number: file.cam_from_world[rows[name]] for number, name in enumerate(names) if name in rows}


def _times(photos: Sequence[Photo]) -> Mapping[str, float]:
    """Seconds of the frames of a video."""
    return read_times(photos[0].path.parent)


def _world(align: str, photos: Sequence[Photo]) -> World:
    """What ``--align`` stands for."""
    if align == "up":
        return World("up", {}, {}, {})
    if align != "gps":
        poses = {number: torch.from_numpy(pose) for number, pose in _poses_of(align, photos).items()}
        return World("model", {n: camera_centers(pose) for n, pose in poses.items()}, poses, {"model": align})
    found = gps_positions(photos)
    if len(found.of_photo) < MIN_POSITIONS:
        raise InputError(
            f"--align gps: {len(found.of_photo)} of {len(photos)} photographs have a position in their metadata;"
            f" at least {MIN_POSITIONS} are needed"
        )
    places = {n: found.of_photo[photo.name] for n, photo in enumerate(photos) if photo.name in found.of_photo}
    return World("gps", {n: torch.from_numpy(p) for n, p in places.items()}, {}, {"origin": found.origin})
