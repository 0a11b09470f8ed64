"""The result: cameras, the outcome for every photograph, and one COLMAP model per component."""

import math
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pycolmap
from jaxtyping import Bool, Float64, Int64, UInt8
from torch import Tensor

from mbasfm.scene.undistort import is_distorted, undistort_model
from mbasfm.types.cameras import Cameras
from mbasfm.types.observations import PoseGraph
from mbasfm.types.outcome import RunReport, Sigma


@dataclass(frozen=True)
class Reconstruction:
    """Camera poses of a set of photographs."""

    names: tuple[str, ...]
    """Paths of the photographs, relative to their folder; frame n is the n-th."""
    graph: PoseGraph
    cameras: Cameras
    registered: Bool[Tensor, " N"]
    component: Int64[Tensor, " N"]
    """0 for the largest component; -1 for frames that are not registered."""
    models: tuple[pycolmap.Reconstruction, ...]
    """One COLMAP model per component, largest first; image ids are frame numbers plus one."""
    report: RunReport
    """Outcome of photographs and components; at the end of a run, the course of it too."""

    def save_models(self, folder: Path) -> tuple[pycolmap.Reconstruction, ...]:
        """Write sparse/0, sparse/1, ... without lens distortion, and those that had some as distorted/sparse/N too.

        Returns those without.
        """
        for parent in (folder / "sparse", folder / "distorted" / "sparse"):
            shutil.rmtree(parent, ignore_errors=True)
        straight = tuple(_straight_model(model) for model in self.models)
        for number, (model, same) in enumerate(zip(self.models, straight, strict=True)):
            if same is not model:
                _write(model, folder / "distorted" / "sparse" / str(number))
            _write(same, folder / "sparse" / str(number))
        return straight


def _straight_model(model: pycolmap.Reconstruction) -> pycolmap.Reconstruction:
    """The model without lens distortion: itself, if it has none."""
    return undistort_model(model) if any(map(is_distorted, model.cameras.values())) else model


def _write(model: pycolmap.Reconstruction, folder: Path) -> None:
    folder.mkdir(parents=True)
    model.write_binary(folder)


def color_points(model: pycolmap.Reconstruction, colors: Sequence[UInt8[np.ndarray, "_ 3"]]) -> None:
    """Give every point the mean colour of its observations."""
    for point in model.points3D.values():
        seen = [colors[element.image_id - 1][element.point2D_idx] for element in point.track.elements]
        point.color = np.mean(seen, axis=0).round().astype(np.uint8)


def finite(value: float) -> float | None:
    """The number, or None if it is NaN or infinite."""
    return value if math.isfinite(value) else None


def spread_of(covariance: Float64[np.ndarray, "6 6"]) -> Sigma:
    """Standard deviations of a pose."""
    sigma = np.sqrt(np.maximum(np.diag(covariance), 0))
    rotation_deg, translation = np.rad2deg(sigma[:3]).tolist(), sigma[3:].tolist()
    return Sigma(tuple(map(finite, rotation_deg)), tuple(map(finite, translation)))
