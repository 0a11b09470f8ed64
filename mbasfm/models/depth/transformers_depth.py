"""Base of depth networks of transformers: loading, and preparing images.

Images are prepared here, by the numbers in preprocessor_config.json: the image processors of transformers need
torchvision, and one of them keeps the centres of the outermost pixels in place instead of the corners of the image.
"""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from mbasfm.errors import InputError, MissingExtraError
from mbasfm.io.files import read_json
from mbasfm.models.depth.network_depth import NetworkDepth, resized, to_arrays
from mbasfm.types.observations import RGB, DepthEstimate, Photo

RESAMPLING = {2: "bilinear", 3: "bicubic"}
"""Interpolation by Pillow's numbers."""


class MonocularDepth(NetworkDepth):
    """A depth network of transformers."""

    model_class: ClassVar[str]

    @classmethod
    def missing_code(cls) -> str:
        """The extra to install."""
        return "" if find_spec("transformers") else "pip install 'mbasfm[transformers]'"

    def __init__(self, argument: str = ""):
        if not find_spec("transformers"):
            raise MissingExtraError(f"depth from {self.name}", "transformers")
        super().__init__(argument)

    @property
    def _dtype(self) -> torch.dtype:
        return torch.float16 if self._is_fast else torch.float32

    def _load(self, folder: Path) -> Any:
        self._settings = read_preparation(folder)
        return load_transformer(folder, self.model_class, self.name)

    def _prepare(self, image: RGB) -> Float[Tensor, "1 3 h w"]:
        return prepare(image, self._settings)

    def _interpret(self, output: Any, photos: Sequence[Photo]) -> list[DepthEstimate]:
        """Depth estimates from an output of metric depth."""
        del photos
        return [DepthEstimate(values, False, True) for values in to_arrays(output.predicted_depth)]


def load_transformer(folder: Path, model_class: str, name: str) -> Any:
    """A network of transformers; raises InputError if the folder holds another kind."""
    import transformers

    transformers.utils.logging.disable_progress_bar()  # ours is the only one
    expected = getattr(transformers, model_class)
    kind = read_json(folder / "config.json").get("model_type")
    if kind != expected.config_class.model_type:
        raise InputError(f"{folder}: holds a network of type {kind!r}, not one for {name}")
    try:
        return expected.from_pretrained(folder, local_files_only=True, dtype=torch.float32)
    except Exception as error:  # transformers and safetensors have no common error type
        raise InputError(f"{folder}: cannot be read as {name} ({error}); get it again") from error


def read_preparation(folder: Path) -> dict[str, Any]:
    """Size and colours according to preprocessor_config.json."""
    path = folder / "preprocessor_config.json"
    settings = {"resample": 2} | read_json(path)
    if not {"size", "image_mean", "image_std"} <= set(settings) or settings["resample"] not in RESAMPLING:
        raise InputError(f"{path}: must have size, image_mean, image_std and resample 2 or 3")
    return settings


def prepare(image: RGB, settings: dict[str, Any]) -> Float[Tensor, "1 3 h w"]:
    """Image with the size and colours that the network expects."""
    height, width = network_size(image.shape[1], image.shape[0], settings)
    mean, std = (torch.tensor(settings[name]).view(1, 3, 1, 1) for name in ("image_mean", "image_std"))
    return (resized(image, height, width, RESAMPLING[settings["resample"]]) - mean) / std


def network_size(width: int, height: int, settings: dict[str, Any]) -> tuple[int, int]:
    """Height and width the network takes: the scale nearest to one fits a side, then both are rounded."""
    scales = [settings["size"]["height"] / height, settings["size"]["width"] / width]
    if settings.get("keep_aspect_ratio"):
        scales = [min(scales, key=lambda scale: abs(1 - scale))] * 2
    step = max(1, int(settings.get("ensure_multiple_of", 1)))
    rows, columns = (
        max(step, round(side * scale / step) * step) for side, scale in zip((height, width), scales, strict=True)
    )
    return rows, columns
