"""Line and bar charts as SVG text; colours are classes of the page's style sheet."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 460, 270
LEFT, RIGHT, TOP, BOTTOM = 68, 14, 14, 40
BAR_HEIGHT, BAR_LABEL, BAR_VALUE = 24, 100, 130


@dataclass(frozen=True)
class Line:
    """One curve of a chart."""

    label: str
    style: str
    """Class names of the style sheet."""
    points: tuple[tuple[float, float], ...]
    marked: tuple[bool, ...] = ()
    """Which points are drawn with a ring; none if empty."""
    dots: bool = False
    """Whether to draw points instead of a line between them."""


@dataclass(frozen=True)
class Axis:
    """Range and ticks; values are already in the unit in which the axis is linear."""

    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    label: str = ""

    def share(self, value: float) -> float:
        """Position of a value between the ends, 0 to 1."""
        return min(max((value - self.low) / max(self.high - self.low, 1e-30), 0.0), 1.0)


def line_chart(title: str, lines: Sequence[Line], x: Axis, y: Axis, outliers_from: float | None = None) -> str:
    """SVG of curves over a grid, shaded to the right of ``outliers_from``."""
    parts = [f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">']
    parts.append(f"<title>{escape(title)}</title>")
    if outliers_from is not None:
        begin = _x(x, outliers_from)
        shape = f'x="{begin:.1f}" y="{TOP}" width="{WIDTH - RIGHT - begin:.1f}" height="{HEIGHT - TOP - BOTTOM}"'
        parts.append(f'<rect class="outliers" {shape}/>')
        parts.append(f'<text class="hint" x="{begin + 6:.1f}" y="{TOP + 14}">outliers</text>')
    parts += _grid(x, y)
    for line in lines:
        name = f"<title>{escape(line.label)}</title>"
        if line.dots:
            places = [f'cx="{_x(x, px):.1f}" cy="{_y(y, py):.1f}"' for px, py in line.points]
            parts += [f'<circle class="dot {line.style}" {place} r="4">{name}</circle>' for place in places]
        else:
            path = " ".join(f"{_x(x, px):.1f},{_y(y, py):.1f}" for px, py in line.points)
            parts.append(f'<polyline class="line {line.style}" points="{path}">{name}</polyline>')
        for (px, py), marked in zip(line.points, line.marked, strict=False):
            if marked:
                parts.append(f'<circle class="ring" cx="{_x(x, px):.1f}" cy="{_y(y, py):.1f}" r="4"/>')
    return "".join([*parts, "</svg>"])


def _grid(x: Axis, y: Axis) -> list[str]:
    parts = []
    for value, label in x.ticks:
        across = f"{_x(x, value):.1f}"
        parts.append(f'<line class="grid" x1="{across}" x2="{across}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>')
        parts.append(f'<text x="{across}" y="{HEIGHT - BOTTOM + 15}" text-anchor="middle">{escape(label)}</text>')
    for value, label in y.ticks:
        place = _y(y, value)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{place:.1f}" y2="{place:.1f}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{place + 4:.1f}" text-anchor="end">{escape(label)}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 6}" text-anchor="middle">{escape(x.label)}</text>')
    return parts


def _x(axis: Axis, value: float) -> float:
    return LEFT + axis.share(value) * (WIDTH - LEFT - RIGHT)


def _y(axis: Axis, value: float) -> float:
    return HEIGHT - BOTTOM - axis.share(value) * (HEIGHT - TOP - BOTTOM)


def round_axis(values: Sequence[float], label: str = "", count: int = 5) -> Axis:
    """An axis around the values with ticks at round numbers."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    if high - low < 1e-9 * max(abs(high), 1e-9):
        low, high = low - 0.5 * max(abs(low), 1e-9), high + 0.5 * max(abs(high), 1e-9)
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    first, last = math.floor(low / step), math.ceil(high / step)
    ticks = tuple((number * step, f"{number * step:.6g}") for number in range(first, last + 1))
    return Axis(first * step, last * step, ticks, label)


def decade_axis(values: Sequence[float], label: str = "") -> Axis:
    """An axis of powers of ten; values are logarithms to base 10."""
    low = math.floor(min(values, default=0.0))
    high = max(math.ceil(max(values, default=1.0)), low + 1)
    stride = max(1, -(-(high - low) // 6))
    ticks = tuple((float(power), f"1e{power}") for power in range(low, high + 1, stride))
    return Axis(float(low), float(high), ticks, label)


def bar_chart(title: str, rows: Sequence[tuple[str, float, str]]) -> str:
    """SVG of horizontal bars, given by name, length, and the text beside each."""
    height = BAR_HEIGHT * len(rows) + 4
    longest = max((value for _, value, _ in rows), default=1.0) or 1.0
    room = WIDTH - BAR_LABEL - BAR_VALUE
    parts = [f'<svg class="chart bars" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}">']
    parts.append(f"<title>{escape(title)}</title>")
    for number, (name, value, text) in enumerate(rows):
        top, length = number * BAR_HEIGHT + 4, max(value / longest * room, 1.0)
        parts.append(f'<text x="{BAR_LABEL - 8}" y="{top + 13}" text-anchor="end">{escape(name)}</text>')
        parts.append(f'<rect class="bar" x="{BAR_LABEL}" y="{top}" width="{length:.1f}" height="17" rx="3"/>')
        parts.append(f'<text x="{BAR_LABEL + length + 6:.1f}" y="{top + 13}">{escape(text)}</text>')
    return "".join([*parts, "</svg>"])
