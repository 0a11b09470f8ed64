"""LoFTR through kornia: matches on a grid of 8 pixels of the first image, to a fraction of a pixel in the second."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mbasfm.models.matchers.network_matcher import Found, ImageNetwork, grey

CORRECTED = "indoor"
"""Weights that were trained with the corrected position encoding."""


class LoftrMatcher(ImageNetwork):
    """``loftr`` (photographs outdoors) or ``loftr:indoor``."""

    name = "loftr"
    variants = {
        "outdoor": ("kornia/loftr", ("loftr_outdoor.ckpt",)),
        "indoor": ("kornia/loftr", ("loftr_indoor_ds_new.ckpt",)),
    }
    long_side_px, step_px = 840, 8
    licence = "Apache-2.0"
    download, memory = "46 MB", "2.1 GB"
    cpu_seconds = 9.0

    @classmethod
    def missing_code(cls) -> str:
        """The extra to install."""
        return "" if find_spec("kornia") else "pip install 'mbasfm[lightglue]'"

    def _load(self, folder: Path) -> Any:
        from kornia.feature import LoFTR
        from kornia.feature.loftr.loftr import default_cfg

        settings: dict[str, Any] = default_cfg
        coarse = settings["coarse"] | {"temp_bug_fix": self._variant == CORRECTED}
        network = LoFTR(pretrained=None, config=settings | {"coarse": coarse})
        (name,) = self.variants[self._variant][1]
        network.load_state_dict(torch.load(folder / name, map_location="cpu", weights_only=True)["state_dict"])
        return network

    def _match(self, first: Float[Tensor, "3 h w"], second: Float[Tensor, "3 H W"]) -> Found:
        found = self._network({"image0": grey(first)[None], "image1": grey(second)[None]})
        # It was trained with the first pixel's centre at one half, so there is nothing to add.
        return found["keypoints0"], found["keypoints1"], found["confidence"]
