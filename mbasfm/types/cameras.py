"""Cameras: intrinsics, poses with depth corrections, and which of them are held."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int, Int64
from torch import Tensor

REFERENCE_LONG_SIDE = 1024.0
"""Image size at which thresholds and residuals are given [px]."""


@dataclass(frozen=True)
class Intrinsics:
    """Pinhole cameras with COLMAP's OPENCV distortion, or its OPENCV_FISHEYE, one row per frame."""

    focal: Float[Tensor, "N 2"]
    """fx, fy [px]. The focal unknown is one factor for both."""
    center: Float[Tensor, "N 2"]
    """cx, cy [px]."""
    distortion: Float[Tensor, "N 4"]
    """k1, k2, p1, p2 (SIMPLE_RADIAL is k1 alone) or, of a fisheye, k1, k2, k3, k4."""
    sizes: Int[Tensor, "N 2"]
    """Width, height [px]."""
    group: Int[Tensor, " N"]
    """Frames of one group share the focal factor and the radial term."""
    is_fisheye: Bool[Tensor, " N"] | None = None
    """Which frames are fisheyes; None if none is."""

    @property
    def fisheye(self) -> Bool[Tensor, " N"]:
        """Which frames are fisheyes."""
        return torch.zeros(len(self.focal), dtype=torch.bool) if self.is_fisheye is None else self.is_fisheye

    @property
    def reference_scale(self) -> Float[Tensor, " N"]:
        """Factor from a frame's pixels to those at a long side of 1024."""
        return REFERENCE_LONG_SIDE / self.sizes.amax(-1).double()

    @property
    def reference_focal(self) -> Float[Tensor, " N"]:
        """Mean focal length of every frame [px at a long side of 1024]."""
        return self.focal.mean(-1) * REFERENCE_LONG_SIDE / self.sizes.amax(-1)

    @property
    def is_straight(self) -> bool:
        """Whether all lenses are free of distortion."""
        return not bool(self.distortion.any() or self.fisheye.any())

    def lens(self, frame: int) -> "Lens":
        """Intrinsics of one frame."""
        columns = self.focal, self.center, self.distortion, self.sizes
        focal, center, distortion, size = (column[frame].numpy() for column in columns)
        return Lens(focal, center, distortion, size, bool(self.fisheye[frame]))

    @staticmethod
    def pinhole(focal: Float[Tensor, " N"], sizes: Int[Tensor, "N 2"], group: Int[Tensor, " N"]) -> "Intrinsics":
        """Intrinsics with square pixels, the principal point in the middle and no distortion."""
        focal = focal.double()
        return Intrinsics(
            focal=focal[:, None].expand(-1, 2).clone(),
            center=sizes.double() / 2,
            distortion=torch.zeros(len(focal), 4, dtype=torch.float64),
            sizes=sizes,
            group=group,
            is_fisheye=torch.zeros(len(focal), dtype=torch.bool),
        )


@dataclass(frozen=True)
class Cameras:
    """The unknowns X = (P, K, A) of the paper's Sec. 3.1, one row per frame."""

    cam_from_world: Float[Tensor, "N 3 4"]
    intrinsics: Intrinsics
    depth_scale: Float[Tensor, " N"]
    """Scale alpha of the depth map."""
    depth_shift: Float[Tensor, " N"]
    """Shift beta of the depth map."""
    is_disparity: Bool[Tensor, " N"]
    """Whether the frame has disparity, 1 / depth = alpha d + beta, instead of depth, depth = alpha D + beta."""

    @property
    def num_frames(self) -> int:
        """Number of frames, N."""
        return self.cam_from_world.shape[0]

    @staticmethod
    def with_depth_as_given(
        cam_from_world: Float[Tensor, "N 3 4"],
        intrinsics: Intrinsics,
        is_disparity: Bool[Tensor, " N"] | None = None,
    ) -> "Cameras":
        """Cameras whose depth is not corrected; it is depth unless said otherwise."""
        one = torch.ones(len(cam_from_world), dtype=torch.float64)
        kind = torch.zeros(len(one), dtype=torch.bool) if is_disparity is None else is_disparity
        return Cameras(cam_from_world, intrinsics, one, torch.zeros_like(one), kind)


@dataclass(frozen=True)
class Fixed:
    """Which unknowns of which frames must not move."""

    pose: Bool[Tensor, " N"]
    focal: Bool[Tensor, " N"]
    """Whether the focal length is fixed: for a whole group as soon as one of its frames says so."""
    radial: Bool[Tensor, " N"]
    scale: Bool[Tensor, " N"]
    shift: Bool[Tensor, " N"]

    @staticmethod
    def build(
        num_frames: int,
        *,
        pose: bool = False,
        focal: bool = False,
        radial: bool = True,
        scale: bool = False,
        shift: bool = False,
    ) -> "Fixed":
        """One choice for all frames; by default everything is free but the radial term."""
        return Fixed(*(torch.full((num_frames,), value) for value in (pose, focal, radial, scale, shift)))


@dataclass(frozen=True)
class Lens:
    """Intrinsics of one frame, in numpy."""

    focal: Float64[np.ndarray, " 2"]
    center: Float64[np.ndarray, " 2"]
    distortion: Float64[np.ndarray, " 4"]
    size: Int64[np.ndarray, " 2"]
    is_fisheye: bool = False

    @property
    def px_per_reference_px(self) -> float:
        """Pixels of this image per pixel at a long side of 1024, the unit of thresholds."""
        return float(self.size.max()) / REFERENCE_LONG_SIDE

    def camera(self) -> dict[str, object]:
        """The camera as poselib's dictionary."""
        width, height = (int(value) for value in self.size)
        params = [*self.focal, *self.center, *self.distortion]
        model = "OPENCV_FISHEYE" if self.is_fisheye else "OPENCV" if self.distortion.any() else "PINHOLE"
        return {"model": model, "width": width, "height": height, "params": params[: 4 if model == "PINHOLE" else 8]}
