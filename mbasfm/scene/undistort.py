"""Cameras, keypoints, photographs and depth maps without lens distortion: what splat trainers can read."""

import copy

import numpy as np
import pycolmap
from jaxtyping import Float32, Float64, UInt8

PINHOLES = ("PINHOLE", "SIMPLE_PINHOLE")
"""Camera models that splat trainers support."""
OUTSIDE = -1.0


def is_distorted(camera: pycolmap.Camera) -> bool:
    """Whether a camera may bend straight lines: all but pinholes."""
    return camera.model.name not in PINHOLES


def undistort_model(model: pycolmap.Reconstruction) -> pycolmap.Reconstruction:
    """Model with the same poses, points and tracks, and PINHOLE cameras where the lens had distortion."""
    straight = copy.deepcopy(model)
    for image_id, image in model.images.items():
        camera = model.cameras[image.camera_id]
        if is_distorted(camera) and len(image.points2D):
            pixels = _project(_pinhole(camera), camera.cam_from_img(image.points2D))
            _move_keypoints(straight, image_id, pixels)
    for camera in straight.cameras.values():
        if is_distorted(camera):
            pinhole = _pinhole(camera)
            camera.model, camera.width, camera.height = pinhole.model, pinhole.width, pinhole.height
            camera.params = pinhole.params
    straight.update_point_3d_errors()
    return straight


def _move_keypoints(model: pycolmap.Reconstruction, image_id: int, pixels: Float64[np.ndarray, "M 2"]) -> None:
    """Move keypoints. Those that the lens cannot have seen (NaN) leave their track and the image."""
    points = model.images[image_id].points2D
    for index in np.flatnonzero(np.isnan(pixels).any(1)).tolist():
        if points[index].has_point3D():
            model.delete_observation(image_id, index)
    for point, xy in zip(points, np.where(np.isnan(pixels), OUTSIDE, pixels), strict=True):
        point.xy = xy


def undistort_image(image: UInt8[np.ndarray, "H W 3"], camera: pycolmap.Camera) -> UInt8[np.ndarray, "H2 W2 3"]:
    """A photograph as the undistorted camera would have taken it, cut so that no pixel is empty."""
    bitmap = pycolmap.Bitmap.from_array(np.ascontiguousarray(image))
    straight, _ = pycolmap.undistort_image(pycolmap.UndistortCameraOptions(), bitmap, camera)
    return straight.to_array()


def undistort_map(
    values: Float32[np.ndarray, "h w"], camera: pycolmap.Camera, pinhole: pycolmap.Camera
) -> Float32[np.ndarray, "h w"]:
    """A map that spans the photograph, as one that spans the undistorted photograph; the nearest value is taken."""
    height, width = values.shape
    column, row = np.meshgrid((np.arange(width) + 0.5) / width, (np.arange(height) + 0.5) / height)
    pixels = np.stack([column.ravel() * pinhole.width, row.ravel() * pinhole.height], -1)
    seen = _project(camera, pinhole.cam_from_img(pixels)) / (camera.width, camera.height)
    column, row = np.floor(seen[:, 0] * width), np.floor(seen[:, 1] * height)
    # A pixel may lie on the very border: half a pixel is less than the map's resolution.
    column, row = np.clip(column, 0, width - 1).astype(np.int64), np.clip(row, 0, height - 1).astype(np.int64)
    return values[row, column].reshape(height, width)


def _pinhole(camera: pycolmap.Camera) -> pycolmap.Camera:
    return pycolmap.undistort_camera(pycolmap.UndistortCameraOptions(), camera)


def _project(camera: pycolmap.Camera, rays: Float64[np.ndarray, "M 2"]) -> Float64[np.ndarray, "M 2"]:
    return camera.img_from_cam(np.column_stack([rays, np.ones(len(rays))]))
