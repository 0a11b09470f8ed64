"""Depth as observations that bundle adjustment understands: a second, virtual camera beside each image.

A camera that is moved sideways by b sees a point at f (x - b) / z. With a huge b and a tiny f only f b / z is left: an
observation of inverse depth, in pixels. So COLMAP's own bundle adjustment of rigs takes depth into account.

Errors of depth are not independent: a network that is wrong about a wall is wrong about all of it. Their
correlation is measured, and all depths of a frame together count as much as the equivalent number of independent ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pycolmap
from jaxtyping import Bool, Float32, Float64, Int64

from mbasfm.objective.distribution import MAD_TO_SIGMA
from mbasfm.polish.keypoint_depth import gather, inverse_depths
from mbasfm.types.cameras import Cameras
from mbasfm.types.pairs import Keypoints

CELLS = 4
"""Number of cells along a side of the image; correlation of depth errors is measured within a cell."""
MAX_SIGMAS = 3.0
MIN_DEPTHS = 30
"""Least number of depths of a frame to estimate their error from."""
WORTHLESS = 0.1
"""Relative error of one depth, inflated for correlation, beyond which depth adds nothing to tracks."""
BASELINE = 1e4
"""Baseline of the virtual camera, in median depths."""
VIRTUAL = 1 << 24
"""Offset from the number of an image to that of its virtual one."""


@dataclass(frozen=True)
class DepthTerms:
    """Depth observations of a component and their reliability."""

    inverse_depth: Sequence[Float64[np.ndarray, " _"]]
    """Inverse depth at every keypoint of every frame; NaN where unknown."""
    error: Float64[np.ndarray, " N"]
    """Standard deviation of one inverse depth; infinite where a frame's depth is not used."""
    inflation: Float64[np.ndarray, " N"]
    """Factor on that deviation, because errors are correlated."""


@dataclass(frozen=True)
class _Observations:
    """Observations of all points of a model, one row each, in the order of points and tracks."""

    image: Int64[np.ndarray, " M"]
    index: Int64[np.ndarray, " M"]
    point: Int64[np.ndarray, " M"]

    @staticmethod
    def of(model: pycolmap.Reconstruction) -> "_Observations":
        rows = [
            (element.image_id, element.point2D_idx, number)
            for number, point in model.points3D.items()
            for element in point.track.elements
        ]
        return _Observations(*np.array(rows, dtype=np.int64).reshape(-1, 3).T)

    def depth(self, model: pycolmap.Reconstruction) -> Float64[np.ndarray, " M"]:
        """Depth of the points in the images that see them."""
        found = np.empty(len(self.image))
        numbers, row = np.unique(self.point, return_inverse=True)
        places = np.stack([model.points3D[number].xyz for number in numbers.tolist()])[row]
        for number in np.unique(self.image).tolist():
            mine = self.image == number
            pose = model.images[number].cam_from_world().matrix()
            found[mine] = places[mine] @ pose[2, :3] + pose[2, 3]
        return found

    def said(self, inverse_depth: Sequence[Float64[np.ndarray, " _"]]) -> Float64[np.ndarray, " M"]:
        """Inverse depth of the observations according to the depth maps."""
        return gather(inverse_depth, self.image - 1, self.index)


def weigh_depth(model: pycolmap.Reconstruction, cameras: Cameras, keypoints: Sequence[Keypoints]) -> DepthTerms | None:
    """Depth terms from comparing depth with the points of a model; None where depth is too poor to use."""
    inverse_depth = inverse_depths(keypoints, cameras)
    seen = _Observations.of(model)
    said = seen.said(inverse_depth)
    difference = 1 / seen.depth(model) - said
    error, counts = np.full(len(keypoints), np.inf), np.zeros(len(keypoints))
    relative, together = [], []
    for frame in np.unique(seen.image - 1).tolist():
        mine = (seen.image == frame + 1) & np.isfinite(difference)
        if mine.sum() < MIN_DEPTHS:
            continue
        counts[frame] = mine.sum()
        error[frame] = max(MAD_TO_SIGMA * float(np.median(np.abs(difference[mine]))), 1e-9 * float(said[mine].max()))
        cell = _cells(keypoints[frame].pixels[seen.index[mine]], cameras.intrinsics.sizes[frame].numpy())
        limit = MAX_SIGMAS * error[frame]
        together.append(shared_variance(np.clip(difference[mine], -limit, limit), cell))
        relative.append(error[frame] / float(np.median(said[mine])))
    if not together:
        return None
    crowd = 1 + np.maximum(counts / CELLS**2 - 1, 0) * max(float(np.median(together)), 0.0)
    if float(np.median(relative) * np.sqrt(np.median(crowd[counts > 0]))) > WORTHLESS:
        return None
    return DepthTerms(inverse_depth, error, np.sqrt(crowd))


def _cells(pixels: Float32[np.ndarray, "M 2"], size: Int64[np.ndarray, " 2"]) -> Int64[np.ndarray, " M"]:
    column, row = np.clip((pixels / size * CELLS).astype(np.int64), 0, CELLS - 1).T
    return row * CELLS + column


def shared_variance(values: Float64[np.ndarray, " M"], cell: Int64[np.ndarray, " M"]) -> float:
    """Share of the variance that values of one cell have in common (intraclass correlation); 0 if independent."""
    number = np.unique(cell, return_inverse=True)[1]
    members = np.bincount(number)
    cells, count = len(members), len(values)
    if cells < 2 or count <= cells:
        return 1.0
    mean = np.bincount(number, values) / members
    between = float((members * (mean - values.mean()) ** 2).sum()) / (cells - 1)
    within = float(((values - mean[number]) ** 2).sum()) / (count - cells)
    typical = (count - float((members**2).sum()) / count) / (cells - 1)
    return (between - within) / max(between + (typical - 1) * within, 1e-300)


def with_depth(model: pycolmap.Reconstruction, terms: DepthTerms, noise_px: float) -> pycolmap.Reconstruction:
    """Model with a virtual image beside every image; ids of images, cameras and points are kept."""
    joint, seen = pycolmap.Reconstruction(), _Observations.of(model)
    said, depth, error = seen.said(terms.inverse_depth), seen.depth(model), terms.error[seen.image - 1]
    used = np.isfinite(error) & (np.abs(1 / depth - said) < MAX_SIGMAS * error)
    baseline = BASELINE * float(np.median(depth))
    focal = noise_px / (terms.error * terms.inflation * baseline)
    _add_rigs(joint, model, focal, baseline)
    for number, image in model.images.items():
        mine = seen.image == number
        pixels = np.array([image.points2D[index].xy for index in seen.index[mine].tolist()]).reshape(-1, 2)
        lateral = np.array(model.cameras[image.camera_id].cam_from_img(pixels[used[mine]])).reshape(-1, 2)
        lateral[:, 0] -= baseline * said[mine & used]
        _add_frame(joint, image, pixels, focal[number - 1] * lateral)
    _add_points(joint, model, seen, used)
    return joint


def take_back(model: pycolmap.Reconstruction, joint: pycolmap.Reconstruction) -> None:
    """Copy what was adjusted in the joint model back to the model."""
    for number, point in model.points3D.items():
        point.xyz = joint.points3D[number].xyz
    for number, image in model.images.items():
        image.frame.rig_from_world = joint.images[number].cam_from_world()
    for number, camera in model.cameras.items():
        camera.params = joint.cameras[number].params


def _add_rigs(
    joint: pycolmap.Reconstruction, model: pycolmap.Reconstruction, focal: Float64[np.ndarray, " N"], baseline: float
) -> None:
    """Add one rig per camera: the camera and the virtual ones of all its images."""
    sideways = pycolmap.Rigid3d(pycolmap.Rotation3d(), np.array([-baseline, 0.0, 0.0]))
    rigs = {}
    for number, camera in model.cameras.items():
        joint.add_camera(camera)
        rigs[number] = pycolmap.Rig(rig_id=number)
        rigs[number].add_ref_sensor(camera.sensor_id)
    for number, image in model.images.items():
        params = [float(focal[number - 1]), 0.0, 0.0]
        virtual = pycolmap.Camera(model="SIMPLE_PINHOLE", width=1, height=1, params=params, camera_id=number + VIRTUAL)
        joint.add_camera(virtual)
        rigs[image.camera_id].add_sensor(virtual.sensor_id, sideways)
    for rig in rigs.values():
        joint.add_rig(rig)


def _add_frame(
    joint: pycolmap.Reconstruction,
    image: pycolmap.Image,
    pixels: Float64[np.ndarray, "M 2"],
    moved: Float64[np.ndarray, "D 2"],
) -> None:
    frame = pycolmap.Frame()
    frame.frame_id, frame.rig_id = image.image_id, image.camera_id
    pair = [
        pycolmap.Image(name=image.name, keypoints=pixels, camera_id=image.camera_id, image_id=image.image_id),
        pycolmap.Image(
            name=f"depth of {image.name}",
            keypoints=moved,
            camera_id=image.image_id + VIRTUAL,
            image_id=image.image_id + VIRTUAL,
        ),
    ]
    for one in pair:
        one.frame_id = image.image_id
        frame.add_data_id(one.data_id)
    frame.rig_from_world = image.cam_from_world()
    joint.add_frame(frame)
    for one in pair:
        joint.add_image(one)
    joint.register_frame(image.image_id)


def _add_points(
    joint: pycolmap.Reconstruction, model: pycolmap.Reconstruction, seen: _Observations, used: Bool[np.ndarray, " M"]
) -> None:
    own, other = _slots(seen.image, np.ones_like(used)).tolist(), _slots(seen.image, used).tolist()
    images, has_depth = seen.image.tolist(), used.tolist()
    starts = np.flatnonzero(np.diff(seen.point, prepend=-1))
    for start, end in zip(starts.tolist(), [*starts[1:].tolist(), len(images)], strict=True):
        track = pycolmap.Track()
        for row in range(start, end):
            track.add_element(images[row], own[row])
            if has_depth[row]:
                track.add_element(images[row] + VIRTUAL, other[row])
        number = int(seen.point[start])
        joint.add_point3D_with_id(number, pycolmap.Point3D(xyz=model.points3D[number].xyz, track=track))


def _slots(image: Int64[np.ndarray, " M"], used: Bool[np.ndarray, " M"]) -> Int64[np.ndarray, " M"]:
    """Position of each used observation among those of its image, in order."""
    slot = np.zeros(len(image), dtype=np.int64)
    for number in np.unique(image).tolist():
        mine = (image == number) & used
        slot[mine] = np.arange(mine.sum())
    return slot
