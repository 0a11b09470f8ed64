"""Constant disparity, without a network: a baseline that is always available."""

import numpy as np

from mbasfm.models.base import DepthModel
from mbasfm.types.observations import RGB, DepthEstimate, Photo


class FlatDepth(DepthModel):
    """A fronto-parallel wall."""

    name = "flat"
    licence = "Apache-2.0"
    key = "flat-1"

    def __init__(self, argument: str = ""):
        del argument

    def estimate(self, photo: Photo, image: RGB) -> DepthEstimate:
        """Disparity 1 everywhere."""
        del photo, image
        return flat_depth()


def flat_depth() -> DepthEstimate:
    """Disparity 1 everywhere."""
    return DepthEstimate(np.ones((2, 2), dtype=np.float32), is_disparity=True, is_metric=False)
