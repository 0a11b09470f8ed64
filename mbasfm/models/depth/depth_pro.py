"""Depth Pro through transformers."""

import math
from collections.abc import Sequence
from typing import Any

from mbasfm.errors import InputError
from mbasfm.models.depth.transformers_depth import MonocularDepth
from mbasfm.types.observations import DepthEstimate, Photo

INVERSE_DEPTH_RANGE = 1e-4, 1e4
"""The network's own limits [1/m]."""
VIEW_RANGE_DEG = 1.0, 175.0
"""Fields of view with a usable focal length [deg]."""


class DepthPro(MonocularDepth):
    """Metric depth and the focal length."""

    name = "depth-pro"
    model_class = "DepthProForDepthEstimation"
    repositories = {"hf": "apple/DepthPro-hf"}
    download, memory = "1.9 GB", "8.2 GB"
    licence = "Apple's own (apple-amlr): research only"
    cpu_seconds = 440.0

    def _interpret(self, output: Any, photos: Sequence[Photo]) -> list[DepthEstimate]:
        """Depth from inverse depth at a focal length of one image width, and from the horizontal field of view."""
        width = photos[0].width
        if output.field_of_view is None:
            raise InputError(f"{self.name}: the weights have no head for the field of view, so depth has no unit")
        estimates = []
        for inverse, view_deg in zip(
            output.predicted_depth.float(), output.field_of_view.float().clamp(*VIEW_RANGE_DEG).tolist(), strict=True
        ):
            focal_px = 0.5 * width / math.tan(0.5 * math.radians(view_deg))
            depth_m = 1 / (inverse * width / focal_px).clamp(*INVERSE_DEPTH_RANGE)
            estimates.append(DepthEstimate(depth_m.cpu().numpy(), False, True, focal_px))
        return estimates
