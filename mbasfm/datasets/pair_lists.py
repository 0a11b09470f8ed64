"""Lists of image pairs with relative poses: MegaDepth-1500 and ScanNet-1500.

Two published formats, one pair per line. SuperGlue's scannet_test_pairs_with_gt.txt has 38 columns: two names, two
EXIF turns, K_a (9), K_b (9), b_from_a (16). glue-factory's pairs_calibrated.txt has 32: names, K_a, K_b, R (9), t (3).
Images are in images/ or beside the list; pixel centres are whole numbers there and moved by half a pixel here.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float64

from mbasfm.datasets.base import Published, numbers_of
from mbasfm.errors import InputError
from mbasfm.io.colmap import StoredCamera, numbered_lines, stored_camera
from mbasfm.io.poses import nearest_rotation

LISTS = ("pairs_calibrated.txt", "scannet_test_pairs_with_gt.txt")
PUBLISHED = Published(
    "MegaDepth-1500 or ScanNet-1500 (pairs_calibrated.txt or scannet_test_pairs_with_gt.txt)",
    "https://github.com/cvg/glue-factory and https://github.com/magicleap/SuperGluePretrainedNetwork",
)
HALF_PIXEL = 0.5
SUPERGLUE, GLUE_FACTORY = 36, 30
"""Numbers behind the two names."""


@dataclass(frozen=True)
class ImagePair:
    """Two images and the true pose between them."""

    names: tuple[str, str]
    paths: tuple[Path, Path]
    cameras: tuple[StoredCamera, StoredCamera]
    b_from_a: Float64[np.ndarray, "3 4"]
    quarter_turns: tuple[int, int] = (0, 0)
    """How often each image must be turned to stand upright."""


@dataclass(frozen=True)
class PairList:
    """A benchmark of two views."""

    folder: Path

    def pairs(self) -> list[ImagePair]:
        """In the order of the list."""
        path = next((self.folder / name for name in LISTS if (self.folder / name).is_file()), self.folder / LISTS[0])
        lines = [(place, line) for place, line in numbered_lines(PUBLISHED.need(path)) if line and line[0] != "#"]
        if not lines:
            raise InputError(f"{path}: no pairs in it; {PUBLISHED.title} is published at {PUBLISHED.url}")
        return [self._pair(line, place) for place, line in lines]

    def _pair(self, line: str, place: str) -> ImagePair:
        words = line.split(maxsplit=2)
        if len(words) < 3:
            raise InputError(f"{place}: {len(words)} columns; a pair has 32 or 38")
        numbers = numbers_of(words[2], (SUPERGLUE, GLUE_FACTORY), place)
        turns, numbers = (numbers[:2], numbers[2:]) if len(numbers) == SUPERGLUE else ([0.0, 0.0], numbers)
        if not np.isfinite(numbers).all():
            raise InputError(f"{place}: a number is not finite")
        rest = np.array(numbers[18:])
        if len(rest) == 16:
            rotation, translation = rest.reshape(4, 4)[:3, :3], rest.reshape(4, 4)[:3, 3]
        else:
            rotation, translation = rest[:9].reshape(3, 3), rest[9:]
        paths = self._find(words[0], place), self._find(words[1], place)
        return ImagePair(
            (words[0], words[1]),
            paths,
            (_camera(numbers[:9], place), _camera(numbers[9:18], place)),
            np.column_stack([nearest_rotation(rotation, place), translation]),
            (int(turns[0]), int(turns[1])),
        )

    def _find(self, name: str, place: str) -> Path:
        for parent in (self.folder / "images", self.folder):
            if (parent / name).is_file():
                return parent / name
        raise InputError(f"{place}: {self.folder / 'images' / name} is missing; {PUBLISHED.title}: {PUBLISHED.url}")


def _camera(matrix: list[float], place: str) -> StoredCamera:
    fx, _, cx, _, fy, cy = matrix[:6]
    return stored_camera({"fx": fx, "fy": fy, "cx": cx + HALF_PIXEL, "cy": cy + HALF_PIXEL}, place)
