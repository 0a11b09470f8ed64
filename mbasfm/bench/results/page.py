"""The HTML page of a results folder: tables and plots in one file that loads nothing."""

import math
import re
from collections.abc import Sequence
from html import escape
from string import Template

from mbasfm.bench.jobs import WHOLE
from mbasfm.bench.published import PublishedTable
from mbasfm.bench.recipe import Recipe
from mbasfm.bench.results.paired_differences import paired_table
from mbasfm.bench.results.summary import MEAN, Row, means, summarise
from mbasfm.bench.results.tables import ours_against_best, paired_title, pivots, run_table, stage_table, time_ratios
from mbasfm.bench.runner import Record
from mbasfm.evaluation.protocols import Protocol, find_protocol
from mbasfm.evaluation.score_files import CURVE_CM, CURVE_DEG
from mbasfm.report.figures import Axis, Line, line_chart, round_axis
from mbasfm.report.page import read_template

WORDS = ("scene", "variant", "method", "measure", "whose")
NUM_STYLES = 8
NUM_DASHES = 3
CURVE_TICKS_DEG = (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20)
CURVE_TICKS_CM = (0.5, 1, 2, 5, 10, 20, 50)


def render_bench(recipe: Recipe, records: Sequence[Record], published: Sequence[PublishedTable]) -> str:
    """The whole file as text."""
    rows, totals = summarise(records), means(recipe, records)
    failed = [record for record in records if record["status"] != "ok"]
    scenes = len({row.scene for row in rows})
    runs = f"{len(records)} runs over {scenes} scene{'s' * (scenes > 1)}; {len(failed) or 'none'} failed."
    summary = f"{runs} Version {records[0]['version']},"
    return Template(read_template("bench.html")).substitute(
        title=escape(recipe.title),
        style=read_template("report.css") + read_template("bench.css"),
        protocol=escape(recipe.protocol),
        summary=escape(f"{summary} {records[0]['machine']['cores']} cores, {records[0]['machine']['system']}."),
        notes=_notes("What to know", recipe.notes),
        plots=_plots(rows, totals, find_protocol(recipe.protocol)),
        tables="".join(_section(*table) for table in pivots(recipe, rows, totals, published))
        + _against(recipe, rows)
        + _paired(recipe, records)
        + _section("Seconds per stage", *stage_table(rows)),
        runs=_table(*run_table(rows, totals)),
        failures=_failures(failed),
        sources=_notes("Sources of published figures", _sources(published)),
    )


def _section(title: str, header: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    return f'<section><h2>{escape(title)}</h2><div class="scroll">{_table(header, body)}</div></section>'


def _against(recipe: Recipe, rows: Sequence[Row]) -> str:
    header, body = ours_against_best(recipe, rows)
    section = _section("Ours against the best of the others", header, body)
    return section.replace("</section>", f"<p>{escape(time_ratios(rows))}</p></section>") if body else ""


def _paired(recipe: Recipe, records: Sequence[Record]) -> str:
    header, body = paired_table(recipe, records)
    return _section(paired_title(recipe), header, body) if recipe.paired and body else ""


def _table(header: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """HTML of a table; columns of words and of published figures look different."""
    kinds = [
        " class=published" if name.endswith("(published)") else " class=words" if name in WORDS else ""
        for name in header
    ]
    head = "".join(f'<th scope="col"{kind}>{escape(name)}</th>' for name, kind in zip(header, kinds, strict=True))
    lines = []
    for cells in body:
        line = "".join(f"<td{kind}>{escape(cell)}</td>" for cell, kind in zip(cells, kinds, strict=True))
        lines.append(f"<tr{' class=mean' if re.split('[ ,]', cells[0])[0] == MEAN else ''}>{line}</tr>")
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


def _plots(rows: Sequence[Row], totals: Sequence[Row], protocol: Protocol) -> str:
    """Accuracy over thresholds and seconds over images, one line or colour per method and variant."""
    names = list(dict.fromkeys((row.method, row.variant) for row in rows))
    methods, variants = (list(dict.fromkeys(name[part] for name in names)) for part in (0, 1))
    style = {}
    for method, variant in names:
        color, dash = methods.index(method) % NUM_STYLES, variants.index(variant) % NUM_DASHES
        style[method, variant] = (
            f"series-{color} dash-{dash}" if len(methods) > 1 else _only_variants(variants, variant)
        )
    label = {name: name[0] if len({variant for _, variant in names}) == 1 else ", ".join(name) for name in names}
    figures = _accuracy(totals, style, label, protocol.absolute) + _time(rows, style, label)
    keys = "".join(
        f'<li><svg viewBox="0 0 30 8" aria-hidden="true"><line class="line {style[name]}" x2="30" y1="4" y2="4"/></svg>'
        f" {escape(label[name])}</li>"
        for name in names
    )
    return f'<div class="pair">{figures}</div><ul class="legend">{keys}</ul>'


def _only_variants(variants: Sequence[str], variant: str) -> str:
    """CSS classes of a variant; with one method, colours tell variants apart."""
    return f"series-{variants.index(variant) % NUM_STYLES} dash-0"


def _accuracy(
    totals: Sequence[Row], style: dict[tuple[str, str], str], label: dict[tuple[str, str], str], absolute: bool
) -> str:
    thresholds, marks, unit, caption = (
        (CURVE_CM, CURVE_TICKS_CM, "cm", "Images nearer than that, turned by less than 5 degrees, mean over scenes")
        if absolute
        else (CURVE_DEG, CURVE_TICKS_DEG, "deg", "Pairs with a smaller pose error, mean over scenes")
    )
    lines = []
    whole = [row for row in totals if row.group == WHOLE]
    for row in whole or totals:
        if row.scene == MEAN and len(row.curve) == len(thresholds):
            name = (row.method, row.variant)
            points = zip(map(math.log10, thresholds), row.curve, strict=True)
            lines.append(Line(label[name], style[name], tuple(points)))
    if not lines:
        return ""
    ticks = tuple((math.log10(tick), f"{tick:g}") for tick in marks)
    x = Axis(ticks[0][0], ticks[-1][0], ticks, f"threshold [{unit}]")
    y = Axis(0.0, 1.0, tuple((tick / 100, f"{tick} %") for tick in range(0, 101, 25)))
    return _figure(caption, line_chart("Accuracy", lines, x, y))


def _time(rows: Sequence[Row], style: dict[tuple[str, str], str], label: dict[tuple[str, str], str]) -> str:
    points: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for row in rows:
        if row.seconds is not None:
            points.setdefault((row.method, row.variant), []).append((float(row.num_images), row.seconds))
    if not points:
        return ""
    everything = [point for mine in points.values() for point in mine]
    x = round_axis([0.0, *(point[0] for point in everything)], "images")
    y = round_axis([0.0, *(point[1] for point in everything)])
    lines = [Line(label[name], style[name], tuple(mine), dots=True) for name, mine in points.items()]
    return _figure("Seconds against images, one point per scene", line_chart("Time", lines, x, y))


def _figure(caption: str, chart: str) -> str:
    return f"<figure>{chart}<figcaption>{escape(caption)}</figcaption></figure>"


def _failures(failed: Sequence[Record]) -> str:
    lines = [
        f"{record['job']['scene']}, {record['job']['variant']}, {record['job']['method']}: {record['status']}"
        for record in failed
    ]
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f"<h3>Failures, counted as all wrong</h3><ul>{items}</ul>" if failed else ""


def _sources(published: Sequence[PublishedTable]) -> list[str]:
    notes = [note for table in published for note in table.notes]
    return [f"{table.title}: {table.source}." for table in published] + list(dict.fromkeys(notes))


def _notes(title: str, notes: Sequence[str]) -> str:
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return f"<section><h2>{escape(title)}</h2><ul>{items}</ul></section>" if notes else ""
