"""One vector per photograph by DINOv2, to find photographs that look alike; through transformers."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float32

from mbasfm.models.base import accelerator
from mbasfm.models.depth.network_depth import resized
from mbasfm.models.depth.transformers_depth import load_transformer, read_preparation
from mbasfm.models.weights import NEEDED, content_digest, find_snapshot
from mbasfm.types.observations import RGB

REPOSITORIES = ("facebook/dinov2-base", "facebook/dinov2-small")
"""Repositories of the weights (Apache-2.0); the first one on this machine is used."""
LONG_SIDE_PX = 322


class Dinov2:
    """Class token and mean of the patches, each of unit length, one after the other."""

    name = "DINOv2"

    @staticmethod
    def find() -> Path | None:
        """Folder of the weights, if they and transformers are on this machine."""
        folders = (find_snapshot(repository) for repository in REPOSITORIES) if find_spec("transformers") else ()
        return next((folder for folder in folders if folder is not None), None)

    def __init__(self, folder: Path):
        settings = read_preparation(folder)
        self._mean, self._std = (torch.tensor(settings[name]).view(1, 3, 1, 1) for name in ("image_mean", "image_std"))
        self._network = load_transformer(folder, "Dinov2Model", self.name).to(accelerator()).eval()
        self.key = f"dinov2-1-{LONG_SIDE_PX}-{content_digest(*(folder / name for name in NEEDED))}"

    @torch.inference_mode()
    def vector(self, image: RGB) -> Float32[np.ndarray, " D"]:
        """Vector of unit length for the whole image, whatever its shape."""
        step = int(self._network.config.patch_size)
        scale = LONG_SIDE_PX / max(image.shape[:2])
        sides = (max(step, round(side * scale / step) * step) for side in image.shape[:2])
        batch = (resized(image, *sides) - self._mean) / self._std
        tokens = self._network(batch.to(self._network.device)).last_hidden_state[0].float()
        parts = torch.nn.functional.normalize(torch.stack([tokens[0], tokens[1:].mean(0)]), dim=-1)
        return (parts.flatten() / 2**0.5).cpu().numpy()
