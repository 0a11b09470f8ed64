"""The chart of pose accuracy over depth noise: one panel per scene and kind of noise, drawn as SVG."""

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

PATH = Path(__file__).parent.parent / "docs" / "depth_noise.svg"
PANEL_WIDTH, PANEL_HEIGHT, LEFT, TOP, GAP, LEGEND = 300, 190, 62, 40, 56, 40
COLORS = ("#0072b2", "#0072b2", "#d55e00", "#d55e00")
"""Colour-blind safe; what has no polish is dashed."""


def draw(rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> Path:
    """One row of panels per scene; levels are at equal distances, as they are not equally far apart."""
    scenes, kinds = (list(dict.fromkeys(row[key] for row in rows)) for key in ("scene", "noise"))
    width = LEFT + len(kinds) * (PANEL_WIDTH + GAP)
    height = TOP + len(scenes) * (PANEL_HEIGHT + GAP) + LEGEND
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif"'
        ' font-size="13" fill="#222"><rect width="100%" height="100%" fill="#fff"/>'
    ]
    for down, scene in enumerate(scenes):
        for across, kind in enumerate(kinds):
            mine = [row for row in rows if row["scene"] == scene and row["noise"] == kind]
            left, top = LEFT + across * (PANEL_WIDTH + GAP), TOP + down * (PANEL_HEIGHT + GAP)
            parts += _panel(f"{scene}, {kind} noise", mine, columns, left, top)
    for number, column in enumerate(columns):
        x, y = LEFT + 170 * number, height - 16
        line = f'<line x1="{x}" x2="{x + 34}" y1="{y - 4}" y2="{y - 4}" {_stroke(number, column)}/>'
        parts.append(f'{line}<text x="{x + 42}" y="{y}">{escape(column)}</text>')
    PATH.write_text("\n".join([*parts, "</svg>\n"]))
    return PATH


def _panel(title: str, rows: Sequence[dict[str, Any]], columns: Sequence[str], left: int, top: int) -> list[str]:
    values = [row[column] for row in rows for column in columns if column in row]
    high = max(0.1, -(-max(values) * 10 // 1) / 10)

    def x(number: int) -> float:
        return left + PANEL_WIDTH * number / max(1, len(rows) - 1)

    def y(value: float) -> float:
        return top + PANEL_HEIGHT * (1 - value / high)

    parts = [f'<text x="{left}" y="{top - 10}" font-weight="bold">{escape(title)}</text>']
    for step in range(5):
        value = high * step / 4
        parts.append(
            f'<line x1="{left}" x2="{x(len(rows) - 1)}" y1="{y(value):.1f}" y2="{y(value):.1f}" stroke="#ddd"/>'
        )
        parts.append(f'<text x="{left - 8}" y="{y(value) + 4:.1f}" text-anchor="end">{value:.3g}</text>')
    for number, row in enumerate(rows):
        label = f"{100 * row['level']:g} %"
        parts.append(f'<text x="{x(number):.1f}" y="{top + PANEL_HEIGHT + 18}" text-anchor="middle">{label}</text>')
    for number, column in enumerate(columns):
        there = [(place, row[column]) for place, row in enumerate(rows) if column in row]
        path = " ".join(f"{x(place):.1f},{y(value):.1f}" for place, value in there)
        parts.append(f'<polyline points="{path}" fill="none" {_stroke(number, column)}/>')
    place = f'transform="translate({left - 46} {top + PANEL_HEIGHT / 2}) rotate(-90)" text-anchor="middle"'
    return [*parts, f"<text {place}>{rows[0]['measure']}</text>"]


def _stroke(number: int, column: str) -> str:
    dashes = ' stroke-dasharray="6 4"' if "no polish" in column else ""
    return f'stroke="{COLORS[number]}" stroke-width="2"{dashes}'
