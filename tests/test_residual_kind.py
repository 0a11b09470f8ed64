"""A kind of residual is one file and a line in the registry, also with unknowns of its own."""

import ast
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers import EXACT_DEPTH
from margins import assert_below
from offset_kind import FrozenOffset, OffsetForm, OffsetStatistics, error_vectors
from torch import Tensor

import mbasfm
from mbasfm.adjust import linear_solve
from mbasfm.adjust.adjust import adjust, make_problem
from mbasfm.adjust.check_inputs import check_stage
from mbasfm.adjust.levenberg_marquardt import linearize
from mbasfm.adjust.linear_solve import dense_matrix, reduce_system, sparse_matrix
from mbasfm.adjust.stage import Stage
from mbasfm.adjust.unknowns import SLOT_INTRINSIC, SLOT_SCALE, SLOT_SHIFT, Unknowns, retract
from mbasfm.errors import ConfigError
from mbasfm.evaluation.metrics import twists_to_truth
from mbasfm.geometry.rigid import compose, exp_se3
from mbasfm.objective.registry import KINDS
from mbasfm.objective.residual_kind import Form, WithoutLatents
from mbasfm.sfm import adjustment
from mbasfm.sfm.adjustment import FileJournal
from mbasfm.synthetic.cameras import perturb
from mbasfm.synthetic.problem import MatchError, Settings
from mbasfm.synthetic.problem import make_problem as make_scene
from mbasfm.types import observations
from mbasfm.types.cameras import Cameras, Fixed
from mbasfm.types.observations import Samples

ADJUST = Path(mbasfm.__file__).parent / "adjust"
NUM_FRAMES = 5
OFFSETS_PX = torch.linspace(-6, 6, NUM_FRAMES, dtype=torch.float64)
STAGE = Stage("offset", "offset", tau_max=100.0, loss="l2", tolerance=1e-15, restarts=0)
POSES_ONLY = Fixed.build(NUM_FRAMES, focal=True, scale=True, shift=True)


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that it takes to add a kind. Blocks are small, so that there are several."""
    monkeypatch.setitem(KINDS, "offset", OffsetForm)
    monkeypatch.setattr(observations, "BLOCK_SAMPLES", 100)


@pytest.fixture(scope="module")
def scene() -> tuple[Cameras, Cameras, Samples]:
    """The true cameras, others some degrees off, and noisy samples whose matches are off by OFFSETS_PX."""
    settings = Settings(
        samples_per_edge=20, depth_error=EXACT_DEPTH, match_error=MatchError(noise_px=0.5, outliers=0.0)
    )
    made = make_scene(NUM_FRAMES, 3, settings)
    edges, data = made.samples.edges, made.samples.data.double()
    data[..., 2] -= OFFSETS_PX[edges[:, :1]]
    samples = Samples(edges, data, made.samples.weight.double())
    # Frames 1 and 2, and 3 and 4, are coupled by offsets alone.
    apart = ((edges.amin(-1) == 1) & (edges.amax(-1) == 2)) | ((edges.amin(-1) == 3) & (edges.amax(-1) == 4))
    return made.truth, perturb(made.truth, 5, 2.0, 0.05), samples.select(~apart)


def nearby(cameras: Cameras, unknowns: Unknowns, step: Tensor) -> Cameras:
    """retract() written to be differentiated."""
    slots = torch.where(unknowns.index >= 0, step[unknowns.index.clamp_min(0)], 0.0)
    intrinsics = cameras.intrinsics
    if unknowns.columns.focal:
        intrinsics = replace(intrinsics, focal=intrinsics.focal * slots[:, SLOT_INTRINSIC, None].exp())
    return replace(
        cameras,
        cam_from_world=compose(exp_se3(slots[:, :6]), cameras.cam_from_world),
        depth_scale=cameras.depth_scale * slots[:, SLOT_SCALE].exp(),
        depth_shift=cameras.depth_shift + slots[:, SLOT_SHIFT],
        intrinsics=intrinsics,
    )


def explicit(cameras: Cameras, samples: Samples, unknowns: Unknowns, offset_px: Tensor) -> tuple[Tensor, Tensor]:
    """Residuals and their derivatives by the unknowns of the cameras and, last, by the offsets."""
    root = samples.weight.sqrt()[..., None]

    def residuals(values: Tensor) -> Tensor:
        step, offset = values.split([unknowns.count, NUM_FRAMES])
        error = error_vectors(nearby(cameras, unknowns, step), samples)
        shift = torch.stack([offset, torch.zeros_like(offset)], -1)[samples.edges[:, :1]]
        return ((error - shift) * root).flatten()

    values = torch.cat([torch.zeros(unknowns.count, dtype=torch.float64), offset_px])
    return residuals(values), torch.autograd.functional.jacobian(residuals, values, vectorize=True)


@pytest.fixture(scope="module")
def minimum(scene) -> tuple[Cameras, Tensor]:
    """Cameras and offsets [px] where Gauss-Newton on all unknowns at once ends."""
    _, cameras, samples = scene
    unknowns = make_problem(cameras, samples, replace(STAGE, residual="isotropic"), POSES_ONLY).unknowns
    offset_px = torch.zeros(NUM_FRAMES, dtype=torch.float64)
    for _ in range(10):
        residuals, jacobian = explicit(cameras, samples, unknowns, offset_px)
        step = torch.linalg.lstsq(jacobian, -residuals[:, None]).solution.squeeze(-1)
        cameras = retract(cameras, unknowns, step[: unknowns.count])
        offset_px = offset_px + step[unknowns.count :]
    return cameras, offset_px


def assert_same_minimum(start: Cameras, samples: Samples, minimum: tuple[Cameras, Tensor]) -> None:
    """adjust() ends there too: poses to 1e-7, offsets to 1e-5 px."""
    cameras, offset_px = minimum
    found = adjust(start, samples, STAGE, POSES_ONLY)
    assert found.registered.all() and found.pose_covariance.isfinite().all()
    assert_below(found.cameras.cam_from_world - cameras.cam_from_world, 1e-7)
    form = make_problem(start, samples, STAGE, POSES_ONLY).form
    assert_below(form.start(found.cameras).offset_px - offset_px, 1e-5)


@pytest.mark.parametrize("limit, degree", [(2000, 0.0), (0, 12.0), (0, 0.0)], ids=["dense", "sparse", "iterative"])
def test_latents_end_where_the_explicit_problem_does(registered, scene, minimum, monkeypatch, limit, degree):
    monkeypatch.setattr(linear_solve, "DENSE_LIMIT", limit)
    monkeypatch.setattr(linear_solve, "SPARSE_DEGREE", degree)
    _, start, samples = scene
    assert len(make_problem(start, samples, STAGE, POSES_ONLY).form.share.blocks) > 1
    assert_same_minimum(start, samples, minimum)


def test_a_refused_step_changes_no_latent(registered, scene, minimum, monkeypatch):
    """Where every first try is refused, the second starts from the same offsets as the first."""
    _, start, samples = scene
    measure, origins = OffsetForm.measure, []

    def refuse_first(self: OffsetForm, cameras: Cameras, frozen: FrozenOffset) -> tuple[float, OffsetStatistics]:
        is_first = not origins or origins[-1][0] is not frozen
        origins.append((frozen, frozen.offset_px.clone()))
        loss, statistics = measure(self, cameras, frozen)
        return (torch.inf if is_first else loss), statistics

    monkeypatch.setattr(OffsetForm, "measure", refuse_first)
    assert_same_minimum(start, samples, minimum)
    steps = [[offsets for origin, offsets in origins if origin is frozen] for frozen, _ in origins]
    assert all(len(step) > 1 and step[0].equal(again) for step in steps for again in step[1:])
    assert not steps[0][0].equal(steps[-1][0])


def test_latents_outlive_an_interruption(registered, scene, tmp_path, monkeypatch):
    """Stopped after two steps, adjustment goes on with the offsets it had, and ends the same bit for bit."""
    monkeypatch.setattr(adjustment, "SECONDS_BETWEEN", -1.0)
    _, start, samples = scene
    journal = FileJournal(tmp_path / "adjust.pt", start, samples)
    adjust(start, samples, replace(STAGE, max_steps=2), POSES_ONLY, journal=journal)
    kept = journal.last()
    assert kept is not None and kept.state.num_steps == 2
    found = adjust(start, samples, STAGE, POSES_ONLY, journal=journal)
    expected = adjust(start, samples, STAGE, POSES_ONLY)
    assert found.cameras.cam_from_world.equal(expected.cameras.cam_from_world)
    assert len(found.steps) == len(expected.steps)


def test_elimination_is_the_schur_complement(registered, scene):
    """With all unknowns free, a focal length shared by all frames among them."""
    _, start, samples = scene
    problem = make_problem(start, samples, STAGE, Fixed.build(NUM_FRAMES))
    frozen = FrozenOffset(0.5 * OFFSETS_PX)
    _, equations = linearize(problem, start, frozen)
    count = problem.unknowns.count
    residuals, jacobian = explicit(start, samples, problem.unknowns, frozen.offset_px)
    hessian, gradient = jacobian.T @ jacobian, jacobian.T @ residuals
    back = hessian[:count, count:] @ torch.linalg.inv(hessian[count:, count:])
    expected = hessian[:count, :count] - back @ hessian[count:, :count]
    unit = hessian.diagonal()[:count].rsqrt()
    for matrix in (dense_matrix(equations), torch.from_numpy(sparse_matrix(equations).toarray())):
        assert_below(unit[:, None] * (matrix - expected) * unit, 1e-10)
    reduced = reduce_system(equations, *torch.zeros(2, count, dtype=torch.float64)).gradient
    wanted = gradient[:count] - back @ gradient[count:]
    assert_below(unit * (reduced - wanted) / float(residuals.norm()), 1e-10)


def test_a_kind_that_hides_what_it_couples_is_told(registered, scene, monkeypatch):
    monkeypatch.setattr(OffsetForm, "coupled_frames", WithoutLatents.coupled_frames)
    _, start, samples = scene
    with pytest.raises(ValueError, match=r"name these pairs in coupled_frames\(\)"):
        adjust(start, samples, STAGE, POSES_ONLY)


def test_latents_explain_what_poses_cannot(registered, scene):
    truth, start, samples = scene
    root = int(make_problem(start, samples, STAGE, POSES_ONLY).gauge.root[0])
    offset, isotropic = (
        adjust(start, samples, replace(STAGE, residual=residual), POSES_ONLY).cameras
        for residual in ("offset", "isotropic")
    )
    error, rival = (twists_to_truth(cameras, truth, root).norm() for cameras in (offset, isotropic))
    assert error < 0.3 * rival


def test_first_order_solver_takes_it_too(registered, scene):
    _, start, samples = scene
    steps = adjust(start, samples, replace(STAGE, solver="adam", max_steps=30), POSES_ONLY).steps
    assert steps[-1][1].loss < 0.7 * steps[0][1].loss


def test_names_of_kinds_are_told(registered):
    with pytest.raises(ConfigError, match="residual is 'tethered'; choose one of anchored, isotropic, split, offset"):
        check_stage(replace(STAGE, residual="tethered"))
    with pytest.raises(ConfigError, match="the offset residual cannot be per_star; .* choose isotropic"):
        check_stage(replace(STAGE, per_star=True))


@pytest.mark.parametrize("name", [*KINDS, "offset"])
def test_every_kind_keeps_the_protocol(registered, scene, name):
    _, start, samples = scene
    assert isinstance(make_problem(start, samples, replace(STAGE, residual=name), POSES_ONLY).form, Form)


@pytest.mark.parametrize("path", sorted(ADJUST.glob("*.py")), ids=lambda path: path.stem)
def test_adjustment_asks_no_kind_for_its_name(path):
    """Only stages, which are values, name kinds."""
    nodes = ast.walk(ast.parse(path.read_text()))
    names = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    assert path.stem == "stage" or not names & set(KINDS)
