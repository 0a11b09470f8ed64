"""Small pictures for reports: depth in colours, and JPEG text that a page can hold."""

import base64
from io import BytesIO

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import Image
from torch import Tensor

from mbasfm.models.base import DepthEstimate

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
"""From near to far, of even steps in lightness."""


def depth_picture(depth: Float[Tensor, "H W"]) -> np.ndarray:
    """Logarithm of the depth, spread over [0, 1] within the frame; what is infinitely far is 1."""
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


def jpeg_text(image: UInt8[np.ndarray, "h w 3"]) -> str:
    """A picture as base64 of a JPEG file."""
    buffer = BytesIO()
    Image.fromarray(image).save(buffer, format="JPEG", quality=JPEG_QUALITY, optimize=True)
    return base64.b64encode(buffer.getvalue()).decode("ascii")
