"""One frame's lens as poselib computes it: rays of pixels, and pixels of points."""

import numpy as np
import poselib
from jaxtyping import Float64

from mbasfm.types.cameras import Lens


def poselib_camera(lens: Lens) -> poselib.Camera:
    """The lens as poselib's camera."""
    camera = lens.camera()
    return poselib.Camera(camera["model"], camera["params"], camera["width"], camera["height"])


def lens_rays(pixels: Float64[np.ndarray, "M 2"], lens: Lens) -> Float64[np.ndarray, "M 3"]:
    """Undistorted rays (x/z, y/z, 1) of pixels."""
    return np.column_stack([poselib_camera(lens).unproject(pixels), np.ones(len(pixels))])
