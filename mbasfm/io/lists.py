"""Photographs, and pairs of them, that somebody else chose: text files with one or two names per line."""

import difflib
import json
import re
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

import numpy as np
from jaxtyping import Int64

from mbasfm.errors import InputError

WORD, CELL = (re.compile(rf"""\s*(?:"([^"]+)"|'([^']+)'|({bare}+))""") for bare in (r"\S", r"[^\t]"))
"""A name in quotes or without. A quote counts only at the start: an apostrophe inside a name is part of it."""


def read_pairs(path: Path, names: Sequence[str]) -> Int64[np.ndarray, "P 2"]:
    """Numbers i < j of the named photographs, sorted, each pair once.

    Names with spaces are put in quotes, or separated by a tab. Empty lines and what follows # are left out.
    """
    number_of = {name: number for number, name in enumerate(names)}
    pairs: list[tuple[int, int]] = []
    for line_number, line in enumerate(_read_lines(path), start=1):
        words = _split(line)
        if not words:
            continue
        place = f"{path}, line {line_number}"
        if len(words) != 2:
            advice = "put names with spaces in quotes, or a tab between the two"
            raise InputError(f"{place}: {len(words)} names instead of two ({line.strip()!r}); {advice}")
        first, second = (_find(word, number_of, place) for word in words)
        if first == second:
            raise InputError(f"{place}: pairs {words[0]} with itself; remove the line")
        pairs.append((min(first, second), max(first, second)))
    if not pairs:
        raise InputError(f"{path}: no pairs in it; write two names of photographs per line")
    return np.unique(np.array(pairs, dtype=np.int64), axis=0)


def read_names(path: Path, key: str) -> list[str]:
    """Names of photographs, one per line, or the list that a JSON object has under a key."""
    if path.suffix != ".json":
        names = [line.strip() for line in _read_lines(path, "one name")]
        return [name for name in names if name and not name.startswith("#")]
    try:
        names = json.loads(path.read_text(encoding="utf-8-sig"))[key]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f'{path}: has no list "{key}" of names ({error!r})') from error
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InputError(f'{path}: "{key}" must be a list of names of photographs')
    return names


def _read_lines(path: Path, what: str = "two names") -> list[str]:
    try:
        return path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read ({error}); give a text file with {what} per line") from error


def _split(line: str) -> list[str]:
    """Names separated by spaces or, if those do not make two, by tabs."""
    words, cells = (_names(pattern, line.strip()) for pattern in (WORD, CELL))
    return cells if len(words) != 2 and len(cells) == 2 else words


def _names(pattern: re.Pattern[str], line: str) -> list[str]:
    """Names of a line up to an unquoted #."""
    found = takewhile(lambda match: not (match[3] or "").startswith("#"), pattern.finditer(line))
    return [(match[1] or match[2] or match[3]).strip() for match in found]


def _find(name: str, number_of: dict[str, int], place: str) -> int:
    if name in number_of:
        return number_of[name]
    close = difflib.get_close_matches(name, number_of, n=1, cutoff=0)
    advice = f"the closest name is {close[0]}" if close else "there are no photographs"
    raise InputError(f"{place}: no photograph is named {name}; {advice}")
