"""An adjustment that was stopped goes on to the same end, bit for bit."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mbasfm.adjust.adjust import Adjustment, adjust
from mbasfm.adjust.stage import ANCHORED, COARSE, FINE, SPLIT, Stage
from mbasfm.objective.residual_kind import Anchoring
from mbasfm.sfm import adjustment
from mbasfm.sfm.adjustment import FileJournal
from mbasfm.sfm.sample_store import create_samples
from mbasfm.synthetic.cameras import perturb
from mbasfm.synthetic.problem import Settings, make_problem
from mbasfm.types.cameras import Cameras
from mbasfm.types.observations import Samples, SampleSource

SHORT = tuple(replace(stage, max_steps=3) for stage in (COARSE, FINE))
CASES = {
    "paper": SHORT,
    "split": (replace(SPLIT, max_steps=5),),
    "anchored": (replace(ANCHORED, max_steps=5, tolerance=1e-12, tolerance_per_unknown=0.0),),
    "anchored, free pixels": (replace(ANCHORED, max_steps=4, anchoring=Anchoring(free_pixel=True)),),
    "adam": tuple(replace(stage, solver="adam") for stage in SHORT),
    "adam, split": (replace(SPLIT, solver="adam", max_steps=4),),
}


class Stop(Exception):
    """In place of a kill."""


@pytest.fixture(scope="module")
def scene() -> tuple[Cameras, Samples]:
    problem = make_problem(6, 3, Settings(samples_per_edge=20, max_degree=4))
    return perturb(problem.truth, 0, 3.0, 0.1), problem.samples


@pytest.fixture(autouse=True)
def always_written(monkeypatch):
    monkeypatch.setattr(adjustment, "SECONDS_BETWEEN", 0.0)


def stop_after(
    count: int, path: Path, cameras: Cameras, samples: SampleSource, stages: tuple[Stage, ...]
) -> tuple[Adjustment | None, int]:
    """Adjust, but for so many steps only; returns the end, if it came, and the number of steps."""
    done: list[str] = []

    class Stopping(FileJournal):
        def keep(self, progress) -> None:
            super().keep(progress)
            done.append(f"{progress.place} {progress.state.num_steps}")
            if len(done) == count:
                raise Stop

    try:
        found = adjust(cameras, samples, stages, journal=Stopping(path, cameras, samples, stages))
    except Stop:
        return None, len(done)
    return found, len(done)


def assert_same(found: Adjustment | None, expected: Adjustment) -> None:
    assert found is not None
    assert torch.equal(found.cameras.cam_from_world, expected.cameras.cam_from_world)
    assert torch.equal(found.cameras.intrinsics.focal, expected.cameras.intrinsics.focal)
    assert torch.equal(found.cameras.depth_shift, expected.cameras.depth_shift)
    assert torch.equal(found.pose_covariance, expected.pose_covariance)
    histories = [[(name, replace(step, seconds=0.0)) for name, step in end.steps] for end in (found, expected)]
    assert repr(histories[0]) == repr(histories[1])


@pytest.mark.parametrize("case", CASES)
def test_stopped_after_the_first_or_the_last_but_one_step_it_ends_the_same(scene, tmp_path, case):
    cameras, samples = scene
    expected, total = stop_after(-1, tmp_path / "whole.pt", cameras, samples, CASES[case])
    assert expected is not None and total >= 3
    for count in (1, total - 1):
        path = tmp_path / f"{count}.pt"
        assert stop_after(count, path, cameras, samples, CASES[case]) == (None, count)
        found, rest = stop_after(-1, path, cameras, samples, CASES[case])
        assert_same(found, expected)
        assert rest == total - count


def test_stopped_again_and_again_with_samples_on_disk(scene, tmp_path):
    cameras, samples = scene
    samples = replace(samples, weight=torch.ones_like(samples.weight))
    stored = create_samples(tmp_path, samples.edges, samples.edge_mass(), samples.samples_per_edge, 5)
    stored.put(torch.arange(samples.num_edges), samples)
    expected, total = stop_after(-1, tmp_path / "whole.pt", cameras, stored, SHORT)
    found, count = None, 0
    while found is None:
        found, steps = stop_after(1, tmp_path / "adjust.pt", cameras, stored, SHORT)
        count += steps
    assert expected is not None and count == total
    assert_same(found, expected)


def test_frames_that_were_started_again_stay_so(tmp_path):
    """Stopped after a stuck frame got another start: it does not get a third, and ends the same."""
    problem = make_problem(6, 3, Settings(samples_per_edge=20, max_degree=4))
    pose = problem.truth.cam_from_world.clone()
    pose[4, :, :3] = -pose[4, :, :3] @ torch.diag(torch.tensor([1.0, 1.0, -1.0], dtype=torch.float64))
    cameras, stages = replace(problem.truth, cam_from_world=pose), (replace(FINE, max_steps=3),)
    expected, total = stop_after(-1, tmp_path / "whole.pt", cameras, problem.samples, stages)
    assert expected is not None and bool(expected.registered.all())
    assert torch.load(tmp_path / "whole.pt", weights_only=True)[1].place == (0, 1)
    for count in (1, total - 1):  # before and after
        path = tmp_path / f"{count}.pt"
        stop_after(count, path, cameras, problem.samples, stages)
        found, rest = stop_after(-1, path, cameras, problem.samples, stages)
        assert_same(found, expected)
        assert rest == total - count


@pytest.mark.parametrize("change", ["cameras", "samples", "stages", "damage"])
def test_progress_of_another_problem_or_a_damaged_file_is_not_used(scene, tmp_path, change):
    cameras, samples = scene
    path, stages = tmp_path / "adjust.pt", CASES["split"]
    stop_after(2, path, cameras, samples, stages)
    assert FileJournal(path, cameras, samples, stages).last() is not None
    if change == "cameras":
        cameras = replace(cameras, depth_scale=cameras.depth_scale * (1 + 1e-15))
    elif change == "samples":
        samples = replace(samples, data=samples.data + 1e-4)
    elif change == "stages":
        stages = (replace(stages[0], tau_max=999.0),)
    else:
        path.write_bytes(path.read_bytes()[:-200])
    assert FileJournal(path, cameras, samples, stages).last() is None


def test_a_short_adjustment_leaves_no_file(scene, tmp_path, monkeypatch):
    monkeypatch.setattr(adjustment, "SECONDS_BETWEEN", 1000.0)
    cameras, samples = scene
    stop_after(-1, tmp_path / "adjust.pt", cameras, samples, CASES["split"])
    assert not list(tmp_path.iterdir())
