"""Placement of a viewer in front of a scene: upright, of radius 1, with everything that matters in view."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

INNER_SHARE = 0.9
"""Share of the points that must be in view; cameras always are."""
DIRECTION = np.array([0.45, 0.5, 1.0]) / np.linalg.norm([0.45, 0.5, 1.0])
"""Direction from the middle to the viewer: behind the cameras, a little above and beside them."""


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
