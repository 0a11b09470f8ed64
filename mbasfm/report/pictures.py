"""Small pictures for reports: depth in colours, matches, and JPEG text that a page can hold."""

import base64
from collections.abc import Sequence
from io import BytesIO

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, UInt8
from PIL import Image, ImageDraw
from torch import Tensor

from mbasfm.types.observations import DepthEstimate

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
