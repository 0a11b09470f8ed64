"""Arrays in npy and npz files: read with checks, and kept by the content they depend on.

A file is checked before memory is allocated: a damaged header may claim any size. An entry of the cache is one npz
file, written beside its place and moved there, safe against a kill at any moment. One that is damaged nevertheless (the
machine lost power) counts as missing. Who starts a run makes its cache the active one, so that stages need not be
handed it.
"""

import hashlib
import io
import math
import os
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

import numpy as np

from mbasfm.errors import InputError

MOST_EXPANSION = 1100
"""Largest compression ratio that deflate can reach."""
HEADERS = {1: np.lib.format.read_array_header_1_0, 2: np.lib.format.read_array_header_2_0}
Arrays = Mapping[str, np.ndarray]


def read_array(path: Path) -> np.ndarray:
    """Array of an npy file."""
    try:
        return _array(path.read_bytes())
    except Exception as error:  # numpy parses headers as Python, which fails in many ways; all mean the same here
        raise InputError(f"{path}: cannot be read as npy ({error})") from error


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """All arrays of an npz file by name."""
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
            if not entries:
                raise ValueError("there is no array in it")
            return {entry.filename.removesuffix(".npy"): _entry(archive, entry) for entry in entries}
    except Exception as error:  # a damaged zip raises many kinds of errors too
        raise InputError(f"{path}: cannot be read as npz ({error})") from error


def _entry(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> np.ndarray:
    if entry.file_size > MOST_EXPANSION * max(entry.compress_size, 1):
        raise ValueError(f"{entry.filename} claims {entry.file_size} bytes")
    return _array(archive.read(entry))


def _array(content: bytes) -> np.ndarray:
    file = io.BytesIO(content)
    major, _ = np.lib.format.read_magic(file)
    if major not in HEADERS:
        raise ValueError(f"version {major} of the format")
    shape, is_fortran, dtype = HEADERS[major](file)
    held = len(content) - file.tell()
    if dtype.hasobject:
        raise ValueError("holds Python objects, which are never loaded")
    if min(shape, default=1) < 0 or math.prod(shape) * dtype.itemsize != held:
        raise ValueError(f"claims {shape} values of {dtype}, but has {held} bytes")
    values = np.frombuffer(content, dtype, offset=file.tell()).copy()
    return values.reshape(shape, order="F" if is_fortran else "C")


class Cache:
    """A folder of results, keyed by everything they depend on."""

    def __init__(self, folder: Path | None):
        """Open a folder; without one nothing is kept."""
        self._folder = folder

    @contextmanager
    def active(self) -> Iterator["Cache"]:
        """Keep what is computed meanwhile in this cache."""
        token = _ACTIVE.set(self)
        try:
            yield self
        finally:
            _ACTIVE.reset(token)

    @property
    def is_kept(self) -> bool:
        """Whether there is a folder, which other processes can read too."""
        return self._folder is not None

    def get(self, key: str, compute: Callable[[], Arrays]) -> dict[str, np.ndarray]:
        """Stored arrays of a key, or those that ``compute`` returns, stored for next time."""
        if self._folder is None:
            return dict(compute())
        path = self._path(self._folder, key)
        stored = _load(path)
        if stored is not None:
            return stored
        arrays = dict(compute())
        _store(path, arrays)
        return arrays

    def has(self, key: str) -> bool:
        """Whether a key is stored (it may still turn out to be damaged)."""
        return self._folder is not None and self._path(self._folder, key).is_file()

    @staticmethod
    def _path(folder: Path, key: str) -> Path:
        digest = hashlib.sha256(key.encode()).hexdigest()
        return folder / digest[:2] / f"{digest[2:]}.npz"


_ACTIVE: ContextVar[Cache] = ContextVar("cache")


def active_cache() -> Cache:
    """The cache of this run; one that keeps nothing if there is none."""
    return _ACTIVE.get(None) or Cache(None)


def _load(path: Path) -> dict[str, np.ndarray] | None:
    """Arrays of an entry; None if it is missing or damaged, so that it is computed again."""
    try:
        return read_arrays(path)
    except InputError:
        return None


def _store(path: Path, arrays: Arrays) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
