"""ETH3D, high resolution, multi-view: SCENE/images/dslr_images_undistorted and SCENE/dslr_calibration_undistorted."""

from dataclasses import dataclass
from pathlib import Path

from mbasfm.datasets.base import DatasetScene, Published, scene_of_poses
from mbasfm.io.poses import read_poses

PUBLISHED = Published("ETH3D (multi_view_training_dslr_undistorted.7z)", "https://www.eth3d.net/datasets")
TRUTH = "dslr_calibration_undistorted"


@dataclass(frozen=True)
class ETH3D:
    """Laser scans registered with the photographs; the truth is a COLMAP model as text."""

    folder: Path

    def scenes(self) -> tuple[str, ...]:
        """Names of the 13 training scenes, which have poses; test scenes without are left out."""
        return PUBLISHED.folders(self.folder, lambda path: (path / TRUTH).is_dir())

    def load(self, scene: str) -> DatasetScene:
        """Scene with names as in images.txt: dslr_images_undistorted/DSC_0001.JPG."""
        folder = PUBLISHED.need(self.folder / scene)
        poses = read_poses(PUBLISHED.need(folder / TRUTH / "images.txt"))
        return scene_of_poses(scene, PUBLISHED.need(folder / "images"), poses, PUBLISHED)
