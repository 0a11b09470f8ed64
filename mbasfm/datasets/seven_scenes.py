"""7-Scenes: SCENE/{TrainSplit.txt, TestSplit.txt, seq-01/frame-000000.{color.png,pose.txt,depth.png}}.

Poses are those of the depth camera. They are moved to the colour camera with the Kinect calibration that DSAC*, ACE and
hloc use (https://projet.liris.cnrs.fr/voir/activities-dataset/kinect-calibration.html); the colour camera has a focal
length of 525 px and its principal point at pixel 320, 240, counted from 0; the depth camera has 585 px and the same
principal point. Depth is in millimetres, 0 or 65535 where unknown.
"""

import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import cv2
import numpy as np
import torch
from jaxtyping import Float32, Float64

from mbasfm.datasets.base import DatasetScene, Published, read_world_from_cam
from mbasfm.errors import InputError
from mbasfm.geometry.rigid import compose, orthonormalize
from mbasfm.io.colmap import StoredCamera, numbered_lines

PUBLISHED = Published("7-Scenes", "https://www.microsoft.com/en-us/research/project/rgb-d-dataset-7-scenes/")
COLOR_FROM_DEPTH = np.array(
    [
        [9.9996518012567637e-01, 2.6765126468950343e-03, -7.9041012313000904e-03, -2.5558943178152542e-02],
        [-2.7409311281316700e-03, 9.9996302803027592e-01, -8.1504520778013286e-03, 1.0109636268061706e-04],
        [7.8819942130445332e-03, 8.1718328771890631e-03, 9.9993554558014031e-01, 2.0318321729487039e-03],
    ]
)
"""[m]"""
CAMERA = StoredCamera((525.0, 525.0), (320.5, 240.5), (0.0, 0.0, 0.0, 0.0), (640.0, 480.0))
DEPTH_FOCAL, UNKNOWN, MILLIMETRE = 585.0, 65535, 1e-3
SPLIT_FILES = {"map": "TrainSplit.txt", "query": "TestSplit.txt"}


@dataclass(frozen=True)
class SevenScenes:
    """RGB-D video of rooms, tracked by KinectFusion."""

    folder: Path

    def scenes(self) -> tuple[str, ...]:
        """Names of the scenes, such as chess."""
        return PUBLISHED.folders(self.folder, lambda path: (path / SPLIT_FILES["map"]).is_file())

    def load(self, scene: str) -> DatasetScene:
        """Scene with names such as seq-01/frame-000000.color.png; the splits are map and query."""
        folder = PUBLISHED.need(self.folder / scene)
        splits: dict[str, tuple[str, ...]] = {}
        for split, file in SPLIT_FILES.items():
            sequences = _sequences(PUBLISHED.need(folder / file))
            paths = [path for sequence in sequences for path in sorted(sequence.glob("*.color.png"))]
            splits[split] = tuple(path.relative_to(folder).as_posix() for path in paths)
        names = tuple(sorted(splits["map"] + splits["query"]))
        if not names:
            raise InputError(f"{folder}: no frame-*.color.png in its sequences; unpack their zip files too")
        poses = np.stack([_color_pose(folder / name) for name in names])
        read_depth = partial(color_depth, folder)
        return DatasetScene(scene, folder, names, poses, (CAMERA,) * len(names), splits, read_depth=read_depth)


def color_depth(folder: Path, name: str) -> Float32[np.ndarray, "H W"]:
    """Depth of an image in its colour camera [m]: every pixel of the depth camera moved, the nearest kept."""
    path = PUBLISHED.need(folder / name.replace(".color.png", ".depth.png"))
    raw = cv2.imread(str(path), cv2.IMREAD_UNCHANGED)
    if raw is None or raw.dtype != np.uint16 or raw.ndim != 2:
        raise InputError(f"{path}: not a 16-bit depth map")
    assert CAMERA.center is not None
    row, column = np.nonzero((raw > 0) & (raw < UNKNOWN))
    depth = raw[row, column] * MILLIMETRE
    rays = (np.stack([column, row], -1) + 0.5 - CAMERA.center) / DEPTH_FOCAL
    points = np.column_stack([rays * depth[:, None], depth]) @ COLOR_FROM_DEPTH[:, :3].T + COLOR_FROM_DEPTH[:, 3]
    points = points[points[:, 2] > 0]
    pixels = np.floor(points[:, :2] / points[:, 2:] * CAMERA.focal + CAMERA.center).astype(np.int64)
    inside = ((pixels >= 0) & (pixels < raw.shape[::-1])).all(1)
    seen = np.full(raw.shape, np.inf, np.float32)
    np.minimum.at(seen, (pixels[inside, 1], pixels[inside, 0]), points[inside, 2].astype(np.float32))
    return np.where(np.isfinite(seen), seen, np.float32(np.nan))


def _sequences(path: Path) -> list[Path]:
    """Folders such as seq-01 for lines such as `sequence1`."""
    found = []
    for place, line in numbered_lines(path):
        match = re.fullmatch(r"sequence(\d+)", line)
        if line and match is None:
            raise InputError(f"{place}: not 'sequence' and a number ({line!r})")
        if match is not None:
            found.append(path.with_name(f"seq-{int(match[1]):02d}"))
            if not found[-1].is_dir():
                raise InputError(f"{place}: {found[-1]} is missing; {PUBLISHED.title} is published at {PUBLISHED.url}")
    return found


def _color_pose(image: Path) -> Float64[np.ndarray, "3 4"]:
    path = PUBLISHED.need(image.with_name(image.name.replace(".color.png", ".pose.txt")))
    depth_from_world = read_world_from_cam(path)
    if depth_from_world is None:
        raise InputError(f"{path}, line 1: the pose is not finite")
    # The published matrix is a rotation to 4 digits only; the nearest one keeps poses rigid.
    color_from_depth = torch.from_numpy(COLOR_FROM_DEPTH)
    rigid = torch.cat([orthonormalize(color_from_depth[:, :3]), color_from_depth[:, 3:]], -1)
    return compose(rigid, torch.from_numpy(depth_from_world)).numpy()
