"""The page of a report: plain data to one self-contained HTML file.

Every text passes through ``escape``; the script puts names into the page as text only.
"""

import json
import math
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

from mbasfm.report.figures import Axis, Line, bar_chart, decade_axis, line_chart, round_axis

Data = dict[str, Any]
STAGES = {"start": "start", "adjust": "adjusted", "polish": "tracks after polish"}
PARTS = {"whole": "", "across": ", across the epipolar line", "tracks": ""}
COLUMNS = (
    ("name", "photograph"),
    ("component", "component"),
    ("neighbours", "neighbours"),
    ("inlier_share", "inliers"),
    ("sigma_deg", "direction ± °"),
    ("sigma_length", "position ±"),
    ("depth_error", "depth error"),
    ("reason", "reason"),
)
HIDDEN_FACTS = ("name", "seconds", "peak_memory_mb", "components")


def render_page(data: Data) -> str:
    """Text of the whole HTML file."""
    verdict = data["verdict"]
    return Template(read_template("report.html")).substitute(
        title=escape(data["title"]),
        style=read_template("report.css"),
        script=read_template("report.js"),
        data=script_json({key: data[key] for key in ("scene", "pairs")} | {"images": _named(data["images"])}),
        tone=verdict["tone"],
        headline=escape(verdict["headline"]),
        sureness=escape(verdict["sureness"]),
        remarks=_remarks(verdict["remarks"]),
        notes=_notes(data["notes"]),
        component_options=_component_options(data["scene"]),
        residuals=_residuals(data["residuals"]),
        steps=_steps(data["steps"]),
        cards="".join(map(_card, data["images"])),
        table=_table(data["images"]),
        stages=_stages(data["stages"]),
        cameras=_cameras(data["cameras"]),
        settings=_settings(data["settings"]),
    )


def script_json(value: Any) -> str:
    """JSON that cannot close the script element that holds it."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def read_template(name: str) -> str:
    """Text of a file among the package's templates."""
    return files("mbasfm").joinpath("report", "templates", name).read_text(encoding="utf-8")


def _named(images: Sequence[Data]) -> list[Data]:
    return [{"name": row["name"], "component": row["component"]} for row in images]


def _remarks(remarks: Sequence[Data]) -> str:
    items = []
    for remark in remarks:
        advice = f'<span class="advice">{escape(remark["advice"])}</span>' if remark["advice"] else ""
        items.append(f'<li class="{remark["tone"]}">{escape(remark["text"])} {advice}</li>')
    return "".join(items)


def _notes(notes: Sequence[str]) -> str:
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return f"<details><summary>Notes of the run</summary><ul>{items}</ul></details>" if notes else ""


def _component_options(scene: Sequence[Data]) -> str:
    labels = (f"component {number}, {len(item['frames'])} photographs" for number, item in enumerate(scene))
    return "".join(f'<option value="{number}">{label}</option>' for number, label in enumerate(labels))


# ----------------------------------------------------------------------------------------------------------------
# Charts


def _residuals(residuals: Data) -> str:
    """Charts of F and p of every stage over the residual, with equally wide bins on the axis."""
    curves = residuals["curves"]
    if not curves:
        return '<p class="empty">Nothing was adjusted, so there are no residuals.</p>'
    ticks = tuple((place, label) for place, label in residuals["ticks"])
    x = Axis(0.0, float(len(curves[0]["density"])), ticks, "residual r [px at a long side of 1024]")
    cdf = [_curve(item, [(float(number), f) for number, f in enumerate(item["cumulative"])]) for item in curves]
    pdf = [_curve(item, [(number + 0.5, p) for number, p in enumerate(item["density"])]) for item in curves]
    percent = Axis(0.0, 1.0, tuple((value / 100, f"{value} %") for value in range(0, 101, 25)))
    peak = round_axis([0.0, *(100 * p for item in curves for p in item["density"])])
    shares = Axis(0.0, peak.high / 100, tuple((value / 100, f"{label} %") for value, label in peak.ticks))
    figures = _figure("CDF: share of residuals below r", cdf, x, percent, residuals["limit"])
    figures += _figure("PDF: share of residuals per bin", pdf, x, shares, residuals["limit"])
    keys = "".join(
        f'<li><svg viewBox="0 0 30 8" aria-hidden="true"><line class="line {_style(item)}" x2="30" y1="4" y2="4"/>'
        f"</svg> {escape(_label(item))}</li>"
        for item in curves
    )
    return f'<div class="pair">{figures}</div><ul class="legend">{keys}</ul>'


def _figure(title: str, lines: Sequence[Line], x: Axis, y: Axis, outliers_from: float | None = None) -> str:
    chart = line_chart(title, lines, x, y, outliers_from)
    return f"<figure>{chart}<figcaption>{escape(title)}</figcaption></figure>"


def _curve(item: Data, points: Sequence[tuple[float, float]]) -> Line:
    return Line(_label(item), _style(item), tuple(points))


def _label(item: Data) -> str:
    return f"{STAGES[item['stage']]}{PARTS[item['part']]}: median {item['median_px']:.2g} px"


def _style(item: Data) -> str:
    return f"{item['stage']} {item['part']}"


def _steps(steps: Data) -> str:
    """Charts of loss, score and damping of each step; refused ones have a ring."""
    if not steps["number"]:
        return '<p class="empty">No step was taken.</p>'
    x = round_axis([float(number) for number in steps["number"]], "step of the solver")
    refused = [not accepted for accepted in steps["accepted"]]
    rows = (("loss", "Loss at the step's start", False), ("score", "Score after the step [px]", False))
    figures = ""
    for key, title, is_log in (*rows, ("damping", "Damping", True)):
        known = [
            (float(number), math.log10(value) if is_log else value, ring)
            for number, value, ring in zip(steps["number"], steps[key], refused, strict=True)
            if value is not None and (value > 0 or not is_log)
        ]
        values = [value for _, value, _ in known]
        y = decade_axis(values) if is_log else round_axis(values)
        line = Line(title, "adjust", tuple(row[:2] for row in known), tuple(row[2] for row in known))
        figures += _figure(title, [line], x, y) if known else ""
    return f'<div class="triple">{figures}</div>'


# ----------------------------------------------------------------------------------------------------------------
# Photographs


def _card(row: Data) -> str:
    """Entry of one photograph in the contact sheet."""
    name, placed = escape(row["name"]), row["component"] >= 0
    pictures = "".join(
        f'<img src="data:image/jpeg;base64,{escape(picture)}" alt="{what} {name}">' if picture else ""
        for picture, what in ((row["picture"], "photograph"), (row["depth_picture"], "depth of"))
    )
    facts = [f"inliers {_percent(row['inlier_share'])}", f"± {_number(row['sigma_deg'])}°"]
    facts += [f"depth ± {_percent(row['depth_error'])}"]
    text = " · ".join(facts) if placed else row["reason"]
    status = f"component {row['component']}" if placed else "not placed"
    return (
        f'<article class="card {"good" if placed else "bad"}"><div class="pictures">{pictures}</div>'
        f'<h3 title="{name}">{name}</h3><p class="status">{status}</p><p>{escape(text)}</p></article>'
    )


def _table(images: Sequence[Data]) -> str:
    head = "".join(
        f'<th scope="col" aria-sort="none"><button type="button">{escape(label)}</button></th>' for _, label in COLUMNS
    )
    body = "".join(_table_row(row) for row in images)
    return f'<table id="photographs"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def _table_row(row: Data) -> str:
    shown = dict(row)
    shown["component"] = "–" if row["component"] < 0 else row["component"]
    for key, show in (("inlier_share", _percent), ("depth_error", _percent)):
        shown[key] = show(row[key])
    for key in ("sigma_deg", "sigma_length"):
        shown[key] = _number(row[key])
    cells = "".join(
        f'<td data-value="{escape(_sort_key(row[key]))}">{escape(str(shown[key]))}</td>' for key, _ in COLUMNS
    )
    return f"<tr{'' if row['component'] >= 0 else ' class=bad'}>{cells}</tr>"


def _sort_key(value: Any) -> str:
    return "" if value is None else str(value)


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f} %"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2g}"


# ----------------------------------------------------------------------------------------------------------------
# The run


def _stages(stages: Sequence[Data]) -> str:
    seconds = [(stage["name"], stage["seconds"], f"{stage['seconds']:.1f} s") for stage in stages]
    memory = [
        (stage["name"], stage["peak_memory_mb"] or 0.0, f"{stage['peak_memory_mb'] or 0.0:,.0f} MB") for stage in stages
    ]
    rows = "".join(_stage_row(stage) for stage in stages)
    return (
        f'<div class="pair"><figure>{bar_chart("Seconds per stage", seconds)}<figcaption>Seconds</figcaption></figure>'
        f"<figure>{bar_chart('Peak memory so far', memory)}<figcaption>Peak memory so far</figcaption></figure></div>"
        f'<details><summary>What each stage says</summary><table class="plain"><tbody>{rows}</tbody></table></details>'
    )


def _stage_row(stage: Data) -> str:
    facts = [f"{key.replace('_', ' ')} {_fact(value)}" for key, value in stage.items() if key not in HIDDEN_FACTS]
    return f'<tr><th scope="row">{escape(stage["name"])}</th><td>{escape(", ".join(facts))}</td></tr>'


def _fact(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _cameras(cameras: Sequence[Data]) -> str:
    head = "".join(f"<th scope='col'>{label}</th>" for label in ("photographs", "size", "focal from", "start", "final"))
    body = "".join(
        f"<tr><td>{row['images']}</td><td>{row['width']} × {row['height']}</td><td>{escape(row['focal_from'])}</td>"
        f"<td>{_pixels(row['start_focal_px'])}</td><td>{_pixels(row['focal_px'])}</td></tr>"
        for row in cameras
    )
    return f'<table class="plain"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def _pixels(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f} px"


def _settings(settings: Data) -> str:
    rows = "".join(
        f'<tr><th scope="row">{escape(key)}</th><td>{escape("–" if value is None else str(value))}</td></tr>'
        for key, value in settings.items()
    )
    return f'<table class="plain"><tbody>{rows}</tbody></table>'
