"""What follows from a finished model: pictures without distortion, fitted depth, one cloud, and where to look from.

Splat trainers read cameras without lens distortion only. Scale and shift of each depth map are fitted to the points
that its photograph sees, and points of one map that another photograph confirms become one coloured cloud.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pycolmap
from jaxtyping import Bool, Float32, Float64, Int64, UInt8
from scipy.sparse import coo_array

from mbasfm.objective.losses import MAD_TO_SIGMA
from mbasfm.types.outcome import View

PINHOLES = ("PINHOLE", "SIMPLE_PINHOLE")
"""Camera models that splat trainers support."""
OUTSIDE = -1.0
MIN_POINTS_SCALE = 10
"""Least number of points to change the adjusted correction at all."""
MIN_POINTS_SHIFT = 50
"""Least number of points to fit a shift; with fewer, scale and shift change by one factor."""
MIN_GAIN = 0.95
"""A new shift must bring the median error below this share of what one factor reaches."""
ROUNDS = 20
CAUCHY = 2.385
MAX_JUMP = 0.05
"""Largest difference between neighbouring pixels, as a share of depth; beyond it is an edge, where maps smear."""
MAX_DISAGREEMENT = 0.05
"""Largest difference between a point's depth and another map's there, as a share of depth."""
NUM_NEIGHBOURS = 4
VIEWS_AT_ONCE = 256
MIN_SHARED = 10
"""Least number of shared points that makes photographs neighbours."""
INNER_SHARE = 0.9
"""Share of the points that must be in view; cameras always are."""
DIRECTION = np.array([0.45, 0.5, 1.0]) / np.linalg.norm([0.45, 0.5, 1.0])
"""Direction from the middle to the viewer: behind the cameras, a little above and beside them."""


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


@dataclass(frozen=True)
class DepthFit:
    """Correction depth = scale D + shift or, for disparity, 1 / depth = scale d + shift."""

    scale: float
    shift: float
    is_disparity: bool

    def depth(self, raw: Float32[np.ndarray, "*s"]) -> Float32[np.ndarray, "*s"]:
        """Depth in the world's unit; NaN where unknown or not positive."""
        value = self.scale * raw.astype(np.float64) + self.shift
        known = (raw > 0) & (value > 0)
        if self.is_disparity:
            known &= np.isfinite(value)  # infinite depth is sky, infinite disparity is invalid
        value = np.where(known, value, np.nan)
        return (1 / value if self.is_disparity else value).astype(np.float32)


def fit_depth(
    raw: Float32[np.ndarray, " M"], depth: Float64[np.ndarray, " M"], adjusted: DepthFit
) -> tuple[DepthFit, float]:
    """Correction of a map whose raw values at points of known depth are given, and its median relative error.

    Cameras move after the corrections were adjusted, so the points have the last word; what they cannot tell
    stays as adjusted. Errors are relative: a metre matters less far away.
    """
    usable = np.isfinite(raw) & (raw > 0) & np.isfinite(depth) & (depth > 0)
    x, wanted = raw[usable].astype(np.float64), depth[usable]
    wanted = 1 / wanted if adjusted.is_disparity else wanted
    value = adjusted.scale * x + adjusted.shift
    good = value > 0
    if good.sum() < MIN_POINTS_SCALE:
        return adjusted, float("nan")
    factor = float(np.median(wanted[good] / value[good]))
    best = (adjusted.scale * factor, adjusted.shift * factor)
    error = _error(x, wanted, *best)
    if len(x) >= MIN_POINTS_SHIFT:
        scale, shift = _fit_line(x, wanted)
        if scale > 0 and _error(x, wanted, scale, shift) < MIN_GAIN * error:
            best, error = (scale, shift), _error(x, wanted, scale, shift)
    return DepthFit(*best, adjusted.is_disparity), error


def is_constant(raw: Float32[np.ndarray, "h w"]) -> bool:
    """Whether a map has no more than one value, so that it tells nothing."""
    known = raw[np.isfinite(raw)]
    return known.size == 0 or bool(known.min() == known.max())


def _error(x: Float64[np.ndarray, " M"], wanted: Float64[np.ndarray, " M"], scale: float, shift: float) -> float:
    return float(np.median(np.abs((scale * x + shift) / wanted - 1)))


def _fit_line(x: Float64[np.ndarray, " M"], wanted: Float64[np.ndarray, " M"]) -> tuple[float, float]:
    """Scale and shift with the smallest relative errors, by Cauchy weights at the scale of the errors themselves."""
    rows = np.column_stack([x, np.ones_like(x)]) / wanted[:, None]
    solution = _median_line(x, wanted)
    for _ in range(ROUNDS):
        errors = rows @ solution - 1
        sigma = max(MAD_TO_SIGMA * float(np.median(np.abs(errors))), 1e-9)
        root = 1 / np.sqrt(1 + (errors / (CAUCHY * sigma)) ** 2)
        solution = np.linalg.lstsq(rows * root[:, None], root, rcond=None)[0]
    return float(solution[0]), float(solution[1])


def _median_line(x: Float64[np.ndarray, " M"], wanted: Float64[np.ndarray, " M"]) -> Float64[np.ndarray, "2"]:
    """Initial line that wrong raw values cannot pull: the median slope of pairs that are half the points apart."""
    order = np.argsort(x, kind="stable")
    half = len(x) // 2
    near, far = order[:half], order[half : 2 * half]
    apart = x[far] > x[near]
    if not apart.any():
        return np.array([0.0, float(np.median(wanted))])
    slope = np.median((wanted[far] - wanted[near])[apart] / (x[far] - x[near])[apart])
    return np.array([slope, np.median(wanted - slope * x)])


def depth_edges(depth: Float32[np.ndarray, "h w"], max_jump: float) -> Bool[np.ndarray, "h w"]:
    """Pixels beside which depth jumps by more than a share of itself, or is unknown."""
    edge = ~np.isfinite(depth)
    for axis in (0, 1):
        near, far = (np.moveaxis(depth, axis, 0)[part] for part in (slice(None, -1), slice(1, None)))
        with np.errstate(invalid="ignore"):  # the sky is infinitely far; NaN is not smooth
            smooth = np.abs(near - far) <= max_jump * np.minimum(near, far)
        view = np.moveaxis(edge, axis, 0)
        view[:-1] |= ~smooth
        view[1:] |= ~smooth
    return edge


def confirmed_points(
    view: View,
    depth: Float32[np.ndarray, "h w"],
    others: Sequence[tuple[View, Float32[np.ndarray, "_ _"]]],
    count: int,
) -> tuple[Float64[np.ndarray, "M 3"], Float64[np.ndarray, "M 2"]]:
    """At most ``count`` points of a depth map, and their pixels.

    Points at depth edges are left out, and those that no other map confirms or more maps deny than confirm.
    """
    height, width = depth.shape
    row, column = np.nonzero(~depth_edges(depth, MAX_JUMP))
    relative = np.stack([(column + 0.5) / width, (row + 0.5) / height], -1)
    pixels = relative * np.array(view.size)
    points = view.lift(pixels, depth[row, column].astype(np.float64))
    votes = [_agreement(points, *other) for other in others]
    balance = np.sum([agrees.astype(np.int64) - denies for agrees, denies in votes], axis=0) + np.zeros(len(points))
    confirmed = np.any([agrees for agrees, _ in votes] or [np.zeros(len(points), bool)], axis=0)
    kept = np.flatnonzero(confirmed & (balance >= 0))
    if len(kept) > count:
        kept = kept[np.linspace(0, len(kept) - 1, count).round().astype(np.int64)]
    return points[kept], pixels[kept]


def _agreement(
    points: Float64[np.ndarray, "M 3"], view: View, depth: Float32[np.ndarray, "h w"]
) -> tuple[Bool[np.ndarray, " M"], Bool[np.ndarray, " M"]]:
    """Which points a map confirms, and which it denies: it sees through them. A point behind a surface is hidden."""
    pixels, ahead = view.project(points)
    height, width = depth.shape
    index = np.floor(pixels / view.size * (width, height))
    inside = (ahead > 0) & (index >= 0).all(1) & (index < (width, height)).all(1)
    column, row = np.where(inside[:, None], index, 0).astype(np.int64).T
    ratio = np.where(inside, ahead, np.nan) / depth[row, column]
    return np.abs(ratio - 1) <= MAX_DISAGREEMENT, ratio < 1 - MAX_DISAGREEMENT


def neighbours_of(seen: Sequence[Int64[np.ndarray, " _"]]) -> list[list[int]]:
    """Views that share most points with each view, given the numbers of the points that each sees.

    Views are compared with all others some at a time: of thousands, the whole table would not fit into the memory.
    """
    view = np.repeat(np.arange(len(seen)), [len(numbers) for numbers in seen])
    _, point = np.unique(np.concatenate([*seen, np.zeros(0, np.int64)]), return_inverse=True)
    sees = coo_array((np.ones(len(view), np.int64), (view, point)), shape=(len(seen), point.max(initial=0) + 1)).tocsr()
    others, found = sees.T.tocsr(), []
    for begin in range(0, len(seen), VIEWS_AT_ONCE):
        shared = (sees[begin : begin + VIEWS_AT_ONCE] @ others).toarray()
        for own, row in enumerate(shared, start=begin):
            row[own] = 0
            order = np.argsort(-row, kind="stable")[:NUM_NEIGHBOURS]
            found.append([int(other) for other in order if row[other] >= MIN_SHARED])
    return found


@dataclass(frozen=True)
class Upright:
    """Transform from the world to axes right, up and back, with the middle of the scene at the origin and radius 1."""

    turn: Float64[np.ndarray, "3 3"]
    middle: Float64[np.ndarray, "3"]
    radius: float

    def points(self, world: Float64[np.ndarray, "*M 3"]) -> Float64[np.ndarray, "*M 3"]:
        """Points of the world, in the upright scene."""
        return (world - self.middle) @ self.turn.T / self.radius

    def pose(self, world_from_cam: Float64[np.ndarray, "3 4"]) -> Float64[np.ndarray, "3 4"]:
        """Pose of a camera in the upright scene of radius 1."""
        return np.column_stack([self.turn @ world_from_cam[:, :3], self.points(world_from_cam[:, 3])])


def stand_up(points: Float64[np.ndarray, "M 3"], world_from_cam: Float64[np.ndarray, "N 3 4"]) -> Upright:
    """Transform that brings most points and all cameras within radius 1."""
    centers = world_from_cam[:, :, 3]
    middle = np.median(np.concatenate([points, centers]), axis=0)
    distance = np.linalg.norm(points - middle, axis=1)
    reach = float(np.quantile(distance, INNER_SHARE)) if len(distance) else 0.0
    radius = max(reach, float(np.linalg.norm(centers - middle, axis=1).max()), 1e-12)
    return Upright(upright(world_from_cam[:, :, :3]), middle, radius)


def upright(world_from_cam: Float64[np.ndarray, "N 3 3"]) -> Float64[np.ndarray, "3 3"]:
    """Rotation to axes right, up and back: up is the cameras' mean, back is against their mean direction."""
    up = -world_from_cam[:, :, 1].mean(0)
    up = -world_from_cam[0, :, 1] if np.linalg.norm(up) < 1e-3 else up / np.linalg.norm(up)
    for forward in (world_from_cam[:, :, 2].mean(0), world_from_cam[0, :, 2], world_from_cam[0, :, 1]):
        level = forward - (forward @ up) * up
        if np.linalg.norm(level) > 0.05:
            break
    level = level / np.linalg.norm(level)
    return np.stack([np.cross(level, up), up, -level])


def frustum_size(centers: Float64[np.ndarray, "N 3"], radius: float) -> float:
    """Half the distance to the next camera, within visible limits."""
    count = min(len(centers), 200)
    apart = np.linalg.norm(centers[:count, None] - centers[None], axis=-1)
    apart[np.arange(count), np.arange(count)] = np.inf
    next_one = apart.min(1)
    typical = float(np.median(next_one)) if np.isfinite(next_one).all() else radius
    return float(np.clip(0.5 * typical, 0.04 * radius, 0.15 * radius))


def overview(points: Float64[np.ndarray, "M 3"], fov: float) -> Float64[np.ndarray, "3"]:
    """Position from which a viewer of the origin has all points (right, up, back) within the field of view [rad]."""
    toward = points @ DIRECTION
    aside = np.linalg.norm(points - toward[:, None] * DIRECTION, axis=1)
    return DIRECTION * float(np.max(toward + aside / np.tan(fov / 2), initial=1.0))
