"""Keypoints of XFeat's cells, to a fraction of a pixel."""

import itertools
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

CELL_PX = 8
"""Width of the cells in which the network chooses one pixel as keypoint."""
GRID_STEP_PX = 2
"""The grid of cells is laid in all ways that differ by it, here 16. With a single one, keypoints stick to the cells:
half as exact, and an image and the same image moved by a pixel differ by a tenth."""
MIN_HEAT = 0.02
RADIUS_PX = 2
"""A keypoint is the hottest pixel within this radius."""


def heat_of(network: Any, grey: Float[Tensor, "1 1 H W"]) -> Float[Tensor, "1 1 H W"]:
    """Keypoint score of every pixel, averaged over all placements of the grid."""
    normal = network.norm(grey)
    starts = range(0, CELL_PX, GRID_STEP_PX)
    total = torch.zeros_like(grey)
    for start in itertools.product(starts, starts):
        # What is rolled over the border is wrong only there, where no peaks are looked for.
        cells = functional.pixel_unshuffle(normal.roll((-start[0], -start[1]), (2, 3)), CELL_PX)
        # The last class is "no keypoint in this cell".
        share = network.keypoint_head(cells).softmax(1)[:, :-1]
        total += functional.pixel_shuffle(share, CELL_PX).roll(start, (2, 3))
    return total / len(starts) ** 2


def find_peaks(heat: Float[Tensor, "H W"]) -> Int[Tensor, "M 2"]:
    """Column and row of local maxima that are hot enough and not at the border."""
    hottest = functional.max_pool2d(heat[None, None], 2 * RADIUS_PX + 1, stride=1)[0, 0]
    inner = heat[RADIUS_PX:-RADIUS_PX, RADIUS_PX:-RADIUS_PX]
    return ((inner == hottest) & (inner > MIN_HEAT)).nonzero().flip(1) + RADIUS_PX


def offsets(heat: Float[Tensor, "1 1 H W"], peaks: Int[Tensor, "M 2"]) -> Float[Tensor, "M 2"]:
    """Offset of each peak to the centre of mass around it."""
    side = 2 * RADIUS_PX + 1
    step = (torch.arange(side, device=heat.device) - RADIUS_PX).float().expand(side, side)
    kernels = torch.stack([torch.ones_like(step), step, step.T])[:, None]
    moments = functional.conv2d(heat, kernels, padding=RADIUS_PX)[0][:, peaks[:, 1], peaks[:, 0]]
    return (moments[1:] / moments[:1]).T


def sample(cells: Float[Tensor, "1 C h w"], peaks: Int[Tensor, "M 2"], mode: str) -> Float[Tensor, "M C"]:
    """Values at the centres of pixels, interpolated between cells."""
    size = CELL_PX * torch.tensor(cells.shape[:1:-1], device=cells.device)
    grid = 2 * (peaks + 0.5) / size - 1
    return functional.grid_sample(cells, grid[None, None], mode=mode, align_corners=False)[0, :, 0].T
