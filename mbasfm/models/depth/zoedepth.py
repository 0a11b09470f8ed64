"""ZoeDepth through transformers."""

import math
from collections.abc import Sequence
from typing import Any

import cv2
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from mbasfm.models.depth.network_depth import to_arrays
from mbasfm.models.depth.transformers_depth import MonocularDepth
from mbasfm.types.observations import RGB, DepthEstimate, Photo


class ZoeDepth(MonocularDepth):
    """Metric depth; images get a reflected border, as in training, which is cut off the map."""

    name = "zoedepth"
    model_class = "ZoeDepthForDepthEstimation"
    repositories = {name: f"Intel/zoedepth-{name}" for name in ("nyu-kitti", "nyu", "kitti")}
    licence = "MIT"
    download, memory = "1.4 GB", "2.5 GB"
    cpu_seconds = 37.0

    def _prepare(self, image: RGB) -> Float[Tensor, "1 3 h w"]:
        down, across = (border_px(side) for side in image.shape[:2])
        return super()._prepare(cv2.copyMakeBorder(image, down, down, across, across, cv2.BORDER_REFLECT_101))

    def _interpret(self, output: Any, photos: Sequence[Photo]) -> list[DepthEstimate]:
        inner = cut_border(output.predicted_depth[:, None].float(), photos[0].width, photos[0].height)[:, 0]
        return [DepthEstimate(values, False, True) for values in to_arrays(inner)]


def border_px(side_px: int) -> int:
    """Width of the border, by ZoeDepth's own rule."""
    return int(3 * math.sqrt(side_px / 2))


def cut_border(padded: Float[Tensor, "B 1 h w"], width: int, height: int) -> Float[Tensor, "B 1 H W"]:
    """The part of a map that shows the image without its border, to a fraction of a pixel."""
    shares = [side / (side + 2 * border_px(side)) for side in (width, height)]
    theta = torch.tensor([[shares[0], 0, 0], [0, shares[1], 0]], device=padded.device).expand(len(padded), 2, 3)
    rows, columns = round(padded.shape[2] * shares[1]), round(padded.shape[3] * shares[0])
    grid = functional.affine_grid(theta, [len(padded), 1, rows, columns], align_corners=False)
    return functional.grid_sample(padded, grid, align_corners=False)
