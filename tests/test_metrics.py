"""Pose errors on examples small enough to check by hand."""

import math

import pytest
import torch
from helpers import assert_close

from mbasfm.geometry import apply_similarity, compose, exp_se3, exp_so3
from mbasfm.metrics import auc, pose_auc, pose_errors_deg, relative_pose_errors_deg

PAIRS = [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]
"""Of four cameras, in the order of the errors."""


def double(values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def looking_along_z(centers) -> torch.Tensor:
    """Cameras without rotation: the translation is minus the centre."""
    centers = double(centers)
    return torch.cat([torch.eye(3, dtype=torch.float64).expand(len(centers), 3, 3), -centers[..., None]], -1)


SQUARE = looking_along_z([[0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 0]])


def random_poses(seed: int, count: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return exp_se3(torch.randn(count, 6, generator=generator, dtype=torch.float64))


def turned(poses: torch.Tensor, frame: int, omega) -> torch.Tensor:
    """One camera turned on the spot."""
    turn = torch.cat([exp_so3(double(omega)), torch.zeros(3, 1, dtype=torch.float64)], -1)
    changed = poses.clone()
    changed[frame] = compose(turn, poses[frame])
    return changed


def test_identical_poses_have_no_error():
    for poses in (SQUARE, random_poses(0, 4)):
        rotation, translation = relative_pose_errors_deg(poses, poses)
        assert_close(rotation, torch.zeros(6).double(), atol=1e-9)
        assert_close(translation, torch.zeros(6).double(), atol=1e-9)
        assert pose_auc(poses, poses) == pytest.approx((1, 1, 1))


def test_one_turned_camera_spoils_exactly_its_own_pairs():
    # About the optical axis by 10 degrees, across all baselines. The baseline of a pair i < j is seen by camera j: it
    # turns with frame 2 as the second of a pair, and stays as it is where frame 2 is the first.
    rotation, translation = relative_pose_errors_deg(turned(SQUARE, 2, [0, 0, math.radians(10)]), SQUARE)
    assert_close(rotation, double([10.0 if 2 in pair else 0.0 for pair in PAIRS]), atol=1e-9)
    assert_close(translation, double([10.0 if pair[1] == 2 else 0.0 for pair in PAIRS]), atol=1e-9)


def test_one_moved_camera_spoils_exactly_its_own_pairs():
    # Frame 3 goes from (0, 1) to (-1, 0): seen from frame 0 its direction turns by 90 degrees, from frame 1 at (1, 0)
    # by 45, from frame 2 at (1, 1) by atan(1 / 2).
    moved = looking_along_z([[0, 0, 0], [1, 0, 0], [1, 1, 0], [-1, 0, 0]])
    rotation, translation = relative_pose_errors_deg(moved, SQUARE)
    assert_close(rotation, torch.zeros(6).double(), atol=1e-9)
    assert_close(translation, double([0, 0, 90, 0, 45, math.degrees(math.atan2(1, 2))]), atol=1e-9)


def test_a_reversed_baseline_is_all_wrong():
    truth, reversed_ = looking_along_z([[0, 0, 0], [1, 2, 3]]), looking_along_z([[0, 0, 0], [-1, -2, -3]])
    rotation, translation = relative_pose_errors_deg(reversed_, truth)
    assert_close(rotation, double([0.0]), atol=1e-9)
    assert_close(translation, double([180.0]), atol=1e-9)


def test_the_larger_error_counts():
    estimate = turned(SQUARE, 2, [0, 0, math.radians(10)])
    assert_close(pose_errors_deg(estimate, SQUARE), double([10.0 if 2 in pair else 0.0 for pair in PAIRS]), atol=1e-9)
    moved = looking_along_z([[0, 0, 0], [1, 0, 0], [1, 1, 0], [-1, 0, 0]])
    assert_close(pose_errors_deg(moved, SQUARE)[2], double(90.0), atol=1e-9)


def test_the_world_may_be_any_similarity_of_the_true_one():
    truth, estimate = random_poses(0, 4), random_poses(1, 4)
    new_from_old = random_poses(2, 1)[0]
    expected = relative_pose_errors_deg(estimate, truth)
    for scale in (0.01, 3.0):
        moved = apply_similarity(estimate, double(scale), new_from_old)
        for actual, wanted in zip(relative_pose_errors_deg(moved, truth), expected, strict=True):
            assert_close(actual, wanted, atol=1e-6)
        assert_close(
            pose_errors_deg(apply_similarity(truth, double(scale), new_from_old), truth), torch.zeros(6).double(), 1e-6
        )


def test_errors_are_the_same_in_both_roles():
    truth, estimate = random_poses(0, 4), random_poses(1, 4)
    for one, other in zip(
        relative_pose_errors_deg(estimate, truth), relative_pose_errors_deg(truth, estimate), strict=True
    ):
        assert_close(one, other, atol=1e-6)
        assert (one > 1).all() and (one < 180).all()


def test_unregistered_frames_are_180_degrees_off():
    registered = torch.tensor([True, False, True, True])
    expected = double([180.0 if 1 in pair else 0.0 for pair in PAIRS])
    for errors in relative_pose_errors_deg(SQUARE, SQUARE, registered):
        assert_close(errors, expected, atol=1e-9)
    assert pose_auc(SQUARE, SQUARE, registered) == pytest.approx((0.5, 0.5, 0.5))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_poses_without_a_value_are_wrong(value):
    broken = SQUARE.clone()
    broken[3] = value
    for errors in relative_pose_errors_deg(broken, SQUARE):
        assert_close(errors, double([180.0 if 3 in pair else 0.0 for pair in PAIRS]), atol=1e-9)


def test_cameras_put_at_one_place_have_no_direction():
    # A reconstruction that collapses to a point must not look right by chance.
    rotation, translation = relative_pose_errors_deg(looking_along_z([[0, 0, 0]] * 4), SQUARE)
    assert_close(rotation, torch.zeros(6).double(), atol=1e-9)
    assert_close(translation, torch.full((6,), 180.0).double(), atol=1e-9)


def test_small_errors_are_measured_exactly():
    angle_deg = 1e-6
    rotation, _ = relative_pose_errors_deg(turned(SQUARE, 3, [0, math.radians(angle_deg), 0]), SQUARE)
    assert_close(rotation[2], double(angle_deg), atol=1e-13)


def test_area_under_the_curve_in_closed_form():
    assert auc(double([0.0, 0, 0]), 5.0) == 1
    assert auc(double([5.0, 5.1, 180]), 5.0) == 0
    for error in (0.1, 1.0, 4.9):
        assert auc(double([error]), 5.0) == pytest.approx(1 - error / 5)
    assert auc(double([0, 0.5, 2]), 1.0) == pytest.approx(0.5)


def test_area_under_the_curve_is_the_integral_of_recall():
    errors = 8 * torch.rand(50, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    grid = (torch.arange(20000).double() + 0.5) / 20000 * 5
    recall = (errors <= grid[:, None]).double().mean(-1)
    assert auc(errors, 5.0) == pytest.approx(float(recall.mean()), abs=1e-3)


def test_thresholds_are_taken_in_the_given_order():
    # Half of the pairs are exact, the others off by 2 degrees.
    estimate = turned(SQUARE, 2, [0, 0, math.radians(2)])
    areas = pose_auc(estimate, SQUARE, thresholds_deg=(8.0, 1.0, 4.0))
    assert areas == pytest.approx((0.5 + 0.5 * 0.75, 0.5, 0.5 + 0.5 * 0.5))
