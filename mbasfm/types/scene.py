"""Contents of a finished scene: photographs without distortion, and coloured points."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, UInt8


@dataclass(frozen=True)
class View:
    """A registered photograph without distortion."""

    name: str
    number: int
    """Number of the photograph in the whole set, by name."""
    cam_from_world: Float64[np.ndarray, "3 4"]
    focal: Float64[np.ndarray, "2"]
    """fx, fy [px]."""
    center: Float64[np.ndarray, "2"]
    """cx, cy [px]."""
    size: tuple[int, int]
    """Width, height [px]."""
    camera: int
    """Photographs with the same number have the same intrinsics."""

    @property
    def world_from_cam(self) -> Float64[np.ndarray, "3 4"]:
        """Inverse pose; its last column is the centre of the camera."""
        turn = self.cam_from_world[:, :3].T
        return np.column_stack([turn, -turn @ self.cam_from_world[:, 3]])

    def project(
        self, points: Float64[np.ndarray, "M 3"]
    ) -> tuple[Float64[np.ndarray, "M 2"], Float64[np.ndarray, " M"]]:
        """Pixels and depth of points in the world; pixels are meaningless where depth is not positive."""
        x, y, depth = (points @ self.cam_from_world[:, :3].T + self.cam_from_world[:, 3]).T
        safe = np.where(depth > 0, depth, 1.0)
        return np.stack([x / safe, y / safe], -1) * self.focal + self.center, depth

    def lift(self, pixels: Float64[np.ndarray, "M 2"], depth: Float64[np.ndarray, " M"]) -> Float64[np.ndarray, "M 3"]:
        """World points of pixels with depth."""
        rays = np.column_stack([(pixels - self.center) / self.focal, np.ones(len(pixels))])
        return (rays * depth[:, None]) @ self.world_from_cam[:, :3].T + self.world_from_cam[:, 3]


@dataclass(frozen=True)
class Cloud:
    """Coloured points in the world."""

    points: Float64[np.ndarray, "M 3"]
    colors: UInt8[np.ndarray, "M 3"]
