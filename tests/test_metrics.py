"""Pose errors on examples small enough to check by hand."""

import math

import pytest
import torch
from helpers import assert_close

from mbasfm.evaluation.metrics import (
    absolute_trajectory_error,
    accuracy,
    align_to_truth,
    all_pairs,
    auc,
    auc_trapezoid,
    cosine_rounded_deg,
    frame_errors,
    normalised_trajectory_error,
    pair_errors,
    pooled,
    pose_auc,
    pose_errors_deg,
    recall_curve,
    registration_rate,
    relative_pose_errors_deg,
)
from mbasfm.geometry.rigid import compose, exp_se3, exp_so3
from mbasfm.geometry.similarity import apply_similarity

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


def test_folding_forgets_the_sign_but_not_what_is_missing():
    truth = looking_along_z([[0, 0, 0], [1, 2, 3], [5, 0, 0]])
    reversed_ = looking_along_z([[0, 0, 0], [-1, -2, -3], [5, 0, 0]])
    errors = pair_errors(reversed_, truth, torch.tensor([True, True, False]))
    assert_close(errors.translation_deg, double([180.0, 180.0, 180.0]), atol=1e-9)
    assert_close(errors.folded_deg, double([0.0, 180.0, 180.0]), atol=1e-6)
    assert_close(errors.pose_deg(folded=True), double([0.0, 180.0, 180.0]), atol=1e-6)


def test_the_order_of_a_pair_changes_its_translation_only():
    # Frame 2 turned by 10 degrees: as the first of a pair its baseline is seen by the other camera, which is right.
    estimate = turned(SQUARE, 2, [0, 0, math.radians(10)])
    errors = pair_errors(estimate, SQUARE, pairs=all_pairs(4, ordered=True))
    assert_close(errors.rotation_deg[:6], errors.rotation_deg[6:], atol=1e-9)
    expected = [10.0 if pair[1] == 2 else 0.0 for pair in PAIRS] + [10.0 if pair[0] == 2 else 0.0 for pair in PAIRS]
    assert_close(errors.translation_deg, double(expected), atol=1e-9)


def test_some_pairs_only():
    estimate = turned(SQUARE, 2, [0, 0, math.radians(10)])
    errors = pair_errors(estimate, SQUARE, pairs=torch.tensor([[1, 2], [3, 1]]))
    assert_close(errors.rotation_deg, double([10.0, 0.0]), atol=1e-9)


def test_pairs_in_parts_are_the_same(monkeypatch):
    truth, estimate = random_poses(0, 7), random_poses(1, 7)
    whole = pair_errors(estimate, truth)
    monkeypatch.setattr("mbasfm.evaluation.metrics.PAIRS_AT_ONCE", 4)
    assert_close(pair_errors(estimate, truth).translation_deg, whole.translation_deg)


def test_accuracy_counts_what_is_below():
    errors = double([0.0, 4.999, 5.0, 180.0])
    assert accuracy(errors, 5.0) == 0.5
    assert recall_curve(errors, [0.0, 1.0, 200.0]) == [0.0, 0.25, 1.0]


def test_the_trapezoidal_area_in_closed_form():
    # One error e: recall rises in a line from (0, 0) to (e, 1), then stays at 1: 1 - e / (2 t).
    assert auc_trapezoid(double([2.0]), 5.0) == pytest.approx(1 - 2 / 10)
    # Errors 1 and 3 of 2 below 5: triangles and trapezoids 0.25 + 1.5 + 2 = 3.75 over 5.
    assert auc_trapezoid(double([3.0, 1.0]), 5.0) == pytest.approx(0.75)
    assert auc_trapezoid(double([5.0, 7.0]), 5.0) == 0
    many = 8 * torch.rand(4000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert abs(auc_trapezoid(many, 5.0) - auc(many, 5.0)) < 1 / 4000


def test_pooled_is_the_value_of_all_pairs_together():
    scenes = [double([0.0, 1.0, 9.0]), double([3.0])]
    values = [auc(errors, 5.0) for errors in scenes]
    assert pooled(values, [3, 1]) == pytest.approx(auc(torch.cat(scenes), 5.0))
    assert pooled(values, [3, 1]) != pytest.approx(sum(values) / 2)


def test_rounded_cosines_hide_small_rotations():
    rounded = cosine_rounded_deg(double([0.0, 0.56, 0.60, 30.0]))
    assert_close(rounded[:2], double([0.0, 0.0]))
    assert float(rounded[2]) == pytest.approx(math.degrees(math.acos(0.9999)))
    assert float(rounded[3]) == pytest.approx(30.0, abs=0.01)


def test_frames_are_measured_at_their_centres():
    # Turned on the spot by 5 degrees: the translation vector of a camera far away moves, its centre does not.
    truth = looking_along_z([[100, 0, 0], [0, 0, 0], [0, 1, 0]])
    errors = frame_errors(turned(truth, 0, [0, math.radians(5), 0]), truth)
    assert_close(errors.rotation_deg, double([5.0, 0.0, 0.0]), atol=1e-9)
    assert_close(errors.distance, torch.zeros(3).double(), atol=1e-9)


def test_medians_and_shares_of_frames():
    truth = looking_along_z([[0, 0, 0]] * 4)
    estimate = looking_along_z([[0.01, 0, 0], [0.03, 0, 0], [0.2, 0, 0], [0, 0, 0]])
    errors = frame_errors(estimate, truth)
    assert errors.median_distance == pytest.approx(0.02)
    assert errors.share_within(0.1, 5.0) == 0.75
    missing = frame_errors(estimate, truth, torch.tensor([True, True, False, False]))
    assert missing.median_distance == math.inf and missing.median_rotation_deg == math.inf
    assert missing.share_within(0.1, 5.0) == 0.5
    assert registration_rate(torch.tensor([True, True, False, False])) == 0.5


def test_trajectory_error_after_alignment():
    truth = random_poses(0, 6)
    everything = torch.ones(6, dtype=torch.bool)
    moved = apply_similarity(truth, double(3.0), random_poses(2, 1)[0])
    assert absolute_trajectory_error(moved, truth, everything) == pytest.approx(0, abs=1e-9)
    assert normalised_trajectory_error(moved, truth, everything) == pytest.approx(0, abs=1e-9)
    assert_close(align_to_truth(moved, truth, everything), truth, atol=1e-9)
    two = torch.tensor([True, True, False, False, False, False])
    assert math.isnan(absolute_trajectory_error(moved, truth, two))
    assert math.isnan(normalised_trajectory_error(moved, truth, two))


def test_trajectory_error_by_hand():
    # A cross of four cameras and one in its middle, which is 1 too high. By symmetry nothing turns. Around the mean the
    # truth has squares of 400 in all and the estimate 400.8: scale s = 400 / 400.8, left 400 - 400 s.
    truth = looking_along_z([[10, 0, 0], [-10, 0, 0], [0, 10, 0], [0, -10, 0], [0, 0, 0]])
    estimate = looking_along_z([[10, 0, 0], [-10, 0, 0], [0, 10, 0], [0, -10, 0], [0, 0, 1]])
    everything = torch.ones(5, dtype=torch.bool)
    rms = math.sqrt((400 - 400 * 400 / 400.8) / 5)
    assert absolute_trajectory_error(estimate, truth, everything) == pytest.approx(rms, rel=1e-9)
    # The truth's sum of squares is 400, and FastMap's mean goes over 3 coordinates.
    normalised = normalised_trajectory_error(estimate, truth, everything)
    assert normalised == pytest.approx(rms / math.sqrt(3) / 20, rel=1e-9)
