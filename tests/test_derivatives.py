"""Fast kernels against their readable twin, and the solver's gradient against autograd and finite differences."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from mbasfm.adjust.adjust import make_problem
from mbasfm.adjust.levenberg_marquardt import Problem, linearize
from mbasfm.adjust.linear_solve import dense_matrix
from mbasfm.adjust.stage import COARSE, FINE, SPLIT, Stage
from mbasfm.adjust.unknowns import SLOT_INTRINSIC, retract
from mbasfm.geometry.rigid import compose, exp_se3
from mbasfm.objective import isotropic, split
from mbasfm.objective.isotropic import FrozenIsotropic
from mbasfm.objective.losses import curvature_table
from mbasfm.objective.reference import NoiseScale, SplitResiduals, edge_rays, isotropic_residuals, split_residuals
from mbasfm.objective.residual_kind import NO_INTRINSICS, stream
from mbasfm.objective.split import SplitForm
from mbasfm.runtime.parallel import Share
from mbasfm.synthetic.cameras import perturb
from mbasfm.synthetic.depth_errors import DepthError
from mbasfm.synthetic.problem import MatchError, Settings
from mbasfm.synthetic.problem import make_problem as make_scene_problem
from mbasfm.types.cameras import Cameras, Fixed
from mbasfm.types.observations import Samples

NUM_FRAMES = 4
CASES = [
    pytest.param(stage, depth_kind, k1, id=f"{stage.name}-{depth_kind}-k{k1:g}")
    for stage in (COARSE, FINE, SPLIT)
    for depth_kind in ("depth", "disparity", "mixed")
    for k1 in (0.0, -0.08)
]


def make_state(depth_kind: str, k1: float) -> tuple[Cameras, Samples]:
    """A small scene in float64, some degrees from the truth; "mixed" has depth and disparity frames."""
    distortion = (k1, 0.01 if k1 else 0.0, 0.001 if k1 else 0.0, -0.002 if k1 else 0.0)
    settings = Settings(
        samples_per_edge=40,
        depth_error=DepthError(smooth=0.05),
        match_error=MatchError(noise_px=1.0, outliers=0.15),
        disparity=depth_kind == "disparity",
        distortion=distortion,
        min_covisibility=0.05,
    )
    problem = make_scene_problem(NUM_FRAMES, 3, settings)
    cameras = perturb(problem.truth, 5, 2.0, 0.05, 1.05)
    cameras = replace(
        cameras,
        depth_scale=torch.linspace(0.8, 1.2, NUM_FRAMES, dtype=torch.float64),
        depth_shift=torch.linspace(-0.05, 0.1, NUM_FRAMES, dtype=torch.float64),
    )
    data = problem.samples.data.double()
    if depth_kind == "mixed":
        is_disparity = torch.arange(NUM_FRAMES) % 2 == 1
        cameras = replace(cameras, is_disparity=is_disparity)
        data[is_disparity[problem.samples.edges[:, 0]], :, 4] **= -1
    weight = torch.linspace(0.5, 1.5, data.shape[0] * data.shape[1], dtype=torch.float64).view(data.shape[:2])
    return cameras, Samples(problem.samples.edges, data, weight)


def free_all(per_frame_focal: bool, cameras: Cameras) -> tuple[Cameras, Fixed]:
    if per_frame_focal:
        intrinsics = replace(cameras.intrinsics, group=torch.arange(NUM_FRAMES))
        cameras = replace(cameras, intrinsics=intrinsics)
    return cameras, Fixed.build(NUM_FRAMES, radial=False)


def shift_cameras(cameras: Cameras, problem: Problem, step: Tensor) -> Cameras:
    """Retraction without the projection onto rotations, whose derivative by SVD is singular."""
    index = problem.unknowns.index
    slots = torch.where(index >= 0, step[index.clamp_min(0)], 0.0)
    intrinsics = cameras.intrinsics
    focal = intrinsics.focal * slots[:, SLOT_INTRINSIC, None].exp()
    k1 = intrinsics.distortion[:, :1] + slots[:, SLOT_INTRINSIC + 1, None]
    return replace(
        cameras,
        cam_from_world=compose(exp_se3(slots[:, :6]), cameras.cam_from_world),
        depth_scale=cameras.depth_scale * slots[:, 6].exp(),
        depth_shift=cameras.depth_shift + slots[:, 7],
        intrinsics=replace(intrinsics, focal=focal, distortion=torch.cat([k1, intrinsics.distortion[:, 1:]], -1)),
    )


def frozen_across(cameras: Cameras, moved: Cameras, samples: Samples, at: SplitResiduals) -> Tensor:
    """Across-residual of ``moved`` with direction and marginalised depth as they were at ``cameras``."""

    def value(state: Cameras) -> Tensor:
        rays = edge_rays(state, samples)
        point = at.place[..., :1] * rays.start + at.place[..., 1:] * rays.step
        return (at.normal * (point[..., :2] / point[..., 2:] - rays.target)).sum(-1)

    return at.across + value(moved) - value(cameras)


def frozen_along(cameras: Cameras, moved: Cameras, samples: Samples, at: SplitResiduals) -> Tensor:
    """Along-residual of ``moved`` with the direction held; large where the prediction is behind the camera."""
    start = edge_rays(cameras, samples)
    rays = edge_rays(moved, samples)
    point = rays.start + rays.inverse_depth.nan_to_num(nan=1.0)[..., None] * rays.step
    front = at.along.isfinite()
    z = point[..., 2:].where(front[..., None], torch.ones_like(point[..., 2:]))
    line = torch.linalg.cross(start.start, start.step.expand_as(start.start))[..., :2]
    normal = line / line.norm(dim=-1, keepdim=True)
    tangent = torch.stack([-normal[..., 1], normal[..., 0]], -1)
    value = (tangent * (point[..., :2] / z - rays.target)).sum(-1)
    return value.where(front, torch.full_like(value, 1e9))


def frozen_loss(step: Tensor, cameras: Cameras, problem: Problem, frozen: object, at: SplitResiduals | None) -> Tensor:
    """The frozen loss written independently of the kernels, differentiable in ``step``."""
    moved = shift_cameras(cameras, problem, step)
    samples = problem.samples
    if isinstance(frozen, FrozenIsotropic):
        star = samples.edges[:, 0] if problem.stage.per_star else None
        values = frozen.table.loss(isotropic_residuals(moved, samples), star)
        gain = frozen.gain[samples.edges[:, 0] if problem.stage.per_star else torch.zeros_like(samples.edges[:, 0])]
        return (values * gain[:, None] * samples.weight).sum()
    form = problem.form
    assert isinstance(form, SplitForm) and at is not None
    across = frozen_across(cameras, moved, samples, at).abs()
    across = frozen.across.loss(across.where(at.across.isfinite(), torch.full_like(across, 1e9)))
    along = frozen.along.loss(frozen_along(cameras, moved, samples, at).abs() / form.scratch[0][0].sqrt())
    return ((across * form.across_share + along * form.scratch[0][1]) * samples.weight).sum()


def linearized(stage: Stage, depth_kind: str, k1: float, per_frame_focal: bool):
    cameras, samples = make_state(depth_kind, k1)
    cameras, fixed = free_all(per_frame_focal, cameras)
    problem = make_problem(cameras, samples, stage, fixed)
    frozen = problem.form.start(cameras)
    loss, equations = linearize(problem, cameras, frozen)
    at = None if stage.residual == "isotropic" else split_residuals(cameras, samples, frozen.noise)
    gradient = torch.zeros(problem.unknowns.count, dtype=torch.float64)
    free = problem.unknowns.index >= 0
    gradient.index_add_(0, problem.unknowns.index[free], equations.gradient[free])
    return cameras, problem, frozen, at, loss, gradient, equations


@pytest.mark.parametrize("per_frame_focal", [False, True])
@pytest.mark.parametrize(("stage", "depth_kind", "k1"), CASES)
def test_gradient_equals_autograd_of_the_frozen_loss(stage, depth_kind, k1, per_frame_focal):
    cameras, problem, frozen, at, loss, gradient, _ = linearized(stage, depth_kind, k1, per_frame_focal)
    step = torch.zeros(problem.unknowns.count, dtype=torch.float64, requires_grad=True)
    value = frozen_loss(step, cameras, problem, frozen, at)
    (expected,) = torch.autograd.grad(value, step)
    assert loss == pytest.approx(float(value.detach()), rel=1e-9)
    scale = expected.abs().max()
    torch.testing.assert_close(gradient / scale, expected / scale, atol=1e-8, rtol=1e-7)


@pytest.mark.parametrize(("stage", "depth_kind", "k1"), CASES)
def test_gradient_equals_finite_differences(stage, depth_kind, k1):
    """By central differences of the honest loss for the isotropic form, of the frozen one for the split form."""
    cameras, problem, frozen, at, _, gradient, _ = linearized(stage, depth_kind, k1, False)
    h = 1e-7
    for column in range(0, problem.unknowns.count, 5):
        step = torch.zeros(problem.unknowns.count, dtype=torch.float64)
        step[column] = h
        if at is None:
            plus, minus = (
                problem.form.measure(retract(cameras, problem.unknowns, s * step), frozen)[0] for s in (1, -1)
            )
        else:
            plus, minus = (float(frozen_loss(s * step, cameras, problem, frozen, at)) for s in (1, -1))
        assert (plus - minus) / (2 * h) == pytest.approx(
            float(gradient[column]), rel=2e-4, abs=2e-4 * float(gradient.abs().max())
        )


def test_across_gradient_is_that_of_the_distance_to_the_line_where_depth_says_nothing():
    """With a hopeless depth prior the marginalised depth is the triangulated one, where the derivative is exact."""
    cameras, samples = make_state("depth", 0.0)
    problem = make_problem(cameras, samples, SPLIT, Fixed.build(NUM_FRAMES, radial=False))
    noise = NoiseScale(1e-4, torch.full((NUM_FRAMES,), 1e4, dtype=torch.float64))
    at = split_residuals(cameras, samples, noise)
    far_from_ends = (at.place > 1e-3).all(-1) & at.across.isfinite()

    def honest(step: Tensor) -> Tensor:
        return (
            split_residuals(shift_cameras(cameras, problem, step), samples, noise).across[far_from_ends].square().sum()
        )

    def held(step: Tensor) -> Tensor:
        moved = shift_cameras(cameras, problem, step)
        return frozen_across(cameras, moved, samples, at)[far_from_ends].square().sum()

    zero = torch.zeros(problem.unknowns.count, dtype=torch.float64)
    expected = torch.autograd.functional.jacobian(honest, zero)
    actual = torch.autograd.functional.jacobian(held, zero)
    torch.testing.assert_close(actual, expected, atol=1e-5 * float(expected.abs().max()), rtol=1e-5)


@pytest.mark.parametrize("stage", [FINE, SPLIT], ids=lambda s: s.name)
def test_matrix_is_the_gauss_newton_matrix(stage):
    """H = sum w J J^T with J by autograd, also where a focal length is shared: cross terms must not be forgotten."""
    cameras, problem, frozen, at, _, _, equations = linearized(stage, "depth", 0.0, False)
    samples = problem.samples

    def rows(step: Tensor) -> Tensor:
        moved = shift_cameras(cameras, problem, step)
        if at is None:
            rays = edge_rays(moved, samples)
            point = rays.start + rays.inverse_depth[..., None] * rays.step
            return (point[..., :2] / point[..., 2:] - rays.target).flatten()
        across = frozen_across(cameras, moved, samples, at)
        return torch.stack([across, frozen_along(cameras, moved, samples, at)], -1).flatten()

    jacobian = torch.autograd.functional.jacobian(rows, torch.zeros(problem.unknowns.count, dtype=torch.float64))
    if at is None:
        residual = isotropic_residuals(cameras, samples)
        weight = look_up(frozen.table, residual) * samples.weight
        weight = weight[..., None].expand(-1, -1, 2)
    else:
        across = look_up(frozen.across, at.across.abs()) * problem.form.across_share
        size = at.along.abs() / at.spread
        along = look_up(frozen.along, size) * problem.form.scratch[0][1] / at.spread.square()
        weight = torch.stack([across, along], -1) * samples.weight[..., None]
    expected = jacobian.T @ (weight.flatten()[:, None] * jacobian)
    scale = expected.diagonal().rsqrt()
    actual = dense_matrix(equations)
    torch.testing.assert_close(scale[:, None] * actual * scale, scale[:, None] * expected * scale, atol=1e-7, rtol=1e-6)


def look_up(table, residuals: Tensor) -> Tensor:
    return table.weight.flatten()[table.slots(table.binning.index(residuals))].view_as(residuals)


@pytest.mark.parametrize("k1", [0.0, -0.08])
@pytest.mark.parametrize("depth_kind", ["depth", "disparity", "mixed"])
def test_kernels_equal_their_readable_twin(depth_kind, k1):
    cameras, samples = make_state(depth_kind, k1)
    cameras = replace(cameras, depth_shift=torch.tensor([-2.5, 0.0, -0.3, 0.1], dtype=torch.float64))  # some behind
    noise = NoiseScale(0.7, torch.linspace(0.02, 0.3, NUM_FRAMES, dtype=torch.float64))
    ((chunk, block),) = stream(cameras, samples, NO_INTRINSICS)
    expected = isotropic_residuals(cameras, samples)
    torch.testing.assert_close(isotropic.isotropic(block).squared.sqrt(), expected, atol=1e-8, rtol=1e-9)
    parts = split.split(block, noise.match_px, noise.depth[samples.edges[chunk, 0], None])
    twin = split_residuals(cameras, samples, noise)
    # The sign is arbitrary where the likely point is the very end of the half-line.
    torch.testing.assert_close(parts.across.abs(), twin.across.abs(), atol=1e-8, rtol=1e-8)
    assert bool((parts.prediction.behind == twin.along.isinf()).all())
    # Depth below zero is behind the camera; disparity below zero is only sky.
    assert bool(parts.prediction.behind.any()) == (depth_kind != "disparity")
    assert not bool(parts.prediction.behind.all())
    front = ~parts.prediction.behind
    torch.testing.assert_close(parts.along[front], twin.along[front], atol=1e-8, rtol=1e-8)
    torch.testing.assert_close(parts.spread_squared.sqrt()[front], twin.spread[front], atol=1e-9, rtol=1e-9)
    torch.testing.assert_close(parts.place_start, twin.place[..., 0], atol=1e-9, rtol=1e-7)
    torch.testing.assert_close(parts.place_step, twin.place[..., 1], atol=1e-9, rtol=1e-7)


def test_float32_is_good_to_a_thousandth_of_a_pixel():
    cameras, samples = make_state("depth", 0.0)
    single = Samples(samples.edges, samples.data.float(), samples.weight.float())
    ((_, block),) = stream(cameras, single, NO_INTRINSICS)
    expected = isotropic_residuals(cameras, samples)
    near = expected < 100
    actual = isotropic.isotropic(block).squared.sqrt().double()
    assert float((actual - expected)[near].abs().max()) < 2e-3


def test_blocks_do_not_change_the_sums():
    cameras, problem, frozen, _, loss, _, equations = linearized(SPLIT, "depth", 0.0, False)
    starts = range(0, problem.samples.num_edges, 3)
    share = Share(tuple(slice(low, min(low + 3, problem.samples.num_edges)) for low in starts))
    cut_loss, cut = linearize(replace(problem, form=replace(problem.form, share=share)), cameras, frozen)
    assert cut_loss == pytest.approx(loss, rel=1e-12)
    torch.testing.assert_close(cut.off_diagonal, equations.off_diagonal, rtol=1e-10, atol=1e-9)


def test_curvature_is_the_second_derivative_of_a_smooth_loss():
    """In one dimension the loss of a table has second derivative w + w' r."""
    _, problem, frozen, *_ = linearized(SPLIT, "depth", 0.0, False)
    positive, negative = (curvature_table(frozen.across, 1, sign) for sign in (1.0, -1.0))
    curvature = (positive.weight - negative.weight)[0, :-1]
    edges = frozen.across.binning.edges()
    center = 0.5 * (edges[1:] + edges[:-1])
    slope = frozen.across.weight[0, :-1] * center
    numeric = torch.gradient(slope, spacing=(center,))[0]
    torch.testing.assert_close(curvature[5:60], numeric[5:60], rtol=0.1, atol=0.02 * float(numeric.abs().max()))
