"""ScanNet exported from .sens: SCENE/{color/0.jpg, pose/0.txt, intrinsic/intrinsic_color.txt, depth/0.png}."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mbasfm.datasets.base import DatasetScene, Published, read_matrix, read_world_from_cam
from mbasfm.errors import InputError
from mbasfm.io.colmap import stored_camera

PUBLISHED = Published("ScanNet (exported with SensReader)", "https://github.com/ScanNet/ScanNet")
HALF_PIXEL = 0.5
"""Its pixel centres are whole numbers, ours have the first at 0.5."""


@dataclass(frozen=True)
class ScanNet:
    """RGB-D video of rooms, poses of BundleFusion. Frames whose pose is infinite were lost, and are left out."""

    folder: Path

    def scenes(self) -> tuple[str, ...]:
        """scene0707_00 and so on."""
        return PUBLISHED.folders(self.folder, lambda path: (path / "pose").is_dir())

    def load(self, scene: str) -> DatasetScene:
        """Frames in the order of their numbers' text."""
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
