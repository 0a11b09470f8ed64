"""Differences between methods pair by pair, or query by query, with bootstrap intervals."""

import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from jaxtyping import Float64

from mbasfm.bench.recipe import Recipe
from mbasfm.bench.runner import Record

BOOTSTRAPS = 2000
LEVEL = 95.0
POOLED = "all"
Errors = Float64[np.ndarray, "M E"]
"""One row per pair or query."""
Rows = dict[tuple[str, str, str], dict[tuple[str, ...], Sequence[float]]]
"""Errors by scene, variant and method, then by subset, seed and name."""


def paired_table(recipe: Recipe, records: Sequence[Record]) -> tuple[list[str], list[list[str]]]:
    """Header and body: every method minus the one that the recipe names, set by set and over all of them."""
    gains = {name: gain for name in recipe.measures if (gain := gain_of(name)) is not None}
    rows = _errors(records)
    body = []
    for scene, variant, method in rows:
        theirs = rows.get((scene, variant, recipe.paired))
        if method == recipe.paired or theirs is None:
            continue
        mine = rows[scene, variant, method]
        both = [key for key in mine if key in theirs]
        sides = [np.array([row[key] for key in both], dtype=float) for row in (mine, theirs)]
        if both:
            cells = [interval_text(gain(sides[0]) - gain(sides[1])) for gain in gains.values()]
            body.append([scene, variant, method, str(len(both)), *cells])
    body.sort(key=lambda cells: cells[0] == POOLED)
    return ["scene", "variant", "method", "pairs", *gains], body


def gain_of(measure: str) -> Callable[[Errors], Float64[np.ndarray, " M"]] | None:
    """Function from errors to what each adds to a measure that is a mean; None for other measures."""
    area = re.fullmatch(r"AUC@([\d.]+)( folded)?", measure)
    if area is not None:
        limit = float(area[1])
        return lambda errors: np.clip(1 - errors[:, 0] / limit, 0, None)
    share = re.fullmatch(r"([\d.]+)cm/([\d.]+)deg", measure)
    if share is not None:
        centimetres, degrees = float(share[1]), float(share[2])
        return lambda errors: ((errors[:, 0] < centimetres) & (errors[:, 1] < degrees)).astype(float)
    return None


def interval(gain: Float64[np.ndarray, " M"]) -> tuple[float, float, float]:
    """Mean and its 95 % bootstrap interval."""
    drawn = np.random.default_rng(0).integers(0, len(gain), (BOOTSTRAPS, len(gain)))
    low, high = np.percentile(gain[drawn].mean(1), (50 - LEVEL / 2, 50 + LEVEL / 2))
    return float(gain.mean()), float(low), float(high)


def interval_text(gain: Float64[np.ndarray, " M"]) -> str:
    """Mean and interval as text for tables."""
    mean, low, high = interval(gain)
    return f"{mean:+.3f} [{low:+.3f}, {high:+.3f}]"


def _errors(records: Sequence[Record]) -> Rows:
    """Errors of each scene, and of all scenes together."""
    found: Rows = {}
    for record in records:
        job = record["job"]
        for scene in (job["scene"], POOLED):
            mine = found.setdefault((scene, job["variant"], job["method"]), {})
            for name, values in _finite(record.get("errors", {})).items():
                mine[job["scene"], job["subset"], str(job["seed"]), name] = values
    return found


def _finite(errors: Mapping[str, Sequence[float | None]]) -> dict[str, list[float]]:
    """Errors with infinity restored: JSON has null for it."""
    return {name: [np.inf if value is None else value for value in values] for name, values in errors.items()}
