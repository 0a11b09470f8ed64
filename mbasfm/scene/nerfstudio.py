"""The transforms.json of nerfstudio (and instant-ngp)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float64

from mbasfm.types.outcome import View


@dataclass(frozen=True)
class Companions:
    """Files beside transforms.json, by paths relative to it."""

    images: Sequence[str]
    """Images, one per view."""
    depths: Sequence[str] = ()
    """Depth images, one per view or none at all, as nerfstudio requires."""
    masks: Sequence[str] = ()
    """Masks, one per view or none at all."""
    depth_unit: float | None = None
    """World units per step of the depth images."""
    cloud: str | None = None


def transforms(views: Sequence[View], files: Companions) -> dict[str, Any]:
    """Content of transforms.json: poses as OpenGL camera-to-world; intrinsics on top if shared, else per frame."""
    shared = len({view.camera for view in views}) == 1
    content: dict[str, Any] = {"camera_model": "OPENCV"}
    if shared:
        content |= _intrinsics(views[0])
    content["frames"] = [_frame(view, name, shared) for view, name in zip(views, files.images, strict=True)]
    for frame, depth in zip(content["frames"], files.depths, strict=False):
        frame["depth_file_path"] = depth
    for frame, mask in zip(content["frames"], files.masks, strict=False):
        frame["mask_path"] = mask
    if files.depths:
        content["depth_unit_scale_factor"] = files.depth_unit
    content["applied_transform"] = np.eye(4)[:3].tolist()
    if files.cloud is not None:
        content["ply_file_path"] = files.cloud
    return content


def _frame(view: View, name: str, shared: bool) -> dict[str, Any]:
    matrix = {"file_path": name, "transform_matrix": opengl_pose(view).tolist()}
    return matrix if shared else matrix | _intrinsics(view)


def opengl_pose(view: View) -> Float64[np.ndarray, "4 4"]:
    """Pose world_from_cam of a camera whose y points up and whose z points back."""
    pose = np.vstack([view.world_from_cam, [0, 0, 0, 1]])
    return pose * np.array([1.0, -1.0, -1.0, 1.0])


def _intrinsics(view: View) -> dict[str, Any]:
    (fx, fy), (cx, cy), (width, height) = view.focal.tolist(), view.center.tolist(), view.size
    lens = dict.fromkeys(("k1", "k2", "p1", "p2"), 0.0)
    return {"fl_x": fx, "fl_y": fy, "cx": cx, "cy": cy, "w": width, "h": height} | lens
