"""Histograms of the residuals from stage to stage."""

from collections.abc import Sequence

import numpy as np
import pycolmap
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from mbasfm.objective.distribution import Binning, count_bins
from mbasfm.objective.isotropic import isotropic
from mbasfm.objective.residual_kind import NO_INTRINSICS, stream
from mbasfm.objective.split import split
from mbasfm.sfm.outcome import Placed
from mbasfm.types.cameras import REFERENCE_LONG_SIDE, Cameras
from mbasfm.types.outcome import ResidualCurve, Residuals
from mbasfm.types.samples import SampleSource

HISTOGRAM = Binning(1000.0, 100, log_scale=0.05)
"""Bins of the report's residuals, independent of those of the stages [px at a long side of 1024]."""


def residual_curves(placed: Placed | None, models: Sequence[pycolmap.Reconstruction], inlier_px: float) -> Residuals:
    """Histograms of the residuals at the start, after adjustment and after polish; the last bin counts all beyond."""
    curves: list[ResidualCurve] = []
    if placed is not None:
        for stage, cameras in (("start", placed.start), ("adjust", placed.adjustment.cameras)):
            whole, across = sample_histograms(cameras, placed.samples)
            curves += [ResidualCurve(stage, "whole", _rounded(whole)), ResidualCurve(stage, "across", _rounded(across))]
    if models:
        errors = np.concatenate([track_errors_px(model) for model in models])
        index = HISTOGRAM.index(torch.from_numpy(errors)[None])
        counts = count_bins(index, torch.ones(index.shape), HISTOGRAM.num_bins)[0]
        curves.append(ResidualCurve("polish", "tracks", _rounded(counts)))
    return Residuals(tuple(HISTOGRAM.edges().tolist()), inlier_px, tuple(curves))


def sample_histograms(cameras: Cameras, samples: SampleSource) -> tuple[Float[Tensor, " T1"], Float[Tensor, " T1"]]:
    """Mass of the samples by size of the residual (eqn:residual_2d), and by its part across the epipolar line."""
    whole = torch.zeros(HISTOGRAM.num_bins + 1, dtype=torch.float64)
    across = torch.zeros_like(whole)
    depth_error = torch.tensor(0.1, dtype=samples.dtype)
    for _, block in stream(cameras, samples, NO_INTRINSICS):
        residual = isotropic(block).squared.sqrt()
        whole += count_bins(HISTOGRAM.index(residual), block.weight, HISTOGRAM.num_bins)[0]
        distance = split(block, 1.0, depth_error.expand(len(block.raw), 1)).across.abs()
        across += count_bins(HISTOGRAM.index(distance), block.weight, HISTOGRAM.num_bins)[0]
    return whole, across


def track_errors_px(model: pycolmap.Reconstruction) -> Float64[np.ndarray, " M"]:
    """Distance of every observation to the image of its point [px at a long side of 1024]."""
    errors = [np.zeros(0)]
    for image in model.images.values():
        seen = image.get_observation_points2D()
        if not seen:
            continue
        camera = model.cameras[image.camera_id]
        points = np.stack([model.points3D[point.point3D_id].xyz for point in seen])
        pixels = camera.img_from_cam(image.cam_from_world() * points)
        distance = np.linalg.norm(pixels - np.stack([point.xy for point in seen]), axis=1)
        errors.append(distance * REFERENCE_LONG_SIDE / max(camera.width, camera.height))
    return np.concatenate(errors)


def _rounded(counts: Float[Tensor, " T1"]) -> tuple[float, ...]:
    return tuple(round(value, 3) for value in counts.tolist())
