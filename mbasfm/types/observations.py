"""Everything that models found in the photographs."""

from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Bool, Float32, Int64, UInt8

from mbasfm.types.outcome import PairChoice, Reason
from mbasfm.types.pairs import Keypoints
from mbasfm.types.photos import DepthEstimate, Photo


@dataclass(frozen=True)
class Observations:
    """Everything that the models found in the photographs."""

    photos: tuple[Photo, ...]
    depths: list[DepthEstimate]
    keypoints: list[Keypoints]
    colors: list[UInt8[np.ndarray, "_ 3"]]
    pairs: Int64[np.ndarray, "P 2"]
    matches: list[Int64[np.ndarray, "_ 2"]]
    descriptors: dict[int, Float32[np.ndarray, "_ C"]] = field(default_factory=dict)
    """Descriptors by the first matcher, for frames with few features: each of their matches is worth looking for."""
    pairs_chosen: Reason[PairChoice] | None = None
    """Why the first matcher was given these pairs; None if they were not chosen."""
    depth_model: str = ""
    """Key of the depth model."""

    @property
    def is_disparity(self) -> Bool[torch.Tensor, " N"]:
        """Which frames have disparity instead of depth."""
        return torch.tensor([depth.is_disparity for depth in self.depths])
