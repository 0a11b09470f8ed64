"""Five matches: every essential matrix is found to rounding, and samples that say too little give none."""

import pytest
import torch
from helpers import assert_close
from margins import assert_below

from mbasfm.estimators.five_point import MAX_SOLUTIONS, essential_matrices
from mbasfm.estimators.sampson import (
    MatchBatch,
    minimal_poses,
    moved,
    poses_from_essential,
    sampson_forms,
    sampson_linearized,
    sampson_squared,
    tangents,
)
from mbasfm.geometry.camera import essential_from_pose, in_front
from mbasfm.geometry.rigid import exp_so3, orthonormalize

NUM_PROBLEMS = 10_000


def make_samples(count, seed, turn=0.5, away=4.0):
    """Rays of five points in both frames, and the pose between them."""
    g = {"generator": torch.Generator().manual_seed(seed), "dtype": torch.float64}
    rotation = exp_so3(turn * torch.randn(count, 3, **g))
    translation = torch.nn.functional.normalize(torch.randn(count, 3, **g), dim=-1)
    points_i = 4 * torch.rand(count, 5, 3, **g) + torch.tensor([-2.0, -2.0, away - 2.0])
    points_j = points_i @ rotation.mT + translation[:, None]
    in_view = (points_j[..., 2] > 0.1).all(1)
    pose = torch.cat([rotation, translation[..., None]], -1)[in_view]
    return points_i[in_view] / points_i[in_view][..., 2:], points_j[in_view] / points_j[in_view][..., 2:], pose


def distance(found, valid, truth):
    """Of the best solution from the truth, up to scale and sign; infinite where there is none."""
    truth = torch.nn.functional.normalize(truth.flatten(1), dim=-1)[:, None]
    both = torch.stack([(found.flatten(2) - truth).norm(dim=-1), (found.flatten(2) + truth).norm(dim=-1)])
    return both.amin(0).masked_fill(~valid, torch.inf).amin(1)


def test_the_true_matrix_is_among_the_solutions():
    rays_i, rays_j, pose = make_samples(2 * NUM_PROBLEMS, 0, away=6.0)
    rays_i, rays_j, pose = rays_i[:NUM_PROBLEMS], rays_j[:NUM_PROBLEMS], pose[:NUM_PROBLEMS]
    assert len(pose) == NUM_PROBLEMS
    found, valid = essential_matrices(rays_i, rays_j, polish_steps=5)
    assert found.shape == (NUM_PROBLEMS, MAX_SOLUTIONS, 3, 3)
    assert (distance(found, valid, essential_from_pose(pose)) < 1e-6).double().mean() >= 0.999


def test_all_solutions_are_essential_and_fit_all_five_matches():
    rays_i, rays_j, _ = make_samples(500, 1)
    found, valid = essential_matrices(rays_i, rays_j)
    matrix, sample = found[valid], valid.nonzero()[:, 0]
    values = torch.linalg.svdvals(matrix)
    assert_below(values[:, 0] - values[:, 1], 1e-5)
    assert_below(values[:, 2], 1e-5)
    assert_close(values.norm(dim=-1), torch.ones(len(values)).double())
    assert_below((rays_j[sample] @ matrix * rays_i[sample]).sum(-1), 1e-11)
    assert 4 < valid.sum(1).double().mean() < 5.5
    assert not found[~valid].any()


def test_solutions_differ_from_each_other():
    rays_i, rays_j, _ = make_samples(300, 2)
    found, valid = essential_matrices(rays_i, rays_j)
    flat = found.flatten(2)
    cosine = (flat @ flat.mT).abs() - 2 * torch.eye(MAX_SOLUTIONS).double()
    assert ((cosine.amax((1, 2)) > 1 - 1e-10).sum()) <= 1


def repeated(rays):
    return torch.cat([rays[:, :4], rays[:, :1]], 1)


def on_a_line(rays):
    step = torch.linspace(0, 1, 5).double()[:, None]
    return rays[:, :1] + step * (rays[:, 1:2] - rays[:, :1])


def with_nan(rays):
    rays = rays.clone()
    rays[:, 2, 0] = torch.nan
    return rays


@pytest.mark.parametrize("spoil", [repeated, on_a_line, with_nan, torch.zeros_like, torch.ones_like])
def test_samples_that_say_too_little_have_no_solution(spoil):
    rays_i, rays_j, _ = make_samples(200, 3)
    found, valid = essential_matrices(spoil(rays_i), spoil(rays_j))
    assert not valid.any() and not found.any()


def test_a_camera_that_only_turned_gives_finite_matrices():
    """Every translation fits: whatever comes out, it fits the matches and is a number."""
    rays_i, _, pose = make_samples(200, 4)
    rays_j = rays_i @ pose[..., :3].mT
    found, valid = essential_matrices(rays_i, rays_j)
    sample = valid.nonzero()[:, 0]
    assert found.isfinite().all()
    assert_below((rays_j[sample] @ found[valid] * rays_i[sample]).sum(-1), 1e-9)


def test_points_on_a_plane_are_no_problem():
    rays_i, _, pose = make_samples(500, 5)
    normal = torch.tensor([0.2, -0.1, 1.0]).double()
    points_i = rays_i * (5 / (rays_i @ normal))[..., None]
    points_j = points_i @ pose[..., :3].mT + pose[:, None, :, 3]
    found, valid = essential_matrices(points_i / points_i[..., 2:], points_j / points_j[..., 2:], polish_steps=5)
    assert (distance(found, valid, essential_from_pose(pose)) < 1e-6).double().mean() > 0.99


def test_a_sample_is_solved_alike_alone_and_in_a_batch():
    rays_i, rays_j, _ = make_samples(60, 6)
    together, valid = essential_matrices(rays_i, rays_j)
    for k in (0, 17, 41):
        alone, is_valid = essential_matrices(rays_i[k : k + 1], rays_j[k : k + 1])
        assert torch.equal(is_valid[0], valid[k])
        assert_close(alone[0], together[k], atol=1e-8)


# ----------------------------------------------------------------------------------------------------------------
# Poses and distances


def test_four_poses_make_the_same_matrix_and_one_is_the_pose():
    _, _, pose = make_samples(200, 7)
    four = poses_from_essential(essential_from_pose(pose))
    assert_close(four[..., :3], orthonormalize(four[..., :3]))
    assert_close(torch.linalg.det(four[..., :3]), torch.ones(len(pose), 4).double())
    made = essential_from_pose(four) * torch.tensor([1, -1, -1, 1])[:, None, None]
    assert_close(made.abs(), essential_from_pose(pose)[:, None].abs().expand_as(made))
    assert_below((four - pose[:, None]).flatten(2).norm(dim=-1).amin(1), 1e-12)


def test_only_the_true_pose_has_all_points_in_front():
    rays_i, rays_j, pose = make_samples(200, 8)
    four = poses_from_essential(essential_from_pose(pose))
    front = in_front(four, rays_i[:, None].expand(-1, 4, -1, -1), rays_j[:, None].expand(-1, 4, -1, -1)).all(-1)
    assert torch.equal(front.sum(1), torch.ones(len(pose), dtype=torch.int64))
    chosen, any_front = minimal_poses(essential_from_pose(pose), rays_i, rays_j)
    assert any_front.all()
    assert_close(chosen, pose)


def make_matches(count, seed):
    rays_i, rays_j, pose = make_samples(count, seed)
    noise = 0.01 * torch.randn(rays_i[..., :2].shape, generator=torch.Generator().manual_seed(seed)).double()
    focal = torch.tensor([[700.0, 900.0]]).double().repeat(len(pose), 1)
    is_match = torch.ones(rays_i.shape[:2], dtype=torch.bool)
    return MatchBatch(rays_i[..., :2] + noise, rays_j[..., :2], is_match, focal), pose


def test_sampson_distance_is_the_epipolar_constraint_over_its_gradient_in_pixels():
    matches, pose = make_matches(20, 9)
    essential = essential_from_pose(pose)
    found = sampson_squared(essential[:, None], sampson_forms(matches, torch.float64))[:, 0]
    focal_i, focal_j = matches.focal_px.unbind(1)
    pixels = [(matches.rays_i * focal_i[:, None, None]), (matches.rays_j * focal_j[:, None, None])]
    pixels = [value.requires_grad_() for value in pixels]
    ones = torch.ones_like(pixels[0][..., :1])
    first = torch.cat([pixels[0] / focal_i[:, None, None], ones], -1)
    second = torch.cat([pixels[1] / focal_j[:, None, None], ones], -1)
    constraint = (second @ essential * first).sum(-1)
    slopes = torch.autograd.grad(constraint.sum(), pixels)
    expected = constraint.square() / sum(slope.square().sum(-1) for slope in slopes)
    assert_close(found, expected.detach())
    single = sampson_squared(essential[:, None], sampson_forms(matches, torch.float32))[:, 0]
    assert (single.sqrt() - found.sqrt()).abs().max() < 1e-2


def test_derivatives_of_the_sampson_distance():
    matches, pose = make_matches(20, 10)
    forms = sampson_forms(matches, torch.float64)
    residual, slope = sampson_linearized(pose, forms)
    assert_close(residual.square(), sampson_squared(essential_from_pose(pose)[:, None], forms)[:, 0])
    for k in range(5):
        step = torch.zeros(len(pose), 5).double()
        step[:, k] = 1e-6
        ahead, behind = (sampson_linearized(moved(pose, sign * step), forms)[0] for sign in (1, -1))
        assert_close((ahead - behind) / 2e-6, slope[:, k], atol=1e-3, rtol=1e-5)


def test_moving_keeps_a_pose_a_pose():
    _, pose = make_matches(20, 11)
    step = 0.1 * torch.randn(len(pose), 5, generator=torch.Generator().manual_seed(0)).double()
    other = moved(pose, step)
    assert_close(other[..., :3], orthonormalize(other[..., :3]))
    assert_close(other[..., 3].norm(dim=-1), torch.ones(len(pose)).double())
    assert_close((tangents(pose[..., 3]) @ pose[..., 3:]).abs(), torch.zeros(len(pose), 2, 1).double())
