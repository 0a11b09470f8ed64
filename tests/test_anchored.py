"""Laws of the anchored residual: what it equals in the limit, its derivatives, and what must not change it."""

from dataclasses import replace
from typing import Any

import numpy as np
import pycolmap
import pytest
import torch
from anchored_twin import (
    NUM_FRAMES,
    draw,
    errors,
    explicit,
    make_scene,
    nearby,
    observation_weights,
    prior_depths,
    start_of,
    without_depth,
)
from made_up import MadeUp, keypoints_with, true_cameras
from margins import assert_below
from torch import Tensor

from mbasfm.adjust.adjust import adjust, make_problem
from mbasfm.adjust.levenberg_marquardt import Problem, linearize
from mbasfm.adjust.linear_solve import dense_matrix, reduce_system
from mbasfm.adjust.stage import ANCHORED, Priors, Stage
from mbasfm.adjust.unknowns import make_priors
from mbasfm.errors import ConfigError, InputError
from mbasfm.geometry.rigid import relative_poses
from mbasfm.objective import anchored
from mbasfm.objective.anchor_block import look
from mbasfm.objective.anchored import AnchoredForm, FrozenAnchored
from mbasfm.objective.reference import anchored_residuals
from mbasfm.objective.residual_kind import NO_INTRINSICS, Anchoring
from mbasfm.polish.colmap_mapper import HELD, build_model
from mbasfm.types.cameras import Cameras, Fixed
from mbasfm.types.observations import Samples

BENT = (-0.12, 0.03, 0.002, -0.001)
POSES_ONLY = Fixed.build(NUM_FRAMES, focal=True, scale=True, shift=True)
WEAK = Priors(log_focal=1e6, log_scale=1e6, shift=1e6, radial=1e6)
L2 = Stage("l2", "anchored", tau_max=1e4, log_scale=0.2, loss="l2", tolerance=1e-14, priors=WEAK, restarts=0)
"""Least squares, with nothing but the data."""
FREE = Anchoring(free_pixel=True, prior="none")


def schur(jacobian: Tensor, residuals: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Matrix and gradient of the first unknowns with all others eliminated."""
    hessian, gradient = jacobian.T @ jacobian, jacobian.T @ residuals
    back = hessian[:count, count:] @ torch.linalg.inv(hessian[count:, count:])
    return hessian[:count, :count] - back @ hessian[count:, :count], gradient[:count] - back @ gradient[count:]


def assert_same_system(problem: Problem, cameras: Cameras, frozen: Any, matrix: Tensor, gradient: Tensor) -> None:
    _, equations = linearize(problem, cameras, frozen)
    found = reduce_system(equations, *torch.zeros(2, problem.unknowns.count, dtype=torch.float64)).gradient
    unit = matrix.diagonal().clamp_min(1e-12).rsqrt()
    assert_below(unit[:, None] * (dense_matrix(equations) - matrix) * unit, 1e-8)
    assert_below(unit * (found - gradient) / float((unit * gradient).norm()), 1e-8)


CASES: dict[str, tuple[dict[str, Any], Anchoring, Fixed, bool]] = {
    "inverse depth": ({}, Anchoring(), Fixed.build(NUM_FRAMES), False),
    "disparity": ({}, Anchoring(), Fixed.build(NUM_FRAMES), True),
    "lens": ({"distortion": BENT}, Anchoring(), Fixed.build(NUM_FRAMES, radial=False), False),
    "pixel": ({}, Anchoring(free_pixel=True), Fixed.build(NUM_FRAMES, focal=True), False),
    "pixel, lens": ({"distortion": BENT}, Anchoring(free_pixel=True), Fixed.build(NUM_FRAMES, focal=True), True),
}


def posed(case: str) -> tuple[Problem, Cameras, FrozenAnchored]:
    """A problem some way from its minimum, with robust weights; a quarter of the anchors has no depth."""
    scene, anchoring, fixed, disparity = CASES[case]
    made = make_scene(**scene)
    samples, cameras = without_depth(draw(made), 0.25), start_of(made)
    if disparity:
        data = samples.data.clone()
        data[..., 4] = 1 / data[..., 4]
        samples = replace(samples, data=data)
        cameras = replace(cameras, is_disparity=torch.ones(NUM_FRAMES).bool())
    cameras = replace(cameras, depth_shift=0.01 * torch.arange(NUM_FRAMES).double())
    problem = make_problem(cameras, samples, replace(ANCHORED, anchoring=anchoring), fixed)
    frozen = problem.form.start(cameras)
    return (
        problem,
        cameras,
        replace(frozen, trust=replace(frozen.trust, weight=20 * problem.form.raw.isfinite().double())),
    )


@pytest.mark.parametrize("case", CASES)
def test_elimination_is_the_schur_complement(case):
    problem, cameras, frozen = posed(case)
    assert not bool((problem.form.samples.weight > 0).all())  # padding
    residuals, jacobian = explicit(problem, cameras, frozen, *observation_weights(problem, cameras, frozen))
    assert_same_system(problem, cameras, frozen, *schur(jacobian, residuals, problem.unknowns.count))


@pytest.mark.parametrize("case", CASES)
def test_kernels_agree_with_their_readable_twin(case):
    problem, cameras, frozen = posed(case)
    latent, samples = frozen.latent[:1], problem.form.samples
    expected = anchored_residuals(cameras, samples, latent[0])
    for chunk, some, anchors in problem.form._stream(cameras, NO_INTRINSICS):
        still = torch.cat([latent[:, some], 0 * frozen.latent[1:, some]])
        found = look(anchors, still).squared.sqrt() / anchors.inflation
        assert_below(found - expected[chunk], 1e-9)


@pytest.mark.parametrize("case", CASES)
def test_gradient_is_that_of_the_loss_when_latents_follow(case, monkeypatch):
    """By central differences of the loss, which ``measure`` takes at the best latents."""
    monkeypatch.setattr(anchored, "REFINING_STEPS", 12)
    problem, cameras, frozen = posed(case)
    flat = replace(frozen.table, weight=torch.full_like(frozen.table.weight, 2.0), offset=0 * frozen.table.offset)
    frozen = replace(frozen, table=flat)
    frozen = replace(frozen, latent=problem.form.measure(cameras, frozen)[1].latent)
    _, equations = linearize(problem, cameras, frozen)
    count = problem.unknowns.count
    found = reduce_system(equations, *torch.zeros(2, count, dtype=torch.float64)).gradient
    unit = dense_matrix(equations).diagonal().clamp_min(1e-12).rsqrt()
    generator = torch.Generator().manual_seed(0)
    for _ in range(4):
        way = unit * torch.randn(count, dtype=torch.float64, generator=generator)
        ahead, behind = (
            problem.form.measure(nearby(cameras, problem.unknowns, sign * 1e-3 * way), frozen)[0] for sign in (1, -1)
        )
        assert (ahead - behind) / 2e-3 == pytest.approx(float(found @ way), rel=1e-4)


# ----------------------------------------------------------------------------------------------------------------
# Limits


def solve(cameras: Cameras, samples: Samples, stage: Stage, fixed: Fixed) -> Tensor:
    return adjust(cameras, samples, replace(stage, max_steps=100), fixed).cameras.cam_from_world


def test_depth_that_is_certain_gives_the_paper_s_residual():
    made = make_scene()
    samples, start, fixed = draw(made), start_of(made), Fixed.build(NUM_FRAMES, focal=True)
    certain = replace(L2, anchoring=Anchoring(prior="fixed", sigma=1e-6))
    found, expected = (solve(start, samples, stage, fixed) for stage in (certain, replace(L2, residual="isotropic")))
    assert_below(found - expected, 1e-5)


def test_one_observation_per_anchor_is_a_residual_with_the_spread_of_its_line():
    """Covariance sigma_m^2 across the line, and along it in addition the way that an error of depth moves the pixel."""
    sigma, made = 0.1, make_scene()
    samples = replace(draw(made), anchor=None)
    stage = replace(L2, anchoring=Anchoring(prior="fixed", sigma=sigma))
    cameras = start_of(made)
    problem = make_problem(cameras, samples, stage, Fixed.build(NUM_FRAMES))
    form = problem.form
    frozen = form.start(cameras)
    frozen = replace(frozen, latent=prior_depths(cameras, form)[None])
    noise = float(frozen.table.weight[0, 0]) ** -0.5

    def predicted(step: Tensor) -> Tensor:
        moved = nearby(cameras, problem.unknowns, step)
        return errors(moved, samples, prior_depths(moved, form)[None])

    none = torch.zeros(problem.unknowns.count, dtype=torch.float64)
    error, jacobian = predicted(none), torch.autograd.functional.jacobian(predicted, none, vectorize=True)
    by_rho = torch.autograd.functional.jvp(
        lambda rho: errors(cameras, samples, rho), frozen.latent, torch.ones_like(frozen.latent)
    )[1]
    way = by_rho * (sigma * frozen.unit[samples.anchors])[..., None]
    spread = noise**2 * torch.eye(2, dtype=torch.float64) + way[..., :, None] * way[..., None, :]
    precision = torch.linalg.inv(spread) * samples.weight[..., None, None]
    matrix = torch.einsum("ekau,ekab,ekbv->uv", jacobian, precision, jacobian)
    gradient = torch.einsum("ekau,ekab,ekb->u", jacobian, precision, error)
    assert_same_system(problem, cameras, frozen, matrix, gradient)


def points_of(made: MadeUp, samples: Samples, cameras: Cameras) -> pycolmap.Reconstruction:
    """A model with a point for every anchor, seen by its frame and by all that observe it."""
    keypoints = keypoints_with(made, made.depth)
    model = build_model([str(n) for n in range(NUM_FRAMES)], range(NUM_FRAMES), cameras, keypoints, HELD)
    index = [{tuple(pixel): n for n, pixel in enumerate(points.pixels.tolist())} for points in keypoints]
    seen: dict[int, set[tuple[int, int]]] = {}
    for (i, j), data, weight, number in zip(
        samples.edges.tolist(), samples.data.tolist(), samples.weight.tolist(), samples.anchors.tolist(), strict=True
    ):
        for (x, y, u, v, _), counts, anchor in zip(data, weight, number, strict=True):
            if counts:
                seen.setdefault(anchor, set()).update({(i, index[i][x, y]), (j, index[j][u, v])})
    for track in seen.values():
        point = made.points[made.point_of[min(track)[0]][min(track)[1]]]
        elements = [pycolmap.TrackElement(frame + 1, keypoint) for frame, keypoint in sorted(track)]
        model.add_point3D(point, pycolmap.Track(elements), np.zeros(3, np.uint8))
    return model


def bundle(model: pycolmap.Reconstruction) -> Tensor:
    """Poses at the minimum of the squared reprojection error."""
    options = pycolmap.BundleAdjustmentOptions()
    options.refine_focal_length = options.refine_extra_params = options.refine_principal_point = False
    options.refine_sensor_from_rig = options.print_summary = False
    options.min_track_length = 2
    options.ceres.loss_function_type = pycolmap.LossFunctionType.TRIVIAL
    solver = options.ceres.solver_options
    solver.function_tolerance = solver.gradient_tolerance = solver.parameter_tolerance = 1e-16
    solver.max_num_iterations, solver.num_threads = 500, 1
    config = pycolmap.BundleAdjustmentConfig()
    for image_id in model.images:
        config.add_image(image_id)
    config.fix_gauge(pycolmap.BundleAdjustmentGauge.TWO_CAMS_FROM_WORLD)
    pycolmap.create_default_ceres_bundle_adjuster(options, config, model).solve()
    return torch.from_numpy(np.stack([model.images[n + 1].cam_from_world().matrix() for n in range(NUM_FRAMES)]))


def test_free_pixels_without_depth_are_points_in_bundle_adjustment():
    made = make_scene(points=60, noise_px=1.0)
    samples, start = draw(made), start_of(made)
    found, expected = (
        solve(start, samples, replace(L2, anchoring=FREE), POSES_ONLY),
        bundle(points_of(made, samples, start)),
    )
    turned = relative_poses(found, torch.tensor([[0, n] for n in range(NUM_FRAMES)]))
    wanted = relative_poses(expected, torch.tensor([[0, n] for n in range(NUM_FRAMES)]))
    size = turned[..., 3].norm() / wanted[..., 3].norm()
    assert_below(turned[..., :3] - wanted[..., :3], 1e-6)
    assert_below(turned[..., 3] / size - wanted[..., 3], 1e-6)


# ----------------------------------------------------------------------------------------------------------------
# What must not change anything


def reordered(samples: Samples, seed: int) -> Samples:
    """Rows and samples of rows in another order, and other numbers for the anchors of each frame."""
    generator = np.random.default_rng(seed)
    frame = torch.zeros(samples.num_anchors).long()
    frame[samples.anchors.flatten()] = samples.edges[:, :1].expand_as(samples.anchors).flatten()
    order = np.lexsort([generator.random(len(frame)), frame.numpy()])
    number = torch.empty_like(frame)
    number[torch.from_numpy(order)] = 2 * torch.arange(len(frame))  # with gaps
    rows = torch.from_numpy(generator.permutation(samples.num_edges))
    within = torch.from_numpy(generator.permutation(samples.samples_per_edge))
    data, weight = samples.data[rows][:, within], samples.weight[rows][:, within]
    return Samples(samples.edges[rows], data, weight, number[samples.anchors][rows][:, within])


@pytest.mark.parametrize("anchoring", [Anchoring(), FREE], ids=["depth", "pixel"])
def test_order_and_numbers_do_not_matter(anchoring):
    made = make_scene()
    samples, start, stage = draw(made), start_of(made), replace(ANCHORED, anchoring=anchoring, max_steps=4)
    found, expected = (adjust(start, some, stage) for some in (reordered(samples, 0), samples))
    assert_below(found.cameras.cam_from_world - expected.cameras.cam_from_world, 1e-7)
    assert_below(found.pose_covariance - expected.pose_covariance, 1e-7)


def test_numbers_that_do_not_follow_the_frames_are_refused():
    samples = draw(make_scene())
    with pytest.raises(InputError, match="number those of frame 0 first"):
        AnchoredForm.build(replace(samples, anchor=samples.num_anchors - 1 - samples.anchors), NUM_FRAMES, L2.shape)


def test_what_no_edge_observes_any_more_changes_nothing():
    """Edges left out leave gaps in the numbers; the rest is what it would be if drawn without them."""
    made = make_scene()
    samples, start = draw(made), start_of(made)
    kept = samples.select((samples.edges != 2).all(-1))
    compact = replace(kept, anchor=kept.anchors.unique(return_inverse=True)[1])
    forms = [AnchoredForm.build(some, NUM_FRAMES, ANCHORED.shape) for some in (kept, compact)]
    (loss, one), (expected, other) = (form.measure(start, form.start(start)) for form in forms)
    assert loss == pytest.approx(expected, rel=1e-12) and forms[0].typical_raw.equal(forms[1].typical_raw)
    assert_below(one.trust.spread - other.trust.spread, 1e-12)


@pytest.mark.parametrize("case", ["inverse depth", "disparity"])
def test_a_rescaled_world_has_the_same_loss(case):
    problem, cameras, frozen = posed(case)
    loss, statistics = problem.form.measure(cameras, frozen)
    growth = torch.tensor([3.0], dtype=torch.float64)
    priors = make_priors(cameras, problem.unknowns, ANCHORED.priors, problem.gauge.typical_raw)
    larger, _ = problem.gauge.rescale(cameras, priors, growth)
    bigger = problem.form.rescaled(statistics, growth[problem.gauge.component])
    before, after = problem.form.freeze(statistics), problem.form.freeze(bigger)
    expected, found = problem.form.measure(cameras, before), problem.form.measure(larger, after)
    assert found[0] == pytest.approx(expected[0], rel=1e-9)
    assert_below(found[1].counts - expected[1].counts, 1e-9)
    assert_below(3 * found[1].latent[0] - expected[1].latent[0], 1e-9)


def test_latents_that_nothing_determines_stay_finite():
    """No depth, and two frames in one place: no match tells the inverse depth of its anchor."""
    made = make_scene()
    samples = without_depth(draw(made), 1.0)
    cameras = true_cameras(made)
    cameras = replace(cameras, cam_from_world=cameras.cam_from_world[:1].repeat(NUM_FRAMES, 1, 1))
    problem = make_problem(cameras, samples, ANCHORED, Fixed.build(NUM_FRAMES))
    frozen = problem.form.start(cameras)
    loss, equations = linearize(problem, cameras, frozen)
    assert (
        frozen.latent.isfinite().all() and np.isfinite(loss) and all(some.isfinite().all() for some in equations.sums)
    )


def test_what_is_behind_the_camera_counts_as_an_outlier():
    """A frame that looks the other way sees nothing: its observations have no weight and pull nothing."""
    made = make_scene()
    samples, cameras = draw(made), true_cameras(made)
    pose = cameras.cam_from_world.clone()
    pose[2] = torch.diag(torch.tensor([-1.0, 1.0, -1.0], dtype=torch.float64)) @ pose[2]
    cameras = replace(cameras, cam_from_world=pose)
    problem = make_problem(cameras, samples, replace(ANCHORED, anchoring=Anchoring(prior="fixed")), POSES_ONLY)
    frozen = problem.form.start(cameras)
    loss, equations = linearize(problem, cameras, frozen)
    assert np.isfinite(loss) and all(some.isfinite().all() for some in equations.sums)
    into = samples.edges[:, 1] == 2
    seen, _ = observation_weights(problem, cameras, frozen)
    assert into.any() and not seen[into].any() and seen[~(samples.edges == 2).any(-1)].any()


def test_the_first_order_solver_is_refused():
    made = make_scene()
    with pytest.raises(ConfigError, match="need the solver lm"):
        adjust(start_of(made), draw(made), replace(ANCHORED, solver="adam"))
