"""Depth from Depth Anything 3, one image at a time: poses of several are for us to find."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mbasfm.models.clones import Code
from mbasfm.models.depth.clone_depth import ForeignDepth
from mbasfm.models.depth.network_depth import from_one_up, known, resized, to_arrays
from mbasfm.types.observations import RGB, DepthEstimate, Photo

LONG_SIDE_PX, STEP_PX = 504, 14
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Mean and standard deviation of ImageNet's colours."""


class DepthAnything3(ForeignDepth):
    """Depth up to scale (metres from ``nested``), confidence and focal length where the variant has them."""

    name = "depth-anything-3"
    code = Code("ByteDance-Seed/Depth-Anything-3", "depth-anything-3", ("depth_anything_3.api",), inside="src")
    repositories = {
        "base": "depth-anything/DA3-BASE",
        "small": "depth-anything/DA3-SMALL",
        "mono-large": "depth-anything/DA3MONO-LARGE",
        "large": "depth-anything/DA3-LARGE-1.1",
        "giant": "depth-anything/DA3-GIANT-1.1",
        "nested": "depth-anything/DA3NESTED-GIANT-LARGE-1.1",
    }
    needed = ("config.json", "model.safetensors")
    licence = "Apache-2.0 (base, small, mono-large); large, giant and nested: CC-BY-NC-4.0, non-commercial"
    download, memory = "540 MB (base)", "1.5 GB (base), estimated"
    cpu_seconds = 16.0

    def licence_of(self, variant: str) -> str:
        """Licence of a variant, according to its page on the hub."""
        return "Apache-2.0" if variant in ("base", "small", "mono-large") else "CC-BY-NC-4.0, non-commercial"

    def _load(self, folder: Path) -> Any:
        return self._import().DepthAnything3.from_pretrained(str(folder))

    def _prepare(self, image: RGB) -> Float[Tensor, "1 3 h w"]:
        scale = LONG_SIDE_PX / max(image.shape[:2])
        sides = (max(STEP_PX, round(side * scale / STEP_PX) * STEP_PX) for side in image.shape[:2])
        mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (MEAN, STD))
        return (resized(image, *sides) - mean) / std

    def _run(self, batch: Float[Tensor, "B 3 h w"]) -> Any:
        """Output of the network; each image is a set of one view."""
        return self._network.forward(batch[:, None]), batch.shape

    def _interpret(self, output: Any, photos: Sequence[Photo]) -> list[DepthEstimate]:
        """Depth of each image; intrinsics come in pixels of the network's input."""
        found, (count, _, height, width) = output
        depth = to_arrays(found["depth"].reshape(count, height, width))
        sure = found.get("depth_conf")
        sure = [None] * count if sure is None else to_arrays(sure.reshape(count, height, width))
        inner = found.get("intrinsics")
        focal = [None] * count if inner is None else inner.reshape(count, 3, 3).float().cpu().tolist()
        return [
            DepthEstimate(
                known(values, values > 0),
                False,
                bool(getattr(found, "is_metric", 0)),
                None if k is None else (k[0][0] * photo.width / width + k[1][1] * photo.height / height) / 2,
                None if conf is None else from_one_up(conf),
            )
            for values, conf, k, photo in zip(depth, sure, focal, photos, strict=True)
        ]
