"""What depth networks of transformers share: finding weights, preparing images, batches.

Images are prepared here, by the numbers in preprocessor_config.json: the image processors of transformers need
torchvision, and one of them keeps the centres of the outermost pixels in place instead of the corners of the image.
"""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor
from torch.nn import functional

from mbasfm.errors import InputError, MissingExtraError
from mbasfm.io.images import Photo
from mbasfm.io.plain import read_json
from mbasfm.models.base import RGB, DepthEstimate
from mbasfm.models.weights import NEEDED, content_digest, fetch_command, find_snapshot, require_snapshot

RESAMPLING = {2: "bilinear", 3: "bicubic"}
"""By the numbers of Pillow."""
ACCELERATED_BATCH = 8


class MonocularDepth:
    """What the networks share; ``NAME``, ``NAME:VARIANT`` or ``NAME:FOLDER``."""

    name: ClassVar[str]
    model_class: ClassVar[str]
    repositories: ClassVar[dict[str, str]]
    """Of every variant; the first is the default."""
    licence: str
    download: str
    memory: str

    @classmethod
    def missing(cls) -> str:
        """The extra to install, or the command that gets the weights of the default variant."""
        if not find_spec("transformers"):
            return "pip install 'mbasfm[transformers]'"
        repository = next(iter(cls.repositories.values()))
        return "" if find_snapshot(repository) else fetch_command(repository)

    def __init__(self, argument: str = ""):
        if not find_spec("transformers"):
            raise MissingExtraError(f"depth from {self.name}", "transformers")
        repository = self.repositories[argument or next(iter(self.repositories))] if self._is_variant(argument) else ""
        folder = require_snapshot(self.name, "" if repository else argument, repository)
        self.licence = self.licence_of(argument)
        accelerator = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else ""
        self._device, self._dtype = torch.device(accelerator or "cpu"), torch.float16 if accelerator else torch.float32
        self.batch_size = ACCELERATED_BATCH if accelerator else 1
        self._settings = self._read_settings(folder)
        self._network = self._load(folder).to(self._device, self._dtype).eval()
        content = content_digest(*(folder / name for name in NEEDED))
        self.key = f"{self.name}-1-{content}-{self._dtype}"

    def _is_variant(self, argument: str) -> bool:
        return not argument or argument in self.repositories

    def licence_of(self, argument: str) -> str:
        """Of a variant; that of weights in a folder is theirs."""
        return self.licence if self._is_variant(argument) else "that of the weights"

    def _load(self, folder: Path) -> Any:
        import transformers

        transformers.utils.logging.disable_progress_bar()  # ours is the only one
        expected = getattr(transformers, self.model_class)
        kind = read_json(folder / "config.json").get("model_type")
        if kind != expected.config_class.model_type:
            raise InputError(f"{folder}: holds a network of type {kind!r}, not one for {self.name}")
        try:
            return expected.from_pretrained(folder, local_files_only=True, dtype=torch.float32)
        except Exception as error:  # transformers and safetensors have no common error type
            raise InputError(f"{folder}: cannot be read as {self.name} ({error}); get it again") from error

    def _read_settings(self, folder: Path) -> dict[str, Any]:
        path = folder / "preprocessor_config.json"
        settings = {"resample": 2} | read_json(path)
        if not {"size", "image_mean", "image_std"} <= set(settings) or settings["resample"] not in RESAMPLING:
            raise InputError(f"{path}: must have size, image_mean, image_std and resample 2 or 3")
        return settings

    def estimate(self, photo: Photo, image: RGB) -> DepthEstimate:
        """Depth of one image."""
        return self.estimate_batch([photo], [image])[0]

    @torch.inference_mode()
    def estimate_batch(
        self, photos: Sequence[Photo], images: Sequence[UInt8[np.ndarray, "_ _ 3"]]
    ) -> list[DepthEstimate]:
        """Depth of several images; those that have the same size go through the network together."""
        del photos
        found: dict[int, DepthEstimate] = {}
        for shape in sorted({image.shape for image in images}):
            members = [number for number, image in enumerate(images) if image.shape == shape]
            batch = torch.cat([self._prepare(images[number]) for number in members])
            output = self._network(batch.to(self._device, self._dtype))
            found |= dict(zip(members, self._interpret(output, shape[1], shape[0]), strict=True))
        return [found[number] for number in range(len(images))]

    def _prepare(self, image: RGB) -> Float[Tensor, "1 3 h w"]:
        """Corners stay on corners, so the map spans the whole image as our pixels do."""
        settings = self._settings
        tensor = torch.tensor(image).permute(2, 0, 1)[None].float() / 255
        height, width = network_size(image.shape[1], image.shape[0], settings)
        mode = RESAMPLING[settings["resample"]]
        resized = functional.interpolate(tensor, (height, width), mode=mode, antialias=True).clamp(0, 1)
        mean, std = (torch.tensor(settings[name]).view(1, 3, 1, 1) for name in ("image_mean", "image_std"))
        return (resized - mean) / std

    def _interpret(self, output: Any, width: int, height: int) -> list[DepthEstimate]:
        """What comes out is metric depth."""
        del width, height
        return [DepthEstimate(values, False, True) for values in to_arrays(output.predicted_depth)]


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


def to_arrays(maps: Float[Tensor, "B h w"]) -> list[np.ndarray]:
    """One array per image."""
    return list(maps.float().cpu().numpy())
