"""Matches that depth contradicts: those with a neighbouring repetition go, and nothing else does."""

from dataclasses import replace

import numpy as np
import torch
from made_up import all_views, keypoints_with, make_lens, make_pose, make_view, orbit, photograph, relief, true_cameras

from mbasfm.polish.depth import _medians, drop_contradictions


def make_scene(seed=0, num_frames=4, noise_px=0.3):
    return photograph(relief(600, seed), orbit(num_frames), make_lens(), seed, noise_px)


def smooth_error(made, share, seed=0):
    """Depth off by a share, smoothly over the image."""
    generator = np.random.default_rng(seed)
    rough = []
    for depth, pixels in zip(made.depth, made.pixels, strict=True):
        wave = np.sin(pixels @ generator.uniform(-0.01, 0.01, 2) + generator.uniform(0, 6))
        rough.append(depth * np.exp(share * wave))
    return rough


def num_matches(views):
    return sum(view.num_inliers for view in views)


def test_right_matches_stay_under_the_errors_of_a_depth_network():
    made = make_scene()
    views = all_views(made)
    kept = drop_contradictions(views, true_cameras(made), keypoints_with(made, smooth_error(made, 0.1)))
    assert num_matches(kept) > 0.995 * num_matches(views)


def repeated_pattern():
    """A wall of equal windows, seen by two cameras side by side; a tenth of the matches are with the next window."""
    x, y = np.meshgrid(np.linspace(-2, 2, 30), np.linspace(-1.2, 1.2, 12))
    wall = np.column_stack([x.ravel(), y.ravel(), np.zeros(x.size)])
    poses = np.stack([make_pose([0, 0, 0], [shift, 0, 5.0]) for shift in (0.25, -0.25)])
    made = photograph(wall, poses, make_lens(), 0, noise_px=0.2)
    place = [np.argsort(points) for points in made.point_of]  # each point's keypoint; the wall fits both images
    right = np.random.default_rng(0).permutation(np.setdiff1d(np.arange(360), np.arange(29, 360, 30)))
    wrong, right = right[:30], right[30:]
    pairs = np.concatenate([right, wrong]), np.concatenate([right, wrong + 1])
    matches = np.column_stack([place[0][pairs[0]], place[1][pairs[1]]])
    return made, make_view(0, 1, matches), len(right)


def test_matches_with_the_neighbouring_repetition_are_left_out():
    made, view, num_right = repeated_pattern()
    keypoints = keypoints_with(made, smooth_error(made, 0.05))
    (kept,) = drop_contradictions([view], true_cameras(made), keypoints)
    right, wrong = ({tuple(row) for row in part.tolist()} for part in np.split(view.matches, [num_right]))
    left = {tuple(row) for row in kept.matches.tolist()}
    assert not left & wrong and len(left & right) > 0.98 * num_right


def test_without_depth_or_with_flat_depth_nothing_is_left_out():
    made, view, _ = repeated_pattern()
    scene = make_scene()
    unknown = keypoints_with(made, [np.full(len(depth), np.nan) for depth in made.depth])
    assert num_matches(drop_contradictions([view], true_cameras(made), unknown)) == view.num_inliers
    flat = keypoints_with(scene, [np.full(len(depth), 4.0) for depth in scene.depth])
    views = all_views(scene)
    assert num_matches(drop_contradictions(views, true_cameras(scene), flat)) > 0.98 * num_matches(views)
    assert drop_contradictions([], true_cameras(scene), flat) == []


def test_a_region_in_which_depth_itself_is_wrong_is_believed():
    """The background is three times as far as the network thinks: its matches agree with each other."""
    made = make_scene(num_frames=5)
    wrong = [
        np.where(pixels[:, 0] < 400, depth / 3, depth) for depth, pixels in zip(made.depth, made.pixels, strict=True)
    ]
    views = all_views(made)
    kept = drop_contradictions(views, true_cameras(made), keypoints_with(made, wrong))
    assert num_matches(kept) > 0.9 * num_matches(views)


def test_disparity_is_judged_as_depth_is():
    made, view, _ = repeated_pattern()
    depth = smooth_error(made, 0.05)
    cameras = true_cameras(made)
    as_disparity = replace(cameras, is_disparity=torch.ones(2, dtype=torch.bool), depth_scale=cameras.depth_scale * 2)
    first = drop_contradictions([view], cameras, keypoints_with(made, depth))
    second = drop_contradictions([view], as_disparity, keypoints_with(made, [0.5 / values for values in depth]))
    assert np.array_equal(first[0].matches, second[0].matches)


def test_a_pair_that_would_keep_next_to_nothing_keeps_all():
    made, view, num_right = repeated_pattern()
    lonely = replace(view, matches=view.matches[num_right + 15 :])
    both = drop_contradictions([view, lonely], true_cameras(made), keypoints_with(made, made.depth))
    assert both[0].num_inliers < view.num_inliers and both[1].num_inliers == lonely.num_inliers


def test_medians_are_those_of_each_group():
    values = np.array([3.0, 1.0, np.nan, 2.0, 10.0, 20.0, np.nan])
    group = np.array([5, 5, 5, 5, 7, 7, 9])
    assert _medians(values, group, 1).tolist() == [2.0] * 4 + [20.0] * 2 + [0.0]
    assert _medians(values, group, 3).tolist() == [2.0] * 4 + [0.0] * 3
