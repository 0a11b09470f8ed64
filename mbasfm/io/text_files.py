"""Small text files: JSON with finite numbers only, and writing that a kill cannot leave half done."""

import json
import math
import os
from pathlib import Path
from typing import Any

from mbasfm.errors import InputError


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
