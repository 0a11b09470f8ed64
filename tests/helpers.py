"""What several test files share."""

from pathlib import Path

import torch
from PIL import Image

from mbasfm.synthetic.cameras import make_cameras, render
from mbasfm.synthetic.depth_errors import DepthError
from mbasfm.synthetic.problem import MatchError
from mbasfm.synthetic.solids import make_room

EXACT_DEPTH = DepthError(scale=0.0, shift=0.0, smooth=0.0, edge_blur_px=0.0, outliers=0.0, noise=0.0)
EXACT_MATCH = MatchError(noise_px=0.0, outliers=0.0, repeated=0.0)
HANG_S = 600.0
"""Nothing takes so long, however slow or busy the machine is: what does has hung."""


def assert_close(actual: torch.Tensor, expected: torch.Tensor, atol: float = 1e-12, rtol: float = 1e-10) -> None:
    """Equal up to rounding in float64."""
    torch.testing.assert_close(actual, expected, atol=atol, rtol=rtol)


def photograph_room(folder: Path, count: int, size: tuple[int, int]) -> Path:
    """Save photographs of a made-up room as 0.png, 1.png, ...; returns the folder."""
    scene = make_room(0)
    cameras = make_cameras(scene, count, 0, size=size)
    for frame in range(count):
        Image.fromarray(render(scene, cameras, frame)[0].numpy()).save(folder / f"{frame}.png")
    return folder
