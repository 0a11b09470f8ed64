"""Results kept by the content they depend on; safe against a kill at any moment.

An entry is one npz file, written beside its place and moved there. One that is damaged nevertheless (the machine lost
power) counts as missing. Who starts a run makes its cache the active one, so that stages need not be handed it.
"""

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

import numpy as np

from mbasfm.errors import InputError
from mbasfm.io.arrays import read_arrays

Arrays = Mapping[str, np.ndarray]


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
