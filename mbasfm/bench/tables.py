"""From records of runs to tables: means over seeds and draws, then over scenes; Markdown."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mbasfm.bench.jobs import WHOLE
from mbasfm.bench.paired import paired_table
from mbasfm.bench.published import PublishedTable, Value
from mbasfm.bench.recipe import Recipe
from mbasfm.bench.runner import Record
from mbasfm.bench.tasks import MAPPING_STAGES
from mbasfm.metrics import pooled
from mbasfm.protocols import find_protocol

MEAN = "mean"
Group = tuple[str, str, str, str]
"""Scene, group of subsets, variant, method."""


@dataclass(frozen=True)
class Row:
    """Runs of one method on one scene, in the mean."""

    scene: str
    group: str
    variant: str
    method: str
    measures: Mapping[str, float | None]
    """None where a run has no such number."""
    num_images: int
    registered: str
    seconds: float | None
    """All stages; None for subsets, whose features are those of the scene."""
    mapping_seconds: float | None
    """Of stages from first poses to the end."""
    peak_memory_mb: float | None
    runs: int
    failed: int
    strangers: int | None
    """Images of other scenes that were placed; None if none were mixed in."""
    curve: tuple[float, ...]


def summarise(records: Sequence[Record]) -> list[Row]:
    """One row per scene, group, variant and method, in the order of the records."""
    groups: dict[Group, list[Record]] = {}
    for record in records:
        groups.setdefault(_group(record), []).append(record)
    return [_row(group, mine) for group, mine in groups.items()]


def means(recipe: Recipe, records: Sequence[Record]) -> list[Row]:
    """Over all scenes: the mean of their values or, if the protocol pools, over all their pairs.

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
    """Every run counts the same, or every pair if the protocol pools."""
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


def markdown(recipe: Recipe, records: Sequence[Record], published: Sequence[PublishedTable]) -> str:
    """The whole report as text."""
    rows, totals = summarise(records), means(recipe, records)
    parts = [
        f"# {recipe.title}",
        "",
        f"Protocol `{recipe.protocol}`, {len(records)} runs. {_count_failed(records)}",
        "",
    ]
    parts += [f"- {note}" for note in recipe.notes] + [""] * bool(recipe.notes)
    for title, header, body in pivots(recipe, rows, totals, published):
        parts += [f"## {title}", "", *_markdown_table(header, body), ""]
    against = ours_against_best(recipe, rows)
    if against[1]:
        parts += ["## Ours against the best of the others", "", *_markdown_table(*against), "", time_ratios(rows), ""]
    intervals = paired_table(recipe, records)
    if recipe.paired and intervals[1]:
        parts += [f"## {paired_title(recipe)}", "", *_markdown_table(*intervals), ""]
    parts += ["## Runs", "", *_markdown_table(*run_table(rows, totals)), ""]
    if published:
        parts += ["## Sources of published figures", ""]
        parts += [f"- {table.title}: {table.source}." for table in published]
        parts += [f"- Note: {note}" for note in dict.fromkeys(note for table in published for note in table.notes)]
    return "\n".join(parts).rstrip() + "\n"


def paired_title(recipe: Recipe) -> str:
    """Of the table of differences with intervals."""
    return f"Minus {recipe.paired}, with paired-bootstrap 95 % intervals"


def pivots(
    recipe: Recipe, rows: Sequence[Row], totals: Sequence[Row], published: Sequence[PublishedTable]
) -> list[tuple[str, list[str], list[list[str]]]]:
    """For each variant and measure a table of scenes by methods: title, header, body."""
    tables = []
    missing = set(recipe.scenes) - {row.scene for row in rows}
    for variant in dict.fromkeys(row.variant for row in rows):
        mine = [row for row in (*rows, *totals) if row.variant == variant]
        methods = list(dict.fromkeys(row.method for row in mine))
        theirs = [table for table in published if table.variant in ("", variant)]
        for measure in recipe.measures:
            others = [(table, name) for table in theirs if measure in table.columns for name in table.methods]
            header = ["scene", *methods, *(f"{name} (published)" for _, name in others)]
            places = dict.fromkeys((row.scene, row.group) for row in mine)
            if not any(scene in table.rows for table, _ in others for scene, _ in places):
                places |= dict.fromkeys((scene, WHOLE) for table, _ in others for scene in table.rows)
            body = []
            for scene, group in places:
                cells = [_cell(mine, scene, group, method, measure) for method in methods]
                partial = scene == MEAN and bool(missing)  # a published mean is over all scenes
                if group == WHOLE and not partial:
                    cells += [value_text(table.value(scene, name, measure)) for table, name in others]
                else:
                    cells += [""] * len(others)
                note = f" of {len(recipe.scenes) - len(missing)} of {len(recipe.scenes)} scenes" if partial else ""
                body.append([_place(scene, group) + note, *cells])
            tables.append((measure if variant == "default" else f"{measure}, {variant}", header, body))
    return tables


def ours_against_best(recipe: Recipe, rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Header and body. The best of the others is chosen with the truth: in their favour."""
    body = []
    for row, others in _with_others(rows):
        for measure in recipe.measures:
            mine = row.measures.get(measure)
            ranked = _best_first(others, (recipe.rival, *recipe.measures) if recipe.rival else (measure,))
            best = ranked[0].measures.get(measure) if ranked else None
            if mine is not None and best is not None:
                place = [_place(row.scene, row.group), row.variant, row.method, measure]
                ratio = f"{mine / best:.2f}" if best > 0 else ""
                values = [value_text(mine), value_text(best), f"{mine - best:+.3f}", ratio]
                body.append([*place, *values, ranked[0].method])
    return ["scene", "variant", "method", "measure", "ours", "best other", "difference", "ratio", "of"], body


def _best_first(rows: Sequence[Row], measures: Sequence[str]) -> list[Row]:
    """By the first measure; the next one decides between equals."""

    def badness(row: Row) -> tuple[float, ...]:
        values = ((name, row.measures.get(name)) for name in measures)
        return tuple(np.inf if value is None else value if is_error(name) else -value for name, value in values)

    return sorted((row for row in rows if row.measures.get(measures[0]) is not None), key=badness)


def time_ratios(rows: Sequence[Row]) -> str:
    """One sentence: ours over the fastest of the others, summed over all rows."""
    found = []
    for what, key in (("all stages", "seconds"), ("mapping", "mapping seconds")):
        mine, theirs = 0.0, 0.0
        for row, others in ((row, others) for row, others in _with_others(rows) if row.method == "ours"):
            times = [time for other in others if (time := other.measures[key]) is not None]
            time = row.measures[key]
            if times and time is not None:
                mine, theirs = mine + time, theirs + min(times)
        if theirs:
            found.append(f"{what} {mine / theirs:.2f}")
    return f"Time of ours over the fastest of the others: {', '.join(found) or 'not known'}."


def is_error(measure: str) -> bool:
    """Whether less is better."""
    return measure.startswith(("ATE", "median", "largest", "beyond")) or measure.endswith(
        ("seconds", "ms per image", "ms per pair")
    )


def is_ours(method: str) -> bool:
    """Whether it is one of our own methods: ours, or ours-WAY."""
    return method.partition("-")[0] == "ours"


def _with_others(rows: Sequence[Row]) -> Iterator[tuple[Row, list[Row]]]:
    for row in rows:
        same = [r for r in rows if (r.scene, r.group, r.variant) == (row.scene, row.group, row.variant)]
        others = [other for other in same if not is_ours(other.method)]
        if is_ours(row.method) and others:
            yield row, others


def run_table(rows: Sequence[Row], totals: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Header and body: what each row cost."""
    header = [
        "scene",
        "variant",
        "method",
        "images",
        "registered",
        "strangers",
        "s",
        "of which mapping",
        "MB",
        "runs",
        "failed",
    ]
    body = []
    for row in (*rows, *totals):
        numbers = (row.seconds, row.mapping_seconds, row.peak_memory_mb)
        texts = ["" if number is None else f"{number:.1f}" if number < 1000 else f"{number:.0f}" for number in numbers]
        counts = [
            str(row.num_images),
            row.registered,
            "" if row.strangers is None else str(row.strangers),
            *texts,
            str(row.runs),
            str(row.failed),
        ]
        body.append([_place(row.scene, row.group), row.variant, row.method, *counts])
    if all(row.strangers is None for row in rows):
        keep = [number for number, name in enumerate(header) if name != "strangers"]
        header, body = [header[k] for k in keep], [[cells[k] for k in keep] for cells in body]
    return header, body


def value_text(value: Value | None) -> str:
    """Three digits after the point; small numbers in powers of ten."""
    if value is None or isinstance(value, str):
        return value or ""
    return f"{value:.3f}" if abs(value) >= 0.01 or value == 0 else f"{value:.1e}"


# ----------------------------------------------------------------------------------------------------------------


def _group(record: Record) -> Group:
    job = record["job"]
    return job["scene"], job["group"], job["variant"], job["method"]


def _place(scene: str, group: str) -> str:
    return scene if group == WHOLE else f"{scene}, {group}"


def _cell(rows: Sequence[Row], scene: str, group: str, method: str, measure: str) -> str:
    found = [row for row in rows if (row.scene, row.group, row.method) == (scene, group, method)]
    return value_text(found[0].measures.get(measure)) if found else ""


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
    )


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
    """None if one of the numbers is not known: an average over fewer would flatter failures."""
    found: dict[str, float | None] = {}
    for name in dict.fromkeys(name for row in measures for name in row):
        values = [row.get(name) for row in measures]
        known = [value for value in values if value is not None]
        found[name] = float(np.mean(known)) if len(known) == len(values) else None
    return found


def _pooled(records: Sequence[Record]) -> dict[str, float | None]:
    weights = [record["num_pairs"] for record in records]
    found: dict[str, float | None] = {}
    for name in records[0]["measures"]:
        values = [record["measures"][name] for record in records]
        found[name] = None if None in values else pooled(values, weights)
    return found


def _count_failed(records: Sequence[Record]) -> str:
    failed = sum(record["status"] != "ok" for record in records)
    return "No run failed." if not failed else f"{failed} failed; they count as all wrong."


def _markdown_table(header: Sequence[str], body: Sequence[Sequence[str]]) -> list[str]:
    return ["| " + " | ".join(cells) + " |" for cells in (header, ["---"] * len(header), *body)]
