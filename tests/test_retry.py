"""A second chance: a frame joins a model by all its matches at once, and only by true ones."""

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
    orbit,
    photograph,
    relief,
    true_cameras,
    true_matches,
)

from mbasfm.polish.place_by_points import MIN_INLIERS, place_by_points
from mbasfm.polish.polish import triangulate

LEFT_OUT = 5


@pytest.fixture(scope="module")
def scene():
    made = photograph(relief(300, 0), orbit(6), make_lens(), seed=0, noise_px=0.3)
    views = [view for view in all_views(made) if LEFT_OUT not in (view.i, view.j)]
    keypoints = keypoints_with(made, made.depth)
    names = [f"{frame}.jpg" for frame in range(6)]
    return made, keypoints, triangulate(names, list(range(5)), true_cameras(made), views, keypoints)


def matches_of(made, per_frame, wrong=0.0, seed=0):
    """A few matches with each frame of the model, some of them to a wrong keypoint."""
    generator = np.random.default_rng(seed)
    found = {}
    for other in range(5):
        matches = generator.permutation(true_matches(made, LEFT_OUT, other))[:per_frame]
        is_wrong = generator.random(len(matches)) < wrong
        matches[is_wrong, 1] = generator.integers(len(made.pixels[other]), size=is_wrong.sum())
        found[other] = matches
    return found


def test_few_matches_with_each_of_many_frames_are_enough_together(scene):
    made, keypoints, model = scene
    second = place_by_points(LEFT_OUT, model, matches_of(made, 8, wrong=0.3), keypoints, made.lenses)
    assert second is not None and second.frame == LEFT_OUT
    truth = made.cam_from_world[LEFT_OUT]
    assert angle_deg(second.cam_from_world[:, :3], truth[:, :3]) < 0.5
    assert np.linalg.norm(second.cam_from_world[:, 3] - truth[:, 3]) < 0.05


def test_matches_that_agree_become_verified_pairs_with_the_right_pose(scene):
    made, keypoints, model = scene
    matches = matches_of(made, 20, wrong=0.3)
    second = place_by_points(LEFT_OUT, model, matches, keypoints, made.lenses)
    assert {view.i for view in second.views} == set(range(5))
    for view in second.views:
        assert view.j == LEFT_OUT
        truth = compose(made.cam_from_world[LEFT_OUT], invert(made.cam_from_world[view.i]))
        assert angle_deg(view.j_from_i[:, :3], truth[:, :3]) < 0.5
        assert direction_deg(view.j_from_i[:, 3], truth[:, 3]) < 3.0
        allowed = {tuple(pair) for pair in matches[view.i][:, ::-1].tolist()}
        assert {tuple(pair) for pair in view.matches.tolist()} <= allowed
        same = made.point_of[view.i][view.matches[:, 0]] == made.point_of[LEFT_OUT][view.matches[:, 1]]
        assert same.mean() > 0.9


@pytest.mark.parametrize("seed", range(10))
def test_random_matches_place_nothing(scene, seed):
    made, keypoints, model = scene
    assert place_by_points(LEFT_OUT, model, matches_of(made, 40, 1.0, seed), keypoints, made.lenses) is None


def test_too_few_matches_or_frames_outside_of_the_model_place_nothing(scene):
    made, keypoints, model = scene
    few = {0: true_matches(made, LEFT_OUT, 0)[: MIN_INLIERS - 1]}
    assert place_by_points(LEFT_OUT, model, few, keypoints, made.lenses) is None
    outside = {LEFT_OUT: true_matches(made, LEFT_OUT, LEFT_OUT)}
    assert place_by_points(LEFT_OUT, model, outside, keypoints, made.lenses) is None
