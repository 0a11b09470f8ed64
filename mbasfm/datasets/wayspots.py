"""Wayspots: wayspots_NAME/{train,test}/{rgb/*.jpg, poses/*.txt, calibration/*.txt}; files of one frame share a stem."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float64
from PIL import Image

from mbasfm.datasets.base import IMAGE_ENDINGS, DatasetScene, Published, read_numbers, read_world_from_cam
from mbasfm.errors import InputError
from mbasfm.io.colmap import StoredCamera, stored_camera

PUBLISHED = Published("Wayspots (wayspots.tar.gz)", "https://nianticlabs.github.io/ace/wayspots.html")
SPLIT_FOLDERS = {"map": "train", "query": "test"}


@dataclass(frozen=True)
class Wayspots:
    """Phone scans of 10 small outdoor places, one for the map and one for queries."""

    folder: Path

    def scenes(self) -> tuple[str, ...]:
        """Names of the scenes, such as wayspots_bears."""
        return PUBLISHED.folders(self.folder, lambda path: (path / "train" / "rgb").is_dir())

    def load(self, scene: str) -> DatasetScene:
        """Scene with names train/rgb/FILE and test/rgb/FILE."""
        folder = PUBLISHED.need(self.folder / scene)
        splits: dict[str, tuple[str, ...]] = {}
        rows: dict[str, tuple[Float64[np.ndarray, "3 4"], StoredCamera]] = {}
        for split, name in SPLIT_FOLDERS.items():
            images = PUBLISHED.need(folder / name / "rgb")
            found = [path for path in sorted(images.iterdir()) if path.suffix.lower() in IMAGE_ENDINGS]
            splits[split] = tuple(path.relative_to(folder).as_posix() for path in found)
            rows |= {path.relative_to(folder).as_posix(): _row(path, folder / name) for path in found}
        names = tuple(sorted(rows))
        if not names:
            raise InputError(f"{folder}: no images in train/rgb and test/rgb; {PUBLISHED.title}: {PUBLISHED.url}")
        poses, cameras = zip(*(rows[name] for name in names), strict=True)
        return DatasetScene(scene, folder, names, np.stack(poses), tuple(cameras), splits, grouping="per-folder")


def _row(image: Path, folder: Path) -> tuple[Float64[np.ndarray, "3 4"], StoredCamera]:
    pose_file = _beside(folder / "poses", image)
    pose = read_world_from_cam(pose_file)
    if pose is None:
        raise InputError(f"{pose_file}, line 1: the pose is not finite")
    return pose, _camera(_beside(folder / "calibration", image), image)


def _beside(folder: Path, image: Path) -> Path:
    """The file of a frame: STEM.txt, or as ACE's tools name them, STEM.pose.txt and STEM.calibration.txt."""
    stem = image.name.split(".")[0]
    named = sorted(PUBLISHED.need(folder).glob(f"{stem}.*txt"))
    return named[0] if named else PUBLISHED.need(folder / f"{stem}.txt")


def _camera(path: Path, image: Path) -> StoredCamera:
    """Camera with one focal length and the principal point in the middle, or of a 3 x 3 matrix."""
    lines = read_numbers(path, (1, 3))
    place = lines[0][0] if lines else str(path)
    with Image.open(image) as opened:
        width, height = opened.size
    size = {"width": float(width), "height": float(height)}
    if len(lines) == 1 and len(lines[0][1]) == 1:
        return stored_camera({"f": lines[0][1][0], "cx": width / 2, "cy": height / 2, **size}, place)
    if len(lines) != 3 or any(len(numbers) != 3 for _, numbers in lines):
        raise InputError(f"{place}: neither one focal length nor a 3 x 3 matrix")
    matrix = [numbers for _, numbers in lines]
    center = {"cx": matrix[0][2], "cy": matrix[1][2]}
    return stored_camera({"fx": matrix[0][0], "fy": matrix[1][1], **center, **size}, place)
