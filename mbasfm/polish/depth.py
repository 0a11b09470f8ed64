"""What depth says about matches: some contradict it, and the others become observations of depth as well.

Where a pattern repeats, such as the windows of a wall, a match with the neighbouring repetition lies on the epipolar
line as the right one does and triangulates to a clean point at a wrong distance. Whole rows of them agree with each
other and bend the cameras. Depth tells them apart, even rough depth: it is off by percents, they by a factor. Where
depth itself is off by a factor, as networks are in the background, all matches around contradict it alike and are kept.

Bundle adjustment understands depth as a second, virtual camera beside each image. One that is moved sideways by b sees
a point at f (x - b) / z. With a huge b and a tiny f only f b / z is left: an observation of inverse depth, in pixels.
So COLMAP's own bundle adjustment of rigs takes depth into account.

Errors of depth are not independent: a network that is wrong about a wall is wrong about all of it. Their correlation
is measured, and all depths of a frame together count as much as the equivalent number of independent ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pycolmap
import torch
from jaxtyping import Bool, Float32, Float64, Int64

from mbasfm.estimators.two_view import GRID, MIN_INLIERS
from mbasfm.geometry.camera import triangulated_inverse_depth, unit_rays
from mbasfm.geometry.rigid import compose, invert
from mbasfm.objective.depth_prior import shared_variance
from mbasfm.objective.losses import MAD_TO_SIGMA
from mbasfm.types.cameras import Cameras
from mbasfm.types.observations import Keypoints, TwoView

CONTRADICTION_SIGMAS = 4.0
MATCH_PX = 1.0
"""Error of a match along its line [px at a long side of 1024], which limits triangulation at small parallax."""
MIN_CONSENSUS = 5
"""Number of matches in one cell of an image that can overrule its depth map."""
FARTHEST = 1e-3
"""Least ratio of triangulated to expected inverse depth; points behind the camera count as this far."""
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


def inverse_depths(keypoints: Sequence[Keypoints], cameras: Cameras) -> list[Float64[np.ndarray, " _"]]:
    """Inverse of the corrected depth at the keypoints of every frame; NaN where it is unknown or not positive."""
    rows = zip(keypoints, *(column.tolist() for column in (cameras.depth_scale, cameras.depth_shift)), strict=True)
    corrected = [scale * points.raw_depth.astype(np.float64) + shift for points, scale, shift in rows]
    possible = [np.where(values > 0, values, np.nan) for values in corrected]
    is_disparity = cameras.is_disparity.tolist()
    return [values if kept else 1 / values for values, kept in zip(possible, is_disparity, strict=True)]


def gather(values: Sequence[np.ndarray], frame: np.ndarray, index: np.ndarray) -> np.ndarray:
    """Values of some keypoints, given by frame and index in it."""
    offset = np.cumsum([0, *(len(rows) for rows in values)])
    return np.concatenate(values)[offset[frame] + index]


def drop_contradictions(views: Sequence[TwoView], cameras: Cameras, keypoints: Sequence[Keypoints]) -> list[TwoView]:
    """Pairs without the matches whose triangulated depth is far from the depth map of one of their frames.

    Far is measured by the frame's own spread, so that bad depth, or none, leaves everything as it is. A pair that would
    keep too few matches keeps them all: then it is not a few of its matches that are wrong.
    """
    if not views:
        return []
    ends = np.repeat([(view.i, view.j) for view in views], [view.num_inliers for view in views], axis=0)
    matches = np.concatenate([view.matches for view in views])
    # Both directions at once: all that is seen in a frame counts there, whichever end of a pair it is.
    both = _agrees(
        np.concatenate([ends, ends[:, ::-1]]), np.concatenate([matches, matches[:, ::-1]]), cameras, keypoints
    )
    agrees = both[: len(ends)] & both[len(ends) :]
    pieces = np.split(agrees, np.cumsum([view.num_inliers for view in views])[:-1])
    return [
        replace(view, matches=view.matches[kept]) if kept.sum() >= MIN_INLIERS else view
        for view, kept in zip(views, pieces, strict=True)
    ]


def _agrees(
    ends: Int64[np.ndarray, "M 2"], matches: Int64[np.ndarray, "M 2"], cameras: Cameras, keypoints: Sequence[Keypoints]
) -> Bool[np.ndarray, " M"]:
    """Whether triangulation agrees with the depth of the first end; True where depth is unknown."""
    source, target = torch.from_numpy(ends).T
    pixels = [gather([points.pixels for points in keypoints], *pair) for pair in zip(ends.T, matches.T, strict=True)]
    rays = [
        unit_rays(torch.from_numpy(places).double(), cameras.intrinsics, frame)
        for places, frame in zip(pixels, (source, target), strict=True)
    ]
    expected = torch.from_numpy(gather(inverse_depths(keypoints, cameras), ends[:, 0], matches[:, 0]))
    relative = compose(cameras.cam_from_world[target], invert(cameras.cam_from_world[source]))
    found = triangulated_inverse_depth(relative, rays[0][:, None], rays[1][:, None])[:, 0]
    focal = cameras.intrinsics.reference_focal[target]
    parallax_px = focal * expected * torch.linalg.cross(rays[1], relative[:, :, 3]).norm(dim=-1)
    error = (found / expected).clamp_min(FARTHEST).log().numpy()
    sizes = cameras.intrinsics.sizes[source].numpy()
    column, row = np.clip((pixels[0] / sizes * GRID).astype(np.int64), 0, GRID - 1).T
    around = _medians(error, (ends[:, 0] * GRID + row) * GRID + column, MIN_CONSENSUS)
    floor = MATCH_PX / parallax_px.clamp_min(1e-12).numpy()
    return ~(_is_far(error, ends[:, 0], floor) & _is_far(error - around, ends[:, 0], floor))


def _is_far(
    error: Float64[np.ndarray, " M"], frame: Int64[np.ndarray, " M"], floor: Float64[np.ndarray, " M"]
) -> Bool[np.ndarray, " M"]:
    """Whether an error is larger than the others of its frame, and its own parallax, make likely."""
    spread = MAD_TO_SIGMA * _medians(np.abs(error), frame, 1)
    return np.abs(error) > CONTRADICTION_SIGMAS * np.hypot(spread, floor)


def _medians(
    values: Float64[np.ndarray, " M"], group: Int64[np.ndarray, " M"], min_count: int
) -> Float64[np.ndarray, " M"]:
    """Median of each value's group, without NaN; zero where the group has too few values."""
    number = np.unique(group, return_inverse=True)[1]
    known = ~np.isnan(values)
    order = np.lexsort((values[known], number[known]))
    ranked, members = values[known][order], np.bincount(number[known], minlength=number.max(initial=-1) + 1)
    middle = np.cumsum(members) - members + members // 2
    padded = np.append(ranked, np.zeros(1))
    return np.where(members >= min_count, padded[np.minimum(middle, len(ranked))], 0.0)[number]


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
