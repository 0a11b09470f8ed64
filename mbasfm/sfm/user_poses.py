"""What the user knows about poses: a start, soft knowledge, and which world the result shall be in."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float64

from mbasfm.adjust.pose_priors import MIN_POSES, MIN_POSITIONS, PosePriors
from mbasfm.config import Config
from mbasfm.errors import InputError
from mbasfm.geometry.rigid import camera_centers
from mbasfm.io.gps import gps_positions
from mbasfm.io.poses import read_poses
from mbasfm.io.priors import read_priors
from mbasfm.io.video import read_times
from mbasfm.types.photos import Photo

GPS_SIGMA_M, SIGMA_M = 5.0, 1.0
"""Of positions about whose quality nothing is said."""


@dataclass(frozen=True)
class World:
    """What is known about the wanted world, by number of the frame."""

    frame: str
    """up, gps, model or priors."""
    positions: dict[int, Float[torch.Tensor, " 3"]]
    poses: dict[int, Float[torch.Tensor, "3 4"]]
    """cam_from_world of the same frames; empty where positions alone are known."""
    facts: dict[str, Any]
    """For the report."""
    priors: PosePriors | None = None
    """Where they say which world it is."""

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
    priors: PosePriors | None = None


def read_given(photos: Sequence[Photo], config: Config) -> Given:
    """Read all files before anything is computed, so that what is wrong with them is said at once."""
    poses = {} if config.init is None else _poses_of(config.init, photos)
    priors, facts = (None, {}) if config.priors is None else _priors(config.priors, photos, config)
    if config.align is None and priors is not None:
        return Given(poses, World("priors", {}, {}, facts, priors), priors)
    align = config.align or config.init
    return Given(poses, None if align is None else _world(align, photos), priors)


def _priors(source: str, photos: Sequence[Photo], config: Config) -> tuple[PosePriors, dict[str, Any]]:
    file = read_priors(source, photos, _times(photos))
    usual = config.prior_sigma_m or (GPS_SIGMA_M if file.origin else SIGMA_M)
    known = [(n, file.of_photo[photo.name]) for n, photo in enumerate(photos) if photo.name in file.of_photo]
    few = MIN_POSES if any(prior.has_rotation for _, prior in known) else MIN_POSITIONS
    if len(known) < few:
        raise InputError(f"--priors {source}: it knows {len(known)} of {len(photos)} photographs; {few} are needed")
    turns = [prior.sigma_deg or config.prior_sigma_deg if prior.has_rotation else math.inf for _, prior in known]
    priors = PosePriors(
        torch.tensor([number for number, _ in known]),
        torch.from_numpy(np.stack([prior.cam_from_world for _, prior in known])),
        torch.tensor([prior.sigma_m or usual for _, prior in known], dtype=torch.float64),
        torch.tensor(turns, dtype=torch.float64).deg2rad(),
    )
    return priors, {"origin": file.origin} if file.origin else {}


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
