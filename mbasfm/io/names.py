"""Matching the entries of other people's files to photographs by name."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath


@dataclass(frozen=True)
class Joined:
    """Names of photographs with their entries."""

    entry_of: dict[str, str]
    unclear: tuple[str, ...]
    """Photographs that match several entries, or entries that match several photographs."""


def join_names(entries: Sequence[str], photos: Sequence[str]) -> Joined:
    """Join by the same path; else by the same file name; else by the same file name without its ending.

    Of several entries with the same file name the one with most folders in common is meant, if it is one.
    """
    exact = set(entries) & set(photos)
    entry_of = {name: name for name in photos if name in exact}
    unclear: list[str] = []
    for part in (_file, _stem):
        free = [entry for entry in entries if entry not in entry_of.values()]
        left = [name for name in photos if name not in entry_of and name not in unclear]
        proposed = dict(_propose(free, left, part))
        wanted = Counter(entry for entry in proposed.values() if entry is not None)
        for name, entry in proposed.items():
            if entry is None or wanted[entry] > 1:
                unclear.append(name)
            else:
                entry_of[name] = entry
    return Joined({name: entry_of[name] for name in photos if name in entry_of}, tuple(unclear))


def _propose(
    entries: Sequence[str], photos: Sequence[str], part: Callable[[str], str]
) -> Iterator[tuple[str, str | None]]:
    """Best entry for each photograph that has candidates; None if several are equally good."""
    candidates: dict[str, list[str]] = {}
    for entry in entries:
        candidates.setdefault(part(entry), []).append(entry)
    for name in photos:
        near = candidates.get(part(name), [])
        if near:
            shared = [_shared_folders(name, entry) for entry in near]
            best = max(shared)
            yield name, near[shared.index(best)] if shared.count(best) == 1 else None


def _file(name: str) -> str:
    return PurePosixPath(name).name


def _stem(name: str) -> str:
    return PurePosixPath(name).stem


def _shared_folders(first: str, second: str) -> int:
    count = 0
    for a, b in zip(*(reversed(PurePosixPath(name).parts[:-1]) for name in (first, second)), strict=False):
        if a != b:
            break
        count += 1
    return count
