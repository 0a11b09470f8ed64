"""LightGlue and LighterGlue, networks that match learned features; through kornia, with weights of other packages."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from mbasfm.errors import InputError
from mbasfm.models.base import half_if_fast
from mbasfm.types.observations import Features, Matches


class Glue:
    """The matching network for features of one name."""

    def __init__(self, name: str, weights: dict[str, Tensor], device: torch.device, max_features: int):
        from kornia.feature import LightGlue

        # Without the name of features, kornia does not try to download weights.
        network = LightGlue(**(LightGlue.features[name] | {"features": None, "weights": None}))
        # Thresholds follow from the settings and are not always stored.
        thresholds = {"confidence_thresholds": network.confidence_thresholds}
        network.load_state_dict(_renamed(weights, network.conf.n_layers) | thresholds)
        self._network, self._name, self._device = network.eval().to(device), name, device
        self._max_features = max_features

    @torch.inference_mode()
    def match(self, first: Features, second: Features) -> Matches:
        """Matches among the first, strongest features of each image."""
        if min(len(first.pixels), len(second.pixels)) == 0:
            return Matches(np.zeros((0, 2), np.int64), np.zeros(0, np.float32))
        with half_if_fast(self._device):
            found = self._network({"image0": self._input(first), "image1": self._input(second)})
        indices, confidence = found["matches"][0], found["scores"][0].float().clamp(0, 1)
        return Matches(indices.cpu().numpy(), confidence.cpu().numpy())

    def _input(self, features: Features) -> dict[str, Tensor]:
        """Input of the network, with pixels relative to the size of their image."""
        if min(features.size) < 1:
            raise InputError(f"{self._name}: features of {features.name or 'an image'} lack the image's size")
        parts: dict[str, Any] = {
            "keypoints": features.pixels[: self._max_features],
            "descriptors": features.descriptors[: self._max_features],
            "image_size": features.size,
        }
        return {name: torch.tensor(part, device=self._device)[None] for name, part in parts.items()}


def _renamed(weights: dict[str, Tensor], num_layers: int) -> dict[str, Tensor]:
    """Weights under kornia's names."""
    for kind in ("self_attn", "cross_attn"):  # older files keep the parts of a layer apart
        for layer in range(num_layers):
            old, new = f"{kind}.{layer}.", f"transformers.{layer}.{kind}."
            weights = {new + key[len(old) :] if key.startswith(old) else key: part for key, part in weights.items()}
    # One number per layer is left over from training: no network reads it.
    return {key: part for key, part in weights.items() if not key.endswith(".r")}
