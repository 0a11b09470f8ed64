"""The pose graph: drawn graphs whose edges, components and contradictions are known."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from made_up import compose, invert, make_pose, make_view, orbit

from mbasfm.sfm.pairs.pose_graph import (
    _sides,
    choose_answers,
    drop_inconsistent,
    find_components,
    pose_graph,
    select_edges,
    strongest_pairs,
)


def edge(i, j, share=0.5, num_inliers=50, **known):
    shares = share if isinstance(share, tuple) else (share, share)
    return make_view(i, j, np.zeros((num_inliers, 2)), covisibility=shares, **known)


def true_edges(num_frames, pairs, seed=0, noise_deg=0.0):
    generator = np.random.default_rng(seed)
    poses = orbit(num_frames, step_deg=20.0)
    views = []
    for i, j in pairs:
        noise = make_pose(noise_deg * generator.standard_normal(3), np.zeros(3))
        views.append(edge(i, j, j_from_i=compose(noise, compose(poses[j], invert(poses[i])))))
    return views


def turn(view, turn_deg, num_inliers=None):
    """The pair with a wrong rotation."""
    matches = view.matches if num_inliers is None else np.zeros((num_inliers, 2), dtype=np.int64)
    return replace(view, j_from_i=compose(make_pose(turn_deg, np.zeros(3)), view.j_from_i), matches=matches)


def ends(views):
    return [(view.i, view.j) for view in views]


# ----------------------------------------------------------------------------------------------------------------
# Choice of edges


def test_wide_pairs_stay_and_narrow_ones_only_as_bridges():
    """A wide triangle 0-1-2, a narrow edge inside it, a frame 3 that hangs on two narrow edges, a pair 4-5 apart."""
    views = [edge(0, 1), edge(1, 2), edge(0, 2, 0.05), edge(1, 3, 0.05, 40), edge(2, 3, 0.05, 30), edge(4, 5, 0.01)]
    assert ends(select_edges(views, 6, 0.15)) == [(0, 1), (1, 2), (1, 3), (4, 5)]


def test_a_wide_detour_makes_a_narrow_pair_needless_however_strong():
    views = [edge(0, 1, num_inliers=12), edge(1, 2, num_inliers=12), edge(0, 2, 0.05, 5000)]
    assert ends(select_edges(views, 3, 0.15)) == [(0, 1), (1, 2)]


def test_the_stronger_of_two_bridges_is_taken():
    """Many inliers among many more outliers are worth less than fewer clean ones."""
    views = [edge(0, 1), edge(0, 2, 0.05, 200, inlier_ratio=0.3), edge(1, 2, 0.05, 60, inlier_ratio=0.9)]
    assert ends(select_edges(views, 3, 0.15)) == [(0, 1), (1, 2)]


def test_one_side_that_sees_enough_makes_a_pair_wide():
    views = [edge(0, 1), edge(1, 2), edge(0, 2, (0.02, 0.3))]
    assert len(select_edges(views, 3, 0.15)) == 3
    assert len(select_edges(views, 3, 0.31)) == 2


def test_no_pairs_give_no_edges():
    assert select_edges([], 4, 0.15) == []


@given(seed=st.integers(0, 10_000), num_frames=st.integers(2, 9), threshold=st.floats(0.0, 1.0))
def test_laws_of_choosing_edges(seed, num_frames, threshold):
    """Components never change, all wide pairs stay, and each narrow one that stays is a bridge of what is left."""
    generator = np.random.default_rng(seed)
    pairs = [pair for pair in combinations(range(num_frames), 2) if generator.random() < 0.5]
    views = [edge(*pair, float(generator.random()), int(generator.integers(12, 99))) for pair in pairs]
    chosen = select_edges(views, num_frames, threshold)
    label = find_components(views, num_frames)
    assert np.array_equal(find_components(chosen, num_frames), label)
    wide = [view for view in views if max(view.covisibility) >= threshold]
    assert set(ends(wide)) <= set(ends(chosen)) <= set(ends(views))
    for narrow in chosen:
        if max(narrow.covisibility) < threshold:
            rest = [view for view in chosen if view is not narrow]
            assert not np.array_equal(find_components(rest, num_frames), label)


# ----------------------------------------------------------------------------------------------------------------
# Contradictions


@pytest.mark.parametrize("wrong", range(15))
def test_one_wrong_rotation_among_all_pairs_of_six_leaves_alone(wrong):
    views = true_edges(6, combinations(range(6), 2), seed=wrong, noise_deg=0.5)
    views[wrong] = turn(views[wrong], [10.0, 25.0, -10.0])
    kept, dropped = drop_inconsistent(views, 6)
    assert dropped == [views[wrong]]
    assert kept == views[:wrong] + views[wrong + 1 :]


def test_two_wrong_rotations_that_share_a_frame_both_leave():
    views = true_edges(6, combinations(range(6), 2), noise_deg=0.5)
    views[0], views[1] = turn(views[0], [0, 40.0, 0]), turn(views[1], [0, 0, -60.0])
    kept, dropped = drop_inconsistent(views, 6)
    assert sorted(ends(dropped)) == [(0, 1), (0, 2)] and len(kept) == 13


def test_small_errors_are_no_contradiction():
    views = true_edges(7, combinations(range(7), 2), noise_deg=1.0)
    assert drop_inconsistent(views, 7) == (views, [])


def test_without_triangles_nothing_can_be_judged():
    chain = true_edges(8, [(i, i + 1) for i in range(7)])
    chain[3] = turn(chain[3], [0, 90.0, 0])
    assert drop_inconsistent(chain, 8) == (chain, [])


def test_a_single_triangle_is_not_enough_to_judge():
    triangle = true_edges(3, combinations(range(3), 2))
    triangle[1] = turn(triangle[1], [0, 90.0, 0])
    assert drop_inconsistent(triangle, 3) == (triangle, [])


def test_a_good_pair_does_not_fall_with_bad_ones_beside_it():
    """Three of the four triangles of the good pair 0-1 are spoilt, each by another pair."""
    views = true_edges(6, combinations(range(6), 2))
    number = {pair: index for index, pair in enumerate(ends(views))}
    wrong = [(0, 2), (1, 3), (0, 4)]
    for pair, turn_deg in zip(wrong, ([0, 40.0, 0], [50.0, 0, 0], [0, 0, 60.0]), strict=True):
        views[number[pair]] = turn(views[number[pair]], turn_deg, num_inliers=20)
    kept, dropped = drop_inconsistent(views, 6)
    assert ends(dropped) == sorted(wrong) and (0, 1) in ends(kept)


def test_order_of_pairs_does_not_change_who_leaves():
    views = true_edges(6, combinations(range(6), 2), noise_deg=0.5)
    views[4] = turn(views[4], [0, 40.0, 0], num_inliers=90)
    views[9] = turn(views[9], [30.0, 0, 0], num_inliers=20)
    _, dropped = drop_inconsistent(views, 6)
    _, again = drop_inconsistent(views[::-1], 6)
    assert sorted(ends(dropped)) == sorted(ends(again)) == sorted(ends([views[4], views[9]]))


# ----------------------------------------------------------------------------------------------------------------
# Components


def test_components_are_numbered_from_the_largest_and_single_frames_have_none():
    views = [edge(1, 2), edge(4, 6), edge(6, 7), edge(8, 9)]
    assert find_components(views, 10).tolist() == [-1, 1, 1, -1, 0, -1, 0, 0, 2, 2]


def test_no_pairs_give_no_components():
    assert find_components([], 3).tolist() == [-1, -1, -1]
    assert find_components([], 0).tolist() == []


@given(seed=st.integers(0, 10_000), num_frames=st.integers(1, 12))
def test_laws_of_components(seed, num_frames):
    generator = np.random.default_rng(seed)
    pairs = [pair for pair in combinations(range(num_frames), 2) if generator.random() < 1.2 / num_frames]
    label = find_components([edge(*pair) for pair in pairs], num_frames)
    assert all(label[i] == label[j] >= 0 for i, j in pairs)
    assert ((label >= 0) == np.isin(np.arange(num_frames), np.array(pairs).reshape(-1))).all()
    sizes = np.bincount(label[label >= 0])
    assert (sizes > 1).all() and (np.diff(sizes) <= 0).all()


def test_the_graph_has_both_directions_with_the_share_of_the_source():
    graph = pose_graph([edge(0, 2, (0.3, 0.4)), edge(1, 2, (0.5, 0.6))])
    rows = {tuple(pair): share for pair, share in zip(graph.edges.tolist(), graph.covisibility.tolist(), strict=True)}
    assert rows == pytest.approx({(0, 2): 0.3, (2, 0): 0.4, (1, 2): 0.5, (2, 1): 0.6})
    empty = pose_graph([])
    assert empty.edges.shape == (0, 2) and empty.covisibility.shape == (0,) and empty.edges.dtype == torch.int64


# ----------------------------------------------------------------------------------------------------------------
# Two answers of a plane


def in_doubt(view, seed, is_swapped):
    """The pair with a wrong second pose, or with the second as its first."""
    away = make_pose(np.random.default_rng(seed).uniform(20, 60, 3), np.zeros(3))
    rival = compose(away, view.j_from_i)
    return replace(view, j_from_i=rival, rival=view.j_from_i) if is_swapped else replace(view, rival=rival)


@pytest.mark.parametrize("share", [0.3, 0.6, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_of_two_answers_that_is_taken_with_which_triangles_close(seed, share):
    generator = np.random.default_rng(seed)
    truth = true_edges(7, combinations(range(7), 2), seed, noise_deg=0.3)
    views = [
        in_doubt(view, 100 * seed + number, bool(generator.integers(2))) if generator.random() < share else view
        for number, view in enumerate(truth)
    ]
    chosen = choose_answers(views, 7)
    for view, right in zip(chosen, truth, strict=True):
        assert np.array_equal(view.j_from_i, right.j_from_i)
    assert ends(chosen) == ends(truth)


def test_without_triangles_the_first_answer_stays():
    views = [in_doubt(view, number, True) for number, view in enumerate(true_edges(4, [(0, 1), (1, 2), (2, 3)]))]
    for view, before in zip(choose_answers(views, 4), views, strict=True):
        assert np.array_equal(view.j_from_i, before.j_from_i)
    assert choose_answers([], 3) == []


# ----------------------------------------------------------------------------------------------------------------
# Many pairs


@given(st.sets(st.tuples(st.integers(0, 9), st.integers(0, 9)).filter(lambda pair: pair[0] < pair[1])))
def test_all_triangles_are_found_once(pairs):
    views = [edge(i, j) for i, j in sorted(pairs, reverse=True)]
    expected = {t for t in combinations(range(10), 3) if all(pair in pairs for pair in combinations(t, 2))}
    found = []
    for sides in _sides(views, 10).tolist():
        ij, ik, jk = ((views[number].i, views[number].j) for number in sides)
        assert ij == (ik[0], jk[0]) and ik[1] == jk[1]
        found.append((*ij, jk[1]))
    assert len(found) == len(set(found)) and set(found) == expected


def test_the_strongest_pairs_of_each_frame_stay_and_the_graph_stays_whole():
    strong = [edge(i, j, num_inliers=100 + i + j) for i, j in combinations(range(6), 2)]
    bridge = edge(5, 6, num_inliers=12)
    kept = ends(strongest_pairs([*strong, bridge], 7, 2))
    assert (5, 6) in kept and len(kept) < len(strong)
    assert find_components([edge(*pair) for pair in kept], 7).tolist() == [0] * 7
    assert ends(strongest_pairs([*strong, bridge], 7, 100)) == ends([*strong, bridge])
