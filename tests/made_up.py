"""Points and cameras whose answer is known, as the stages between matching and polish see them.

Keypoints of a frame are shuffled, so that the index of a point never happens to be the index of its keypoint.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np
import torch
from scipy.spatial.transform import Rotation

from mbasfm.estimators.two_view import fundamental_from_pose
from mbasfm.types.cameras import Cameras, Intrinsics, Lens
from mbasfm.types.observations import Keypoints, TwoView

NO_DISTORTION = (0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True)
class MadeUp:
    """A scene, its cameras and what they see."""

    points: np.ndarray
    cam_from_world: np.ndarray
    lenses: tuple[Lens, ...]
    group: tuple[int, ...]
    pixels: list[np.ndarray]
    """Keypoints of every frame, float64."""
    point_of: list[np.ndarray]
    """The point that each keypoint shows."""
    depth: list[np.ndarray]
    """True depth of each keypoint."""

    @property
    def num_frames(self) -> int:
        return len(self.lenses)


def make_lens(focal=900.0, size=(1024, 768), distortion=NO_DISTORTION, offset=(0.0, 0.0), is_fisheye=False) -> Lens:
    return Lens(
        focal=np.full(2, float(focal)),
        center=np.array(size) / 2 + np.array(offset),
        distortion=np.array(distortion, dtype=np.float64),
        size=np.array(size),
        is_fisheye=is_fisheye,
    )


def make_pose(turn_deg, translation) -> np.ndarray:
    """Rotation by the vector ``turn_deg``, then translation."""
    rotation = Rotation.from_rotvec(turn_deg, degrees=True).as_matrix()
    return np.column_stack([rotation, np.asarray(translation, dtype=np.float64)])


def compose(c_from_b: np.ndarray, b_from_a: np.ndarray) -> np.ndarray:
    rotation = c_from_b[..., :3] @ b_from_a[..., :3]
    return np.concatenate([rotation, c_from_b[..., :3] @ b_from_a[..., 3:] + c_from_b[..., 3:]], -1)


def invert(b_from_a: np.ndarray) -> np.ndarray:
    transposed = b_from_a[..., :3].swapaxes(-1, -2)
    return np.concatenate([transposed, -transposed @ b_from_a[..., 3:]], -1)


def angle_deg(first: np.ndarray, second: np.ndarray) -> float:
    """Between two rotations."""
    return float(np.rad2deg(Rotation.from_matrix(first @ second.T).magnitude()))


def direction_deg(first: np.ndarray, second: np.ndarray) -> float:
    """Between two vectors, signs included."""
    return float(np.rad2deg(np.arctan2(np.linalg.norm(np.cross(first, second)), first @ second)))


def relief(count: int, seed: int) -> np.ndarray:
    """Points in a box around the origin."""
    return np.random.default_rng(seed).uniform([-1.4, -1.0, -0.8], [1.4, 1.0, 0.8], (count, 3))


def wall(count: int, seed: int) -> np.ndarray:
    """Points on a slanted plane through the origin."""
    x, y, _ = relief(count, seed).T
    return np.column_stack([x, y, 0.3 * x - 0.2 * y])


def orbit(num_frames: int, step_deg: float = 8.0, distance: float = 4.0) -> np.ndarray:
    """cam_from_world of cameras around the origin that look at it, up and down and a little rolled."""
    number = np.arange(num_frames)
    around = Rotation.from_euler("y", step_deg * (number - number.mean())[:, None], degrees=True)
    tilt = Rotation.from_euler("x", 6 * np.cos(2.1 * number)[:, None], degrees=True)
    roll = Rotation.from_euler("z", 5 * np.sin(1.3 * number)[:, None], degrees=True)
    translation = np.array([0.0, 0.0, distance]) + 0.2 * np.sin(np.outer(number, [1.0, 1.7, 2.3]))
    return np.concatenate([(roll * tilt * around).as_matrix(), translation[..., None]], -1)


def look(points: np.ndarray, cam_from_world: np.ndarray, lens: Lens) -> tuple[np.ndarray, np.ndarray]:
    """Pixels, by OpenCV, and depth of points."""
    (fx, fy), (cx, cy) = lens.focal, lens.center
    matrix = np.array([[fx, 0, cx], [0, fy, cy], [0, 0, 1]])
    turn, _ = cv2.Rodrigues(cam_from_world[:, :3])
    if lens.is_fisheye:
        pixels, _ = cv2.fisheye.projectPoints(points[None], turn, cam_from_world[:, 3], matrix, lens.distortion)
    else:
        pixels, _ = cv2.projectPoints(points, turn, cam_from_world[:, 3], matrix, lens.distortion)
    return pixels.reshape(-1, 2), points @ cam_from_world[2, :3] + cam_from_world[2, 3]


def photograph(
    points: np.ndarray, cam_from_world: np.ndarray, lenses: Lens | Sequence[Lens], seed: int, noise_px: float = 0.0
) -> MadeUp:
    """What cameras see of points; frames with one lens in common are of one group."""
    lenses = (lenses,) * len(cam_from_world) if isinstance(lenses, Lens) else tuple(lenses)
    generator = np.random.default_rng(seed)
    pixels, point_of, depth = [], [], []
    for pose, lens in zip(cam_from_world, lenses, strict=True):
        seen, ahead = look(points, pose, lens)
        inside = np.flatnonzero((ahead > 0.1) & (seen > 0).all(1) & (seen < lens.size).all(1))
        chosen = generator.permutation(inside)
        pixels.append(seen[chosen] + noise_px * generator.standard_normal((len(chosen), 2)))
        point_of.append(chosen)
        depth.append(ahead[chosen])
    group = tuple([id(lens) for lens in lenses].index(id(lens)) for lens in lenses)
    return MadeUp(points, cam_from_world, lenses, group, pixels, point_of, depth)


def make_view(i, j, matches, **known) -> TwoView:
    """A verified pair in which everything but what is known is of no importance."""
    usual = {
        "j_from_i": make_pose([0, 0, 0], [1, 0, 0]),
        "fundamental": np.eye(3),
        "is_planar": False,
        "log10_false_alarms": -100.0,
        "inlier_ratio": 1.0,
        "covisibility": (0.5, 0.5),
    }
    return TwoView(i, j, np.asarray(matches, dtype=np.int64).reshape(-1, 2), **(usual | known))


def true_matches(made: MadeUp, i: int, j: int) -> np.ndarray:
    """Keypoints of i and j that show the same point."""
    _, first, second = np.intersect1d(made.point_of[i], made.point_of[j], return_indices=True)
    return np.column_stack([first, second])


def true_view(made: MadeUp, i: int, j: int, is_planar: bool = False) -> TwoView:
    """What verification would say if it made no error."""
    j_from_i = compose(made.cam_from_world[j], invert(made.cam_from_world[i]))
    j_from_i[:, 3] /= max(np.linalg.norm(j_from_i[:, 3]), 1e-12)
    fundamental = fundamental_from_pose(j_from_i, (made.lenses[i], made.lenses[j]))
    known = {"j_from_i": j_from_i, "fundamental": fundamental, "is_planar": is_planar}
    return make_view(i, j, true_matches(made, i, j), **known)


def all_views(made: MadeUp, is_planar: bool = False) -> list[TwoView]:
    pairs = [(i, j) for i in range(made.num_frames) for j in range(i + 1, made.num_frames)]
    return [true_view(made, i, j, is_planar) for i, j in pairs]


def true_intrinsics(made: MadeUp) -> Intrinsics:
    return Intrinsics(
        focal=torch.from_numpy(np.stack([lens.focal for lens in made.lenses])),
        center=torch.from_numpy(np.stack([lens.center for lens in made.lenses])),
        distortion=torch.from_numpy(np.stack([lens.distortion for lens in made.lenses])),
        sizes=torch.from_numpy(np.stack([lens.size for lens in made.lenses])),
        group=torch.tensor(made.group),
        is_fisheye=torch.tensor([lens.is_fisheye for lens in made.lenses]),
    )


def true_cameras(made: MadeUp) -> Cameras:
    one = torch.ones(made.num_frames, dtype=torch.float64)
    pose = torch.from_numpy(made.cam_from_world.copy())
    return Cameras(pose, true_intrinsics(made), one, torch.zeros_like(one), torch.zeros(made.num_frames).bool())


def keypoints_with(made: MadeUp, raw_depth: Sequence[np.ndarray]) -> list[Keypoints]:
    rows = zip(made.pixels, raw_depth, strict=True)
    return [Keypoints(pixels.astype(np.float32), raw.astype(np.float32)) for pixels, raw in rows]


def pose_errors_deg(found: np.ndarray, made: MadeUp) -> tuple[np.ndarray, np.ndarray]:
    """Errors of relative rotations and of directions of relative translations, over all pairs."""
    pairs = [(i, j) for i in range(made.num_frames) for j in range(i + 1, made.num_frames)]
    turn, direction = [], []
    for i, j in pairs:
        guess, truth = (compose(poses[j], invert(poses[i])) for poses in (found, made.cam_from_world))
        turn.append(angle_deg(guess[:, :3], truth[:, :3]))
        direction.append(direction_deg(guess[:, 3], truth[:, 3]))
    return np.array(turn), np.array(direction)
