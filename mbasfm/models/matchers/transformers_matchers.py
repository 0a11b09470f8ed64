"""EfficientLoFTR, and SuperPoint with LightGlue, through transformers' classes for matching two images."""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mbasfm.models.matchers.network_matcher import Found, ImageNetwork, filled_up, grey

FILES = ("config.json", "model.safetensors")
BORDER_PX = 4
"""Margin at the edge of the padding, where SuperPoint sees false corners."""
Coarse = Callable[[Tensor, float], tuple[Tensor, Tensor, Tensor]]


class KeypointMatching(ImageNetwork):
    """Base of both matchers."""

    @classmethod
    def missing_code(cls) -> str:
        """The extra to install."""
        return "" if find_spec("transformers") else "pip install 'mbasfm[transformers]'"

    def _load(self, folder: Path) -> Any:
        from transformers import AutoModelForKeypointMatching

        return AutoModelForKeypointMatching.from_pretrained(folder, local_files_only=True)

    def _run(self, first: Float[Tensor, "3 h w"], second: Float[Tensor, "3 H W"]) -> tuple[Any, Float[Tensor, "2 K 2"]]:
        """Output of the network, and its keypoints in the padded images."""
        canvas = filled_up([grey(first), grey(second)]).expand(-1, 3, -1, -1)
        output = self._network(canvas[None])
        return output, output.keypoints[0].float() * canvas.new_tensor(canvas.shape[:1:-1])


class EfficientLoftrMatcher(KeypointMatching):
    """A faster LoFTR."""

    name = "efficientloftr"
    variants = {"outdoor": ("zju-community/efficientloftr", FILES)}
    long_side_px, step_px = 832, 32
    licence = "Apache-2.0"
    download, memory = "64 MB", "not measured"
    cpu_seconds = 6.0

    def _load(self, folder: Path) -> Any:
        network = super()._load(folder)
        network._coarse_matching = in_one_order(network._coarse_matching)
        return network

    def _match(self, first: Float[Tensor, "3 h w"], second: Float[Tensor, "3 H W"]) -> Found:
        output, pixels = self._run(first, second)
        is_match = output.matches[0, 0] >= 0
        # It was trained with the first pixel's centre at one half, so there is nothing to add.
        return pixels[0, is_match], pixels[1, is_match], output.matching_scores[0, 0, is_match]


class SuperPointMatcher(KeypointMatching):
    """SuperPoint's features, matched by LightGlue."""

    name = "superpoint"
    variants = {"lightglue": ("ETH-CVG/lightglue_superpoint", FILES)}
    long_side_px, step_px = 1024, 8
    licence = "SuperPoint: Magic Leap's own, non-commercial; LightGlue: Apache-2.0"
    download, memory = "54 MB", "not measured"
    cpu_seconds = 6.0

    def _match(self, first: Float[Tensor, "3 h w"], second: Float[Tensor, "3 H W"]) -> Found:
        output, pixels = self._run(first, second)
        matches = output.matches[0, 0]
        is_match = (matches >= 0) & (output.mask[0, 0] > 0)
        pixels = pixels + 0.5  # it has the first pixel's centre at (0, 0)
        ends = pixels[0, is_match], pixels[1, matches[is_match]]
        limits = [image.new_tensor(image.shape[:0:-1]) - BORDER_PX for image in (first, second)]
        inside = torch.stack([(places < limit).all(1) for places, limit in zip(ends, limits, strict=True)]).all(0)
        return ends[0][inside], ends[1][inside], output.matching_scores[0, 0, is_match][inside]


def in_one_order(coarse_matching: Coarse) -> Coarse:
    """Coarse matching whose lists of both images are in the order of the first one's cells.

    As transformers has them (seen in 5.22), either list is in the order of the other image's cells. What comes after
    takes them in pairs, which is wrong as soon as an image is turned, and refines them by the wrong windows.
    """

    def matched(features: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
        keypoints, scores, indices = coarse_matching(features, scale)
        cell, second = torch.arange(indices.shape[-1], device=indices.device), indices[:, 1]
        is_match = second >= 0
        if not (indices[:, 0].gather(1, second.clamp_min(0)) == cell)[is_match].all():
            return keypoints, scores, indices  # a version that has them in one order
        indices = torch.stack([torch.where(is_match, cell, -1), second], 1)
        width = features.shape[-1]
        keypoints = torch.stack([indices % width, indices // width], -1) * scale
        return keypoints, scores[:, 1:].expand(-1, 2, -1), indices

    return matched
