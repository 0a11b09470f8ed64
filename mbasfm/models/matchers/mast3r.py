"""MASt3R from a clone of its repository: dense descriptors of two images, matched where both prefer each other."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from mbasfm.models.clones import Code
from mbasfm.models.matchers.network_matcher import Found, ImageNetwork

CODE = Code("naver/mast3r", modules=("mast3r",), clone_options="--recursive ")
GRID_PX = 8
"""Spacing of the grid on which matching starts, in the network's pixels."""
BLOCK = 1 << 13


class Mast3rMatcher(ImageNetwork):
    """``mast3r``: code from --models-path, weights from the hub."""

    name = "mast3r"
    variants = {"512": ("naver/MASt3R_ViTLarge_BaseDecoder_512_catmlpdpt_metric", ("config.json", "model.safetensors"))}
    long_side_px, step_px = 512, 16
    licence = "CC-BY-NC-SA-4.0, non-commercial (code and weights)"
    download, memory = "2.8 GB", "4 GB, estimated"
    cpu_seconds = 25.0

    @classmethod
    def missing_code(cls) -> str:
        """The repository to clone."""
        return CODE.missing()

    def _load(self, folder: Path) -> Any:
        model, self._nearest = (CODE.load(self.name, f"mast3r.{name}") for name in ("model", "fast_nn"))
        return model.AsymmetricMASt3R.from_pretrained(str(folder))

    def _match(self, first: Float[Tensor, "3 h w"], second: Float[Tensor, "3 H W"]) -> Found:
        views = [
            {"img": 2 * image[None] - 1, "true_shape": torch.tensor([image.shape[1:]]), "idx": n, "instance": [str(n)]}
            for n, image in enumerate((first, second))
        ]
        found = self._network(*views)
        descriptors, sure = ([item[name][0].float() for item in found] for name in ("desc", "desc_conf"))
        how = {"subsample_or_initxy1": GRID_PX, "device": self._device, "dist": "dot", "block_size": BLOCK}
        forth = self._nearest.fast_reciprocal_NNs(descriptors[0], descriptors[1], **how)
        back = self._nearest.fast_reciprocal_NNs(descriptors[1], descriptors[0], **how)
        both = np.unique(np.concatenate([np.column_stack(forth), np.column_stack(back[::-1])]), axis=0)
        places = torch.from_numpy(np.ascontiguousarray(both)).long().to(self._device)
        ends = places[:, :2], places[:, 2:]
        confidence = [values[end[:, 1], end[:, 0]] for values, end in zip(sure, ends, strict=True)]
        # It counts from 1 upwards without end, and pixels by their number.
        return ends[0] + 0.5, ends[1] + 0.5, 1 - 1 / torch.minimum(*confidence).clamp_min(1)
