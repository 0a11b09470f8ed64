"""Positions of photographs from their metadata: metres east, north and up of the first."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pycolmap
from jaxtyping import Float64

from mbasfm.types.observations import Photo


@dataclass(frozen=True)
class Positions:
    """East, north, up [m] by name, and the origin."""

    of_photo: dict[str, Float64[np.ndarray, " 3"]]
    origin: dict[str, float]
    """Latitude, longitude [deg], altitude [m]; empty if no photograph has a position."""


def gps_positions(photos: Sequence[Photo]) -> Positions:
    """Positions of the photographs whose metadata have one; a missing altitude is the median of the others."""
    known = [(photo.name, photo.gps) for photo in photos if photo.gps is not None]
    if not known:
        return Positions({}, {})
    places = [gps for _, gps in known]
    return local_positions([name for name, _ in known], places)


def local_positions(names: Sequence[str], places: Sequence[tuple[float, float, float | None]]) -> Positions:
    """Positions from latitude, longitude and altitude; the first place is the origin."""
    altitudes = [altitude for *_, altitude in places if altitude is not None]
    usual = float(np.median(altitudes)) if altitudes else 0.0
    rows = np.array([(lat, lon, usual if altitude is None else altitude) for lat, lon, altitude in places])
    enu = pycolmap.GPSTransform(pycolmap.GPSTransformEllipsoid.WGS84).ellipsoid_to_enu(rows, *rows[0])
    origin = dict(zip(("latitude", "longitude", "altitude"), rows[0].tolist(), strict=True))
    return Positions(dict(zip(names, enu, strict=True)), origin)
