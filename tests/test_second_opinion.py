"""Another pose by depth for made-up pairs: it is taken where depth prefers it and matches agree, and nowhere else."""

from dataclasses import replace

import numpy as np
import pytest
from made_up import (
    angle_deg,
    compose,
    direction_deg,
    invert,
    keypoints_with,
    make_lens,
    make_pose,
    photograph,
    true_intrinsics,
    true_matches,
    true_view,
)
from scipy.interpolate import NearestNDInterpolator

from mbasfm.estimators.absolute import agree_with_pose, with_lifted_pose
from mbasfm.sfm.pairs.doubts import SecondOpinion
from mbasfm.sfm.pairs.judge import DepthWitness
from mbasfm.sfm.start.averaging import rays_of
from mbasfm.types.observations import DepthEstimate, Observations

J_FROM_I = make_pose([2.0, 6.0, -3.0], [-0.9, 0.1, 0.15])
LIMIT_PX = 3.0


def see_hills(seed=0, noise_px=0.5):
    """Two photographs of a surface with hills."""
    x, y = np.random.default_rng(seed).uniform([-1.2, -0.9], [1.2, 0.9], (400, 2)).T
    hills = np.column_stack([x, y, 0.4 * np.sin(2.5 * x + 1) * np.cos(2 * y) + 0.2 * np.sin(4 * y)])
    first = make_pose([0, 0, 0], [0, 0, 4])
    return photograph(hills, np.stack([first, compose(J_FROM_I, first)]), make_lens(), seed, noise_px)


def as_map(pixels, values):
    column, row = np.meshgrid((np.arange(128) + 0.5) * 8, (np.arange(96) + 0.5) * 8)
    return NearestNDInterpolator(pixels, values)(column, row).astype(np.float32)


def observe(made, raw, is_disparity=False):
    """Observations of two frames whose depth maps have the given values at the keypoints."""
    maps = [DepthEstimate(as_map(p, r), is_disparity, False) for p, r in zip(made.pixels, raw, strict=True)]
    pairs, matches = np.array([[0, 1]]), [true_matches(made, 0, 1)]
    return Observations((), maps, keypoints_with(made, raw), [], pairs, matches)


def ask(made, view, raw, is_disparity=False):
    """The pair after depth was asked for another pose."""
    seen, intrinsics = observe(made, raw, is_disparity), true_intrinsics(made)
    known = intrinsics.sizes.numpy(), rays_of(seen.keypoints, intrinsics), intrinsics.reference_focal.numpy()
    witness = DepthWitness(seen.keypoints, seen.depths, *known)
    (answer,) = SecondOpinion(seen, intrinsics, LIMIT_PX).ask([view], witness)
    return answer


def turned_over(view):
    """The pair with the camera on the other side, which turns near into far."""
    return replace(view, j_from_i=np.column_stack([view.j_from_i[:, :3], -view.j_from_i[:, 3]]))


def errors_deg(pose):
    return angle_deg(pose[:, :3], J_FROM_I[:, :3]), direction_deg(pose[:, 3], J_FROM_I[:, 3])


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("wrong", [0.0, 0.5])
def test_depth_finds_the_pose_whatever_its_unit_and_among_wrong_matches(seed, wrong):
    made = see_hills(seed)
    matches = true_matches(made, 0, 1)
    count = int(wrong * len(matches))
    matches[:count, 1] = np.random.default_rng(seed).permutation(matches[:count, 1])
    inverse = 3 / made.depth[0], 0.2 / made.depth[1]
    found = with_lifted_pose(true_view(made, 0, 1), tuple(made.pixels), inverse, matches, made.lenses, LIMIT_PX)
    turn, direction = errors_deg(found.j_from_i)
    assert turn < 1 and direction < 3
    assert found.num_inliers > 0.95 * (len(matches) - count)
    assert found.inlier_ratio == pytest.approx(found.num_inliers / len(matches))


def test_without_depth_there_is_no_other_pose():
    made = see_hills()
    unknown = tuple(np.full(len(depth), np.nan) for depth in made.depth)
    how = true_matches(made, 0, 1), made.lenses, LIMIT_PX
    assert with_lifted_pose(true_view(made, 0, 1), tuple(made.pixels), unknown, *how) is None


def test_matches_agree_with_the_true_pose_and_not_behind_the_camera():
    made = see_hills(noise_px=0.3)
    matches, pose = true_matches(made, 0, 1), true_view(made, 0, 1).j_from_i
    points = [made.pixels[0][matches[:, 0]], made.pixels[1][matches[:, 1]]]
    assert agree_with_pose(pose, points, made.lenses, 2.0).mean() > 0.99
    back = agree_with_pose(invert(pose), points[::-1], made.lenses, 2.0)
    assert (back == agree_with_pose(pose, points, made.lenses, 2.0)).all()
    assert not agree_with_pose(turned_over(true_view(made, 0, 1)).j_from_i, points, made.lenses, 2.0).any()


@pytest.mark.parametrize("is_disparity", [False, True])
def test_a_pose_that_turns_near_into_far_is_replaced(is_disparity):
    made = see_hills()
    raw = [1 / depth - 0.1 for depth in made.depth] if is_disparity else made.depth
    answer = ask(made, turned_over(true_view(made, 0, 1)), raw, is_disparity)
    turn, direction = errors_deg(answer.j_from_i)
    assert turn < 1.5 and direction < 5


def test_a_pose_that_depth_confirms_stays():
    made = see_hills()
    view = true_view(made, 0, 1)
    assert ask(made, view, made.depth) is view


def test_of_two_poses_of_a_plane_neither_is_replaced():
    made = see_hills()
    view = replace(turned_over(true_view(made, 0, 1)), rival=J_FROM_I)
    assert ask(made, view, made.depth) is view


def test_a_pose_with_which_far_fewer_matches_agree_is_not_taken():
    made = see_hills()
    view = turned_over(true_view(made, 0, 1))
    many = replace(view, matches=np.concatenate([view.matches, view.matches]))
    assert ask(made, many, made.depth) is many
