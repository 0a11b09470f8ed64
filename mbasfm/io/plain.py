"""JSON files: plain values, all numbers finite."""

import json
import math
from pathlib import Path
from typing import Any

from mbasfm.errors import InputError


def read_json(path: Path) -> Any:
    """What a JSON file holds, or an error that says where it is damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"), parse_float=_finite, parse_constant=_finite)
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: cannot be read as JSON ({error})") from error


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is no finite number")
    return number
