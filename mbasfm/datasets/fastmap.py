"""FastMap's collection: images/GROUP/SCENE with COLMAP models as truth in ground_truths/GROUP/SCENE (or gt/).

Groups are MipNeRF-360, Tanks and Temples in three parts, NeRF-OSR, DroneDeploy, UrbanScene3D, Mill-19 and Eyeful Tower.
A scene is named GROUP/SCENE. Its evaluation also reads truth as a JSON list of {fname, c2w}, and so does this.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float64

from mbasfm.datasets.base import DatasetScene, Published, scene_of_poses
from mbasfm.errors import InputError
from mbasfm.io.files import line_of, read_json
from mbasfm.io.poses import PoseFile, invert_pose, read_poses

PUBLISHED = Published("FastMap's collection", "https://huggingface.co/datasets/whc/fastmap_sfm")
TRUTHS = ("ground_truths", "ground_truth", "gt")


@dataclass(frozen=True)
class FastMap:
    """Seven datasets with pseudo ground truth; large and well textured."""

    folder: Path

    def scenes(self) -> tuple[str, ...]:
        """Names of the scenes that have images and truth."""
        images = PUBLISHED.need(self.folder / "images")
        candidates = [path for group in sorted(images.iterdir()) if group.is_dir() for path in sorted(group.iterdir())]
        names = [path.relative_to(images).as_posix() for path in candidates if path.is_dir()]
        found = tuple(name for name in names if self._truth(name).exists())
        if not found:
            raise InputError(f"{self.folder}: no scene with images and truth; published at {PUBLISHED.url}")
        return found

    def load(self, scene: str) -> DatasetScene:
        """Scene named GROUP/SCENE."""
        truth = PUBLISHED.need(self._truth(scene))
        poses = _from_list(truth) if truth.suffix == ".json" else read_poses(truth)
        return scene_of_poses(scene, PUBLISHED.need(self.folder / "images" / scene), poses, PUBLISHED)

    def _truth(self, scene: str) -> Path:
        """Folder with a model, or a JSON file."""
        parent = next((self.folder / name for name in TRUTHS if (self.folder / name).is_dir()), self.folder / TRUTHS[0])
        folder = parent / scene
        listed = folder.with_name(f"{folder.name}.json")
        return listed if listed.is_file() else folder


def _from_list(path: Path) -> PoseFile:
    entries = read_json(path)
    try:
        rows = [(str(entry["fname"]), np.array(entry["c2w"], dtype=np.float64)) for entry in entries]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: must be a JSON list of {{fname, c2w}} ({error!r})") from error
    poses = []
    for number, (name, matrix) in enumerate(rows):
        place = f"{path}, entry {number} ({name})"
        try:
            poses.append(_pose(matrix, place))
        except InputError:  # once more, with the line, which has to be looked for
            _pose(matrix, f"{path}, line {line_of(path, json.dumps(name))}, entry {number} ({name})")
    return PoseFile(path, tuple(name for name, _ in rows), np.array(poses).reshape(-1, 3, 4), (None,) * len(rows))


def _pose(world_from_cam: np.ndarray, place: str) -> Float64[np.ndarray, "3 4"]:
    if world_from_cam.shape not in ((3, 4), (4, 4)) or not np.isfinite(world_from_cam).all():
        raise InputError(f"{place}: c2w must be 3 x 4 or 4 x 4 finite numbers")
    return invert_pose(world_from_cam, place)
