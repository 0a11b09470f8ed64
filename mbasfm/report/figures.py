"""Figures of reports: charts as SVG, and small pictures of depth and matches as JPEG text that a page can hold."""

import base64
import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from io import BytesIO

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, UInt8
from PIL import Image, ImageDraw
from torch import Tensor

from mbasfm.types.observations import DepthEstimate

WIDTH, HEIGHT = 460, 270
LEFT, RIGHT, TOP, BOTTOM = 68, 14, 14, 40
BAR_HEIGHT, BAR_LABEL, BAR_VALUE = 24, 100, 130
JPEG_QUALITY = 72
DEPTH_COLORS = (
    (252, 253, 191),
    (254, 176, 120),
    (241, 96, 93),
    (183, 55, 121),
    (114, 31, 129),
    (44, 17, 95),
    (0, 0, 4),
)
"""Colours from near to far, in even steps of lightness."""
OUTLIER_COLOR = (255, 60, 60)
MAX_LINES = 400
"""Largest number of matches drawn in a picture; more would cover it."""


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


def depth_picture(depth: Float[Tensor, "H W"]) -> np.ndarray:
    """Logarithm of the depth, scaled to [0, 1] within the frame; 1 where it is infinite."""
    log_depth = depth.double().log()
    finite = log_depth[log_depth.isfinite()]
    if len(finite) == 0:
        return np.ones(tuple(depth.shape))
    low, high = np.quantile(finite.numpy(), (0.01, 0.99))
    shade = (log_depth.clamp_max(high) - low) / max(high - low, 1e-9)
    return shade.nan_to_num(nan=1.0).clamp(0, 1).numpy()


def color_depth(estimate: DepthEstimate, long_side: int) -> UInt8[np.ndarray, "h w 3"]:
    """A depth or disparity map as a small picture: light is near, dark is far."""
    values = torch.from_numpy(estimate.values)
    shade = depth_picture(values.reciprocal() if estimate.is_disparity else values)
    image = Image.fromarray((255 * shade).round().astype(np.uint8))
    image.thumbnail((long_side, long_side))
    position = np.asarray(image, dtype=np.float64) / 255 * (len(DEPTH_COLORS) - 1)
    table = np.array(DEPTH_COLORS, dtype=np.float64)
    planes = [np.interp(position, np.arange(len(table)), column) for column in table.T]
    return np.stack(planes, -1).round().astype(np.uint8)


def match_picture(
    images: Sequence[UInt8[np.ndarray, "_ _ 3"]],
    pixels: Sequence[Float64[np.ndarray, "M 2"]],
    inliers: Bool[np.ndarray, " M"],
) -> UInt8[np.ndarray, "h w 3"]:
    """Two images side by side: inliers as lines whose colour shows where they start, other matches as dots."""
    height = max(image.shape[0] for image in images)
    padded = [np.pad(image, ((0, height - image.shape[0]), (0, 0), (0, 0))) for image in images]
    canvas = Image.fromarray(np.concatenate(padded, 1) // 2 + 64)
    draw = ImageDraw.Draw(canvas)
    shift = np.array([images[0].shape[1], 0])
    width = max(1, height // 500)
    for start, end in zip(pixels[0][~inliers], (pixels[1] + shift)[~inliers], strict=True):
        for x, y in (start, end):
            draw.ellipse((x - width, y - width, x + width, y + width), fill=OUTLIER_COLOR)
    order = np.flatnonzero(inliers)
    for k in order[:: max(1, len(order) // MAX_LINES)]:
        hue = int(255 * pixels[0][k, 0] / images[0].shape[1])
        draw.line((*pixels[0][k], *(pixels[1][k] + shift)), fill=f"hsv({hue * 360 // 255}, 90%, 95%)", width=width)
    return np.asarray(canvas)


def jpeg_text(image: UInt8[np.ndarray, "h w 3"]) -> str:
    """A picture as base64 of a JPEG file."""
    buffer = BytesIO()
    Image.fromarray(image).save(buffer, format="JPEG", quality=JPEG_QUALITY, optimize=True)
    return base64.b64encode(buffer.getvalue()).decode("ascii")
