"""Depth from MoGe: a point map in metres (the second version), its mask, and the focal length."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from torch import Tensor

from mbasfm.models.clones import Code
from mbasfm.models.depth.clone_depth import ForeignDepth
from mbasfm.models.depth.network_depth import known, resized, to_arrays
from mbasfm.types.observations import RGB, DepthEstimate, Photo

MAX_SIDE_PX = 1024
"""Larger images are shrunk: the network itself sees about 840 x 840 pixels."""


class MogeDepth(ForeignDepth):
    """Metric depth (relative in the first version), unknown where the mask says so, and the focal length."""

    name = "moge"
    code = Code("microsoft/MoGe", "dlr-moge", ("moge.model.v2",))
    repositories = {
        "small": "Ruicheng/moge-2-vits-normal",
        "base": "Ruicheng/moge-2-vitb-normal",
        "large": "Ruicheng/moge-2-vitl-normal",
        "v1-large": "Ruicheng/moge-vitl",
    }
    needed = ("model.pt",)
    licence = "MIT"
    download, memory = "150 MB (small)", "2.1 GB (small)"
    cpu_seconds = 14.0

    def _load(self, folder: Path) -> Any:
        self._is_metric = not self._variant.startswith("v1")
        module = self._import("" if self._is_metric else "moge.model.v1")
        return module.MoGeModel.from_pretrained(folder / self.needed[0])

    def _prepare(self, image: RGB) -> Float[Tensor, "1 3 h w"]:
        shrink = min(1.0, MAX_SIDE_PX / max(image.shape[:2]))
        return resized(image, *(max(1, round(side * shrink)) for side in image.shape[:2]))

    def _run(self, batch: Float[Tensor, "B 3 h w"]) -> Any:
        return self._network.infer(batch, use_fp16=self._is_fast)

    def _interpret(self, output: Any, photos: Sequence[Photo]) -> list[DepthEstimate]:
        """Depth of each image; intrinsics come as fractions of width and height."""
        focals = output["intrinsics"].float().cpu().numpy()
        return [
            DepthEstimate(
                known(depth, np.isfinite(depth)),
                False,
                self._is_metric,
                float(k[0, 0] * photo.width + k[1, 1] * photo.height) / 2,
            )
            for depth, k, photo in zip(to_arrays(output["depth"]), focals, photos, strict=True)
        ]
