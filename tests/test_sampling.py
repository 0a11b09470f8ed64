"""Samples: drawn from verified matches only, in both directions, and weighted by what is distinct."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from made_up import make_view
from scipy.stats import kstest

from mbasfm.geometry.subsets import lots
from mbasfm.sfm.samples import draw_samples
from mbasfm.types.observations import Keypoints


def make_keypoints(count, frame, unknown=()):
    """Pixels and depth that tell frame and number apart: x = number, y = frame."""
    number = np.arange(count, dtype=np.float32)
    raw = 100 * (frame + 1) + number
    raw[list(unknown)] = np.nan
    return Keypoints(np.column_stack([number, np.full(count, frame, np.float32)]), raw)


MATCHES = [(0, 9), (1, 4), (2, 7), (5, 3)]


def test_rows_hold_the_source_first_in_both_directions():
    points = [make_keypoints(10, frame) for frame in range(3)]
    samples = draw_samples([make_view(0, 2, MATCHES)], points, 4, seed=0)
    assert samples.edges.tolist() == [[0, 2], [2, 0]]
    forward = {tuple(row) for row in samples.data[0].tolist()}
    backward = {tuple(row) for row in samples.data[1].tolist()}
    assert forward == {(a, 0, b, 2, 100 + a) for a, b in MATCHES}
    assert backward == {(b, 2, a, 0, 300 + b) for a, b in MATCHES}


@given(count=st.integers(1, 40), samples_per_edge=st.integers(1, 40), seed=st.integers(0, 100))
def test_weights_of_an_edge_sum_to_what_is_distinct(count, samples_per_edge, seed):
    points = [make_keypoints(count, frame) for frame in range(2)]
    view = make_view(0, 1, [(number, number) for number in range(count)])
    samples = draw_samples([view], points, samples_per_edge, seed)
    assert samples.data.shape == (2, samples_per_edge, 5) and samples.data.dtype == torch.float32
    assert samples.weight.sum(1).tolist() == pytest.approx([min(samples_per_edge, count)] * 2, rel=1e-5)
    for rows in samples.data:
        times = np.unique(rows[:, 0].numpy(), return_counts=True)[1]
        assert len(times) == min(samples_per_edge, count) and times.max() - times.min() <= 1


def test_matches_without_depth_in_the_source_are_never_drawn():
    points = [make_keypoints(10, 0, unknown=[0, 2]), make_keypoints(10, 1, unknown=[4])]
    samples = draw_samples([make_view(0, 1, MATCHES)], points, 60, seed=1)
    assert {row[0] for row in samples.data[0].tolist()} == {1, 5}
    assert {row[0] for row in samples.data[1].tolist()} == {9, 7, 3}
    assert samples.data.isfinite().all()
    assert samples.weight.sum(1).tolist() == pytest.approx([2, 3], rel=1e-5)


def test_a_direction_without_any_depth_is_left_out():
    points = [make_keypoints(10, 0, unknown=range(10)), make_keypoints(10, 1)]
    samples = draw_samples([make_view(0, 1, MATCHES)], points, 8, seed=0)
    assert samples.edges.tolist() == [[1, 0]] and samples.num_edges == 1 and samples.samples_per_edge == 8


def test_the_seed_decides_what_is_drawn():
    points = [make_keypoints(200, frame) for frame in range(2)]
    view = make_view(0, 1, [(number, number) for number in range(200)])
    first, second, other = (draw_samples([view], points, 20, seed) for seed in (3, 3, 4))
    assert torch.equal(first.data, second.data) and torch.equal(first.weight, second.weight)
    assert not torch.equal(first.data, other.data)


def test_every_match_is_drawn_alike():
    """Over many seeds each of ten matches is drawn in half of them: five standard deviations around it."""
    points = [make_keypoints(10, frame) for frame in range(2)]
    view = make_view(0, 1, [(number, number) for number in range(10)])
    drawn = torch.stack([draw_samples([view], points, 5, seed).data for seed in range(200)])
    times = np.bincount(drawn[..., 0].long().flatten().numpy(), minlength=10)
    assert times.sum() == 2000 and np.abs(times - 200).max() < 5 * np.sqrt(400 * 0.25)


def test_nothing_to_draw_from_gives_empty_samples():
    points = [make_keypoints(10, 0), make_keypoints(10, 1)]
    for views in ([], [make_view(0, 1, [])]):
        samples = draw_samples(views, points, 7, seed=0)
        assert samples.edges.shape == (0, 2) and samples.data.shape == (0, 7, 5) and samples.weight.shape == (0, 7)


def test_a_match_more_draws_no_other_lots_anew():
    """Of 60 matches 20 are drawn; with one more, at most one of them is another."""
    points = [make_keypoints(80, frame) for frame in range(2)]
    matches = [(number, 79 - number) for number in range(60)]
    drawn = [
        {tuple(row) for row in draw_samples([make_view(0, 1, some)], points, 20, seed=3).data[0].tolist()}
        for some in (matches, [(70, 5), *matches])
    ]
    assert len(drawn[0] & drawn[1]) >= 19


def test_lots_are_uniform_and_independent():
    first, second = lots(0, np.arange(20_000)), lots(1, np.arange(20_000))
    assert kstest(first, "uniform").pvalue > 1e-3 and kstest(lots(0, 7, 3 * np.arange(20_000)), "uniform").pvalue > 1e-3
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.03 and abs(np.corrcoef(first[1:], first[:-1])[0, 1]) < 0.03
    assert np.array_equal(first[100:200], lots(0, np.arange(100, 200)))
    assert not np.array_equal(lots(0, 1, np.arange(5)), lots(0, np.arange(5), 1))
