"""Lists of image pairs with relative poses: MegaDepth-1500 and ScanNet-1500.

Two published formats, one pair per line. SuperGlue's scannet_test_pairs_with_gt.txt has 38 columns: two names, two
EXIF turns, K_a (9), K_b (9), b_from_a (16). glue-factory's pairs_calibrated.txt has 32: names, K_a, K_b, R (9), t (3).
Images are in images/ or beside the list; pixel centres are whole numbers there and moved by half a pixel here. The
plain form is pairs.json, {"pairs": [{a, b, Ka: [fx, fy, cx, cy], Kb, R, t}]} with x_b = R x_a + t and the same centres.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from jaxtyping import Float64

from mbasfm.datasets.base import DatasetScene, Published, numbers_of
from mbasfm.datasets.plain import Plain
from mbasfm.errors import InputError
from mbasfm.io.colmap import StoredCamera, numbered_lines, stored_camera
from mbasfm.io.files import line_of, read_json
from mbasfm.io.poses import nearest_rotation

JSON_LIST, A_KEY = "pairs.json", '"a"'
LISTS = ("pairs_calibrated.txt", "scannet_test_pairs_with_gt.txt", JSON_LIST)
PUBLISHED = Published(
    "MegaDepth-1500 or ScanNet-1500 (pairs_calibrated.txt or scannet_test_pairs_with_gt.txt)",
    "https://github.com/cvg/glue-factory and https://github.com/magicleap/SuperGluePretrainedNetwork",
)
HALF_PIXEL = 0.5
SUPERGLUE, GLUE_FACTORY = 36, 30
"""Number of columns after the two names."""


@dataclass(frozen=True)
class ImagePair:
    """Two images and the true pose between them."""

    names: tuple[str, str]
    paths: tuple[Path, Path]
    cameras: tuple[StoredCamera, StoredCamera]
    b_from_a: Float64[np.ndarray, "3 4"]
    quarter_turns: tuple[int, int] = (0, 0)
    """Quarter turns that bring each image upright."""


@dataclass(frozen=True)
class PairList:
    """A list of image pairs for a two-view benchmark."""

    folder: Path

    def pairs(self) -> list[ImagePair]:
        """Pairs in the order of the list."""
        path = next((self.folder / name for name in LISTS if (self.folder / name).is_file()), self.folder / LISTS[0])
        if path.name == JSON_LIST:
            return self._from_json(path)
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

    def _from_json(self, path: Path) -> list[ImagePair]:
        content = read_json(path)
        rows = content.get("pairs") if isinstance(content, dict) else None
        if not isinstance(rows, list) or not rows:
            raise InputError(f'{path}: must be JSON with a list "pairs" that is not empty')
        return [self._json_pair(row, number, path) for number, row in enumerate(rows, 1)]

    def _json_pair(self, row: Mapping[str, Any], number: int, path: Path) -> ImagePair:
        place = f"{path}, line {line_of(path, A_KEY, number)}, pair {number}"
        try:
            names = str(row["a"]), str(row["b"])
            cameras = [np.array(row[key], dtype=np.float64) for key in ("Ka", "Kb")]
            rotation, translation = (np.array(row[key], dtype=np.float64) for key in ("R", "t"))
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"{place}: needs a, b, Ka, Kb, R and t ({error!r})") from error
        if any(camera.shape != (4,) for camera in cameras) or rotation.shape != (3, 3) or translation.shape != (3,):
            raise InputError(f"{place}: Ka and Kb must be 4 numbers, R 3 x 3 and t 3")
        first, second = (_camera([fx, 0.0, cx, 0.0, fy, cy], place) for fx, fy, cx, cy in np.stack(cameras).tolist())
        paths = self._find(names[0], place), self._find(names[1], place)
        pose = np.column_stack([nearest_rotation(rotation, place), translation])
        return ImagePair(names, paths, (first, second), pose)

    def _find(self, name: str, place: str) -> Path:
        for parent in (self.folder / "images", self.folder):
            if (parent / name).is_file():
                return parent / name
        raise InputError(f"{place}: {self.folder / 'images' / name} is missing; {PUBLISHED.title}: {PUBLISHED.url}")


def _camera(matrix: list[float], place: str) -> StoredCamera:
    fx, _, cx, _, fy, cy = matrix[:6]
    return stored_camera({"fx": fx, "fy": fy, "cx": cx + HALF_PIXEL, "cy": cy + HALF_PIXEL}, place)


@dataclass(frozen=True)
class PairSets:
    """Folders with a list of pairs, or in the plain form with all pairs; or one such folder itself."""

    folder: Path

    def scenes(self) -> tuple[str, ...]:
        """Names of the sets, such as megadepth1500."""
        if _has_list(self.folder):
            return (self.folder.resolve().name,)
        return PUBLISHED.folders(self.folder, lambda path: _has_list(path) or (path / "gt.json").is_file())

    def load(self, scene: str) -> DatasetScene:
        """Poses of a set in the plain form; a list of pairs has none."""
        if _has_list(self._folder_of(scene)):
            raise InputError(f"{self._folder_of(scene)}: a list of pairs, which has no poses of single images")
        return Plain(self.folder).load(scene)

    def pairs(self, scene: str, gap: tuple[int, int] | None = None) -> list[ImagePair]:
        """Pairs of the list, or all pairs of a set in the plain form.

        ``gap``: only pairs whose numbers, at the end of their names, differ by that much.
        """
        folder = self._folder_of(scene)
        if _has_list(folder):
            return PairList(folder).pairs()
        loaded = Plain(self.folder).load(scene)
        rows: Iterable[tuple[int, int]] = combinations(range(len(loaded.names)), 2)
        if gap is not None:
            numbers = [_number(name) for name in loaded.names]
            rows = ((i, j) for i, j in rows if gap[0] <= abs(numbers[j] - numbers[i]) <= gap[1])
        return [_of_scene(loaded, i, j) for i, j in rows]

    def has_list(self, scene: str) -> bool:
        """Whether the set has a list of pairs."""
        return _has_list(self._folder_of(scene))

    def _folder_of(self, scene: str) -> Path:
        is_itself = _has_list(self.folder) and scene == self.folder.resolve().name
        return self.folder if is_itself else PUBLISHED.need(self.folder / scene)


def _has_list(folder: Path) -> bool:
    return any((folder / name).is_file() for name in LISTS)


def _number(name: str) -> int:
    match = re.search(r"(\d+)$", PurePosixPath(name).stem)
    if match is None:
        raise InputError(f"{name}: no number at the end of its name, which says how far apart images are")
    return int(match[1])


def _of_scene(scene: DatasetScene, i: int, j: int) -> ImagePair:
    ends = scene.only([scene.names[i], scene.names[j]])
    first, second = ends.cameras
    if first is None or second is None:
        raise InputError(f"{scene.name}: the dataset has no intrinsics of {ends.names[0]} or {ends.names[1]}")
    (r_a, t_a), (r_b, t_b) = ((pose[:, :3], pose[:, 3]) for pose in ends.cam_from_world)
    rotation = r_b @ r_a.T
    paths = scene.images / ends.names[0], scene.images / ends.names[1]
    pose = np.column_stack([rotation, t_b - rotation @ t_a])
    return ImagePair((ends.names[0], ends.names[1]), paths, (first, second), pose)
