"""What the user's files say, read once before any work: intrinsics, poses, pairs, and the world of the result."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64

from mbasfm.adjust.pose_priors import MIN_POSES, MIN_POSITIONS, PosePriors
from mbasfm.config import LensKind
from mbasfm.errors import InputError
from mbasfm.geometry.rigid import camera_centers
from mbasfm.io.calibration import KnownCamera, at_resolution, read_calibration
from mbasfm.io.gps import gps_positions
from mbasfm.io.lists import read_pairs
from mbasfm.io.poses import PoseFile, read_poses
from mbasfm.io.priors import read_priors
from mbasfm.io.video import read_times
from mbasfm.matching.observe import PAIR_MODES
from mbasfm.sfm.starting_intrinsics import GivenCameras
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
class UserFiles:
    """What the user gives, named as in the settings, which say what each means."""

    cameras: str | None = None
    focal: float | None = None
    lens: LensKind = "auto"
    init: str | None = None
    priors: str | None = None
    prior_sigma_m: float | None = None
    prior_sigma_deg: float = 5.0
    pairs: str = "auto"
    align: str | None = None


@dataclass(frozen=True)
class Given:
    """All that was given."""

    cameras: GivenCameras
    poses: dict[int, Float64[np.ndarray, "3 4"]]
    """cam_from_world to start from, by number of the frame."""
    world: World | None
    """None: the result stays where adjustment put it."""
    priors: PosePriors | None = None
    pairs: Int64[np.ndarray, "P 2"] | None = None
    """Which pairs to match, where a file says so."""


def read_given(photos: Sequence[Photo], files: UserFiles) -> Given:
    """Read all files, each once; what is wrong with them is said before anything is computed."""
    held = held_cameras(photos, files.cameras, files.focal)
    init = None if files.init is None else read_poses(Path(files.init))
    poses = {} if init is None else _poses_of(init, photos)
    rough = {} if init is None or held else _rough_cameras(init, photos, files.lens == "pinhole")
    pairs = None if files.pairs in PAIR_MODES else read_pairs(Path(files.pairs), [photo.name for photo in photos])
    priors, facts = (None, {}) if files.priors is None else _priors(files.priors, photos, files)
    world = None if files.init is None else _model_world(files.init, poses)
    if files.align is not None:
        world = _world(files.align, photos)
    elif priors is not None:
        world = World("priors", {}, {}, facts, priors)
    return Given(GivenCameras(held, rough), poses, world, priors, pairs)


def cameras_alone(photos: Sequence[Photo], cameras: str | None, focal_px: float | None) -> GivenCameras:
    """The intrinsics that the user vouches for, where there is no model to start from."""
    return GivenCameras(held_cameras(photos, cameras, focal_px), {})


def held_cameras(photos: Sequence[Photo], cameras: str | None, focal_px: float | None) -> dict[str, KnownCamera]:
    """Intrinsics by name, from a file or from one focal length for all; empty without either."""
    if cameras is not None:
        return read_calibration(Path(cameras), photos)
    if focal_px is None:
        return {}
    focal = float(focal_px)
    return {
        photo.name: KnownCamera((focal, focal), (photo.width / 2, photo.height / 2), (0.0, 0.0, 0.0, 0.0), "focal")
        for photo in photos
    }


def _rough_cameras(file: PoseFile, photos: Sequence[Photo], is_pinhole: bool) -> dict[str, KnownCamera]:
    """Intrinsics of the model to start from, of those photographs for which it has some."""
    if file.by != "name":
        return {}
    rows = file.rows_of([photo.name for photo in photos])
    stored = {photo.name: file.cameras[rows[photo.name]] for photo in photos if photo.name in rows}
    found = {
        photo.name: at_resolution(camera, photo, file.path)
        for photo in photos
        if (camera := stored.get(photo.name)) is not None
    }
    if is_pinhole:
        return {name: replace(c, distortion=(0.0, 0.0, 0.0, 0.0), is_fisheye=False) for name, c in found.items()}
    return found


def _priors(source: str, photos: Sequence[Photo], files: UserFiles) -> tuple[PosePriors, dict[str, Any]]:
    file = read_priors(source, photos, _times(photos))
    usual = files.prior_sigma_m or (GPS_SIGMA_M if file.origin else SIGMA_M)
    known = [(n, file.of_photo[photo.name]) for n, photo in enumerate(photos) if photo.name in file.of_photo]
    few = MIN_POSES if any(prior.has_rotation for _, prior in known) else MIN_POSITIONS
    if len(known) < few:
        raise InputError(f"--priors {source}: it knows {len(known)} of {len(photos)} photographs; {few} are needed")
    turns = [prior.sigma_deg or files.prior_sigma_deg if prior.has_rotation else math.inf for _, prior in known]
    priors = PosePriors(
        torch.tensor([number for number, _ in known]),
        torch.from_numpy(np.stack([prior.cam_from_world for _, prior in known])),
        torch.tensor([prior.sigma_m or usual for _, prior in known], dtype=torch.float64),
        torch.tensor(turns, dtype=torch.float64).deg2rad(),
    )
    return priors, {"origin": file.origin} if file.origin else {}


def _poses_of(file: PoseFile, photos: Sequence[Photo]) -> dict[int, Float64[np.ndarray, "3 4"]]:
    names = [photo.name for photo in photos]
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
        return _model_world(align, _poses_of(read_poses(Path(align)), photos))
    found = gps_positions(photos)
    if len(found.of_photo) < MIN_POSITIONS:
        raise InputError(
            f"--align gps: {len(found.of_photo)} of {len(photos)} photographs have a position in their metadata;"
            f" at least {MIN_POSITIONS} are needed"
        )
    places = {n: found.of_photo[photo.name] for n, photo in enumerate(photos) if photo.name in found.of_photo}
    return World("gps", {n: torch.from_numpy(p) for n, p in places.items()}, {}, {"origin": found.origin})


def _model_world(path: str, cam_from_world: Mapping[int, Float64[np.ndarray, "3 4"]]) -> World:
    """The world of a model, with its poses by number of the frame."""
    poses = {number: torch.from_numpy(pose) for number, pose in cam_from_world.items()}
    return World("model", {n: camera_centers(pose) for n, pose in poses.items()}, poses, {"model": path})
