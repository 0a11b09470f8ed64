"""Cameras to start from: on made-up scenes with known depth they are the truth up to one similarity."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from made_up import (
    all_views,
    angle_deg,
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
    wall,
)
from margins import assert_below

from mbasfm.estimators.two_view import verify
from mbasfm.sfm.start.initialize import initialize_cameras

SCALE = np.array([1.0, 0.5, 2.0, 1.3, 0.8, 3.0, 0.4])
"""Of the frames' depth maps; a raw value times the scale is right."""
TREES = ("consistent", "paper")


def raw_depth(made, is_disparity=False, noise=0.0, seed=0):
    generator = np.random.default_rng(seed)
    maps = []
    for depth, scale in zip(made.depth, SCALE, strict=False):
        value = 1 / depth if is_disparity else depth
        maps.append(value / scale * np.exp(noise * generator.standard_normal(len(depth))))
    return keypoints_with(made, maps)


def start(made, views, keypoints, is_disparity=False, tree="consistent"):
    flags = torch.full((made.num_frames,), is_disparity)
    starts, placed = initialize_cameras(views, keypoints, true_intrinsics(made), flags, tree)
    return starts[0], placed.numpy()


def world_scale(cameras, made):
    """Size of the reconstructed world over the true one, from all distances between cameras."""
    centers = [invert(poses)[:, :, 3] for poses in (cameras.cam_from_world.numpy(), made.cam_from_world)]
    found, true = (np.linalg.norm(points[:, None] - points, axis=-1) for points in centers)
    ratio = (found / np.where(true > 0, true, np.nan))[np.triu_indices(made.num_frames, 1)]
    assert ratio.max() / ratio.min() < 1.03
    return float(np.median(ratio))


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("is_disparity", [False, True])
def test_exact_depth_of_different_scales_gives_the_truth_up_to_similarity(tree, is_disparity):
    made = photograph(relief(250, 0), orbit(7), make_lens(), seed=0)
    cameras, placed = start(made, all_views(made), raw_depth(made, is_disparity), is_disparity, tree)
    assert placed.all()
    turn, direction = pose_errors_deg(cameras.cam_from_world.numpy(), made)
    assert turn.max() < 0.5 and direction.max() < 0.5
    size = world_scale(cameras, made)
    expected = SCALE / size if is_disparity else SCALE * size
    assert cameras.depth_scale.numpy() == pytest.approx(expected, rel=0.02)
    assert (cameras.depth_shift == 0).all() and bool(cameras.is_disparity.all()) == is_disparity


@pytest.mark.parametrize("tree", TREES)
def test_verified_pairs_of_noisy_matches_and_rough_depth_give_nearly_the_truth(tree):
    made = photograph(relief(400, 1), orbit(6), make_lens(), seed=1, noise_px=0.5)
    views = []
    for view in all_views(made):
        ends = (made.pixels[view.i], made.pixels[view.j]), view.matches, (made.lenses[view.i], made.lenses[view.j])
        views.append(verify((view.i, view.j), *ends, 2.0, True))
    cameras, placed = start(made, views, raw_depth(made, noise=0.2), tree=tree)
    assert placed.all()
    turn, direction = pose_errors_deg(cameras.cam_from_world.numpy(), made)
    assert turn.max() < 1.0 and np.median(direction) < 3.0
    ratio = cameras.depth_scale.numpy() / SCALE[:6]
    assert ratio.max() / ratio.min() < 1.2


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("is_disparity", [False, True])
def test_the_root_is_at_the_origin_at_the_scale_of_its_own_depth(is_disparity, tree):
    """Frame 3 has most neighbours and inliers."""
    made = photograph(relief(250, 2), orbit(5), make_lens(), seed=2)
    views = [view for view in all_views(made) if (view.i, view.j) not in ((0, 1), (1, 2), (2, 4), (0, 4))]
    keypoints = raw_depth(made, is_disparity)
    cameras, _ = start(made, views, keypoints, is_disparity, tree)
    assert torch.equal(cameras.cam_from_world[3], torch.eye(4, dtype=torch.float64)[:3])
    median = float(np.median(keypoints[3].raw_depth))
    assert float(cameras.depth_scale[3]) == pytest.approx(1 / median if is_disparity else 1.0, rel=1e-3)


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("pairs", ["chain", "all"])
def test_depth_decides_distances_where_directions_cannot(pairs, tree):
    """Cameras on a straight line, or each seen by its neighbours only, with unequal steps."""
    x = np.array([-1.0, -0.7, 0.0, 0.2, 0.9])
    poses = np.stack([make_pose([0, 0, 0], [-place, 0, 4.0]) for place in x])
    if pairs == "chain":
        poses[:, 1, 3] = [0.0, 0.2, -0.1, 0.1, 0.0]
    made = photograph(relief(300, 12), poses, make_lens(), seed=12, noise_px=0.2)
    views = [view for view in all_views(made) if pairs == "all" or view.j == view.i + 1]
    cameras, _ = start(made, views, raw_depth(made), tree=tree)
    assert world_scale(cameras, made) > 0


@pytest.mark.parametrize("tree", TREES)
def test_each_component_has_the_scale_of_its_own_depth(tree):
    """Depth of the second component is twenty times too large; that is the scale of its world."""
    made = photograph(relief(250, 13), orbit(6), make_lens(), seed=13)
    views = [view for view in all_views(made) if (view.i < 3) == (view.j < 3)]
    maps = [depth * (1 if frame < 3 else 20) for frame, depth in enumerate(made.depth)]
    cameras, _ = start(made, views, keypoints_with(made, maps), tree=tree)
    assert cameras.depth_scale.numpy() == pytest.approx(np.ones(6), rel=0.02)


@pytest.mark.parametrize("tree", TREES)
def test_flat_depth_still_gives_the_right_rotations(tree):
    made = photograph(relief(250, 3), orbit(6), make_lens(), seed=3)
    keypoints = keypoints_with(made, [np.ones(len(depth)) for depth in made.depth])
    cameras, placed = start(made, all_views(made), keypoints, True, tree)
    assert placed.all()
    turn, _ = pose_errors_deg(cameras.cam_from_world.numpy(), made)
    assert turn.max() < 0.5
    assert ((cameras.depth_scale > 0.3) & (cameras.depth_scale < 3)).all()


@pytest.mark.parametrize("is_disparity", [False, True])
@pytest.mark.parametrize("verified", [False, True])
def test_a_camera_that_only_turned_stays_where_it_is(verified, is_disparity):
    """Its view has a unit translation in some direction: noise, which must not become a baseline."""
    poses = make_pose([0, 0, 0], [0, 0, 4.0])[None].repeat(2, 0)
    poses[1] = compose(make_pose([2.0, 9.0, 1.0], np.zeros(3)), poses[0])
    made = photograph(relief(300, 4), poses, make_lens(), seed=4, noise_px=0.3)
    view = replace(true_view(made, 0, 1, is_planar=True), j_from_i=make_pose([2.02, 9.02, 1.0], [0.6, 0.0, 0.8]))
    if verified:
        view = verify((0, 1), tuple(made.pixels), view.matches, made.lenses, 2.0, True)
        assert view.is_planar
    cameras, placed = start(made, [view], raw_depth(made, is_disparity), is_disparity)
    assert placed.all()
    baseline = np.linalg.norm(invert(cameras.cam_from_world.numpy())[1, :, 3])
    assert baseline < 0.02 * (1.0 if is_disparity else 4.0)
    assert angle_deg(cameras.cam_from_world[1, :, :3].numpy(), poses[1, :, :3]) < 0.2
    found, true = (scale[1] / scale[0] for scale in (cameras.depth_scale.numpy(), SCALE))
    assert found == pytest.approx(true, rel=0.05)


def test_without_parallax_a_pair_gives_no_baseline_at_all():
    """Also where it was not recognised as a turn, so that no pose from depth competes."""
    poses = make_pose([0, 0, 0], [0, 0, 4.0])[None].repeat(2, 0)
    poses[1] = compose(make_pose([2.0, 9.0, 1.0], np.zeros(3)), poses[0])
    made = photograph(relief(300, 4), poses, make_lens(), seed=4, noise_px=0.3)
    view = replace(true_view(made, 0, 1), j_from_i=make_pose([2.02, 9.02, 1.0], [0.6, 0.0, 0.8]))
    cameras, _ = start(made, [view], raw_depth(made))
    assert_below(cameras.cam_from_world[:, :, 3], 1e-9)
    assert float(cameras.depth_scale[1] / cameras.depth_scale[0]) == pytest.approx(SCALE[1] / SCALE[0], rel=0.02)


@pytest.mark.parametrize("tree", TREES)
def test_a_wall_is_placed_through_depth_where_its_two_view_pose_is_wrong(tree):
    """Two poses explain a plane; the views hold a wrong one, depth finds the right one."""
    made = photograph(wall(300, 5), orbit(4), make_lens(), seed=5, noise_px=0.2)
    wrong = make_pose([0, 5.0, 0], [0, 0, 0])
    views = [replace(view, j_from_i=compose(wrong, view.j_from_i)) for view in all_views(made, is_planar=True)]
    cameras, placed = start(made, views, raw_depth(made), tree=tree)
    assert placed.all()
    turn, direction = pose_errors_deg(cameras.cam_from_world.numpy(), made)
    assert turn.max() < 0.5 and direction.max() < 2.0
    world_scale(cameras, made)


def test_one_wrong_pair_is_outvoted_by_the_others():
    made = photograph(relief(250, 6), orbit(6), make_lens(), seed=6)
    views = all_views(made)
    number = [(view.i, view.j) for view in views].index((2, 3))
    # The wrong pair has as many inliers as the others, so that it is among the first to propose.
    views[number] = replace(views[number], j_from_i=compose(make_pose([0, 30.0, 0], [0, 0, 0]), views[number].j_from_i))
    cameras, _ = start(made, views, raw_depth(made))
    turn, direction = pose_errors_deg(cameras.cam_from_world.numpy(), made)
    assert turn.max() < 0.5 and direction.max() < 0.5


@pytest.mark.parametrize("tree", TREES)
def test_each_component_has_its_root_and_frames_without_edges_are_not_placed(tree):
    made = photograph(relief(200, 7), orbit(7), make_lens(), seed=7)
    parts = ((0, 1, 2), (4, 5, 6))
    views = [view for view in all_views(made) if any(view.i in part and view.j in part for part in parts)]
    cameras, placed = start(made, views, raw_depth(made), tree=tree)
    assert placed.tolist() == [True] * 3 + [False] + [True] * 3
    pose = cameras.cam_from_world.numpy()
    for part in parts:
        assert sum(np.array_equal(pose[frame, :, :3], np.eye(3)) for frame in part) == 1
        assert sum(np.abs(pose[frame, :, 3]).max() < 1e-9 for frame in part) == 1
        for i, j in zip(part, part[1:], strict=False):
            guess, truth = (compose(poses[j], invert(poses[i])) for poses in (pose, made.cam_from_world))
            assert angle_deg(guess[:, :3], truth[:, :3]) < 0.5
    assert np.array_equal(pose[3], np.eye(4)[:3]) and float(cameras.depth_scale[3]) == 1


def test_the_paper_tree_follows_degree_and_the_consistent_one_inliers():
    """Frame 0 has most neighbours; the pair 3-4 most inliers."""
    made = photograph(relief(250, 8), orbit(5), make_lens(), seed=8)
    views = [true_view(made, i, j) for i, j in ((0, 1), (0, 2), (0, 3), (3, 4))]
    views[:3] = [replace(view, matches=view.matches[:40]) for view in views[:3]]
    for tree, root in zip(TREES, (3, 0), strict=True):
        cameras, placed = start(made, views, raw_depth(made), tree=tree)
        assert placed.all()
        is_root = (cameras.cam_from_world[:, :, :3] == torch.eye(3, dtype=torch.float64)).all((1, 2))
        assert is_root.nonzero().flatten().tolist() == [root]


def test_a_known_distorting_lens_is_taken_into_account():
    lens = make_lens(distortion=(-0.2, 0.05, 0.001, 0.0))
    made = photograph(relief(250, 9), orbit(5), lens, seed=9)
    cameras, _ = start(made, all_views(made), raw_depth(made))
    turn, direction = pose_errors_deg(cameras.cam_from_world.numpy(), made)
    assert turn.max() < 0.1 and direction.max() < 0.2
    world_scale(cameras, made)


@pytest.mark.parametrize("is_planar", [False, True])
@pytest.mark.parametrize("tree", TREES)
def test_missing_depth_is_no_obstacle(tree, is_planar):
    """Unknown at some keypoints, at all of frame 1's, and infinite at some, as in the sky."""
    made = photograph(wall(250, 10) if is_planar else relief(250, 10), orbit(5), make_lens(), seed=10)
    maps = [depth / scale for depth, scale in zip(made.depth, SCALE, strict=False)]
    generator = np.random.default_rng(0)
    maps = [np.where(generator.random(len(values)) < 0.3, np.nan, values) for values in maps]
    maps = [np.where(generator.random(len(values)) < 0.1, np.inf, values) for values in maps]
    maps[1][:] = np.nan
    cameras, placed = start(made, all_views(made, is_planar), keypoints_with(made, maps), tree=tree)
    assert placed.all() and cameras.cam_from_world.isfinite().all() and (cameras.depth_scale > 0).all()
    turn, direction = pose_errors_deg(cameras.cam_from_world.numpy(), made)
    assert turn.max() < 0.5 and direction.max() < 2.0


def test_pixels_that_the_lens_cannot_have_seen_have_no_vote():
    """Beyond its turning point a barrel lens has no inverse: corners have no ray. The wrong pair proposes first."""
    made = photograph(0.6 * relief(250, 9), orbit(5), make_lens(600.0, distortion=(-0.35, 0, 0, 0)), seed=9)
    for pixels in made.pixels:
        pixels[:4] = [[2.0, 2.0], [1022.0, 2.0], [2.0, 766.0], [1022.0, 766.0]]
    views = []
    wrong = make_pose([0, 30.0, 0], [0, 0, 0])
    for view in all_views(made):
        is_wrong = (view.i, view.j) == (2, 3)
        pose = compose(wrong, view.j_from_i) if is_wrong else view.j_from_i
        kept = (60 if is_wrong else 40) if 3 in (view.i, view.j) else view.num_inliers
        first = np.argsort((view.matches >= 4).all(1), kind="stable")  # those in corners
        views.append(replace(view, j_from_i=pose, matches=view.matches[first[:kept]]))
    cameras, _ = start(made, views, raw_depth(made))
    turn, _ = pose_errors_deg(cameras.cam_from_world.numpy(), made)
    assert turn.max() < 0.5


def test_the_same_input_gives_the_same_cameras():
    made = photograph(wall(200, 11), orbit(5), make_lens(), seed=11, noise_px=0.3)
    first, second = (start(made, all_views(made, True), raw_depth(made))[0] for _ in range(2))
    assert torch.equal(first.cam_from_world, second.cam_from_world)
    assert torch.equal(first.depth_scale, second.depth_scale)


def test_disparity_of_unknown_shift_bends_no_wall():
    """The two-view poses are right; lifted by disparity without its shift, the wall would be another one."""
    made = photograph(wall(300, 5), orbit(4, step_deg=15.0), make_lens(), seed=5, noise_px=0.2)
    views = all_views(made, is_planar=True)
    keypoints = keypoints_with(made, [1 / depth - 0.15 for depth in made.depth])
    cameras, _ = start(made, views, keypoints, True)
    turn, _ = pose_errors_deg(cameras.cam_from_world.numpy(), made)
    assert turn.max() < 0.5
