"""Depth Anything V2 through transformers."""

from typing import Any

from mbasfm.models.base import DepthEstimate
from mbasfm.models.monocular import MonocularDepth, to_arrays


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

    def licence_of(self, argument: str) -> str:
        """Only the small ones are free for all uses."""
        if argument.endswith("small") or not argument:
            return "Apache-2.0"
        return "CC-BY-NC-4.0, non-commercial" if self._is_variant(argument) else "that of the weights"

    def _interpret(self, output: Any, width: int, height: int) -> list[DepthEstimate]:
        is_metric = self._network.config.depth_estimation_type == "metric"
        return [DepthEstimate(values, not is_metric, is_metric) for values in to_arrays(output.predicted_depth)]
