"""Several processes give the answer of one, and a job whose worker is killed goes on where it stopped."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers import HANG_S
from test_pipeline import FOCAL, settings, write_scene
from test_resume import everything

from mbasfm import reconstruct
from mbasfm.runtime.parallel import deal, from_main, mine, rank, wait_for_all, world_size

ADJUST = """
import sys
from dataclasses import replace

import torch

sys.path.append(sys.argv[2])
from made_up import all_views, keypoints_with, make_lens, orbit, photograph, relief, true_cameras

from mbasfm.adjust import linear_solve
from mbasfm.adjust.adjust import adjust, make_problem
from mbasfm.adjust.stage import ANCHORED, COARSE, FINE, SPLIT
from mbasfm.evaluation.metrics import pose_auc
from mbasfm.objective.residual_kind import Anchoring
from mbasfm.runtime import parallel
from mbasfm.polish.tracks import draw_anchors
from mbasfm.synthetic.cameras import perturb
from mbasfm.synthetic.problem import Settings
from mbasfm.synthetic.problem import make_problem as make_scene
from mbasfm.types import observations
from mbasfm.types.cameras import Fixed
from mbasfm.types.observations import Samples

parallel.start()
observations.BLOCK_SAMPLES = 200  # many blocks of a small scene
scene = make_scene(8, 3, Settings(samples_per_edge=20, max_degree=5))
cameras = perturb(scene.truth, 0, 3.0, 0.1)
found = {}
for dtype, stages in ((torch.float64, (COARSE, SPLIT)), (torch.float32, (FINE,))):
    samples = Samples(scene.samples.edges, scene.samples.data.to(dtype), scene.samples.weight.to(dtype))
    for stage in stages:
        form = make_problem(cameras, samples, stage, Fixed.build(8)).form
        if stage is SPLIT:
            found[str(dtype), stage.name, "counts"] = form.statistics(cameras, form.start(cameras).noise).across
        else:
            found[str(dtype), stage.name, "counts"] = form.measure(cameras, None)[1]
        for solver, steps in (("lm", 3), ("adam", 2)):
            end = adjust(cameras, samples, replace(stage, solver=solver, max_steps=steps))
            found[str(dtype), stage.name, solver] = end.cameras.cam_from_world
            found[str(dtype), stage.name, solver, "report"] = torch.cat(
                [end.diagnosis.inlier_share, end.diagnosis.parallax_px, end.pose_covariance.flatten()]
            )
made = photograph(relief(60, 1), orbit(6), make_lens(), 2, 0.5)
drawn = draw_anchors(all_views(made), keypoints_with(made, made.depth), 20, 5, 0)
drawn = replace(drawn, data=drawn.data.double(), weight=drawn.weight.double())
for free in (False, True):
    stage = replace(ANCHORED, max_steps=3, anchoring=Anchoring(free_pixel=free))
    end = adjust(perturb(true_cameras(made), 0, 1.0, 0.03), drawn, stage)
    found["torch.float64", "anchored", f"{free}"] = end.cameras.cam_from_world
    found["torch.float64", "anchored", f"{free}", "report"] = torch.cat(
        [end.diagnosis.inlier_share, end.pose_covariance.flatten()]
    )
linear_solve.DENSE_LIMIT, linear_solve.SPARSE_DEGREE = 0, 0.0  # conjugate gradients, rows shared by processes
samples = Samples(scene.samples.edges, scene.samples.data.double(), scene.samples.weight.double())
end = adjust(cameras, samples, replace(SPLIT, max_steps=3))
found["torch.float64", "split", "conjugate gradients"] = end.cameras.cam_from_world
end = adjust(cameras, scene.samples, SPLIT)
found["float32", "metrics"] = torch.tensor(pose_auc(end.cameras.cam_from_world, scene.truth.cam_from_world))
torch.save(found, f"{sys.argv[1]}-{parallel.rank()}.pt")
parallel.finish()
"""
KILLED = """
import os
import signal
import sys

from mbasfm.cli import main
from mbasfm.runtime import parallel, progress

stage, *arguments = sys.argv[1:]
original = progress.Progress.stage


def kill(self, name):
    if name == stage and parallel.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return original(self, name)


progress.Progress.stage = kill
sys.exit(main(arguments))
"""
ELASTIC = """
import os
import signal
import sys

from mbasfm.adjust import levenberg_marquardt
from mbasfm.cli import main
from mbasfm.matching import inference
from mbasfm.models.matchers.files import FilesMatcher
from mbasfm.runtime import parallel
from mbasfm.sfm import adjustment

log, *arguments = sys.argv[1:]
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
victims = (inference, "_describe", 2), (FilesMatcher, "match", 2), (levenberg_marquardt, "linearize", 3)


def kill_at(owner, name, last):
    work, calls = getattr(owner, name), []

    def call(*arguments):
        calls.append(name)
        if len(calls) == last and parallel.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return work(*arguments)

    setattr(owner, name, call)


def keep(self, progress, work=adjustment.FileJournal.keep):
    work(self, progress)
    if parallel.is_main():
        with open(log, "a") as file:
            print(attempt, progress.state.num_steps, file=file)


def describe(photo, *others, work=inference._describe):
    with open(f"{log}-{parallel.rank()}", "a") as file:
        print("described", photo.name, file=file)
    return work(photo, *others)


def audit(event, details):
    if event == "open" and "/scene/" in str(details[0]) and set(str(details[1])) & set("wax+"):
        with open(f"{log}-{os.environ['RANK']}", "a") as file:
            print("opened", details[0], file=file)


sys.addaudithook(audit)
inference._describe = describe
adjustment.SECONDS_BETWEEN = 0
adjustment.FileJournal.keep = keep
if attempt < len(victims):
    kill_at(*victims[attempt])
sys.exit(main(arguments))
"""


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return bound.getsockname()[1]


def run_many(code: str, count: int, *arguments: str) -> list[subprocess.CompletedProcess]:
    """The same program in several processes, as torchrun would start them."""
    port = str(free_port())
    workers = []
    for number in range(count):
        place = {"RANK": str(number), "WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}
        place |= {"LOCAL_RANK": str(number), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        command = [sys.executable, "-c", code, *arguments]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        workers.append(subprocess.Popen(command, env=os.environ | place, text=True, **pipes))
    outputs = [worker.communicate(timeout=HANG_S) for worker in workers]
    return [
        subprocess.CompletedProcess(code, worker.returncode, *output)
        for worker, output in zip(workers, outputs, strict=True)
    ]


def test_alone_everything_is_the_identity():
    blocks = [slice(0, 3), slice(3, 5)]
    share = deal(blocks, at_random=True)
    assert share.blocks == tuple(blocks) and share.is_whole
    values = torch.arange(3.0)
    share.total(values)
    assert torch.equal(values, torch.arange(3.0)) and share.largest(values) is values
    assert (rank(), world_size(), mine([1, 2, 3]), from_main(lambda: 7)) == (0, 1, [1, 2, 3], 7)
    wait_for_all()


def test_one_two_and_four_processes_give_the_same_poses(tmp_path):
    found = {}
    for count in (1, 2, 4):
        for worker in run_many(ADJUST, count, str(tmp_path / f"{count}"), str(Path(__file__).parent)):
            assert worker.returncode == 0, worker.stderr
        by_rank = [torch.load(tmp_path / f"{count}-{number}.pt", weights_only=True) for number in range(count)]
        for key, value in by_rank[0].items():
            assert all(torch.equal(value, other[key]) for other in by_rank), key  # bit for bit on every process
        found[count] = by_rank[0]
    for count in (2, 4):
        for key, expected in found[1].items():
            if "counts" in key:
                assert torch.equal(found[count][key], expected), key
            else:
                # Rounding may move a sample to the next bin, which is seen at the end in the fifth digit of an AUC.
                limit = 1e-3 if "metrics" in key else 1e-9 if "float64" in key[0] else 1e-5
                torch.testing.assert_close(found[count][key], expected, atol=limit, rtol=limit, msg=str(key))


@pytest.mark.slow
def test_a_killed_worker_is_named_and_the_job_goes_on(tmp_path):
    write_scene(tmp_path, num_frames=4)
    reconstruct(tmp_path / "images", tmp_path / "whole", settings(tmp_path, focal=FOCAL))
    config, scene = settings(tmp_path), tmp_path / "scene"
    command = ["sfm", str(tmp_path / "images"), "--output", str(scene), "--focal", str(FOCAL), "--quiet"]
    command += ["--matcher", config.matcher, "--depth", config.depth]
    main, worker = run_many(KILLED, 2, "verify", *command)
    assert worker.returncode == -signal.SIGKILL and main.returncode == 2
    assert "worker 1 of 2 is gone" in main.stderr and "--resume" in main.stderr, main.stderr
    assert "Traceback" not in main.stderr
    for worker in run_many(KILLED, 2, "none", *command, "--resume"):
        assert worker.returncode == 0, worker.stderr
    assert everything(scene) == everything(tmp_path / "whole")


@pytest.mark.slow
def test_torchrun_restarts_a_job_whose_worker_is_killed_and_it_goes_on(tmp_path):
    """In the middle of features, of matching and of adjustment. What is outside of the cache one process writes."""
    write_scene(tmp_path, num_frames=4)
    reconstruct(tmp_path / "images", tmp_path / "whole", settings(tmp_path, focal=FOCAL))
    config, log = settings(tmp_path), tmp_path / "log.txt"
    (tmp_path / "worker.py").write_text(ELASTIC)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    torchrun += ["--max-restarts", "3", "--monitor-interval", "0.1", str(tmp_path / "worker.py"), str(log)]
    command = ["sfm", str(tmp_path / "images"), "--output", str(tmp_path / "scene"), "--focal", str(FOCAL), "--quiet"]
    command += ["--matcher", config.matcher, "--depth", config.depth]
    job = subprocess.run([*torchrun, *command], capture_output=True, text=True, timeout=HANG_S, check=False)
    assert job.returncode == 0, job.stderr
    assert job.stderr.count("exitcode: -9") == 3, job.stderr
    assert everything(tmp_path / "scene") == everything(tmp_path / "whole")
    steps = [tuple(map(int, line.split())) for line in log.read_text().splitlines()]
    before, after = ([number for attempt, number in steps if attempt == which] for which in (2, 3))
    assert before in ([1], [1, 2]) and after[0] == before[-1] + 1 and {attempt for attempt, _ in steps} == {2, 3}
    first, second = (Path(f"{log}-{number}").read_text().splitlines() for number in (0, 1))
    described = [{line.split()[1] for line in lines if line.startswith("described")} for lines in (first, second)]
    assert described == [{"0_0.png", "0_2.png"}, {"0_1.png", "0_3.png"}]  # of four photographs each process has two
    opened = [line.removeprefix("opened ") for line in second if line.startswith("opened")]
    assert not [
        path for path in opened if str(tmp_path / "scene") in path and str(tmp_path / "scene/cache") not in path
    ]
