"""ScanNet exported from .sens: SCENE/{color/0.jpg, pose/0.txt, intrinsic/intrinsic_color.txt, depth/0.png}."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mbasfm.datasets.base import DatasetScene, Published, read_matrix, read_world_from_cam
from mbasfm.errors import InputError
from mbasfm.io.colmap import stored_camera

PUBLISHED = Published("ScanNet (exported with SensReader)", "https://github.com/ScanNet/ScanNet")
HALF_PIXEL = 0.5
"""Shift of pixels: the first centre is at 0 there and at 0.5 here."""


@dataclass(frozen=True)
class ScanNet:
    """RGB-D video of rooms, with poses by BundleFusion. Frames with an infinite pose were lost and are left out."""

    folder: Path

    def scenes(self) -> tuple[str, ...]:
        """Names of the scenes, such as scene0707_00."""
        return PUBLISHED.folders(self.folder, lambda path: (path / "pose").is_dir())

    def load(self, scene: str) -> DatasetScene:
        """Scene with its frames in alphabetical order of their numbers."""
        folder = PUBLISHED.need(self.folder / scene)
        images, poses = PUBLISHED.need(folder / "color"), PUBLISHED.need(folder / "pose")
        place, matrix = read_matrix(PUBLISHED.need(folder / "intrinsic" / "intrinsic_color.txt"), 4, 4)
        center = {"cx": matrix[0, 2] + HALF_PIXEL, "cy": matrix[1, 2] + HALF_PIXEL}
        camera = stored_camera({"fx": matrix[0, 0], "fy": matrix[1, 1], **center}, place)
        found = {}
        for path in sorted(images.glob("*.jpg")):
            pose = read_world_from_cam(PUBLISHED.need(poses / f"{path.stem}.txt"))
            if pose is not None:
                found[path.name] = pose
        if not found:
            raise InputError(f"{images}: no image with a finite pose; {PUBLISHED.title}: {PUBLISHED.url}")
        depth = folder / "depth"
        return DatasetScene(
            scene, images, tuple(found), np.stack(list(found.values())), (camera,) * len(found),
            depth=depth if depth.is_dir() else None,
        )  # fmt: skip
