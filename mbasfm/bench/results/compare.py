"""Two results folders side by side: which scenes moved."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mbasfm.bench.runner import Record

NOISE = 0.005
"""Smallest difference that is reported."""
Key = tuple[str, str, str, str]
"""Scene, group, variant, method."""


@dataclass(frozen=True)
class Move:
    """A measure of one scene that has changed."""

    scene: str
    group: str
    variant: str
    method: str
    measure: str
    before: float
    after: float
    spread: float
    """Standard error of the difference, over common seeds and draws."""

    @property
    def is_beyond_noise(self) -> bool:
        """Whether the change exceeds twice its standard error."""
        return abs(self.after - self.before) > max(NOISE, 2 * self.spread)


def compare(before: Sequence[Record], after: Sequence[Record], measures: Sequence[str]) -> list[Move]:
    """Changes of all common scenes, largest first."""
    old, new = _groups(before), _groups(after)
    moves = []
    for key in (key for key in new if key in old):
        runs = [run for run in new[key] if run in old[key]]
        for measure in measures:
            sides = [[side[key][run]["measures"].get(measure) for run in runs] for side in (old, new)]
            if not runs or any(value is None for side in sides for value in side):
                continue
            one, other = np.array(sides, dtype=float)
            spread = float(np.std(other - one, ddof=1) / len(runs) ** 0.5) if len(runs) > 1 else 0.0
            moves.append(Move(*key, measure, float(one.mean()), float(other.mean()), spread))
    return sorted(moves, key=lambda move: -abs(move.after - move.before))


def only_in_one(before: Sequence[Record], after: Sequence[Record]) -> tuple[list[Key], list[Key]]:
    """Keys that only the first has, and that only the second has."""
    old, new = _groups(before), _groups(after)
    return [key for key in old if key not in new], [key for key in new if key not in old]


def _groups(records: Sequence[Record]) -> dict[Key, dict[tuple[str, int], Record]]:
    """Runs that are averaged, by subset and seed."""
    found: dict[Key, dict[tuple[str, int], Record]] = {}
    for record in records:
        job = record["job"]
        key = (job["scene"], job["group"], job["variant"], job["method"])
        found.setdefault(key, {})[job["subset"], job["seed"]] = record
    return found
