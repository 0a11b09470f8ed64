"""A start from all pairs at once: exact matches and depth of any scale and shift give the truth up to a similarity."""

from dataclasses import replace

import numpy as np
import pytest
from made_up import (
    all_views,
    compose,
    invert,
    keypoints_with,
    make_lens,
    make_pose,
    orbit,
    photograph,
    pose_errors_deg,
    relief,
    true_intrinsics,
    true_view,
)
from torch import full

from mbasfm.sfm.start.averaging import Edges
from mbasfm.sfm.start.candidates import global_start
from mbasfm.sfm.start.lengths import depths_of_pairs, measure_lengths

SCALE = np.array([1.0, 0.5, 2.0, 1.3, 0.8, 3.0, 0.4])
SHIFT = np.array([0.0, 0.05, -0.03, 0.1, -0.04, 0.0, 0.02])
"""Of the frames' depth maps: 1 / depth = scale (d + shift); a point is about 4 away."""


def raw_depth(made, is_disparity, shift=SHIFT, noise=0.0, seed=0):
    """Raw values that scale, and for disparity shift, make right."""
    generator = np.random.default_rng(seed)
    maps = []
    for frame, depth in enumerate(made.depth):
        value = (1 / depth if is_disparity else depth) * np.exp(noise * generator.standard_normal(len(depth)))
        maps.append(value / SCALE[frame] - (shift[frame] / SCALE[frame] if is_disparity else 0))
    return keypoints_with(made, maps)


def start(made, views, keypoints, is_disparity):
    return global_start(views, keypoints, true_intrinsics(made), full((made.num_frames,), is_disparity))


def assert_similar(cameras, made, tolerance=0.01):
    """Distances between all cameras are the true ones times one factor, which is returned."""
    centers = [invert(poses)[:, :, 3] for poses in (cameras.cam_from_world.numpy(), made.cam_from_world)]
    found, true = (np.linalg.norm(points[:, None] - points, axis=-1) for points in centers)
    pairs = np.triu_indices(made.num_frames, 1)
    size = float(np.median(found[pairs][true[pairs] > 0] / true[pairs][true[pairs] > 0]))
    assert np.abs(found / size - true).max() < tolerance * true.max()
    return size


def chain(steps, seed=12, noise_px=0.0):
    """Cameras on a straight line."""
    poses = np.stack([make_pose([0, 0, 0], [-place, 0, 4.0]) for place in np.cumsum(steps)])
    return photograph(relief(300, seed), poses, make_lens(), seed=seed, noise_px=noise_px)


@pytest.mark.parametrize("is_disparity", [False, True])
def test_exact_depth_of_any_scale_and_shift_gives_positions_scales_and_shifts(is_disparity):
    made = photograph(relief(250, 0), orbit(7), make_lens(), seed=0)
    cameras = start(made, all_views(made), raw_depth(made, is_disparity), is_disparity)
    turn, direction = pose_errors_deg(cameras.cam_from_world.numpy(), made)
    assert turn.max() < 0.01 and direction.max() < 0.05
    size = assert_similar(cameras, made, 1e-3)
    expected = SCALE / size if is_disparity else SCALE * size
    assert cameras.depth_scale.numpy() == pytest.approx(expected, rel=2e-3)
    assert cameras.depth_shift.numpy() * size == pytest.approx(SHIFT if is_disparity else np.zeros(7), abs=1e-3)


@pytest.mark.parametrize("is_disparity", [False, True])
@pytest.mark.parametrize("pairs", ["neighbours", "all"])
def test_lengths_along_a_line_come_from_depth(pairs, is_disparity):
    """Directions say nothing about steps along a line, nor do pairs of neighbours alone."""
    made = chain([-1.0, 0.3, 0.7, 0.2, 0.7])
    views = [view for view in all_views(made) if pairs == "all" or view.j == view.i + 1]
    cameras = start(made, views, raw_depth(made, is_disparity), is_disparity)
    assert_similar(cameras, made, 2e-3)


@pytest.mark.parametrize("is_disparity", [False, True])
def test_a_camera_that_only_turned_stays_and_hands_on_its_scale(is_disparity):
    """Frame 2 stands where frame 1 does; nothing but that pair leads on to frames 3 and 4."""
    poses = chain([-0.8, 0.5, 0.0, 0.4, 0.6]).cam_from_world
    poses[2] = compose(make_pose([2.0, 6.0, 1.0], np.zeros(3)), poses[2])
    made = photograph(relief(400, 4), poses, make_lens(), seed=4, noise_px=0.05)
    views = [true_view(made, *ends) for ends in ((0, 1), (1, 2), (2, 3), (2, 4), (3, 4))]
    views[1] = replace(views[1], j_from_i=np.column_stack([views[1].j_from_i[:, :3], [0.6, 0.0, 0.8]]))
    cameras = start(made, views, raw_depth(made, is_disparity), is_disparity)
    size = assert_similar(cameras, made, 0.02)
    expected = SCALE[:5] / size if is_disparity else SCALE[:5] * size
    assert cameras.depth_scale.numpy() == pytest.approx(expected, rel=0.05)


def test_pairs_with_wrong_directions_and_wrong_depth_are_outvoted():
    made = photograph(relief(250, 6), orbit(7), make_lens(), seed=6)
    views = all_views(made)
    for number in (3, 9, 14):
        pose = views[number].j_from_i
        views[number] = replace(views[number], j_from_i=np.column_stack([pose[:, :3], np.roll(pose[:, 3], 1)]))
    cameras = start(made, views, raw_depth(made, True), True)
    assert_similar(cameras, made, 0.01)


def test_a_frame_of_false_depth_moves_no_camera():
    """Its lengths contradict those of all others."""
    made = photograph(relief(250, 7), orbit(7), make_lens(), seed=7)
    keypoints = raw_depth(made, False)
    wild = np.random.default_rng(0).uniform(0.5, 20.0, len(keypoints[3].raw_depth)).astype(np.float32)
    keypoints[3] = replace(keypoints[3], raw_depth=wild)
    assert_similar(start(made, all_views(made), keypoints, False), made, 0.02)


def test_rough_depth_and_noisy_matches_give_nearly_the_truth():
    made = photograph(relief(400, 1), orbit(6), make_lens(), seed=1, noise_px=0.5)
    cameras = start(made, all_views(made), raw_depth(made, True, noise=0.1), True)
    assert_similar(cameras, made, 0.05)


@pytest.mark.parametrize("level", [1.0, np.nan])
def test_where_depth_says_nothing_positions_follow_from_directions(level):
    made = photograph(relief(250, 3), orbit(6), make_lens(), seed=3)
    keypoints = keypoints_with(made, [np.full(len(depth), level) for depth in made.depth])
    cameras = start(made, all_views(made), keypoints, True)
    assert_similar(cameras, made, 0.01)
    assert cameras.depth_scale.isfinite().all() and (cameras.depth_scale > 0).all()


@pytest.mark.parametrize("pairs", ["all", "through it"])
def test_a_frame_without_depth_has_its_place(pairs):
    """Also where two parts meet in it alone, so that their units have nothing to do with each other."""
    made = photograph(relief(250, 5), orbit(7), make_lens(), seed=5)
    views = [view for view in all_views(made) if pairs == "all" or not view.i < 3 < view.j]
    keypoints = raw_depth(made, True)
    keypoints[3] = replace(keypoints[3], raw_depth=np.full_like(keypoints[3].raw_depth, np.nan))
    cameras = start(made, views, keypoints, True)
    assert cameras.cam_from_world.isfinite().all() and (cameras.depth_scale > 0).all()
    if pairs == "all":
        assert_similar(cameras, made, 2e-3)
    else:
        turn, direction = pose_errors_deg(cameras.cam_from_world.numpy()[:4], first_frames(made, 4))
        assert turn.max() < 0.01 and direction.max() < 0.5


def first_frames(made, count):
    """The first frames of a scene."""
    return replace(made, cam_from_world=made.cam_from_world[:count], lenses=made.lenses[:count])


def test_components_have_units_of_their_own():
    made = photograph(relief(250, 13), orbit(7), make_lens(), seed=13)
    parts = ((0, 1, 2), (4, 5, 6))
    views = [view for view in all_views(made) if any(view.i in part and view.j in part for part in parts)]
    maps = [depth * (1 if frame < 3 else 20) for frame, depth in enumerate(made.depth)]
    cameras = start(made, views, keypoints_with(made, maps), False)
    assert cameras.depth_scale.numpy() == pytest.approx(np.ones(7), rel=0.01)
    centers, true = (invert(poses)[:, :, 3] for poses in (cameras.cam_from_world.numpy(), made.cam_from_world))
    for (i, _, j), size in zip(parts, (1, 20), strict=True):
        expected = size * np.linalg.norm(true[j] - true[i])
        assert np.linalg.norm(centers[j] - centers[i]) == pytest.approx(expected, rel=0.01)
    assert np.array_equal(cameras.cam_from_world[3].numpy(), np.eye(4)[:3])


def test_baselines_are_as_long_as_depth_says():
    made = photograph(relief(250, 2), orbit(5), make_lens(), seed=2)
    views = all_views(made)
    depths = depths_of_pairs(views, Edges(views, raw_depth(made, True), true_intrinsics(made)))
    lengths = measure_lengths(depths, np.ones(5, dtype=bool))
    centers = invert(made.cam_from_world)[:, :, 3]
    true = np.linalg.norm(centers[depths.ends[:, 1]] - centers[depths.ends[:, 0]], axis=1)
    ratio = np.exp(lengths.log_baseline) / true
    assert ratio == pytest.approx(np.full(len(views), np.median(ratio)), rel=2e-3)
    assert lengths.shift == pytest.approx(SHIFT[:5] / SCALE[:5], abs=1e-3)
