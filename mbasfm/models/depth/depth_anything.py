"""Depth Anything V2 through transformers."""

from collections.abc import Sequence
from typing import Any

from mbasfm.models.depth.network_depth import to_arrays
from mbasfm.models.depth.transformers_depth import MonocularDepth
from mbasfm.types.observations import DepthEstimate, Photo


class DepthAnythingV2(MonocularDepth):
    """Disparity up to scale and shift, or metric depth from the metric variants: the weights say which."""

    name = "depth-anything-v2"
    model_class = "DepthAnythingForDepthEstimation"
    repositories = {
        size: f"depth-anything/Depth-Anything-V2-{size.title()}-hf"
        for size in ("small", "metric-indoor-small", "metric-outdoor-small", "base", "large")
        + ("metric-indoor-base", "metric-indoor-large", "metric-outdoor-base", "metric-outdoor-large")
    }
    licence = "Apache-2.0 (small); base and large: CC-BY-NC-4.0, non-commercial"
    download, memory = "100 MB (small)", "0.8 GB (small)"
    cpu_seconds = 7.0

    def licence_of(self, variant: str) -> str:
        """Licence of a variant; only the small ones are free for all uses."""
        return "Apache-2.0" if variant.endswith("small") else "CC-BY-NC-4.0, non-commercial"

    def _interpret(self, output: Any, photos: Sequence[Photo]) -> list[DepthEstimate]:
        del photos
        is_metric = self._network.config.depth_estimation_type == "metric"
        return [DepthEstimate(values, not is_metric, is_metric) for values in to_arrays(output.predicted_depth)]
