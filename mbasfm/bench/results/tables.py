"""Tables of a benchmark: scenes by methods, ours against the others, seconds and runs; Markdown."""

from collections.abc import Iterator, Sequence

import numpy as np

from mbasfm.bench.jobs import WHOLE
from mbasfm.bench.published import PublishedTable, Value
from mbasfm.bench.recipe import Recipe
from mbasfm.bench.results.paired_differences import paired_table
from mbasfm.bench.results.summary import MEAN, Row, means, summarise
from mbasfm.bench.runner import Record
from mbasfm.evaluation.protocols import find_protocol


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
    parts += ["## Seconds per stage", "", *_markdown_table(*stage_table(rows)), ""]
    parts += ["## Runs", "", *_markdown_table(*run_table(rows, totals)), ""]
    if published:
        parts += ["## Sources of published figures", ""]
        parts += [f"- {table.title}: {table.source}." for table in published]
        parts += [f"- Note: {note}" for note in dict.fromkeys(note for table in published for note in table.notes)]
    return "\n".join(parts).rstrip() + "\n"


def paired_title(recipe: Recipe) -> str:
    """Title of the table of differences with intervals."""
    return f"Minus {recipe.paired}, with paired-bootstrap 95 % intervals"


def pivots(
    recipe: Recipe, rows: Sequence[Row], totals: Sequence[Row], published: Sequence[PublishedTable]
) -> list[tuple[str, list[str], list[list[str]]]]:
    """For each variant and measure a table of scenes by methods: title, header, body."""
    tables = []
    missing, pools = set(recipe.scenes) - {row.scene for row in rows}, find_protocol(recipe.protocol).pooled
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
                note = " over all pairs" if scene == MEAN and pools else ""
                note += f" of {len(recipe.scenes) - len(missing)} of {len(recipe.scenes)} scenes" if partial else ""
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
    return ["scene", "variant", "method", "measure", "ours", "best other", "difference", "ratio", "whose"], body


def _best_first(rows: Sequence[Row], measures: Sequence[str]) -> list[Row]:
    """Rows ordered by the first measure; the next one decides between equals."""

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
    """Whether lower values of the measure are better."""
    return measure.startswith(("ATE", "median", "largest", "beyond")) or measure.endswith(
        ("seconds", "ms per image", "ms per pair")
    )


def is_ours(method: str) -> bool:
    """Whether a method is one of ours: ours, or ours-WAY."""
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


def stage_table(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Header and body: mean seconds of every stage, those of all methods side by side."""
    stages = list(dict.fromkeys(stage for row in rows for stage in row.stages))
    body = []
    for row in rows:
        texts = [f"{row.stages[stage]:.1f}" if stage in row.stages else "" for stage in stages]
        body.append([_place(row.scene, row.group), row.variant, row.method, *texts])
    return ["scene", "variant", "method", *stages], body


def value_text(value: Value | None) -> str:
    """Value with three decimals; small numbers in powers of ten."""
    if value is None or isinstance(value, str):
        return value or ""
    return f"{value:.3f}" if abs(value) >= 0.01 or value == 0 else f"{value:.1e}"


# ----------------------------------------------------------------------------------------------------------------


def _place(scene: str, group: str) -> str:
    return scene if group == WHOLE else f"{scene}, {group}"


def _cell(rows: Sequence[Row], scene: str, group: str, method: str, measure: str) -> str:
    found = [row for row in rows if (row.scene, row.group, row.method) == (scene, group, method)]
    return value_text(found[0].measures.get(measure)) if found else ""


def _count_failed(records: Sequence[Record]) -> str:
    failed = sum(record["status"] != "ok" for record in records)
    return "No run failed." if not failed else f"{failed} failed; they count as all wrong."


def _markdown_table(header: Sequence[str], body: Sequence[Sequence[str]]) -> list[str]:
    return ["| " + " | ".join(cells) + " |" for cells in (header, ["---"] * len(header), *body)]
