"""Focal lengths from fundamental matrices of made-up pairs: shared, different, known, and unknowable."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_up import all_views, compose, make_lens, make_pose, orbit, photograph, relief, true_view

from mbasfm.estimators.two_view import verify
from mbasfm.geometry.focal import focal_from_points
from mbasfm.sfm.intrinsics import FALLBACK_FOCAL, search_focal

WIDTH = 1024


def make_scene(lenses, num_frames=6, seed=0, noise_px=0.0):
    """Cameras stand back as far as their focal length asks for, so that each sees the scene."""
    lenses = [lenses] * num_frames if not isinstance(lenses, list) else lenses
    poses = orbit(num_frames, step_deg=9.0)
    poses[:, 2, 3] *= [max(lens.focal[0] / lens.size.max(), 0.6) for lens in lenses]
    return photograph(relief(300, seed), poses, lenses, seed, noise_px)


def inputs(made, known=None):
    sizes = np.stack([lens.size for lens in made.lenses])
    nothing = np.full(made.num_frames, np.nan)
    return sizes, np.array(made.group), nothing if known is None else np.asarray(known, dtype=np.float64)


def estimated_views(made):
    """Fundamental matrices as verification finds them, from noisy matches."""
    views = []
    for view in all_views(made):
        pixels, lenses = (made.pixels[view.i], made.pixels[view.j]), (made.lenses[view.i], made.lenses[view.j])
        views.append(verify((view.i, view.j), pixels, view.matches, lenses, 2.0, False))
    return [view for view in views if view is not None]


@pytest.mark.parametrize("ratio", [0.5, 1.2, 5.0])
def test_a_shared_focal_is_found_from_exact_matrices(ratio):
    made = make_scene(make_lens(ratio * WIDTH))
    focal, spoken = search_focal(all_views(made), *inputs(made))
    assert spoken.all()
    assert focal == pytest.approx(np.full(6, ratio * WIDTH), rel=0.01)


@pytest.mark.parametrize("ratio", [0.5, 1.2, 5.0])
def test_a_shared_focal_is_found_from_noisy_matches(ratio):
    made = make_scene(make_lens(ratio * WIDTH), num_frames=8, noise_px=0.3)
    focal, _ = search_focal(estimated_views(made), *inputs(made))
    assert focal == pytest.approx(np.full(8, ratio * WIDTH), rel=0.03)


def test_upright_and_wide_photographs_of_one_field_of_view_agree():
    made = make_scene([make_lens(900.0, (1024, 768)), make_lens(1800.0, (1536, 2048))] * 3)
    focal, _ = search_focal(all_views(made), *inputs(made))
    assert focal == pytest.approx(np.array([900.0, 1800.0] * 3), rel=0.03)


def look_around(made_with, seed=0, noise_px=0.0, aim_deg=12.0):
    """Cameras that look past each other: where all axes meet in one point, focal lengths cannot be told apart."""
    poses = orbit(len(made_with), step_deg=12.0)
    aim = aim_deg * np.random.default_rng(seed).uniform(-1, 1, (len(poses), 3))
    poses = np.stack([compose(make_pose(turn, np.zeros(3)), pose) for turn, pose in zip(aim, poses, strict=True)])
    return photograph(0.8 * relief(500, seed), poses, made_with, seed, noise_px)


@pytest.mark.parametrize("seed", range(3))
def test_each_image_finds_its_own_focal(seed):
    truth = np.array([840.0, 900.0, 960.0, 1020.0, 870.0, 930.0])
    made = look_around([make_lens(value) for value in truth], seed)
    focal, spoken = search_focal(all_views(made), *inputs(made))
    assert spoken.all() and len(set(made.group)) == 6
    assert np.abs(focal / truth - 1).max() < 0.1
    assert np.abs(focal / truth - 1).max() < 0.5 * np.abs(np.mean(truth) / truth - 1).max()


def test_images_of_very_different_focals_find_them():
    truth = np.array([700.0, 900.0, 1100.0, 1300.0, 800.0, 1000.0])
    for seed in range(4):
        made = look_around([make_lens(value) for value in truth], seed, noise_px=0.3)
        focal, _ = search_focal(estimated_views(made), *inputs(made))
        assert np.abs(focal / truth - 1).max() < 0.1


def test_known_focals_stay_and_help_the_unknown():
    truth = np.array([800.0, 800.0, 1400.0, 1400.0, 1400.0, 800.0])
    wide, tele = make_lens(800.0), make_lens(1400.0)
    made = make_scene([wide, wide, tele, tele, tele, wide])
    known = np.where(truth == 800.0, truth, np.nan)
    focal, spoken = search_focal(all_views(made), *inputs(made, known))
    assert (focal[truth == 800.0] == 800.0).all() and spoken.all()
    assert focal == pytest.approx(truth, rel=0.03)


def test_what_is_known_is_returned_even_against_all_votes():
    made = make_scene(make_lens(1200.0))
    focal, spoken = search_focal(all_views(made), *inputs(made, np.full(6, 777.0)))
    assert (focal == 777.0).all() and spoken.all()


def test_planar_pairs_have_no_vote():
    """Their matrices are arbitrary: here those of another focal length, with all the inliers."""
    made, liar = make_scene(make_lens(1200.0)), make_scene(make_lens(500.0))
    honest = [true_view(made, 0, 1), true_view(made, 1, 2), true_view(made, 0, 2)]
    planar = [replace(view, is_planar=True) for view in all_views(liar)]
    focal, _ = search_focal(honest + planar, *inputs(made))
    assert focal == pytest.approx(np.full(6, 1200.0), rel=0.02)


def test_where_no_pair_speaks_the_guess_is_used_and_said_to_be_one():
    made = make_scene(make_lens(700.0, (1600, 900)))
    planar = [replace(view, is_planar=True) for view in all_views(made)]
    for views in ([], planar):
        focal, spoken = search_focal(views, *inputs(made))
        assert focal == pytest.approx(np.full(6, FALLBACK_FOCAL * 1600)) and not spoken.any()


def test_a_camera_without_pairs_gets_the_field_of_view_of_the_others_but_is_not_spoken_for():
    lenses = [make_lens(1000.0) for _ in range(5)]
    lenses = [lenses[0]] * 4 + [make_lens(5000.0, (2048, 1536))]
    made = make_scene(lenses, num_frames=5)
    views = [true_view(made, i, j) for i in range(4) for j in range(i + 1, 4)]
    focal, spoken = search_focal(views, *inputs(made))
    assert focal[:4] == pytest.approx(np.full(4, 1000.0), rel=0.02)
    assert spoken.tolist() == [True] * 4 + [False]
    assert focal[4] == pytest.approx(2 * focal[0], rel=0.05)


def test_mismatched_pairs_are_outvoted():
    """A third of the matrices belong to nothing at all."""
    made = make_scene(make_lens(900.0), num_frames=7)
    generator = np.random.default_rng(5)
    views = all_views(made)
    for number in range(0, len(views), 3):
        u, _, vt = np.linalg.svd(generator.standard_normal((3, 3)) / np.outer([WIDTH, WIDTH, 1], [WIDTH, WIDTH, 1]))
        views[number] = replace(views[number], fundamental=u @ np.diag([1.0, 0.3, 0.0]) @ vt)
    focal, _ = search_focal(views, *inputs(made))
    assert focal == pytest.approx(np.full(7, 900.0), rel=0.03)


# ----------------------------------------------------------------------------------------------------------------
# Point maps


def point_map(focal, size=(640, 480), shape=(48, 64), seed=0):
    """Points at random depth through every pixel of a small map of a large image."""
    rows, columns = shape
    u = (np.arange(columns) + 0.5) / columns * size[0] - size[0] / 2
    v = (np.arange(rows) + 0.5) / rows * size[1] - size[1] / 2
    depth = np.random.default_rng(seed).uniform(1, 9, shape)
    x, y = np.meshgrid(u / focal, v / focal)
    return np.stack([x * depth, y * depth, depth], -1).astype(np.float32)


@given(focal=st.floats(200, 4000), seed=st.integers(0, 100))
def test_a_point_map_tells_its_focal_length(focal, seed):
    assert focal_from_points(point_map(focal, seed=seed), 640, 480) == pytest.approx(focal, rel=1e-3)


def test_wrong_points_in_a_point_map_are_outvoted():
    generator = np.random.default_rng(0)
    points = point_map(700.0)
    points[:, :20] = generator.uniform(-3, 3, (48, 20, 3))
    points[:5] = np.nan
    assert focal_from_points(points, 640, 480) == pytest.approx(700.0, rel=0.01)


def test_a_point_map_without_points_says_nothing():
    assert np.isnan(focal_from_points(np.full((8, 8, 3), np.nan, np.float32), 640, 480))
    assert np.isnan(focal_from_points(-point_map(500.0), 640, 480))
