"""Two frames: the pose of made-up pairs is found, chance is not mistaken for one, and planes are told from relief."""

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_up import angle_deg, direction_deg, look, make_lens, make_pose, relief, wall
from margins import assert_below

from mbasfm.estimators.two_view import (
    ESSENTIAL_POINTS,
    FUNDAMENTAL_POINTS,
    GRID,
    MIN_INLIERS,
    calibration_matrix,
    covered_share,
    fundamental_from_pose,
    inherit,
    log10_false_alarms,
    pack,
    unpack,
    verify,
)
from mbasfm.types.cameras import Lens
from mbasfm.types.observations import TwoView

AWAY = np.array([0.0, 0.0, 4.0])
J_FROM_I = make_pose([2.0, -9.0, 4.0], [0.7, 0.1, 0.2])
MAX_ERROR_PX = 2.0


def make_pair(points, j_from_i, lenses, seed, noise_px=0.3, mismatches=0.4):
    """Pixels of both frames, matches between shuffled keypoints, and which of them are right."""
    generator = np.random.default_rng(seed)
    points_i = points + AWAY
    clean = look(points_i, np.eye(4)[:3], lenses[0])[0], look(points_i, j_from_i, lenses[1])[0]
    first, second = (pixels + noise_px * generator.standard_normal(pixels.shape) for pixels in clean)
    is_right = generator.random(len(points)) >= mismatches
    second[~is_right] = generator.uniform([0, 0], lenses[1].size, ((~is_right).sum(), 2))
    order_i, order_j = generator.permutation(len(points)), generator.permutation(len(points))
    matches = np.column_stack([np.argsort(order_i), np.argsort(order_j)])
    return (first[order_i], second[order_j]), matches, is_right


def epipolar_px(fundamental, points_i, points_j):
    """Distance of j's points to the epipolar lines of i's."""
    lines = np.column_stack([points_i, np.ones(len(points_i))]) @ fundamental.T
    return np.abs((lines[:, :2] * points_j).sum(1) + lines[:, 2]) / np.linalg.norm(lines[:, :2], axis=1)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("j_from_i", [J_FROM_I, make_pose([0, 3, 0], [-0.5, 0, 0]), make_pose([5, 0, 20], [0, 0.2, 1])])
def test_pose_is_found_among_forty_percent_mismatches(j_from_i, seed):
    lens = make_lens()
    pixels, matches, is_right = make_pair(relief(500, seed), j_from_i, (lens, lens), seed)
    view = verify((3, 8), pixels, matches, (lens, lens), MAX_ERROR_PX, True)
    assert isinstance(view, TwoView) and (view.i, view.j) == (3, 8)
    assert angle_deg(view.j_from_i[:, :3], j_from_i[:, :3]) < 0.1
    assert direction_deg(view.j_from_i[:, 3], j_from_i[:, 3]) < 0.5
    assert np.linalg.norm(view.j_from_i[:, 3]) == pytest.approx(1)
    assert not view.is_planar and view.log10_false_alarms < -100
    kept = {tuple(pair) for pair in view.matches}
    right, wrong = ([tuple(pair) for pair in matches[chosen]] for chosen in (is_right, ~is_right))
    assert sum(pair in kept for pair in right) > 0.98 * len(right)
    assert sum(pair in kept for pair in wrong) < 0.05 * len(wrong)
    assert view.num_inliers == len(kept)


def test_both_orders_of_a_pair_give_inverse_poses():
    lens = make_lens()
    pixels, matches, _ = make_pair(relief(300, 0), J_FROM_I, (lens, lens), 0)
    forward = verify((0, 1), pixels, matches, (lens, lens), MAX_ERROR_PX, True)
    back = verify((0, 1), pixels[::-1], matches[:, ::-1].copy(), (lens, lens), MAX_ERROR_PX, True)
    assert angle_deg(back.j_from_i[:, :3], forward.j_from_i[:, :3].T) < 0.05
    assert direction_deg(back.j_from_i[:, 3], -forward.j_from_i[:, :3].T @ forward.j_from_i[:, 3]) < 0.2


def test_the_same_pair_gives_the_same_answer():
    lens = make_lens()
    pixels, matches, _ = make_pair(relief(200, 4), J_FROM_I, (lens, lens), 4)
    first, second = (verify((0, 1), pixels, matches, (lens, lens), MAX_ERROR_PX, True) for _ in range(2))
    assert np.array_equal(first.j_from_i, second.j_from_i) and np.array_equal(first.matches, second.matches)


@pytest.mark.parametrize("calibrated", [True, False])
@pytest.mark.parametrize("count", [20, 40, 80, 140, 200])
def test_random_matches_are_never_a_pair(count, calibrated):
    lens = make_lens()
    for seed in range(12):
        generator = np.random.default_rng([count, seed])
        pixels = tuple(generator.uniform([0, 0], lens.size, (count, 2)) for _ in range(2))
        matches = np.column_stack([np.arange(count), generator.permutation(count)])
        assert verify((0, 1), pixels, matches, (lens, lens), MAX_ERROR_PX, calibrated) is None


@pytest.mark.parametrize("share", [0.1, 0.3])
@pytest.mark.parametrize("count", [30, 100, 200])
def test_random_matches_of_a_small_object_are_never_a_pair(count, share):
    """Both ends lie in a small part of the image, where any line is near to many of them."""
    lens = make_lens()
    for seed in range(12):
        generator = np.random.default_rng([count, seed])
        pixels = tuple(lens.center + share * generator.uniform(-0.5, 0.5, (count, 2)) * lens.size for _ in range(2))
        matches = np.column_stack([np.arange(count), generator.permutation(count)])
        assert verify((0, 1), pixels, matches, (lens, lens), MAX_ERROR_PX, True) is None


def test_a_pair_most_of_whose_matches_disagree_is_refused():
    """The inliers are far too many for chance, but such poses are often wrong."""
    lens = make_lens()
    for mismatches, is_accepted in ((0.85, False), (0.6, True)):
        pixels, matches, is_right = make_pair(relief(600, 1), J_FROM_I, (lens, lens), 1, 0.3, mismatches)
        view = verify((0, 1), pixels, matches, (lens, lens), MAX_ERROR_PX, True)
        assert (view is not None) == is_accepted
    assert view.inlier_ratio == pytest.approx(is_right.mean(), abs=0.03)
    assert view.strength < view.num_inliers


@pytest.mark.parametrize("count", [0, 1, MIN_INLIERS - 1])
def test_too_few_matches_are_no_pair_and_no_error(count):
    lens = make_lens()
    pixels, matches, _ = make_pair(relief(50, 0), J_FROM_I, (lens, lens), 0, 0.0, 0.0)
    assert verify((0, 1), pixels, matches[:count], (lens, lens), MAX_ERROR_PX, True) is None


def test_few_clean_matches_are_a_pair():
    lens = make_lens()
    pixels, matches, _ = make_pair(relief(20, 1), J_FROM_I, (lens, lens), 1, 0.2, 0.0)
    view = verify((0, 1), pixels, matches, (lens, lens), MAX_ERROR_PX, True)
    assert view is not None and view.num_inliers >= 18


@pytest.mark.parametrize("seed", range(3))
def test_without_focal_length_the_fundamental_matrix_fits_and_no_pose_is_claimed(seed):
    known = make_lens()
    unknown = replace(known, focal=np.full(2, np.nan))
    pixels, matches, is_right = make_pair(relief(400, seed), J_FROM_I, (known, known), seed)
    view = verify((0, 1), pixels, matches, (unknown, unknown), MAX_ERROR_PX, False)
    assert np.isnan(view.j_from_i).all()
    right = matches[is_right]
    assert np.median(epipolar_px(view.fundamental, pixels[0][right[:, 0]], pixels[1][right[:, 1]])) < 0.4
    assert view.num_inliers > 0.95 * is_right.sum()


def test_a_pair_gets_its_pose_once_the_focal_length_is_known():
    lens = make_lens()
    pixels, matches, _ = make_pair(relief(400, 6), J_FROM_I, (lens, lens), 6)
    raw = verify((2, 5), pixels, matches, (lens, lens), MAX_ERROR_PX, False)
    view = inherit(verify((2, 5), pixels, raw.matches, (lens, lens), MAX_ERROR_PX, True), raw)
    assert (view.i, view.j, view.log10_false_alarms) == (2, 5, raw.log10_false_alarms)
    assert angle_deg(view.j_from_i[:, :3], J_FROM_I[:, :3]) < 0.1
    assert direction_deg(view.j_from_i[:, 3], J_FROM_I[:, 3]) < 0.5
    assert {tuple(pair) for pair in view.matches} <= {tuple(pair) for pair in raw.matches}
    assert view.inlier_ratio == pytest.approx(view.num_inliers / len(matches)), "of all matches, not of those kept once"


def test_fundamental_matrix_of_a_pose_is_zero_on_exact_matches():
    lenses = make_lens(700.0), make_lens(1500.0, (1600, 1200), offset=(20, -10))
    pixels, matches, _ = make_pair(relief(100, 0), J_FROM_I, lenses, 0, 0.0, 0.0)
    fundamental = fundamental_from_pose(J_FROM_I, lenses)
    assert_below(epipolar_px(fundamental, pixels[0][matches[:, 0]], pixels[1][matches[:, 1]]), 1e-9)
    assert np.linalg.norm(fundamental) == pytest.approx(1)
    assert calibration_matrix(lenses[1]) @ [0, 0, 2.0] == pytest.approx([1640, 1180, 2])


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("calibrated", [True, False])
def test_planes_and_turning_cameras_are_flagged_and_relief_is_not(seed, calibrated):
    lens = make_lens()
    turned = make_pose([3.0, 8.0, -2.0], [0, 0, 0])
    for points, j_from_i, expected in (
        (wall(300, seed), J_FROM_I, True),
        (relief(300, seed), turned, True),
        (relief(300, seed), J_FROM_I, False),
    ):
        pixels, matches, _ = make_pair(points, j_from_i, (lens, lens), seed, 0.3, 0.2)
        view = verify((0, 1), pixels, matches, (lens, lens), MAX_ERROR_PX, calibrated)
        assert view is not None and view.is_planar == expected
        if calibrated and expected:
            assert angle_deg(view.j_from_i[:, :3], j_from_i[:, :3]) < 1.0


@pytest.mark.parametrize("distortion", [(-0.2, 0.05, 0.0, 0.0), (0.1, 0.0, 0.002, -0.003)])
def test_distortion_of_a_known_lens_is_taken_into_account(distortion):
    lens = make_lens(distortion=distortion)
    pixels, matches, is_right = make_pair(relief(500, 2), J_FROM_I, (lens, lens), 2)
    view = verify((0, 1), pixels, matches, (lens, lens), MAX_ERROR_PX, True)
    assert angle_deg(view.j_from_i[:, :3], J_FROM_I[:, :3]) < 0.1
    assert direction_deg(view.j_from_i[:, 3], J_FROM_I[:, 3]) < 0.5
    straight = replace(lens, distortion=np.zeros(4))
    ignored = verify((0, 1), pixels, matches, (straight, straight), MAX_ERROR_PX, True)
    assert angle_deg(ignored.j_from_i[:, :3], J_FROM_I[:, :3]) > 0.2
    assert view.num_inliers > 0.98 * is_right.sum()


def test_a_camera_that_only_turned_is_flagged_through_a_known_distorting_lens():
    lens = make_lens(distortion=(-0.1, 0.0, 0.0, 0.0))
    turned = make_pose([3.0, 18.0, -2.0], [0, 0, 0])
    pixels, matches, _ = make_pair(relief(300, 0), turned, (lens, lens), 2, 0.3, 0.2)
    assert verify((0, 1), pixels, matches, (lens, lens), MAX_ERROR_PX, True).is_planar


def test_thresholds_grow_with_the_image():
    """The same photographs at four times the size, noise included, keep the same matches and the same pose."""
    small, large = make_lens(450.0, (512, 384)), make_lens(1800.0, (2048, 1536))
    pixels, matches, _ = make_pair(relief(300, 7), J_FROM_I, (small, small), 7, 0.5, 0.3)
    scaled = tuple(4 * side for side in pixels)
    first = verify((0, 1), pixels, matches, (small, small), MAX_ERROR_PX, True)
    second = verify((0, 1), scaled, matches, (large, large), MAX_ERROR_PX, True)
    assert small.px_per_reference_px == 0.5 and large.px_per_reference_px == 2.0
    assert abs(first.num_inliers - second.num_inliers) <= 3
    assert angle_deg(first.j_from_i[:, :3], second.j_from_i[:, :3]) < 0.05
    unscaled = verify((0, 1), scaled, matches, (large, large), MAX_ERROR_PX / 4, True)
    assert unscaled.num_inliers < 0.8 * second.num_inliers
    assert first.log10_false_alarms == pytest.approx(second.log10_false_alarms, rel=0.05)


@given(
    num_inliers=st.integers(8, 400),
    more=st.integers(0, 400),
    minimal=st.sampled_from([ESSENTIAL_POINTS, FUNDAMENTAL_POINTS]),
    chance=st.floats(1e-4, 0.02),
)
def test_false_alarms_fall_with_inliers_and_rise_with_matches_and_chance(num_inliers, more, minimal, chance):
    num_matches = num_inliers + more
    alarms = log10_false_alarms(num_matches, num_inliers, minimal, chance)
    assert log10_false_alarms(num_matches + 10, num_inliers, minimal, chance) > alarms
    assert log10_false_alarms(num_matches, num_inliers, minimal, 1.5 * chance) > alarms
    # Below the number of inliers that chance itself would give, one more is no surprise.
    if num_inliers - minimal > num_matches * chance and more:
        assert log10_false_alarms(num_matches, num_inliers + 1, minimal, chance) < alarms


def test_false_alarms_of_a_small_case_by_hand():
    """Ten models for each of C(9, 8) C(8, 5) choices and (9 - 5) sizes; three matches fit by chance."""
    assert log10_false_alarms(9, 8, 5, 0.01) == pytest.approx(np.log10(4 * 10 * 9 * 56) - 6)
    assert log10_false_alarms(9, 8, 7, 0.01) == pytest.approx(np.log10(2 * 3 * 9 * 8) - 2)
    assert log10_false_alarms(9, 5, 5, 0.01) == np.inf


def cell_centers() -> np.ndarray:
    step = (np.arange(GRID) + 0.5) / GRID
    return np.stack(np.meshgrid(step, step), -1).reshape(-1, 2)


def test_covered_share_has_the_closed_forms_of_its_definition():
    size = np.array([640, 480])
    features = cell_centers() * size
    left = features[features[:, 0] < 320]
    corners = features[[0, GRID - 1, -GRID, -1]]
    nothing = np.zeros((0, 2))
    assert covered_share(features, features, size) == 1
    assert covered_share(features, left, size) == 0.5
    assert covered_share(left, left, size) == 1
    assert covered_share(features, nothing, size) == covered_share(nothing, nothing, size) == 0
    # Four corners: each of them and nothing else lies between matches both across and down.
    assert covered_share(features, corners, size) == 4 / GRID**2
    border = features[(features.min(1) < 30) | (features[:, 0] > 610) | (features[:, 1] > 450)]
    assert covered_share(features, border, size) == 1
    assert covered_share(features, features[:1] - 100, size) == 1 / GRID**2


def test_covisibility_of_a_pair_is_that_of_its_inliers():
    """The second frame sees the left half of what the first sees, and nothing else."""
    lens = make_lens()
    points = np.random.default_rng(3).uniform([-2, -1.6, -0.8], [2, 1.6, 0.8], (4000, 3))
    points = points[(np.abs(look(points + AWAY, np.eye(4)[:3], lens)[0] / lens.size - 0.5) < 0.5).all(1)]
    pixels, matches, _ = make_pair(points, J_FROM_I, (lens, lens), 3, 0.1, 0.0)
    is_left = pixels[0][matches[:, 0], 0] < 512
    view = verify((0, 1), pixels, matches[is_left], (lens, lens), MAX_ERROR_PX, True)
    assert view.covisibility[0] == pytest.approx(0.5, abs=0.06)
    half = (pixels[0], pixels[1][matches[is_left, 1]])
    renumbered = np.column_stack([matches[is_left, 0], np.arange(is_left.sum())])
    assert verify((0, 1), half, renumbered, (lens, lens), MAX_ERROR_PX, True).covisibility[1] == 1


def test_a_lens_is_handed_over_with_what_it_has():
    plain, bent = make_lens(), make_lens(distortion=(0.1, 0, 0, 0))
    assert plain.camera()["model"] == "PINHOLE" and len(plain.camera()["params"]) == 4
    assert bent.camera()["model"] == "OPENCV" and len(bent.camera()["params"]) == 8
    assert isinstance(plain, Lens) and (plain.camera()["width"], plain.camera()["height"]) == (1024, 768)


@pytest.mark.parametrize("seed", range(8))
def test_a_plane_allows_two_poses_and_one_is_true(seed):
    lens = make_lens(focal=1500.0)
    j_from_i = make_pose([3.0, -20.0, 6.0], [2.2, 0.2, 0.9])
    pixels, matches, _ = make_pair(0.5 * wall(300, seed), j_from_i, (lens, lens), seed, mismatches=0.2)
    view = verify((0, 1), pixels, matches, (lens, lens), MAX_ERROR_PX, True)
    assert view.rival is not None and np.linalg.norm(view.rival[:, 3]) == pytest.approx(1)
    errors = [angle_deg(pose[:, :3], j_from_i[:, :3]) for pose in (view.j_from_i, view.rival)]
    directions = [direction_deg(pose[:, 3], j_from_i[:, 3]) for pose in (view.j_from_i, view.rival)]
    assert min(errors) < 1 and directions[int(np.argmin(errors))] < 2
    assert max(errors) > 5


@pytest.mark.parametrize(
    "points, j_from_i", [(relief(300, 0), J_FROM_I), (relief(300, 0), make_pose([0, 9, 0], [0, 0, 0]))]
)
def test_relief_and_a_turning_camera_leave_no_doubt_about_the_rotation(points, j_from_i):
    lens = make_lens()
    pixels, matches, _ = make_pair(points, j_from_i, (lens, lens), 0, mismatches=0.1)
    view = verify((0, 1), pixels, matches, (lens, lens), MAX_ERROR_PX, True)
    assert view.rival is None and angle_deg(view.j_from_i[:, :3], j_from_i[:, :3]) < 1


def test_a_pair_survives_being_stored():
    lens = make_lens(focal=1500.0)
    j_from_i = make_pose([3.0, -20.0, 6.0], [2.2, 0.2, 0.9])
    for points in (relief(300, 0), 0.5 * wall(300, 0)):
        pixels, matches, _ = make_pair(points, j_from_i, (lens, lens), 0)
        view = verify((4, 9), pixels, matches, (lens, lens), MAX_ERROR_PX, True)
        again = unpack((4, 9), pack(view))
        for field in fields(TwoView):
            before, after = getattr(view, field.name), getattr(again, field.name)
            assert np.array_equal(before, after) if isinstance(before, np.ndarray) else before == after
    assert unpack((4, 9), pack(None)) is None
