"""Files of our own, checked as they are read and never left half written: arrays, JSON, settings, and the cache.

An array is checked before memory is allocated: a damaged header may claim any size. JSON has finite numbers only, and
settings are TOML. An entry of the cache is one npz file, kept by the content it depends on. One that is damaged
nevertheless (the machine lost power) counts as missing. Who starts a run makes its cache the active one, so that stages
need not be handed it.
"""

import difflib
import hashlib
import io
import json
import math
import os
import sys
import tempfile
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_args, get_origin

import numpy as np

from mbasfm.config import Config, grouped
from mbasfm.errors import ConfigError, InputError

MOST_EXPANSION = 1100
"""Largest compression ratio that deflate can reach."""
HEADERS = {1: np.lib.format.read_array_header_1_0, 2: np.lib.format.read_array_header_2_0}
Arrays = Mapping[str, np.ndarray]
LARGEST = 1e300
"""Whole numbers may be larger than what a float holds."""
TYPES: Mapping[str, Any] = {field.name: field.type for field in fields(Config)}
TABLES = {group.name: tuple(settings) for group, settings in grouped(Config()).items()}
"""Names of the settings in each table."""


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


if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def read_json(path: Path) -> Any:
    """Contents of a JSON file; raises an error that names the damaged place."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        return json.loads(text, parse_float=_finite, parse_constant=_finite)
    except _NotFiniteError as error:
        line = text[: text.find(str(error))].count("\n") + 1
        raise InputError(f"{path}, line {line}: {error} is no finite number") from error
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: cannot be read as JSON ({error})") from error


def line_of(path: Path, words: str, occurrence: int = 1) -> int:
    """Line of a text file in which words stand for the n-th time, or for the last time if that is earlier."""
    found, text = -1, path.read_text(encoding="utf-8-sig")
    for _ in range(occurrence):
        following = text.find(words, found + 1)
        found = following if following >= 0 else found
    return text.count("\n", 0, max(found, 0)) + 1


class _NotFiniteError(ValueError):
    """Names the text that stands in place of a finite number."""


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise _NotFiniteError(text)
    return number


def plain_json(value: Any) -> Any:
    """Value for JSON, with null in place of NaN."""
    if isinstance(value, dict):
        return {key: plain_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_json(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def write_text(path: Path, text: str) -> None:
    """Write beside the file, then move, so that readers find either the old or the new one complete."""
    temporary = path.with_name(f"{path.name}.part")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


def read_config(path: Path, base: Config) -> Config:
    """The base with what the file says; unknown keys and values of the wrong type are refused."""
    given = {}
    for name, value in _settings_in(_parsed(path), path):
        if name in given:
            raise ConfigError(f"{path}: {name} is set twice, in a table and outside of it")
        if not _fits(value, TYPES[name]):
            raise ConfigError(f"{path}: {name} = {value!r} does not fit; expected {_name(TYPES[name])}")
        given[name] = _as(value, TYPES[name])
    return replace(base, **given)


def write_config(path: Path, config: Config) -> None:
    """Every setting, one per line in the table of its group; those that are not set are left out."""
    tables = [_table(group.name, settings) for group, settings in grouped(config).items()]
    write_text(path, "\n".join(filter(None, tables)))


def _table(name: str, settings: Mapping[str, Any]) -> str:
    """A table as text, which is empty where nothing is set."""
    # JSON's strings, numbers and truth values are written as in TOML.
    lines = [f"{key} = {json.dumps(value)}\n" for key, value in settings.items() if value is not None]
    return "".join([f"[{name}]\n", *lines]) if lines else ""


def _parsed(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: there is no such file") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise ConfigError(f"{path}: not readable as TOML ({error})") from error


def _settings_in(content: Mapping[str, Any], path: Path) -> Iterator[tuple[str, Any]]:
    """Names and values of all settings, whether they stand in the tables of their groups or, as of old, outside."""
    for key, value in content.items():
        # A group and a setting are both named cameras: only groups are tables.
        if isinstance(value, dict):
            _check_known(key, TABLES, f"{path}: unknown table")
            _check_at_home(key, value, path)
            yield from value.items()
        else:
            _check_known(key, TYPES, f"{path}: unknown setting")
            yield key, value


def _check_at_home(table: str, names: Iterable[str], path: Path) -> None:
    for name in names:
        _check_known(name, TYPES, f"{path}: unknown setting")
        if name not in TABLES[table]:
            home = next(other for other, settings in TABLES.items() if name in settings)
            raise ConfigError(f"{path}: {name} is no setting of [{table}]; move it to [{home}]")


def _check_known(name: str, known: Collection[str], trouble: str) -> None:
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"
        raise ConfigError(f"{trouble} {name!r}; {hint}")


def _fits(value: Any, kind: Any) -> bool:
    if kind is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < LARGEST
    if isinstance(kind, type):
        return type(value) is kind
    options = get_args(kind)
    if str(get_origin(kind)) == "typing.Literal":
        return value in options
    return any(_fits(value, option) for option in options if option is not type(None))


def _as(value: Any, kind: Any) -> Any:
    """Value as the kind of a setting; integers are accepted for floats."""
    wants_float = kind is float or float in get_args(kind)
    return float(value) if wants_float and isinstance(value, int) else value


def _name(kind: Any) -> str:
    if isinstance(kind, type):
        return {"float": "a number", "int": "a whole number", "bool": "true or false", "str": "a text"}[kind.__name__]
    options = [option for option in get_args(kind) if option is not type(None)]
    return " or ".join(repr(option) if isinstance(option, str) else _name(option) for option in options)
