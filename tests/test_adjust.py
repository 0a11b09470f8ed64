"""Adjustment as a whole, on made-up scenes with known answer."""

import math
from dataclasses import replace

import pytest
import torch

from mbasfm.adjust import linear_solve
from mbasfm.adjust.adjust import adjust
from mbasfm.adjust.adjust import make_problem as stage_problem
from mbasfm.adjust.levenberg_marquardt import linearize
from mbasfm.adjust.stage import COARSE, FINE, PAPER_STAGES, SPLIT, SPLIT_STAGES
from mbasfm.evaluation.metrics import pose_auc, twists_to_truth
from mbasfm.geometry.rigid import camera_centers, exp_so3, rotation_angle
from mbasfm.geometry.similarity import Pairs, fit_similarity
from mbasfm.objective import isotropic, losses
from mbasfm.synthetic.cameras import perturb, scene_size
from mbasfm.synthetic.depth_errors import DepthError
from mbasfm.synthetic.problem import MatchError, Problem, Settings, make_problem
from mbasfm.types.cameras import Cameras, Fixed
from mbasfm.types.observations import Samples

EXACTISH = Settings(
    samples_per_edge=60,
    max_degree=6,
    depth_error=DepthError(smooth=0.0, edge_blur_px=0.0, outliers=0.0),
    match_error=MatchError(noise_px=0.0, outliers=0.0),
)
NOISY = Settings(samples_per_edge=100, max_degree=8, match_error=MatchError(outliers=0.2))


def start_of(problem: Problem, rotation_deg: float = 10.0, share: float = 0.1, focal: float = 1.15) -> Cameras:
    return perturb(problem.truth, 7, rotation_deg, share * scene_size(problem.scene, problem.truth), focal)


def auc_of(cameras: Cameras, problem: Problem) -> tuple[float, ...]:
    return pose_auc(cameras.cam_from_world, problem.truth.cam_from_world)


@pytest.fixture(scope="module")
def noisy() -> Problem:
    return make_problem(12, 1, NOISY)


@pytest.mark.parametrize("disparity", [False, True])
@pytest.mark.parametrize("stages", [PAPER_STAGES, SPLIT_STAGES], ids=["paper", "split"])
def test_exact_data_give_exact_cameras(stages, disparity):
    problem = make_problem(8, 2, replace(EXACTISH, disparity=disparity))
    tight = tuple(replace(stage, tolerance=1e-9) for stage in stages)
    # Without errors there is one answer up to a similarity; priors would move it by a little.
    result = adjust(start_of(problem, 6.0, 0.05, 1.1), problem.samples, tight)
    assert bool(result.registered.all())
    assert auc_of(result.cameras, problem)[0] > 0.98
    focal = result.cameras.intrinsics.focal / problem.truth.intrinsics.focal
    assert float((focal - 1).abs().max()) < 2e-3


def test_both_objectives_recover_noisy_cameras_and_split_is_better(noisy):
    start = start_of(noisy)
    paper = auc_of(adjust(start, noisy.samples, PAPER_STAGES).cameras, noisy)
    split = auc_of(adjust(start, noisy.samples, SPLIT_STAGES).cameras, noisy)
    assert auc_of(start, noisy)[2] < 0.1
    assert paper[2] > 0.5
    assert split[2] > 0.9 and split[0] > paper[0] + 0.1


def test_first_order_solver_goes_the_same_way(noisy):
    """Some Adam steps must improve both objectives; a flipped sign would make residuals grow."""
    start = start_of(noisy, 3.0, 0.03, 1.02)
    for stage in (replace(COARSE, solver="adam"), replace(SPLIT, solver="adam")):
        short = replace(stage, max_steps=80, restarts=0)
        result = adjust(start, noisy.samples, short)
        assert auc_of(result.cameras, noisy)[2] > auc_of(start, noisy)[2] + 0.05
        assert result.steps[-1][1].score > result.steps[0][1].score


def test_wrong_sign_diverges(noisy, monkeypatch):
    """What the paper prints, -F, is minimised by pushing residuals out: the score falls."""
    start = start_of(noisy, 2.0, 0.02, 1.0)
    stage = replace(FINE, solver="adam", max_steps=60, restarts=0)
    right = adjust(start, noisy.samples, stage).steps
    original = losses.surrogate_loss
    monkeypatch.setattr(isotropic, "surrogate_loss", lambda *args: -original(*args))
    wrong = adjust(start, noisy.samples, stage).steps
    assert right[-1][1].score > right[0][1].score
    assert wrong[-1][1].score < wrong[0][1].score


@pytest.mark.parametrize("stages", [PAPER_STAGES, SPLIT_STAGES], ids=["paper", "split"])
def test_same_input_same_bits(noisy, stages):
    start = start_of(noisy)
    first, second = (adjust(start, noisy.samples, stages) for _ in range(2))
    assert torch.equal(first.cameras.cam_from_world, second.cameras.cam_from_world)
    assert torch.equal(first.cameras.intrinsics.focal, second.cameras.intrinsics.focal)
    assert torch.equal(first.pose_covariance, second.pose_covariance)


@pytest.mark.parametrize("solver", ["lm", "adam"])
@pytest.mark.parametrize("stage", [COARSE, SPLIT], ids=["coarse", "split"])
def test_what_is_fixed_does_not_move_by_a_bit(noisy, stage, solver):
    start = start_of(noisy, 4.0, 0.03, 1.05)
    num_frames = start.num_frames
    fixed = Fixed.build(num_frames)
    some = torch.arange(num_frames) % 3 == 0
    fixed = replace(fixed, pose=some, scale=some.roll(1), shift=some.roll(2))
    truth_at_fixed = torch.where(some[:, None, None], noisy.truth.cam_from_world, start.cam_from_world)
    start = replace(start, cam_from_world=truth_at_fixed)
    result = adjust(start, noisy.samples, replace(stage, solver=solver, max_steps=12, restarts=0), fixed).cameras
    assert torch.equal(result.cam_from_world[some], start.cam_from_world[some])
    assert torch.equal(result.depth_scale[fixed.scale], start.depth_scale[fixed.scale])
    assert torch.equal(result.depth_shift[fixed.shift], start.depth_shift[fixed.shift])
    assert not torch.equal(result.cam_from_world[~some], start.cam_from_world[~some])
    assert not torch.equal(result.depth_scale[~fixed.scale], start.depth_scale[~fixed.scale])


def test_fixed_focal_stays_and_groups_move_together(noisy):
    start = start_of(noisy, 3.0, 0.02, 1.1)
    group = torch.arange(start.num_frames) // 4
    start = replace(start, intrinsics=replace(start.intrinsics, group=group))
    fixed = replace(Fixed.build(start.num_frames), focal=group == 1)
    focal = adjust(start, noisy.samples, SPLIT, fixed).cameras.intrinsics.focal
    assert torch.equal(focal[group == 1], start.intrinsics.focal[group == 1])
    for number in (0, 2):
        assert torch.equal(focal[group == number], focal[group == number][:1].expand(4, 2))
        assert not torch.equal(focal[group == number], start.intrinsics.focal[group == number])
    assert float(focal[0, 0]) != float(focal[8, 0])


def test_radial_term_is_found():
    truth_k1 = -0.12
    problem = make_problem(10, 4, replace(NOISY, distortion=(truth_k1, 0.0, 0.0, 0.0)))
    start = start_of(problem, 3.0, 0.02, 1.05)
    start = replace(start, intrinsics=replace(start.intrinsics, distortion=torch.zeros(10, 4, dtype=torch.float64)))
    fixed = Fixed.build(10, radial=False)
    with_radial = adjust(start, problem.samples, SPLIT, fixed)
    without = adjust(start, problem.samples, SPLIT)
    assert float(with_radial.cameras.intrinsics.distortion[0, 0]) == pytest.approx(truth_k1, abs=0.02)
    assert auc_of(with_radial.cameras, problem)[0] > auc_of(without.cameras, problem)[0]


def test_metric_depth_gives_a_metric_world():
    """Depth without scale error: the world must come out in the depth's unit although the start is twice too large."""
    settings = replace(NOISY, depth_error=DepthError(scale=0.0, shift=0.0))
    problem = make_problem(10, 5, settings)
    start = start_of(problem, 4.0, 0.03, 1.0)
    doubled = start.cam_from_world.clone()
    doubled[..., 3] *= 2
    result = adjust(replace(start, cam_from_world=doubled), problem.samples, SPLIT).cameras
    scale, _ = fit_similarity(
        Pairs(camera_centers(result.cam_from_world), camera_centers(problem.truth.cam_from_world))
    )
    assert float(scale) == pytest.approx(1.0, abs=0.03)


def test_the_world_may_be_turned_and_scaled(noisy):
    """The answer does not depend on the frame in which the start is given."""
    start = start_of(noisy, 5.0, 0.05, 1.1)
    plain = adjust(start, noisy.samples, SPLIT).cameras
    turn = exp_so3(torch.tensor([0.3, -0.8, 0.5], dtype=torch.float64))
    poses = start.cam_from_world.clone()
    poses[..., :3] = poses[..., :3] @ turn
    poses[..., 3] *= 7.0
    scaled = replace(start, cam_from_world=poses, depth_scale=7 * start.depth_scale)
    turned = adjust(scaled, noisy.samples, SPLIT).cameras
    assert pose_auc(turned.cam_from_world, plain.cam_from_world, thresholds_deg=(0.1,))[0] > 0.95


def test_relocalization_is_the_same_call(noisy):
    """Map frames with fixed pose and depth, one free query: its pose is found in the map's own scale."""
    problem = make_problem(12, 1, replace(NOISY, depth_error=DepthError(scale=0.0, shift=0.0, smooth=0.01)))
    query = 5
    is_map = torch.arange(12) != query
    start = start_of(problem, 8.0, 0.05, 1.0)
    poses = torch.where(is_map[:, None, None], problem.truth.cam_from_world, start.cam_from_world)
    fixed = Fixed(is_map, torch.ones_like(is_map), torch.ones_like(is_map), is_map, is_map)
    result = adjust(replace(start, cam_from_world=poses), problem.samples, SPLIT, fixed).cameras
    truth = problem.truth.cam_from_world[query]
    error = (camera_centers(result.cam_from_world)[query] - camera_centers(truth[None])[0]).norm()
    angle = rotation_angle(result.cam_from_world[query, :, :3] @ truth[:, :3].T)
    assert float(error) < 0.02 * scene_size(problem.scene, problem.truth)
    assert math.degrees(float(angle)) < 0.5


def test_two_components_are_adjusted_apart(noisy):
    """Two copies without common edge: each keeps its own root and scale, and the same answer as alone."""
    start = start_of(noisy, 4.0, 0.03, 1.05)
    alone = adjust(start, noisy.samples, SPLIT, Fixed.build(12, focal=True)).cameras
    double = Cameras(
        torch.cat([start.cam_from_world, start.cam_from_world]),
        replace(start.intrinsics, **{k: torch.cat([v, v]) for k, v in vars(start.intrinsics).items()}),
        *(torch.cat([v, v]) for v in (start.depth_scale, start.depth_shift, start.is_disparity)),
    )
    once = noisy.samples
    samples = Samples(*(torch.cat([v, v]) for v in (once.edges, once.data, once.weight)))
    samples.edges[len(noisy.samples.edges) :] += 12
    both = adjust(double, samples, SPLIT, Fixed.build(24, focal=True)).cameras
    for part in (slice(0, 12), slice(12, 24)):
        assert pose_auc(both.cam_from_world[part], alone.cam_from_world, thresholds_deg=(0.2,))[0] > 0.9


def test_a_lost_frame_is_started_again_from_a_neighbour(noisy):
    start = replace(noisy.truth)
    poses = start.cam_from_world.clone()
    lost = 4
    poses[lost, :, :3] = exp_so3(torch.tensor([0.0, 2.5, 0.0], dtype=torch.float64)) @ poses[lost, :, :3]
    start = replace(start, cam_from_world=poses)
    stuck = adjust(start, noisy.samples, replace(FINE, restarts=0))
    assert not bool(stuck.registered[lost]) and stuck.reason[lost]
    assert int((~stuck.registered).sum()) == 1
    found = adjust(start, noisy.samples, FINE)
    assert bool(found.registered.all()) and not any(found.reason)
    angle = rotation_angle(found.cameras.cam_from_world[lost, :, :3] @ noisy.truth.cam_from_world[lost, :, :3].T)
    assert math.degrees(float(angle)) < 5


@pytest.mark.parametrize("shared", [True, False])
def test_dense_sparse_and_iterative_solvers_agree(noisy, monkeypatch, shared):
    """The same damped system by Cholesky, by sparse LU and by conjugate gradients; a shared focal is the hard part."""
    start = start_of(noisy, 3.0, 0.02, 1.05)
    if not shared:
        start = replace(start, intrinsics=replace(start.intrinsics, group=torch.arange(start.num_frames)))
    problem = stage_problem(start, noisy.samples, SPLIT, Fixed.build(start.num_frames, radial=False))
    _, equations = linearize(problem, start, problem.form.start(start))
    zeros = torch.zeros(problem.unknowns.count, dtype=torch.float64)

    def solve() -> torch.Tensor:
        system = linear_solve.reduce_system(equations, zeros + 1.0, zeros)
        step = system.solve(1e-4 * system.diagonal)
        assert step is not None
        return step

    dense = solve()
    monkeypatch.setattr(linear_solve, "DENSE_LIMIT", 0)
    for degree in (1e9, 0.0):  # everything counts as sparse, then nothing does
        monkeypatch.setattr(linear_solve, "SPARSE_DEGREE", degree)
        torch.testing.assert_close(solve(), dense, atol=1e-8 * float(dense.abs().max()), rtol=1e-6)


def test_whole_runs_agree_between_linear_solvers(noisy, monkeypatch):
    start = start_of(noisy, 3.0, 0.02, 1.05)
    dense = adjust(start, noisy.samples, SPLIT).cameras
    monkeypatch.setattr(linear_solve, "DENSE_LIMIT", 0)
    monkeypatch.setattr(linear_solve, "SPARSE_DEGREE", 0.0)
    iterative = adjust(start, noisy.samples, SPLIT).cameras
    assert pose_auc(iterative.cam_from_world, dense.cam_from_world, thresholds_deg=(0.1,))[0] > 0.95


def test_repeated_draws_do_not_count_twice(noisy):
    """An edge whose samples are all one match, with weights that sum to 1, must not outvote the others."""
    samples = noisy.samples
    data, weight = samples.data.clone(), samples.weight.clone()
    data[:3] = data[:3, :1]
    data[:3, :, 2:4] += 60.0  # a single gross mismatch, drawn a hundred times
    weight[:3] = 1 / samples.samples_per_edge
    start = start_of(noisy, 2.0, 0.02, 1.0)
    result = adjust(start, Samples(samples.edges, data, weight), SPLIT).cameras
    assert auc_of(result, noisy)[2] > 0.9


def test_report_says_how_good_depth_and_matches_are(noisy):
    result = adjust(start_of(noisy), noisy.samples, SPLIT)
    diagnosis = result.diagnosis
    # 640 px wide images: one pixel of match noise is 1.6 px at the reference size; depth is 5 % off and more at edges.
    assert 1.2 < diagnosis.match_error_px < 3.0
    assert 0.03 < float(diagnosis.depth_error.median()) < 0.09
    assert bool((diagnosis.inlier_share > 0.6).all())
    assert bool((diagnosis.residual_quantiles_px.diff(dim=-1) >= 0).all())


@pytest.mark.slow
def test_truth_lies_inside_the_covariance_about_as_often_as_it_should():
    """Errors in units of their predicted standard deviation, over problems of three kinds.

    Errors of one problem hang together, so the shares scatter around 68 % and 95 % even if all is right.
    """
    errors, distances = [], []
    for kind in ("room", "place", "object"):
        for seed in range(2):
            problem = make_problem(12, seed, replace(NOISY, kind=kind))
            result = adjust(start_of(problem, 5.0, 0.05, 1.1), problem.samples, SPLIT)
            free = result.pose_covariance.abs().sum((1, 2)) > 0
            root = int(torch.nonzero(~free)[0])
            twist = twists_to_truth(result.cameras, problem.truth, root)[free]
            covariance = result.pose_covariance[free]
            errors.append(twist / covariance.diagonal(dim1=1, dim2=2).sqrt())
            distances.append((twist * torch.linalg.solve(covariance, twist)).sum(-1))
    within = [float((torch.cat(errors).abs() < limit).double().mean()) for limit in (1.0, 1.96)]
    inside_90 = float((torch.cat(distances) < 10.64).double().mean())  # chi-square with 6 degrees of freedom
    assert 0.5 < within[0] < 0.9
    assert 0.85 < within[1]
    assert 0.75 < inside_90
