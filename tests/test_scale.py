"""Many frames: samples on disk, sparse solves, budgets."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers import HANG_S
from margins import assert_below

from mbasfm.adjust import linear_solve
from mbasfm.adjust.adjust import adjust, make_problem
from mbasfm.adjust.levenberg_marquardt import linearize
from mbasfm.adjust.stage import COARSE, PAPER_STAGES, SPLIT
from mbasfm.adjust.two_level_cg import BlockMatrix
from mbasfm.adjust.unknowns import make_priors
from mbasfm.errors import ConfigError, InputError
from mbasfm.objective.edge_block import blocks
from mbasfm.sfm.sample_store import StoredSamples, create_samples, open_samples
from mbasfm.sfm.samples import GB, Demand, Plan, Stock, plan_memory
from mbasfm.synthetic.cameras import perturb
from mbasfm.synthetic.problem import MatchError, Settings
from mbasfm.synthetic.problem import make_problem as make_scene
from mbasfm.types.cameras import Cameras, Fixed
from mbasfm.types.observations import BLOCK_SAMPLES, Samples, SampleSource

BUDGETS = (12.0, 6.0, 3.0)
WITHIN_BUDGET = """
import json
import sys
from dataclasses import replace
from pathlib import Path

import torch

from mbasfm.adjust.adjust import adjust
from mbasfm.adjust.stage import SPLIT
from mbasfm.runtime.progress import peak_memory_mb, present_memory_mb
from mbasfm.sfm.samples import Demand, plan_memory
from mbasfm.sfm.sample_store import open_samples

cameras = torch.load(sys.argv[1] + "/cameras.pt", weights_only=False)
stored = open_samples(Path(sys.argv[1]))
used = present_memory_mb() * 2**20
budget = used + float(sys.argv[2])
plan = plan_memory(Demand(14, 13, stored.num_edges, stored.samples_per_edge), budget, used)
samples = replace(stored, block_edges=plan.block_samples // stored.samples_per_edge)
adjust(cameras, samples, replace(SPLIT, max_steps=2))
print(json.dumps([used, plan.is_on_disk, plan.block_samples, plan.bytes_needed, peak_memory_mb() * 2**20, budget]))
"""
SETTINGS = Settings(samples_per_edge=30, max_degree=6, match_error=MatchError(noise_px=1.0, outliers=0.1))


@pytest.fixture(scope="module")
def scene() -> tuple[Cameras, Samples]:
    problem = make_scene(14, 3, SETTINGS)
    samples = replace(problem.samples, weight=torch.ones_like(problem.samples.weight))
    return perturb(problem.truth, 0, 3.0, 0.1), samples


def store(samples: Samples, folder: Path, block_edges: int) -> StoredSamples:
    sizes = samples.samples_per_edge, block_edges, samples.num_anchors
    stored = create_samples(folder, samples.edges, samples.edge_mass(), *sizes)
    order = torch.randperm(samples.num_edges, generator=seeded())
    for some in order.split(7):
        stored.put(some, samples.select(some))
    return stored


def with_anchors(samples: Samples) -> Samples:
    """The same with pixels that several edges of a frame share, each sample with a weight of its own."""
    number = 10 * samples.edges[:, :1] + torch.arange(30) % 10
    return replace(samples, weight=torch.rand(samples.weight.shape, generator=seeded()), anchor=number)


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.mark.parametrize("has_anchors", [False, True])
def test_what_is_stored_comes_back(scene, tmp_path, monkeypatch, has_anchors):
    monkeypatch.setattr("mbasfm.sfm.sample_store.SHARD_BYTES", 10 * 30 * 28)  # ten edges per file
    samples = with_anchors(scene[1]) if has_anchors else scene[1]
    stored = store(samples, tmp_path, 16)
    assert isinstance(stored, SampleSource) and len(list(tmp_path.glob("*.f32"))) == -(-samples.num_edges // 10)
    for source in (stored, open_samples(tmp_path)):
        rows = source.rows(slice(5, 27))
        assert source.num_anchors == samples.num_anchors
        for name in ("edges", "data", "weight", "anchors"):
            assert torch.equal(getattr(rows, name), getattr(samples, name)[5:27])
    keep = samples.edges[:, 0] % 3 == 1
    for name in ("data", "anchors"):
        assert torch.equal(getattr(stored.select(keep).rows(slice(2, 9)), name), getattr(samples, name)[keep][2:9])
    assert torch.equal(stored.edge_mass(), samples.edge_mass())


def test_samples_are_kept_where_the_plan_says(scene, tmp_path):
    samples = with_anchors(scene[1])
    assert Stock(Plan(30, 0, 13, BLOCK_SAMPLES, False, 0.0), tmp_path).keep(samples) is samples
    kept = Stock(Plan(30, 0, 13, 300, True, 0.0), tmp_path).keep(samples)
    assert isinstance(kept, StoredSamples) and kept.block_edges == 10
    for name, expected in vars(samples).items():
        assert torch.equal(getattr(kept.rows(slice(0, samples.num_edges)), name), expected)


def test_a_folder_without_samples_says_so(tmp_path):
    with pytest.raises(InputError, match="draw them again"):
        open_samples(tmp_path)


@pytest.mark.parametrize("stages", [PAPER_STAGES, (SPLIT,)], ids=["paper", "split"])
def test_samples_on_disk_give_the_cameras_of_samples_in_memory(scene, tmp_path, stages):
    cameras, samples = scene
    stages = tuple(replace(stage, max_steps=4) for stage in stages)
    stored = store(samples, tmp_path, 12)
    expected, actual = adjust(cameras, samples, stages), adjust(cameras, stored, stages)
    torch.testing.assert_close(actual.cameras.cam_from_world, expected.cameras.cam_from_world, atol=1e-5, rtol=0)
    torch.testing.assert_close(actual.diagnosis.inlier_share, expected.diagnosis.inlier_share, atol=0.01, rtol=0)


def test_adam_streams_too(scene, tmp_path):
    cameras, samples = scene
    stages = tuple(replace(stage, solver="adam", max_steps=3) for stage in (COARSE, SPLIT))
    expected, actual = adjust(cameras, samples, stages), adjust(cameras, store(samples, tmp_path, 12), stages)
    torch.testing.assert_close(actual.cameras.cam_from_world, expected.cameras.cam_from_world, atol=1e-6, rtol=0)


def test_stars_stay_in_one_block_and_nothing_is_lost(scene):
    _, samples = scene
    ordered = samples.select(torch.argsort(samples.edges[:, 0], stable=True))
    largest = int(torch.bincount(ordered.edges[:, 0]).max())
    found = blocks(replace_block(ordered, largest + 3))
    assert [chunk.start for chunk in found[1:]] == [chunk.stop for chunk in found[:-1]]
    assert found[0].start == 0 and found[-1].stop == ordered.num_edges
    sources = [set(ordered.edges[chunk, 0].tolist()) for chunk in found]
    assert sum(map(len, sources)) == len(set().union(*sources))
    assert all(chunk.stop - chunk.start <= largest + 3 for chunk in found)
    small = blocks(replace_block(ordered, 2))  # a star is never divided
    assert len(small) == len(ordered.edges[:, 0].unique()) and small[-1].stop == ordered.num_edges


def replace_block(samples: Samples, block_edges: int) -> SampleSource:
    count = samples.num_edges
    return StoredSamples(
        Path(), samples.edges, samples.edge_mass(), torch.arange(count), 30, count, 30 * count, block_edges
    )


@pytest.mark.parametrize("grouping", ["shared", "two groups", "per image", "fixed"])
@pytest.mark.parametrize("damping", [1e-4, 1e-7])
def test_conjugate_gradients_give_the_dense_step(scene, grouping, damping):
    """On the split residual, whose loss is wide enough for a rough start to have a positive matrix."""
    cameras, samples = scene
    number = torch.arange(cameras.num_frames)
    group = {"two groups": number % 2, "per image": number}.get(grouping, torch.zeros_like(number))
    intrinsics = replace(cameras.intrinsics, group=group)
    cameras = replace(cameras, intrinsics=intrinsics)
    fixed = Fixed.build(cameras.num_frames, focal=grouping == "fixed", radial=grouping != "shared")
    problem = make_problem(cameras, samples, SPLIT, fixed)
    _, equations = linearize(problem, cameras, problem.form.start(cameras))
    priors = make_priors(cameras, problem.unknowns, SPLIT.priors, problem.gauge.typical_raw)
    _, gradient, diagonal = priors.evaluate(cameras, problem.unknowns)
    dense = linear_solve.reduce_system(equations, diagonal, gradient)
    blocks = BlockMatrix(equations, diagonal)
    torch.testing.assert_close(blocks.diagonal, dense.diagonal, rtol=1e-9, atol=1e-6)
    x = torch.randn(problem.unknowns.count, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(blocks.multiply(x), dense.matrix @ x, rtol=1e-9, atol=1e-6)
    extra = damping * dense.diagonal.clamp_min(1e-12)
    expected, actual = dense.solve(extra), blocks.solve(dense.gradient, extra)
    scale = dense.diagonal.sqrt()
    # A residual of CG_TOLERANCE, 1e-10, leaves an error of the step that is larger by the root of the condition: 1e4.
    assert_below((scale * (actual - expected)).norm() / (scale * expected).norm(), 1e-4)


LARGE = Demand(8000, 71, 564_000, 200, 1000)


def test_a_budget_gives_up_blocks_then_samples_then_pairs():
    free = plan_memory(LARGE)
    assert (free.samples_per_edge, free.pairs_per_frame, free.is_on_disk) == (200, 71, True)
    plans = [plan_memory(LARGE, budget * GB, 0.5 * GB) for budget in BUDGETS]
    assert all(plan.bytes_needed <= budget * GB for plan, budget in zip(plans, BUDGETS, strict=True))
    samples, pairs = [p.samples_per_edge for p in plans], [p.pairs_per_frame for p in plans]
    assert samples[0] == 200 and samples[1] < 200 and pairs[0] == pairs[1] == 71 and pairs[2] < 71
    assert "on disk" in plans[0].sentence(282_000) and "200 per pair" in plans[0].sentence(282_000)
    with pytest.raises(ConfigError, match="too little"):
        plan_memory(LARGE, 0.2 * GB, 0.1 * GB)


def test_anchors_take_memory_and_are_reduced_with_samples():
    free = plan_memory(LARGE)
    assert free.anchors_per_frame == 1000
    assert free.bytes_needed > plan_memory(replace(LARGE, anchors_per_frame=0)).bytes_needed + GB
    plan = plan_memory(LARGE, 5.5 * GB)
    assert plan.anchors_per_frame * 200 == 1000 * plan.samples_per_edge < 200_000


def test_small_problems_stay_in_memory():
    assert not plan_memory(Demand(200, 25, 5_000, 200, 1000)).is_on_disk


def test_the_budget_is_held(scene, tmp_path):
    """Of a block of the usual size adjustment would need more."""
    cameras, samples = scene
    many = replace(samples, data=samples.data.repeat(1, 100, 1), weight=samples.weight.repeat(1, 100))
    store(many, tmp_path, 1)
    torch.save(cameras, tmp_path / "cameras.pt")
    command = [sys.executable, "-c", WITHIN_BUDGET, str(tmp_path), "120e6"]
    found = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=HANG_S)
    used, is_on_disk, block_samples, predicted, peak, budget = json.loads(found.stdout)
    assert is_on_disk and block_samples < BLOCK_SAMPLES
    assert used < peak <= predicted <= budget
    assert predicted - used < 3 * (peak - used)
