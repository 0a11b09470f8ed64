"""COLMAP's incremental and global mappers through pycolmap: the peer that is run beside ours."""

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np
import pycolmap
import torch

MAPPERS = ("incremental", "global")
PINHOLE = pycolmap.CameraModelId.PINHOLE


@dataclass(frozen=True)
class PeerResult:
    """One reconstruction by COLMAP."""

    cam_from_world: torch.Tensor
    """(N, 3, 4) of the largest model, in the order of the names."""
    registered: torch.Tensor
    seconds: float
    """Mapping only."""


def prepare(images: Path, names: Sequence[str], shared: bool, database: Path) -> tuple[float, float]:
    """Extract and match features once; returns the seconds of both."""
    pycolmap.logging.minloglevel = 3
    database.unlink(missing_ok=True)
    mode = pycolmap.CameraMode.SINGLE if shared else pycolmap.CameraMode.PER_IMAGE
    begin = time.perf_counter()
    pycolmap.extract_features(database, images, image_names=list(names), camera_mode=mode)
    middle = time.perf_counter()
    pycolmap.match_exhaustive(database, matching_options={"skip_geometric_verification": True})
    return middle - begin, time.perf_counter() - middle


def verify(
    database: Path, names: Sequence[str], calibration: dict[str, Sequence[float]] | None, seed: int
) -> tuple[Path, float]:
    """A copy of the database with verified pairs, and the seconds that took.

    ``calibration``: fx, fy, cx, cy per name, if they are known.
    """
    copy = database.with_name(f"{database.stem}_verified.db")
    shutil.copy(database, copy)
    if calibration:
        _calibrate(copy, calibration)
    pairs = database.with_suffix(".pairs")
    pairs.write_text("".join(f"{a} {b}\n" for a, b in combinations(names, 2)))
    begin = time.perf_counter()
    pycolmap.verify_matches(copy, pairs, options={"ransac": {"random_seed": seed}})
    return copy, time.perf_counter() - begin


def run(verified: Path, images: Path, names: Sequence[str], mapper: str, calibrated: bool, seed: int) -> PeerResult:
    """Map the named images with one mapper; known intrinsics are held."""
    pycolmap.set_random_seed(seed)
    output = verified.with_suffix(".models")
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir()
    begin = time.perf_counter()
    models = _map(mapper, verified, images, output, names, calibrated, seed)
    return _collect(models, names, time.perf_counter() - begin)


def _calibrate(database: Path, calibration: dict[str, Sequence[float]]) -> None:
    with pycolmap.Database.open(database) as opened:
        for image in opened.read_all_images():
            camera = opened.read_camera(image.camera_id)
            camera.model = PINHOLE
            camera.params = np.asarray(calibration[image.name], dtype=float)
            camera.has_prior_focal_length = True
            opened.update_camera(camera)


def _map(
    mapper: str, database: Path, images: Path, output: Path, names: Sequence[str], calibrated: bool, seed: int
) -> dict[int, pycolmap.Reconstruction]:
    refine = not calibrated
    if mapper == "global":
        options = pycolmap.GlobalPipelineOptions()
        options.random_seed = options.mapper.random_seed = seed
        options.image_names = list(names)
        options.mapper.bundle_adjustment.refine_focal_length = refine
        options.mapper.bundle_adjustment.refine_extra_params = refine
        try:
            return pycolmap.global_mapping(database, images, output, options)
        except (RuntimeError, ValueError):  # too few pairs to start from
            return {}
    incremental = pycolmap.IncrementalPipelineOptions()
    incremental.random_seed = seed
    incremental.image_names = list(names)
    incremental.min_model_size = 3
    incremental.ba_refine_focal_length = incremental.ba_refine_extra_params = refine
    incremental.mapper.abs_pose_refine_focal_length = incremental.mapper.abs_pose_refine_extra_params = refine
    return pycolmap.incremental_mapping(database, images, output, incremental)


def _collect(models: dict[int, pycolmap.Reconstruction], names: Sequence[str], seconds: float) -> PeerResult:
    poses = torch.eye(4, dtype=torch.float64)[:3].repeat(len(names), 1, 1)
    registered = torch.zeros(len(names), dtype=torch.bool)
    if models:
        largest = max(models.values(), key=lambda model: model.num_reg_images())
        for image in largest.images.values():
            if image.has_pose and image.name in names:
                index = names.index(image.name)
                poses[index] = torch.from_numpy(image.cam_from_world().matrix())
                registered[index] = True
    return PeerResult(poses, registered, seconds)
