"""Depth from UniDepth: metres, rays and so the focal length."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mbasfm.models.clones import Code
from mbasfm.models.depth.clone_depth import ForeignDepth
from mbasfm.models.depth.network_depth import from_points, resized, to_arrays
from mbasfm.types.observations import RGB, DepthEstimate, Photo

MAX_SIDE_PX = 1024
"""Larger images are shrunk: the network itself sees fewer pixels."""


class UniDepth(ForeignDepth):
    """Metric depth, and the focal length that the point map's rays tell."""

    name = "unidepth"
    code = Code("lpiccinelli-eth/UniDepth", modules=("unidepth.models",))
    repositories = {
        "v2-large": "lpiccinelli/unidepth-v2-vitl14",
        "v2-base": "lpiccinelli/unidepth-v2-vitb14",
        "v2-small": "lpiccinelli/unidepth-v2-vits14",
        "v1-large": "lpiccinelli/unidepth-v1-vitl14",
    }
    needed = ("config.json", "model.safetensors")
    licence = "CC-BY-NC-4.0, non-commercial (code and weights)"
    download, memory = "1.4 GB", "3 GB, estimated"
    cpu_seconds = 25.0

    def _load(self, folder: Path) -> Any:
        models = self._import()
        network = models.UniDepthV1 if self._variant.startswith("v1") else models.UniDepthV2
        return network.from_pretrained(str(folder))

    def _prepare(self, image: RGB) -> Float[Tensor, "1 3 h w"]:
        """Image with colours in 0..255, which the network normalises."""
        shrink = min(1.0, MAX_SIDE_PX / max(image.shape[:2]))
        return 255 * resized(image, *(max(1, round(side * shrink)) for side in image.shape[:2]))

    def _run(self, batch: Float[Tensor, "B 3 h w"]) -> Any:
        return self._network.infer(batch.round().to(torch.uint8))

    def _interpret(self, output: Any, photos: Sequence[Photo]) -> list[DepthEstimate]:
        points = to_arrays(output["points"].permute(0, 2, 3, 1))
        return [from_points(xyz, photo, is_metric=True) for xyz, photo in zip(points, photos, strict=True)]
