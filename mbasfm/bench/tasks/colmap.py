"""COLMAP's incremental and global mappers through pycolmap, with its defaults: the peer that is run beside ours."""

import json
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np
import pycolmap
from jaxtyping import Float64

PINHOLE = pycolmap.CameraModelId.PINHOLE


@dataclass(frozen=True)
class Prepared:
    """A database with features and matches."""

    database: Path
    features: float
    """Seconds for features."""
    matching: float


def prepare(images: Path, names: Sequence[str], shared: bool, database: Path) -> Prepared:
    """Extract and match features once; later calls find them, with the seconds they took."""
    done = database.with_suffix(".json")
    if done.is_file():
        return Prepared(database, *json.loads(done.read_text()))
    pycolmap.logging.minloglevel = 3
    database.parent.mkdir(parents=True, exist_ok=True)
    database.unlink(missing_ok=True)
    mode = pycolmap.CameraMode.SINGLE if shared else pycolmap.CameraMode.PER_IMAGE
    begin = time.perf_counter()
    pycolmap.extract_features(database, images, image_names=list(names), camera_mode=mode)
    middle = time.perf_counter()
    options = pycolmap.FeatureMatchingOptions()
    options.skip_geometric_verification = True
    pycolmap.match_exhaustive(database, matching_options=options)
    seconds = (middle - begin, time.perf_counter() - middle)
    done.write_text(json.dumps(seconds))
    return Prepared(database, *seconds)


def verify(
    database: Path, names: Sequence[str], calibration: Mapping[str, Sequence[float]] | None, seed: int
) -> tuple[Path, float]:
    """A copy of the database with verified pairs, and the seconds that took; done once.

    ``calibration``: fx, fy, cx, cy per name, if they are known.
    """
    copy = database.with_name(f"{database.stem}_{'known' if calibration else 'unknown'}_{seed}.db")
    done = copy.with_suffix(".json")
    if done.is_file():
        return copy, float(json.loads(done.read_text()))
    pycolmap.logging.minloglevel = 3
    shutil.copy(database, copy)
    if calibration:
        _calibrate(copy, calibration)
    pairs = copy.with_suffix(".pairs")
    pairs.write_text("".join(f"{a} {b}\n" for a, b in combinations(names, 2)))
    begin = time.perf_counter()
    options = pycolmap.TwoViewGeometryOptions()
    options.ransac.random_seed = seed
    pycolmap.verify_matches(copy, pairs, options=options)
    seconds = time.perf_counter() - begin
    done.write_text(json.dumps(seconds))
    return copy, seconds


@dataclass(frozen=True)
class Mapper:
    """One of COLMAP's mappers, and how to run it."""

    kind: str
    """global or incremental."""
    is_calibrated: bool
    """Whether intrinsics are known, and held."""
    seed: int


def run(
    mapper: Mapper, verified: Path, images: Path, names: Sequence[str], work: Path
) -> dict[str, Float64[np.ndarray, "3 4"]]:
    """Map the named images with one mapper; known intrinsics are held. Poses of the largest model by name."""
    pycolmap.logging.minloglevel = 3
    pycolmap.set_random_seed(mapper.seed)
    output = work / "models"
    output.mkdir()
    models = _map(mapper, verified, images, names, output)
    if not models:
        return {}
    largest = max(models.values(), key=lambda model: model.num_reg_images())
    return {image.name: image.cam_from_world().matrix() for image in largest.images.values() if image.has_pose}


def _calibrate(database: Path, calibration: Mapping[str, Sequence[float]]) -> None:
    with pycolmap.Database.open(database) as opened:
        for image in opened.read_all_images():
            camera = opened.read_camera(image.camera_id)
            camera.model = PINHOLE
            camera.params = [float(value) for value in calibration[image.name]]
            camera.has_prior_focal_length = True
            opened.update_camera(camera)


def _map(
    mapper: Mapper, database: Path, images: Path, names: Sequence[str], output: Path
) -> dict[int, pycolmap.Reconstruction]:
    refine, seed = not mapper.is_calibrated, mapper.seed
    if mapper.kind == "global":
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
