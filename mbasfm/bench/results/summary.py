"""From records of runs to rows: means over seeds and draws, then over scenes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from mbasfm.bench.jobs import WHOLE
from mbasfm.bench.recipe import Recipe
from mbasfm.bench.runner import Record
from mbasfm.bench.tasks.base import MAPPING_STAGES
from mbasfm.evaluation.metrics import pooled
from mbasfm.evaluation.protocols import find_protocol

MEAN = "mean"
Group = tuple[str, str, str, str]
"""Scene, group of subsets, variant, method."""


@dataclass(frozen=True)
class Row:
    """Mean of the runs of one method on one scene."""

    scene: str
    group: str
    variant: str
    method: str
    measures: Mapping[str, float | None]
    """Values by measure; None where a run lacks one."""
    num_images: int
    registered: str
    seconds: float | None
    """Seconds of all stages; None for subsets, which share the scene's features."""
    mapping_seconds: float | None
    """Seconds of the stages from first poses to the end."""
    peak_memory_mb: float | None
    runs: int
    failed: int
    strangers: int | None
    """Number of images of other scenes that got a pose; None if none were mixed in."""
    curve: tuple[float, ...]
    stages: Mapping[str, float] = field(default_factory=dict)
    """Mean seconds by name."""


def summarise(records: Sequence[Record]) -> list[Row]:
    """One row per scene, group, variant and method, in the order of the records."""
    groups: dict[Group, list[Record]] = {}
    for record in records:
        groups.setdefault(_group(record), []).append(record)
    return [_row(group, mine) for group, mine in groups.items()]


def means(recipe: Recipe, records: Sequence[Record]) -> list[Row]:
    """Rows over all scenes: the mean of their values or, if the protocol pools, over all their pairs.

    Scenes of a dataset with parts, PART/SCENE, have a mean for each part too; bags of several sizes one over all bags.
    """
    found: dict[Group, list[Row]] = {}
    for row in summarise(records):
        for name in (*([row.scene.split("/")[0]] if "/" in row.scene else []), MEAN):
            found.setdefault((name, row.group, row.variant, row.method), []).append(row)
    pools = find_protocol(recipe.protocol).pooled
    totals = []
    for group, mine in sorted(found.items(), key=lambda item: item[0][0] == MEAN):
        measures = _mean_measures([row.measures for row in mine])
        if pools:
            scenes = {row.scene for row in mine}
            same = [r for r in records if r["job"]["scene"] in scenes and _group(r)[1:] == group[1:]]
            measures |= _pooled(same)
        totals.append(_total(group, mine, measures))
    return totals + _over_all_groups(totals, records, pools)


def _over_all_groups(totals: Sequence[Row], records: Sequence[Record], pools: bool) -> list[Row]:
    """Rows over all groups: every run counts the same, or every pair if the protocol pools."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in totals:
        if row.scene == MEAN:
            found.setdefault((row.variant, row.method), []).append(row)
    overall = []
    for (variant, method), mine in found.items():
        if len(mine) > 1:
            same = [record for record in records if _group(record)[2:] == (variant, method)]
            measures = _pooled(same) if pools else _mean_measures([record["measures"] for record in same])
            overall.append(_total((MEAN, WHOLE, variant, method), mine, measures))
    return overall


# ----------------------------------------------------------------------------------------------------------------


def _group(record: Record) -> Group:
    job = record["job"]
    return job["scene"], job["group"], job["variant"], job["method"]


def _row(group: Group, records: Sequence[Record]) -> Row:
    fine = [record for record in records if record["status"] == "ok"]
    whole = [record for record in fine if not record["job"]["names"]]  # features of a subset are those of its scene
    seconds = [sum(record["stages"].values()) for record in whole]
    mapping = [sum(s for name, s in record["stages"].items() if name in MAPPING_STAGES) for record in fine]
    worst = min(records, key=lambda record: record["num_registered"])
    curves = [record["curve"] for record in records if record["curve"]]
    total, mapped = (float(np.mean(times)) if times else None for times in (seconds, mapping))
    return Row(
        *group,
        {**_mean_measures([record["measures"] for record in records]), "seconds": total, "mapping seconds": mapped},
        max(record["num_images"] for record in records),
        f"{worst['num_registered']}/{worst['num_images']}",
        total,
        mapped,
        max((record["peak_memory_mb"] for record in fine), default=None),
        len(records),
        len(records) - len(fine),
        max((record["num_strangers"] for record in records if record["job"]["strangers"]), default=None),
        tuple(np.mean(curves, axis=0).tolist()) if curves else (),
        _mean_stages(fine),
    )


def _mean_stages(records: Sequence[Record]) -> dict[str, float]:
    """Mean seconds by stage; a stage that a run did not need took no time."""
    names = dict.fromkeys(name for record in records for name in record["stages"])
    return {name: float(np.mean([record["stages"].get(name, 0.0) for record in records])) for name in names}


def _total(group: Group, rows: Sequence[Row], measures: Mapping[str, float | None]) -> Row:
    seconds = [row.seconds for row in rows if row.seconds is not None]
    mapping = [row.mapping_seconds for row in rows if row.mapping_seconds is not None]
    placed = [tuple(map(int, row.registered.split("/"))) for row in rows]
    curves = [row.curve for row in rows if row.curve]
    return Row(
        *group,
        measures,
        sum(row.num_images for row in rows),
        f"{sum(count[0] for count in placed)}/{sum(count[1] for count in placed)}",
        float(np.mean(seconds)) if seconds else None,
        float(np.mean(mapping)) if mapping else None,
        max((row.peak_memory_mb for row in rows if row.peak_memory_mb is not None), default=None),
        sum(row.runs for row in rows),
        sum(row.failed for row in rows),
        sum(counts) if (counts := [row.strangers for row in rows if row.strangers is not None]) else None,
        tuple(np.mean(curves, axis=0).tolist()) if curves else (),
    )


def _mean_measures(measures: Sequence[Mapping[str, float | None]]) -> dict[str, float | None]:
    """Mean of each measure; None if a number is unknown, as an average over fewer would flatter failures."""
    found: dict[str, float | None] = {}
    for name in dict.fromkeys(name for row in measures for name in row):
        values = [row.get(name) for row in measures]
        known = [value for value in values if value is not None]
        found[name] = float(np.mean(known)) if len(known) == len(values) else None
    return found


def _pooled(records: Sequence[Record]) -> dict[str, float | None]:
    weights = [record["num_pairs"] for record in records]
    found: dict[str, float | None] = {}
    for name in dict.fromkeys(name for record in records for name in record["measures"]):
        values = [record["measures"].get(name) for record in records]
        known = [value for value in values if value is not None]
        found[name] = pooled(known, weights) if len(known) == len(values) else None
    return found
