"""What the user gives, read once before any work: photographs, intrinsics, poses, pairs, and the world of a result."""

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
from mbasfm.io.images import FRAMES_FOLDER, find_photos, is_video, read_times, with_masks
from mbasfm.io.lists import read_pairs
from mbasfm.io.poses import PoseFile, read_poses
from mbasfm.io.priors import read_priors
from mbasfm.io.video import extract_frames
from mbasfm.matching.observe import PAIR_MODES
from mbasfm.runtime.parallel import from_main
from mbasfm.runtime.progress import say, stage
from mbasfm.sfm.intrinsics import GivenCameras
from mbasfm.types.observations import Photo
from mbasfm.types.outcome import SkippedFile

GPS_SIGMA_M, SIGMA_M = 5.0, 1.0
"""Standard deviations of positions of unstated quality [m]."""


def folder_of(photos: Path, output: Path | None) -> Path:
    """The photographs as given, or the folder inside the output to which the frames of a video were written."""
    if not is_video(photos):
        return photos
    if output is None:
        raise InputError(f"{photos}: the frames of a video need a folder; give an output")
    with stage("video") as facts:
        facts["frames"] = from_main(lambda: extract_frames(photos, output / FRAMES_FOLDER))
    return output / FRAMES_FOLDER


def input_photos(source: Path, masks: str | None) -> tuple[tuple[Photo, ...], tuple[SkippedFile, ...]]:
    """Photographs of a folder or list with their masks, and the files that cannot be used."""
    with stage("photos") as facts:
        found, skipped = find_photos(source)
        found = with_masks(found, None if masks is None else Path(masks))
        facts.update(found=len(found), skipped=len(skipped), masks=sum(photo.mask is not None for photo in found))
    for item in skipped:
        say(f"skipped {item.name}: {item.reason}")
    return found, tuple(skipped)


@dataclass(frozen=True)
class World:
    """Known cameras in the wanted world, by number of the frame."""

    frame: str
    """Kind of world: up, gps, model or priors."""
    positions: dict[int, Float[torch.Tensor, " 3"]]
    poses: dict[int, Float[torch.Tensor, "3 4"]]
    """Poses cam_from_world of the same frames; empty where positions alone are known."""
    facts: dict[str, Any]
    """Facts for the report."""
    priors: PosePriors | None = None
    """Priors, if these define the world."""

    @property
    def min_cameras(self) -> int:
        """Smallest number of shared cameras."""
        return MIN_POSES if self.poses else MIN_POSITIONS


@dataclass(frozen=True)
class UserFiles:
    """The user's files, named and explained as in the settings."""

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
    """Content of all the user's files."""

    cameras: GivenCameras
    poses: dict[int, Float64[np.ndarray, "3 4"]]
    """Poses cam_from_world to start from, by number of the frame."""
    world: World | None
    """Wanted world; None: the result stays where adjustment put it."""
    priors: PosePriors | None = None
    pairs: Int64[np.ndarray, "P 2"] | None = None
    """Pairs to match, if a file lists them."""


def read_given(photos: Sequence[Photo], files: UserFiles) -> Given:
    """Content of all files, each read once; errors in them are raised before anything is computed."""
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
    """Intrinsics that the user vouches for, without an initial model."""
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
    """Intrinsics of the initial model, for the photographs that have some."""
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
        raise InputError(f"--priors {source}: covers {len(known)} of {len(photos)} photographs; {few} are needed")
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
    """Times of the frames of a video [s]."""
    return read_times(photos[0].path.parent)


def _world(align: str, photos: Sequence[Photo]) -> World:
    """World that ``--align`` names."""
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
    """World of a model, with its poses by number of the frame."""
    poses = {number: torch.from_numpy(pose) for number, pose in cam_from_world.items()}
    return World("model", {n: camera_centers(pose) for n, pose in poses.items()}, poses, {"model": path})
