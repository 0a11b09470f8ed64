"""Averaged rotations: the truth from exact pairs, far better than single pairs from noisy ones, and outliers named."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from made_up import (
    all_views,
    angle_deg,
    compose,
    direction_deg,
    invert,
    keypoints_with,
    make_lens,
    make_pose,
    orbit,
    photograph,
    relief,
    true_intrinsics,
)
from margins import assert_below

from mbasfm.sfm.pairs.pose_graph import _directions, agree_with, drop_inconsistent
from mbasfm.sfm.start.averaging import average_positions, average_rotations, rays_of

MADE = photograph(relief(120, 0), orbit(8, step_deg=12.0), make_lens(distortion=(-0.1, 0.02, 0, 0)), 0)


def disturbed_views(noise_deg, wrong=(), seed=0):
    generator = np.random.default_rng(seed)
    views = []
    for view in all_views(MADE):
        noise = make_pose(noise_deg * generator.standard_normal(3), np.zeros(3))
        if (view.i, view.j) in wrong:
            noise = make_pose([20.0, 70.0, -30.0], np.zeros(3))
        views.append(replace(view, j_from_i=compose(noise, view.j_from_i)))
    return views


def errors_deg(rotation):
    pairs = combinations(range(MADE.num_frames), 2)
    truth = MADE.cam_from_world[:, :, :3]
    return np.array([angle_deg(rotation[j] @ rotation[i].T, truth[j] @ truth[i].T) for i, j in pairs])


def test_exact_pairs_give_the_exact_rotations():
    assert_below(errors_deg(average_rotations(all_views(MADE), MADE.num_frames)), 1e-6)


def test_the_average_is_better_than_its_pairs():
    """With 28 pairs for 7 unknown rotations noise falls by about half."""
    views = disturbed_views(2.0)
    before = [angle_deg(v.j_from_i[:, :3], t.j_from_i[:, :3]) for v, t in zip(views, all_views(MADE), strict=True)]
    assert errors_deg(average_rotations(views, MADE.num_frames)).mean() < 0.65 * np.mean(before)


WRONG = {(0, 1), (2, 5), (3, 4), (6, 7)}


@pytest.mark.parametrize("seed", range(3))
def test_wrong_pairs_that_are_weak_do_not_pull_and_are_left_out(seed):
    views = disturbed_views(0.5, WRONG, seed)
    views = [replace(view, matches=view.matches[:40]) if (view.i, view.j) in WRONG else view for view in views]
    rotation = average_rotations(views, MADE.num_frames)
    assert errors_deg(rotation).max() < 1.5
    keypoints = keypoints_with(MADE, MADE.depth)
    kept = agree_with(views, rotation, rays_of(keypoints, true_intrinsics(MADE)))
    assert {(view.i, view.j) for view in views} - {(view.i, view.j) for view in kept} == WRONG


@pytest.mark.parametrize("seed", range(3))
def test_wrong_pairs_that_are_strong_are_gone_after_the_triangles(seed):
    """One of them in the tree would hold its frame: the two stages belong together."""
    views, dropped = drop_inconsistent(disturbed_views(0.5, WRONG, seed), MADE.num_frames)
    assert {(view.i, view.j) for view in dropped} == WRONG
    assert errors_deg(average_rotations(views, MADE.num_frames)).max() < 1.5


def test_pairs_take_the_averaged_rotation_and_the_translation_that_goes_with_it():
    views = disturbed_views(1.0)
    rotation = average_rotations(all_views(MADE), MADE.num_frames)
    rays = rays_of(keypoints_with(MADE, MADE.depth), true_intrinsics(MADE))
    for found, truth in zip(agree_with(views, rotation, rays), all_views(MADE), strict=True):
        assert angle_deg(found.j_from_i[:, :3], truth.j_from_i[:, :3]) < 1e-3
        assert direction_deg(found.j_from_i[:, 3], truth.j_from_i[:, 3]) < 0.05
        assert np.array_equal(found.matches, truth.matches)


def test_pixels_without_a_ray_do_not_matter():
    """Beyond its turning point a barrel lens has no inverse: corners have no ray."""
    made = photograph(0.6 * relief(120, 2), orbit(3), make_lens(600.0, distortion=(-0.35, 0, 0, 0)), 2)
    for pixels in made.pixels:
        pixels[:3] = [[2.0, 2.0], [1022.0, 2.0], [2.0, 766.0]]
    views = all_views(made)
    rays = rays_of(keypoints_with(made, made.depth), true_intrinsics(made))
    assert all(np.isnan(some[:3]).any(1).all() for some in rays)
    for found, truth in zip(agree_with(views, average_rotations(views, 3), rays), views, strict=True):
        assert direction_deg(found.j_from_i[:, 3], truth.j_from_i[:, 3]) < 0.1


@pytest.mark.parametrize("step", [[1, 0, 0], [-1, 0, 0], [0, 0.6, 0.8], [0, 0, 1], [0, 0, -1], [0.3, -0.5, -0.8]])
def test_direction_is_found_with_its_sign_from_a_start_that_is_off(step):
    generator = np.random.default_rng(1)
    points = generator.uniform([-1, -1, 3], [1, 1, 6], (80, 3))
    step = np.array(step) / np.linalg.norm(step)
    turned, target = (side / side[:, 2:] for side in (points, points + 0.5 * step))
    target[:8, :2] += generator.uniform(-0.2, 0.2, (8, 2))  # mismatches
    for start in (step, -step, make_pose([0, 8.0, 6.0], [0, 0, 0])[:, :3] @ step):
        assert direction_deg(_directions([turned], [target], start[None])[0], step) < 1.0


def test_each_component_has_a_gauge_of_its_own():
    views = [view for view in disturbed_views(0.0) if (view.i < 3) == (view.j < 3) and 7 not in (view.i, view.j)]
    rotation = average_rotations(views, MADE.num_frames)
    truth = MADE.cam_from_world[:, :, :3]
    for view in views:
        i, j = view.i, view.j
        assert_below(angle_deg(rotation[j] @ rotation[i].T, truth[j] @ truth[i].T), 1e-6)
    assert all(np.array_equal(rotation[root], np.eye(3)) for root in (0, 3, 7))


def test_rays_undo_the_lens():
    keypoints = keypoints_with(MADE, MADE.depth)
    for frame, rays in enumerate(rays_of(keypoints, true_intrinsics(MADE))):
        points = rays * MADE.depth[frame][:, None]
        back = invert(MADE.cam_from_world[frame])
        world = points @ back[:, :3].T + back[:, 3]
        assert world == pytest.approx(MADE.points[MADE.point_of[frame]], abs=1e-4)


def test_conjugate_gradients_give_the_averages_of_the_dense_solve(monkeypatch):
    views = disturbed_views(1.0)
    rotation = average_rotations(views, MADE.num_frames)
    near = agree_with(views, rotation, rays_of(keypoints_with(MADE, MADE.depth), true_intrinsics(MADE)))
    centers = average_positions(near, rotation)
    monkeypatch.setattr("mbasfm.sfm.start.averaging.DENSE_LIMIT", 0)
    np.testing.assert_allclose(average_rotations(views, MADE.num_frames), rotation, atol=1e-5)
    size = np.abs(centers).max()
    np.testing.assert_allclose(average_positions(near, rotation) / size, centers / size, atol=1e-2)
