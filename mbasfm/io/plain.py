"""Small text files: JSON with finite numbers only, and writing that a kill cannot leave half done."""

import json
import math
import os
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


def write_text(path: Path, text: str) -> None:
    """Write beside the file, then move: whoever reads it finds the old one or the new one, whole."""
    temporary = path.with_name(f"{path.name}.part")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)
