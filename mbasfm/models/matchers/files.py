"""Features and matches from files: one npz file per photograph and one per pair."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from mbasfm.errors import InputError
from mbasfm.io.files import read_arrays
from mbasfm.models.base import Matcher
from mbasfm.types.observations import RGB, Features, Matches, Photo

MARGIN_PX = 1.0
"""How far outside of the image a keypoint may lie."""


class FilesMatcher(Matcher):
    """``files:DIR``, with names as in the folder of photographs, subfolder and ending included.

    DIR/features/NAME.npz: ``pixels`` (M, 2), x and y in the upright photograph with the first pixel's centre at
    (0.5, 0.5), and optionally ``descriptors`` (M, C), by which pairs are chosen where there are many photographs.
    DIR/matches/NAME_A/NAME_B.npz: ``indices`` (M, 2), a row of A's and a row of B's pixels, counted from 0, and
    optionally ``confidence`` (M,) in [0, 1]. Either order of the names will do; a pair without a file has no matches.
    """

    name, looks_at_images = "files", False
    licence = "that of your files"

    def __init__(self, argument: str = ""):
        self._features, self._matches = Path(argument, "features"), Path(argument, "matches")
        for folder in (self._features, self._matches):
            if not folder.is_dir():
                raise InputError(f"files:{argument}: {folder} is not a folder; give one with features and matches")
        self.key = f"files-1-{self._state()}"

    def describe(self, photo: Photo, image: RGB) -> Features:
        """Read the features of a photograph."""
        path = self._features / f"{photo.name}.npz"
        if not path.is_file():
            raise InputError(f"{photo.name}: no features; looked for {path}")
        arrays = read_arrays(path)
        size = image.shape[1], image.shape[0]
        pixels = _checked_pixels(path, arrays.get("pixels"), size)
        descriptors = arrays.get("descriptors", np.zeros((len(pixels), 0)))
        if not (descriptors.ndim == 2 and len(descriptors) == len(pixels) and _is_finite(descriptors)):
            raise InputError(f"{path}: descriptors must be {len(pixels)} rows of numbers, one for each row of pixels")
        length = np.maximum(np.linalg.norm(descriptors, axis=1, keepdims=True), 1e-12)
        return Features(pixels, (descriptors / length).astype(np.float32), photo.name, size)

    def match(self, first: Features, second: Features) -> Matches:
        """Read the matches of a pair, in whichever order they are stored."""
        if not (first.name and second.name):
            raise InputError("files: matches are found by the names of photographs, and these features have none")
        for left, right, order in ((first, second, [0, 1]), (second, first, [1, 0])):
            path = self._matches / left.name / f"{right.name}.npz"
            if path.is_file():
                arrays = read_arrays(path)
                indices = _checked_indices(path, arrays.get("indices"), (len(left.pixels), len(right.pixels)))
                confidence = _checked_confidence(path, arrays.get("confidence"), len(indices))
                return Matches(np.ascontiguousarray(indices[:, order]), confidence)
        return Matches(np.zeros((0, 2), np.int64), np.zeros(0, np.float32))

    def pairs(self) -> list[tuple[str, str]]:
        """Names of the photographs of all pairs that have a file, each pair once."""
        names = {_name(path, self._features) for path in self._features.rglob("*.npz")}
        found = set()
        for path in self._matches.rglob("*.npz"):
            pair = next((pair for pair in _splits(_name(path, self._matches)) if len(names & {*pair}) == 2), None)
            if pair is None:
                raise InputError(f"{path}: its path is not that of two photographs that have features")
            found.add((min(pair), max(pair)))
        return sorted(found)

    def _state(self) -> str:
        """Digest of the state of all files, so that the cache is not used after one has changed."""
        digest = hashlib.sha256()
        for folder in (self._features, self._matches):
            for path in sorted(folder.rglob("*.npz")):
                state = path.stat()
                digest.update(f"{path.resolve()}|{state.st_size}|{state.st_mtime_ns}\n".encode())
        return digest.hexdigest()[:16]


def _name(path: Path, folder: Path) -> str:
    return path.relative_to(folder).as_posix().removesuffix(".npz")


def _splits(name: str) -> Iterator[tuple[str, str]]:
    """All ways to read a path as two names: either may have subfolders."""
    parts = name.split("/")
    return (("/".join(parts[:count]), "/".join(parts[count:])) for count in range(1, len(parts)))


def _is_finite(values: np.ndarray) -> bool:
    return values.dtype.kind in "iuf" and bool(np.isfinite(values).all())


def _checked_pixels(path: Path, pixels: np.ndarray | None, size: tuple[int, int]) -> np.ndarray:
    if pixels is None or pixels.ndim != 2 or pixels.shape[1] != 2 or not _is_finite(pixels):
        raise InputError(f"{path}: needs pixels, rows of x and y")
    if ((pixels < -MARGIN_PX) | (pixels > np.array(size) + MARGIN_PX)).any():
        least, most = pixels.min(0).round(1).tolist(), pixels.max(0).round(1).tolist()
        raise InputError(
            f"{path}: pixels reach from {least} to {most}, but the upright photograph has {size[0]} x {size[1]}; "
            "scale them to its full size"
        )
    return pixels.astype(np.float32)


def _checked_indices(path: Path, indices: np.ndarray | None, counts: tuple[int, int]) -> np.ndarray:
    if indices is None or indices.ndim != 2 or indices.shape[1] != 2 or indices.dtype.kind not in "iu":
        raise InputError(f"{path}: needs indices, rows of two whole numbers")
    if ((indices < 0) | (indices >= np.array(counts))).any():
        raise InputError(f"{path}: indices count from 0 to below {counts[0]} and {counts[1]}, the numbers of features")
    return indices.astype(np.int64)


def _checked_confidence(path: Path, confidence: np.ndarray | None, count: int) -> np.ndarray:
    if confidence is None:
        return np.ones(count, np.float32)
    valid = confidence.shape == (count,) and _is_finite(confidence)
    if not valid or ((confidence < 0) | (confidence > 1)).any():
        raise InputError(f"{path}: confidence must be {count} numbers in [0, 1], one for each row of indices")
    return confidence.astype(np.float32)
