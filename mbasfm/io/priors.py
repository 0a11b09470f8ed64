"""Soft prior knowledge of poses, from metadata, a table, JSON, or any file of poses."""

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64

from mbasfm.errors import InputError
from mbasfm.io.colmap import is_number
from mbasfm.io.files import read_json
from mbasfm.io.gps import gps_positions, local_positions
from mbasfm.io.names import join_names
from mbasfm.io.poses import read_poses
from mbasfm.types.observations import Photo

POSITION, PLACE = ("x", "y", "z"), ("latitude", "longitude", "altitude")
SIGMAS = ("sigma_m", "sigma_deg")
COLUMNS = "name,x,y,z,sigma_m or name,latitude,longitude,altitude,sigma_m (sigma_m may be left out)"
ENTRY = '{"x": ..., "y": ..., "z": ...}, {"latitude": ..., "longitude": ..., "altitude": ...} or {"R": ..., "t": ...}'


@dataclass(frozen=True)
class Prior:
    """Prior knowledge of one photograph's pose."""

    cam_from_world: Float64[np.ndarray, "3 4"]
    """Prior pose; with the identity as rotation where only the position is known."""
    has_rotation: bool
    sigma_m: float | None
    """Standard deviation of the position [m]; None if not given."""
    sigma_deg: float | None


@dataclass(frozen=True)
class PriorFile:
    """Priors by name of photograph."""

    of_photo: dict[str, Prior]
    origin: dict[str, float]
    """Latitude, longitude [deg], altitude [m] of the origin, if positions are those of GPS."""


def read_priors(source: str, photos: Sequence[Photo], seconds: Mapping[str, float]) -> PriorFile:
    """Priors of ``exif`` (positions in the metadata), of a .csv, of a .json with positions, or of a file of poses."""
    path = Path(source)
    if source == "exif":
        found = gps_positions(photos)
        return PriorFile({name: _at(place) for name, place in found.of_photo.items()}, found.origin)
    if path.suffix == ".csv":
        return _join(dict(_table(path)), photos, path)
    content = _json_images(path) if path.suffix == ".json" else None
    if content is not None and not all(isinstance(entry, dict) and "R" in entry for entry in content.values()):
        return _join(dict(_json_rows(content, path)), photos, path)
    file = read_poses(path)
    rows = file.rows_of([photo.name for photo in photos], seconds)
    said = {name: _sigmas(entry, f"{path}, {name}") for name, entry in (content or {}).items()}
    return PriorFile(
        {name: Prior(file.cam_from_world[r], True, *said.get(file.names[r], (None, None))) for name, r in rows.items()},
        {},
    )


def _at(position: Float64[np.ndarray, " 3"], sigma_m: float | None = None) -> Prior:
    return Prior(np.column_stack([np.eye(3), -position]), False, sigma_m, None)


@dataclass(frozen=True)
class _Row:
    numbers: tuple[float, float, float | None]
    is_gps: bool
    sigma_m: float | None


def _join(rows: Mapping[str, _Row], photos: Sequence[Photo], path: Path) -> PriorFile:
    names = [photo.name for photo in photos]
    joined = join_names([*rows], names)
    if joined.unclear or not joined.entry_of:
        examples = f"it lists {', '.join([*rows][:2]) or 'none'}, photographs are {', '.join(names[:2])}"
        raise InputError(f"{path}: cannot tell which photographs it means; {examples}")
    mine = {name: rows[entry] for name, entry in joined.entry_of.items()}
    if len({row.is_gps for row in mine.values()}) > 1:
        raise InputError(f"{path}: some places are latitude and longitude and some x, y, z; use one of the two")
    if next(iter(mine.values())).is_gps:
        found = local_positions([*mine], [row.numbers for row in mine.values()])
        return PriorFile({name: _at(found.of_photo[name], row.sigma_m) for name, row in mine.items()}, found.origin)
    places = {name: np.array([value or 0.0 for value in row.numbers]) for name, row in mine.items()}
    return PriorFile({name: _at(places[name], row.sigma_m) for name, row in mine.items()}, {})


def _table(path: Path) -> Iterator[tuple[str, _Row]]:
    try:
        lines = list(csv.DictReader(path.read_text(encoding="utf-8-sig").splitlines(), skipinitialspace=True))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: cannot be read as a table ({error}); give {COLUMNS}") from error
    for number, line in enumerate(lines, start=2):
        place = f"{path}, line {number}"
        cells = {key: value for key, value in line.items() if key and isinstance(value, str) and value.strip()}
        try:
            values: dict[str, Any] = {key: float(cells[key]) for key in (*POSITION, *PLACE, *SIGMAS) if key in cells}
        except ValueError as error:
            raise InputError(f"{place}: not numbers ({error}); give {COLUMNS}") from error
        if "name" not in cells:
            raise InputError(f"{place}: no name; give {COLUMNS}")
        yield cells["name"], _row(values, place)


def _json_images(path: Path) -> dict[str, Any] | None:
    """The images of a JSON file, with its own standard deviations filled in; None if it is of another kind."""
    content = read_json(path)
    images = content.get("images") if isinstance(content, dict) else None
    if not isinstance(images, dict):
        return None
    usual = {key: content[key] for key in SIGMAS if key in content}
    return {name: {**usual, **entry} if isinstance(entry, dict) else entry for name, entry in images.items()}


def _json_rows(images: Mapping[str, Any], path: Path) -> Iterator[tuple[str, _Row]]:
    for name, entry in images.items():
        if not isinstance(entry, dict):
            raise InputError(f"{path}, {name}: must be {ENTRY}")
        yield name, _row(entry, f"{path}, {name}")


def _row(values: Mapping[str, Any], place: str) -> _Row:
    keys = POSITION if "x" in values else PLACE
    first, second, third = (float(values[key]) if is_number(values.get(key)) else None for key in keys)
    if first is None or second is None or (third is None and keys is POSITION):
        raise InputError(f"{place}: no position; give {', '.join(POSITION)} or {', '.join(PLACE)}")
    if not all(math.isfinite(value) for value in (first, second, third or 0.0)):
        raise InputError(f"{place}: positions must be finite")
    if keys is PLACE and (abs(first) > 90 or abs(second) > 180):
        raise InputError(f"{place}: latitude {first:g} and longitude {second:g} are no place on the earth")
    return _Row((first, second, third), keys is PLACE, _sigmas(values, place)[0])


def _sigmas(values: object, place: str) -> tuple[float | None, float | None]:
    """Standard deviations of position and rotation; None where not given."""
    found = [values.get(key) if isinstance(values, Mapping) else None for key in SIGMAS]
    for key, value in zip(SIGMAS, found, strict=True):
        if value is not None and not (is_number(value) and value > 0):
            raise InputError(f"{place}: {key} must be a positive number, not {value!r}")
    sigma_m, sigma_deg = (None if value is None else float(value) for value in found)
    return sigma_m, sigma_deg
