"""Depth maps against points: what the fit finds again, what it leaves alone, and what a map cannot say."""

import numpy as np
import pytest

from mbasfm.scene.derived import DepthFit, depth_edges, fit_depth, is_constant


def made_up_depth(count, seed=0):
    return np.random.default_rng(seed).uniform(1.5, 9.0, count)


def raw_of(depth, truth):
    """What a model says whose correction is the truth."""
    value = 1 / depth if truth.is_disparity else depth
    return ((value - truth.shift) / truth.scale).astype(np.float32)


@pytest.mark.parametrize("truth", [DepthFit(2.5, 0.4, False), DepthFit(0.7, -0.05, True)])
def test_scale_and_shift_are_found_again_despite_outliers_and_a_wrong_start(truth):
    depth = made_up_depth(400)
    raw = raw_of(depth, truth)
    raw[::4] *= np.random.default_rng(1).uniform(0.3, 3.0, len(raw[::4])).astype(np.float32)
    adjusted = DepthFit(1.3 * truth.scale, 0.0, truth.is_disparity)
    fit, error = fit_depth(raw, depth, adjusted)
    assert (fit.scale, fit.shift) == pytest.approx((truth.scale, truth.shift), rel=0.01, abs=1e-3)
    assert error < 0.01
    good = np.arange(len(raw)) % 4 != 0
    assert fit.depth(raw[good]) == pytest.approx(depth[good], rel=0.02)


@pytest.mark.parametrize("is_disparity", [False, True])
def test_few_points_change_the_scale_of_the_world_and_nothing_else(is_disparity):
    truth = DepthFit(2.0, 0.3, is_disparity) if not is_disparity else DepthFit(0.5, -0.02, True)
    depth = made_up_depth(20)
    adjusted = DepthFit(truth.scale / 1.1, truth.shift / 1.1, is_disparity)
    fit, _ = fit_depth(raw_of(depth, truth), depth, adjusted)
    assert (fit.scale, fit.shift) == pytest.approx((truth.scale, truth.shift), rel=1e-4)


def test_too_few_points_leave_the_adjusted_correction():
    adjusted = DepthFit(3.0, 0.1, False)
    depth = made_up_depth(9)
    fit, error = fit_depth(depth.astype(np.float32), depth, adjusted)
    assert fit == adjusted and np.isnan(error)
    fit, _ = fit_depth(np.full(100, np.nan, np.float32), made_up_depth(100), adjusted)
    assert fit == adjusted


def test_a_map_that_knows_no_shape_gets_a_scale_but_never_a_negative_one():
    depth = made_up_depth(300)
    raw = (10 - depth).astype(np.float32)  # near and far exchanged
    fit, _ = fit_depth(raw, depth, DepthFit(1.0, 0.0, False))
    assert fit.scale > 0 and fit.shift == 0


def test_what_is_not_positive_is_not_known():
    raw = np.array([np.nan, -1.0, 0.0, 1.0, np.inf], np.float32)
    assert DepthFit(2.0, 0.0, False).depth(raw).tolist()[3:] == [2.0, np.inf]
    assert np.isnan(DepthFit(2.0, -3.0, False).depth(raw)[:4]).all()
    assert np.isnan(DepthFit(1.0, -2.0, True).depth(raw)).all()
    assert DepthFit(2.0, 0.0, True).depth(raw)[3] == 0.5


def test_one_number_everywhere_says_nothing():
    assert is_constant(np.ones((2, 2), np.float32))
    assert is_constant(np.full((2, 2), np.nan, np.float32))
    assert not is_constant(np.array([[1, 2]], np.float32))


def test_edges_are_where_depth_jumps_or_ends():
    depth = np.full((5, 6), 2.0, np.float32)
    depth[:, 3:] = 3.0
    depth[4, 0] = np.nan
    edge = depth_edges(depth, 0.05)
    assert edge[:4, 2:4].all() and not edge[:3, :2].any() and not edge[:, 4:].any()
    assert edge[4, 0] and edge[3, 0] and edge[4, 1]
