"""Depth as second witness of made-up pairs, the law of right and wrong ones, and what may join two groups."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_up import (
    all_views,
    angle_deg,
    compose,
    invert,
    keypoints_with,
    make_lens,
    make_pose,
    make_view,
    orbit,
    photograph,
    true_intrinsics,
    true_matches,
    true_view,
    wall,
)
from scipy.interpolate import NearestNDInterpolator
from scipy.stats import spearmanr

from mbasfm.estimators.two_view import FEWEST_INLIERS, MIN_INLIERS, stands_alone, verify
from mbasfm.sfm.pairs.edges import AGREEMENT_LOG10, cut_weak_bridges
from mbasfm.sfm.pairs.judge import (
    LIES,
    PRIOR,
    DepthOrders,
    DepthWitness,
    Verdict,
    depth_log_ratio,
    find_law,
    judge_pairs,
    rank_correlations,
    settle_twins,
    strength_log_ratio,
)
from mbasfm.sfm.pairs.pose_graph import find_groups
from mbasfm.sfm.start.averaging import rays_of
from mbasfm.types.observations import DepthEstimate

LENS = make_lens()


def hills(count=400, seed=0):
    """Points on a surface with hills, all of which every camera sees."""
    x, y = np.random.default_rng(seed).uniform([-1.2, -0.9], [1.2, 0.9], (count, 2)).T
    return np.column_stack([x, y, 0.4 * np.sin(2.5 * x + 1) * np.cos(2 * y) + 0.2 * np.sin(4 * y)])


def see_hills(num_frames=5, seed=0, noise_px=0.3):
    return photograph(hills(seed=seed), orbit(num_frames), LENS, seed, noise_px)


def as_map(pixels, depth, size):
    """A depth map that spans the image: everywhere that of the nearest keypoint."""
    width, height = np.asarray(size) // 8
    column, row = np.meshgrid((np.arange(width) + 0.5) * 8, (np.arange(height) + 0.5) * 8)
    return NearestNDInterpolator(pixels, depth)(column, row).astype(np.float32)


def ask(made, change=lambda frame, depth: depth, is_disparity=False):
    """A witness whose maps are the true depth, changed."""
    maps = [
        change(frame, as_map(pixels, depth, lens.size))
        for frame, (pixels, depth, lens) in enumerate(zip(made.pixels, made.depth, made.lenses, strict=True))
    ]
    keypoints, intrinsics = keypoints_with(made, made.depth), true_intrinsics(made)
    estimates = [DepthEstimate(values.astype(np.float32), is_disparity, False) for values in maps]
    rays, focal = rays_of(keypoints, intrinsics), intrinsics.reference_focal.numpy()
    return DepthWitness(keypoints, estimates, intrinsics.sizes.numpy(), rays, focal)


def turned_over(depth):
    return depth.max() + depth.min() - depth


def ends(views):
    return [(view.i, view.j) for view in views]


# ----------------------------------------------------------------------------------------------------------------
# The order of depth


@pytest.mark.parametrize("seed", range(3))
def test_right_poses_agree_with_depth_and_moved_maps_do_not(seed):
    made = see_hills(seed=seed)
    orders = ask(made).ask(all_views(made))
    assert (orders.found > 1).all() and (orders.chance < 0.6).all()
    assert (depth_log_ratio(orders, PRIOR) > 0).all()


@pytest.mark.parametrize("power, is_disparity", [(1.0, True), (0.5, False), (2.0, False), (3.0, True)])
def test_any_monotone_error_of_depth_changes_nothing(power, is_disparity):
    made = see_hills()

    def distort(_, depth):
        bent = 0.3 + 1.7 * depth**power
        return 1 / bent if is_disparity else bent

    views = all_views(made)
    plain, bent = ask(made).ask(views), ask(made, distort, is_disparity).ask(views)
    for name in ("found", "chance", "chance_sigma"):
        assert getattr(bent, name) == pytest.approx(getattr(plain, name), abs=0.02)


@given(seed=st.integers(0, 10_000), count=st.integers(3, 60), levels=st.integers(2, 50))
def test_correlations_of_ranks_are_spearmans(seed, count, levels):
    generator = np.random.default_rng(seed)
    one, many = generator.standard_normal(count), generator.integers(0, levels, (4, count)).astype(np.float32)
    many[:, :2] = 0, 1  # none is constant
    expected = [spearmanr(one, row).statistic for row in many]
    assert rank_correlations(one, many) == pytest.approx(np.array(expected), abs=1e-6)
    assert rank_correlations(one, np.ones((1, count), dtype=np.float32)) == pytest.approx(0)


def flat(_, depth):
    return np.full_like(depth, 2.0)


def nearly_flat(frame, depth):
    return 2 + 1e-3 * np.random.default_rng(frame).standard_normal(depth.shape)


def noisy(frame, depth):
    return depth * np.exp(0.02 * np.random.default_rng(frame).standard_normal(depth.shape))


def missing(_, depth):
    return np.full_like(depth, np.nan)


@pytest.mark.parametrize("change", [flat, nearly_flat, missing])
def test_depth_without_relief_is_no_evidence(change):
    made = see_hills(3)
    orders = ask(made, change).ask(all_views(made))
    assert np.isnan(orders.found).all() and (depth_log_ratio(orders, PRIOR) == 0).all()


@pytest.mark.parametrize("direction", [(1, 0, 0), (0, 0, 1), (0.6, -0.8, 0)])
def test_a_camera_that_only_turned_is_no_evidence(direction):
    """Whatever direction of translation verification made up, triangulated depth is noise."""
    poses = np.stack([compose(make_pose([0, 3 * k, k], [0, 0, 0]), orbit(1)[0]) for k in range(3)])
    made = photograph(hills(), poses, LENS, 0, noise_px=0.5)
    views = []
    for view in all_views(made):
        step = np.asarray(direction) / np.linalg.norm(direction)
        views.append(replace(view, j_from_i=np.column_stack([view.j_from_i[:, :3], step])))
    orders = ask(made).ask(views)
    assert np.isnan(orders.found).all() and (depth_log_ratio(orders, PRIOR) == 0).all()


def test_few_matches_are_no_evidence():
    made = see_hills(2)
    view = true_view(made, 0, 1)
    orders = ask(made).ask([replace(view, matches=view.matches[: FEWEST_INLIERS - 1])])
    assert np.isnan(orders.found).all()


def test_the_frame_with_less_agreement_counts_and_what_depth_says_is_bounded():
    made = see_hills(2)
    views = all_views(made)
    both = depth_log_ratio(ask(made).ask(views), PRIOR)
    one = depth_log_ratio(ask(made, lambda frame, depth: turned_over(depth) if frame else depth).ask(views), PRIOR)
    assert one < 0 < both
    wild = DepthOrders(
        np.array([[-4.0, -4.0], [4.0, 4.0]]), np.zeros((2, 2)), np.full((2, 2), 0.1), np.full((2, 2), 0.1)
    )
    against, favour = depth_log_ratio(wild, PRIOR)
    limit = np.log((1 - LIES) / LIES)
    assert -limit - 1e-9 <= against < -1 and 1 < favour <= limit + 1e-9


# ----------------------------------------------------------------------------------------------------------------
# The verdict


def test_reversed_depth_is_a_veto_however_many_matches_agree():
    made = see_hills(6)
    views = all_views(made)
    verdict = judge_pairs(views, ask(made, lambda frame, depth: depth if frame else turned_over(depth)))
    assert ends(verdict.views) == [pair for pair in ends(views) if 0 not in pair]
    assert verdict.reversed == 5 and verdict.doubtful == 0


def test_depth_is_no_witness_of_a_pose_that_it_has_suggested():
    made = see_hills(6)
    first, *others = all_views(made)
    verdict = judge_pairs([replace(first, is_by_depth=True), *others], ask(made, noisy))
    assert verdict.log10_depth[first.i, first.j] == 0 and min(list(verdict.log10_depth.values())[1:]) > 0
    backwards = ask(made, lambda frame, depth: depth if frame else turned_over(depth))
    assert judge_pairs([replace(first, is_by_depth=True), *others], backwards).reversed == 5


def test_without_depth_every_pair_that_stands_alone_is_left_to_its_triangles():
    made = see_hills(4)
    views = [replace(view, inlier_ratio=0.26, matches=view.matches[:MIN_INLIERS]) for view in all_views(made)]
    assert ends(judge_pairs(views, ask(made, flat)).views) == ends(views)


@pytest.mark.parametrize("seed", range(4))
def test_the_wrong_pose_of_a_plane_is_recognised(seed):
    lens = make_lens(focal=1500.0)
    first = make_pose([0, 0, 0], [0, 0, 4])
    j_from_i = make_pose([3.0, -20.0, 6.0], [2.2, 0.2, 0.9])
    made = photograph(0.5 * wall(300, seed), np.stack([first, compose(j_from_i, first)]), lens, seed, 0.3)
    view = verify((0, 1), tuple(made.pixels), true_matches(made, 0, 1), made.lenses, 2.0, True)
    swapped = replace(view, j_from_i=view.rival, rival=view.j_from_i)
    for start in (view, swapped):
        (settled,) = settle_twins([start], ask(made))
        assert settled.rival is None and angle_deg(settled.j_from_i[:, :3], j_from_i[:, :3]) < 2
        (undecided,) = settle_twins([start], ask(made, flat))
        assert undecided is start


def test_depth_may_speak_for_a_pair_with_few_matches():
    made = see_hills(6)
    wide, others = true_view(made, 0, 5), [view for view in all_views(made) if (view.i, view.j) != (0, 5)]
    few = replace(wide, matches=wide.matches[:10], log10_false_alarms=-2.5)
    assert not stands_alone(few)
    for witness, is_kept in ((ask(made, noisy), True), (ask(made, flat), False)):
        assert ((0, 5) in ends(judge_pairs([*others, few], witness).views)) == is_kept


def test_depth_in_no_order_does_not_condemn_pairs_that_chance_cannot_bring():
    generator = np.random.default_rng(0)
    strength, noise = generator.uniform(100, 1000, 200), generator.normal(0, 0.4, (200, 2))
    orders = DepthOrders(noise, np.zeros((200, 2)), np.full((200, 2), 0.4), np.full((200, 2), 0.07))
    law = find_law(strength, orders)
    assert law.right_share > 0.9 and law.chance_tail < 20 and law.chance_start < 20


@given(st.floats(0.0, 30), st.floats(0.1, 30), st.floats(100, 5000))
def test_more_strength_never_speaks_against_a_pair(start, tail, most):
    law = replace(PRIOR, chance_start=start, chance_tail=tail, most_strength=most)
    ratio = strength_log_ratio(np.geomspace(0.01, most, 200), law)
    assert (np.diff(ratio) >= -1e-9).all()


@pytest.mark.parametrize("mean, num_wrong", [(1.0, 150), (10.0, 300)])
def test_the_law_of_a_run_is_found(mean, num_wrong):
    """Whatever strengths chance brings: depth tells right from wrong first, and strength is judged by that."""
    generator = np.random.default_rng(0)
    strength = np.concatenate([generator.exponential(mean, num_wrong), np.geomspace(3 * mean, 1000, 100)])
    found = np.concatenate(
        [0.3 + 0.4 * generator.standard_normal((num_wrong, 2)), generator.normal(1.8, 0.5, (100, 2))]
    )
    law = find_law(
        strength, DepthOrders(found, np.full_like(found, 0.3), np.full_like(found, 0.4), np.zeros_like(found))
    )
    assert law.right_share == pytest.approx(100 / (100 + num_wrong), abs=0.05)
    assert law.chance_start < 0.3 * mean and law.chance_tail == pytest.approx(mean, rel=0.3)
    assert law.order == pytest.approx(1.8, abs=0.15) and law.order_sigma == pytest.approx(0.5, abs=0.15)


# ----------------------------------------------------------------------------------------------------------------
# What joins two groups

POSES = orbit(8, step_deg=15.0)
INSIDE = [(i, j) for i in range(8) for j in range(i + 1, 8) if (i < 4) == (j < 4)]


def joined(bridges, turns_deg=None, odds=0.5, depth=0.0):
    """Two groups of four that hold together, and pairs between them, perhaps with wrong rotations."""
    turns = [np.zeros(3)] * len(bridges) if turns_deg is None else turns_deg
    views = []
    for (i, j), turn in zip([*INSIDE, *bridges], [np.zeros(3)] * len(INSIDE) + list(turns), strict=True):
        pose = compose(make_pose(turn, np.zeros(3)), compose(POSES[j], invert(POSES[i])))
        views.append(make_view(i, j, np.zeros((100, 2)), j_from_i=pose))
    log10_odds = dict.fromkeys(INSIDE, 9.0) | dict.fromkeys(bridges, odds)
    log10_depth = dict.fromkeys(INSIDE, 0.0) | dict.fromkeys(bridges, depth)
    return views, cut_weak_bridges(views, Verdict(views, log10_odds, log10_depth, PRIOR, 0, 0, 0), 8)


def num_groups(views):
    return len(np.unique(find_groups(views, 8)))


def test_one_weak_bridge_is_cut_and_told():
    _, result = joined([(1, 6)])
    assert num_groups(result.views) == 2 and len(result.views) == len(INSIDE)
    (bridge,) = result.cut
    assert bridge.groups == ((0, 1, 2, 3), (4, 5, 6, 7)) and bridge.pairs == ((1, 6),)
    assert bridge.log10_odds == pytest.approx(0.5)


def test_one_bridge_beyond_doubt_is_enough_unless_depth_speaks_against_it():
    views, result = joined([(1, 6)], odds=6.0)
    assert ends(result.views) == ends(views) and not result.cut
    assert num_groups(joined([(1, 6)], odds=6.0, depth=-1.5)[1].views) == 2


def test_several_weak_bridges_that_agree_are_kept():
    views, result = joined([(0, 5), (1, 6), (6, 2)])
    assert 3 * 0.5 + 2 * AGREEMENT_LOG10 > 2 + np.log10(4)
    assert ends(result.views) == ends(views) and not result.cut


def test_several_weak_bridges_that_disagree_are_cut():
    _, result = joined([(0, 5), (1, 6), (2, 7)], [[0, 40, 0], [0, 0, 50], [30, 0, 0]])
    (bridge,) = result.cut
    assert num_groups(result.views) == 2 and bridge.agreeing == 1 and len(bridge.pairs) == 3


def test_the_more_photographs_are_at_stake_the_more_proof_is_needed():
    """The same odds join one photograph, but not four."""
    views, result = joined([(1, 6)], odds=2.3)
    assert len(result.cut) == 1
    lone = [view for view in views if max(view.i, view.j) < 4 or (view.i, view.j) == (1, 6)]
    odds = {(view.i, view.j): 9.0 if view.j < 4 else 2.3 for view in lone}
    verdict = Verdict(lone, odds, dict.fromkeys(odds, 0.0), PRIOR, 0, 0, 0)
    assert ends(cut_weak_bridges(lone, verdict, 8).views) == ends(lone)


def test_a_bridge_that_depth_speaks_for_needs_less_proof():
    assert len(joined([(1, 6)], odds=2.0)[1].cut) == 1
    assert not joined([(1, 6)], odds=2.0, depth=0.5)[1].cut


def test_no_pairs_join_nothing():
    result = cut_weak_bridges([], Verdict([], {}, {}, PRIOR, 0, 0, 0), 3)
    assert result.views == [] and result.cut == ()
