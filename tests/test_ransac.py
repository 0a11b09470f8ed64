"""RANSAC on many pairs: scores in closed form, poses among outliers, and answers that do not depend on the batch."""

import math

import pytest
import torch
from helpers import assert_close

from mbasfm.estimators.ransac import (
    PAPER_BUDGET,
    RansacSettings,
    draw_samples,
    estimate_poses,
    samples_needed,
    sigma_px,
)
from mbasfm.estimators.relative import PEERS, estimate_relative_poses
from mbasfm.estimators.sampson import MatchBatch, homogeneous, sampson_forms
from mbasfm.estimators.scores import CHI_QUANTILE, NUM_THRESHOLDS, SCORES, score_matrices
from mbasfm.geometry.camera import essential_from_pose, in_front
from mbasfm.geometry.rigid import exp_so3, rotation_angle
from mbasfm.objective.losses import marginalized_score

FOCAL = 800.0
ADAPTIVE = RansacSettings(rounds=40)


def make_pairs(num_pairs, num_matches, outliers, seed=0, noise_px=0.5, shape="relief", baseline=0.5):
    """Matches of pairs with noise and mismatches, and the poses with unit translation."""
    g = {"generator": torch.Generator().manual_seed(seed), "dtype": torch.float64}
    rotation = exp_so3(0.2 * torch.randn(num_pairs, 3, **g))
    direction = torch.nn.functional.normalize(torch.randn(num_pairs, 3, **g), dim=-1)
    points = torch.rand(num_pairs, num_matches, 3, **g) * torch.tensor([4.0, 3.0, 4.0]) + torch.tensor([-2, -1.5, 3])
    if shape == "wall":
        points[..., 2] = 5 + 0.4 * points[..., 0] - 0.2 * points[..., 1]
    moved = points @ rotation.mT + baseline * direction[:, None]
    rays_i, rays_j = (
        p[..., :2] / p[..., 2:] + noise_px / FOCAL * torch.randn(num_pairs, num_matches, 2, **g)
        for p in (points, moved)
    )
    wrong = torch.rand(num_pairs, num_matches, **g) < outliers
    rays_j[wrong] = 1.2 * torch.rand(int(wrong.sum()), 2, **g) - 0.6
    focal = torch.full((num_pairs, 2), FOCAL).double()
    pose = torch.cat([rotation, direction[..., None]], -1)
    return MatchBatch(rays_i, rays_j, torch.ones_like(wrong), focal), pose, ~wrong


def errors_deg(found, truth):
    turn = rotation_angle(found[..., :3] @ truth[..., :3].mT)
    a, b = found[..., 3], truth[..., 3]
    shift = torch.atan2(torch.linalg.cross(a, b).norm(dim=-1), (a * b).sum(-1))
    return turn.rad2deg(), shift.rad2deg()


# ----------------------------------------------------------------------------------------------------------------
# Scores


@pytest.mark.parametrize("name", SCORES)
def test_scores_fall_from_one_to_zero_at_tau(name):
    ratio = torch.linspace(0, 2, 401).double()
    value = SCORES[name](ratio.square())
    assert value[0] == pytest.approx(1) and (value.diff() <= 1e-12).all()
    assert (value[ratio < 0.99] > 0).all() and not value[ratio > 1 + 1e-9].any()


def test_marginalized_score_is_the_mean_inlier_count_over_thresholds():
    residual = torch.rand(500, generator=torch.Generator().manual_seed(0)).double() * 3
    tau = 2.0
    thresholds = torch.arange(1, NUM_THRESHOLDS + 1).double() * (tau / NUM_THRESHOLDS)
    counts = (residual[:, None] < thresholds).double().mean(1)
    found = SCORES["marginalized"]((residual / tau).square())
    assert_close(found, counts)
    # With many thresholds it is the area under the distribution that the bundle adjustment reports.
    assert float(found.mean()) == pytest.approx(float(marginalized_score(residual, tau)) / tau, abs=1 / NUM_THRESHOLDS)


def test_chi_score_is_one_minus_the_distribution_of_chi_with_four_degrees_of_freedom():
    g = torch.Generator().manual_seed(0)
    length = torch.randn(200_000, 4, generator=g).double().norm(dim=-1)
    assert float((length < CHI_QUANTILE).double().mean()) == pytest.approx(0.99, abs=1e-3)
    for part in (0.3, 0.5, 0.8):
        share = float((length < part * CHI_QUANTILE).double().mean())
        assert float(SCORES["magsac"](torch.tensor(part**2))) == pytest.approx(1 - share / 0.99, abs=4e-3)


def test_filling_adds_nothing_to_a_score():
    matches, pose, _ = make_pairs(3, 50, 0.2)
    essential = essential_from_pose(pose)[:, None]
    half = MatchBatch(matches.rays_i[:, :30], matches.rays_j[:, :30], matches.is_match[:, :30], matches.focal_px)
    filled = torch.arange(50) < 30
    for name in SCORES:
        expected = score_matrices(essential, sampson_forms(half, torch.float64), half.is_match, name, 2.0)
        found = score_matrices(
            essential, sampson_forms(matches, torch.float64), filled.expand(3, -1).contiguous(), name, 2.0
        )
        assert_close(found, expected)


# ----------------------------------------------------------------------------------------------------------------
# Samples


def test_samples_are_distinct_within_range_and_uniform():
    count = torch.tensor([5, 7, 100])
    drawn = draw_samples(count, 4000, 5, 0)
    assert (drawn.sort(-1).values.diff(dim=-1) > 0).all()
    assert (drawn >= 0).all() and (drawn < count[:, None, None]).all()
    share = torch.bincount(drawn[1].flatten(), minlength=7) / (5 * 4000)
    assert (share - 1 / 7).abs().max() < 0.01


def test_number_of_samples_follows_from_the_share_of_inliers():
    share = torch.tensor([0.9, 0.5, 0.2]).double()
    needed = samples_needed(share, 0.99)
    assert_close((1 - share**5) ** needed, torch.full((3,), 0.01).double(), rtol=1e-6)


# ----------------------------------------------------------------------------------------------------------------
# Poses


@pytest.mark.parametrize("outliers, limit_deg", [(0.0, 0.6), (0.4, 1.5), (0.6, 4.0)])
def test_poses_are_found_among_outliers(outliers, limit_deg):
    matches, truth, is_right = make_pairs(6, 600, outliers, seed=1)
    found = estimate_poses(matches, ADAPTIVE)
    turn, shift = errors_deg(found.j_from_i, truth)
    assert found.found.all() and turn.max() < limit_deg / 2 and shift.max() < limit_deg
    assert found.inliers(3.0)[is_right].double().mean() > 0.98
    assert (sigma_px(found, 2.0) - 0.5).abs().median() < 0.1


def test_eighty_percent_outliers():
    matches, truth, _ = make_pairs(2, 500, 0.8, seed=3, baseline=1.0)
    found = estimate_poses(matches, RansacSettings(rounds=16, samples=1024))
    turn, shift = errors_deg(found.j_from_i, truth)
    assert turn.max() < 1.5 and shift.max() < 5


@pytest.mark.parametrize("score", SCORES)
def test_every_score_finds_the_pose(score):
    matches, truth, _ = make_pairs(6, 300, 0.3, seed=2)
    found = estimate_poses(matches, RansacSettings(score=score, rounds=4))
    assert torch.maximum(*errors_deg(found.j_from_i, truth)).median() < 1


def test_without_refinement_the_best_minimal_solution_is_returned():
    matches, truth, _ = make_pairs(6, 300, 0.2, seed=4)
    rough = estimate_poses(matches, RansacSettings(rounds=1, candidates=0))
    fine = estimate_poses(matches, PAPER_BUDGET)
    assert torch.equal(rough.samples, torch.full((6,), 64))
    error = [torch.maximum(*errors_deg(result.j_from_i, truth)).mean() for result in (rough, fine)]
    assert error[1] < 0.5 * error[0] and (fine.score > rough.score).all()


def test_points_on_a_plane():
    matches, truth, _ = make_pairs(8, 400, 0.3, seed=5, shape="wall", baseline=1.0)
    found = estimate_poses(matches, RansacSettings(rounds=8))
    turn, shift = errors_deg(found.j_from_i, truth)
    # A plane allows a second pose, which noise may favour.
    assert (torch.maximum(turn, shift) < 3).double().mean() >= 0.6


def test_a_camera_that_only_turned_has_its_rotation_found():
    matches, truth, _ = make_pairs(8, 400, 0.3, seed=6, baseline=0.0)
    found = estimate_poses(matches, RansacSettings(rounds=8))
    turn, _ = errors_deg(found.j_from_i, truth)
    assert turn.max() < 0.3 and found.j_from_i.isfinite().all()


def test_inliers_lie_in_front_of_both_cameras():
    matches, _, _ = make_pairs(4, 300, 0.3, seed=7)
    found = estimate_poses(matches, RansacSettings(rounds=4))
    front = in_front(found.j_from_i, homogeneous(matches.rays_i), homogeneous(matches.rays_j))
    assert not (found.inliers(2.0) & ~front).any()


def test_a_pair_is_estimated_alike_alone_and_among_others():
    parts = [make_pairs(1, count, 0.3, seed=count) for count in (60, 200, 120, 400)]
    rays = [[part[0].rays_i[0] for part in parts], [part[0].rays_j[0] for part in parts]]
    together = estimate_poses(MatchBatch.stack(*rays, torch.full((4, 2), FOCAL)), ADAPTIVE)
    for k, (matches, _, _) in enumerate(parts):
        alone = estimate_poses(matches, ADAPTIVE)
        assert torch.equal(alone.samples, together.samples[k : k + 1])
        assert_close(alone.j_from_i[0], together.j_from_i[k], atol=1e-6)
        assert together.residual_px[k, matches.rays_i.shape[1] :].isinf().all()


def test_the_seed_decides():
    matches, _, _ = make_pairs(3, 200, 0.5, seed=8)
    runs = [estimate_poses(matches, RansacSettings(seed=seed, rounds=1, candidates=0)) for seed in (0, 0, 1)]
    assert torch.equal(runs[0].j_from_i, runs[1].j_from_i)
    assert not torch.equal(runs[0].j_from_i, runs[2].j_from_i)


@pytest.mark.parametrize("count", [0, 1, 4])
def test_too_few_matches_have_no_pose(count):
    matches, _, _ = make_pairs(2, 8, 0.0)
    few = MatchBatch(matches.rays_i, matches.rays_j, (torch.arange(8) < count).repeat(2, 1), matches.focal_px)
    found = estimate_poses(few)
    assert not found.found.any() and not found.score.any() and found.residual_px.isinf().all()
    assert torch.equal(found.j_from_i[0], torch.eye(3, 4).double())


def test_the_same_match_many_times_has_no_pose():
    matches, _, _ = make_pairs(1, 50, 0.0)
    rays_i, rays_j = (rays[:, :1].repeat(1, 50, 1) for rays in (matches.rays_i, matches.rays_j))
    same = MatchBatch(rays_i, rays_j, matches.is_match, matches.focal_px)
    found = estimate_poses(same)
    assert not found.found.any() and found.j_from_i.isfinite().all()


@pytest.mark.parametrize("name", PEERS)
def test_rivals_answer_the_same_question(name):
    matches, truth, is_right = make_pairs(4, 400, 0.3, seed=9)
    found = estimate_relative_poses(matches, name, RansacSettings(tau_px=1.5))
    assert found.found.all() and torch.maximum(*errors_deg(found.j_from_i, truth)).max() < 4
    assert found.inliers(3.0)[is_right].double().mean() > 0.9
    ours = estimate_poses(matches, RansacSettings(tau_px=1.5, rounds=8))
    assert math.isclose(float(found.score.sum()), float(ours.score.sum()), rel_tol=0.2)
    few = MatchBatch(matches.rays_i, matches.rays_j, torch.zeros_like(matches.is_match), matches.focal_px)
    assert not estimate_relative_poses(few, name, RansacSettings(tau_px=1.5)).found.any()
