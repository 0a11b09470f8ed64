"""Tanks and Temples with ACE0's COLMAP reference: SPLIT/SCENE/*.jpg and colmap_raw/SPLIT__SCENE/0/images.bin.

SPLIT is training, intermediate or advanced; a scene is named SPLIT/SCENE.
"""

from dataclasses import dataclass
from pathlib import Path

from mbasfm.datasets.base import DatasetScene, Published, scene_of_poses
from mbasfm.errors import InputError
from mbasfm.io.poses import read_poses

PUBLISHED = Published(
    "Tanks and Temples (image sets) with ACE0's colmap_raw.tar.gz",
    "https://www.tanksandtemples.org/download and https://github.com/nianticlabs/acezero",
)
SPLITS = ("training", "intermediate", "advanced")


@dataclass(frozen=True)
class TanksAndTemples:
    """21 places; the truth is COLMAP on the image sets, so it is pseudo ground truth."""

    folder: Path

    def scenes(self) -> tuple[str, ...]:
        """Names of the scenes that have images and reference."""
        found = [
            f"{split}/{path.name}"
            for split in SPLITS
            if (self.folder / split).is_dir()
            for path in sorted((self.folder / split).iterdir())
            if path.is_dir() and path.name != "videos" and self._reference(split, path.name).is_dir()
        ]
        if not found:
            raise InputError(f"{self.folder}: no scene of {PUBLISHED.title}; it is published at {PUBLISHED.url}")
        return tuple(found)

    def load(self, scene: str) -> DatasetScene:
        """Scene named SPLIT/SCENE."""
        split, _, name = scene.partition("/")
        images = PUBLISHED.need(self.folder / split / name)
        return scene_of_poses(scene, images, read_poses(PUBLISHED.need(self._reference(split, name))), PUBLISHED)

    def _reference(self, split: str, name: str) -> Path:
        return self.folder / "colmap_raw" / f"{split}__{name}" / "0"
