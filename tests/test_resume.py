"""Killed at every stage in turn, and within adjustment: the scene is that of a run in one go; nothing is done twice."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import HANG_S
from test_pipeline import FOCAL, settings, write_scene

from mbasfm import reconstruct

STAGES = (
    "photos",
    "depth",
    "features",
    "pairs",
    "matching",
    "verify",
    "graph",
    "initialize",
    "adjust",
    "depth check",
    "settle",
    "polish",
    "retry",
    "export",
)
STEPS = {
    "adjust": (
        "step 1 at (0, 0) of adjust-0.pt",
        "step 3 at (0, 0) of adjust-0.pt",
        "step 1 at (1, 0) of adjust-0.pt",
        "step 1 at (1, 0) of adjust-1.pt",
    ),
    "settle": ("step 1 at (0, 0) of adjust--1.pt",),
}
"""Steps of adjustment at which it is killed: in either stage, in another way, and in the last adjustment."""
DRIVER = """
import os
import signal
import sys

from mbasfm.cli import main
from mbasfm.matching import inference
from mbasfm.runtime import progress as progress_module
from mbasfm.sfm import adjustment
from mbasfm.sfm.pairs import edges

log, *stages = sys.argv[1].split("|")
original = progress_module.Progress.stage


def logged(module, name):
    work = getattr(module, name)

    def call(*arguments):
        with open(log, "a") as file:
            file.write(f"{name} {[str(getattr(a, 'name', a))[:40] for a in arguments[:1]]}\\n")
        return work(*arguments)

    setattr(module, name, call)


for module, name in ((inference, "_describe"), (inference, "_estimate"), (edges, "propose")):
    logged(module, name)
adjustment.SECONDS_BETWEEN = 0
keep = adjustment.FileJournal.keep


def keep_and_kill(self, progress):
    keep(self, progress)
    step = f"step {progress.state.num_steps} at {progress.place} of {self._path.name}"
    with open(log, "a") as file:
        file.write(f"{step}\\n")
    if step == stage:
        os.kill(os.getpid(), signal.SIGKILL)


adjustment.FileJournal.keep = keep_and_kill
for number, stage in enumerate((*stages, "")):
    child = os.fork()  # before anything is computed here, so that nothing but memory is inherited
    if child == 0:
        def kill(self, name):
            if name == stage:
                os.kill(os.getpid(), signal.SIGKILL)
            return original(self, name)

        progress_module.Progress.stage = kill
        os._exit(main([*sys.argv[2:], *(["--resume"] if number else [])]))
    print(os.waitpid(child, 0)[1], flush=True)
"""


def everything(scene: Path) -> dict[str, bytes]:
    """All files but the cache, and of the report all but how long it took and how much memory."""
    found = {
        str(path.relative_to(scene)): path.read_bytes()
        for path in scene.rglob("*")
        if path.is_file()
        and "cache" not in path.parts
        and path.name not in ("report.json", "report.html", "config.toml")
    }
    report = json.loads((scene / "report.json").read_text())
    for stage in report["stages"]:
        del stage["seconds"], stage["peak_memory_mb"]
    return found | {"report.json": json.dumps(report).encode()}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_kills_lose_nothing_and_repeat_nothing(tmp_path):
    write_scene(tmp_path, num_frames=4)
    reconstruct(tmp_path / "images", tmp_path / "whole", settings(tmp_path, focal=FOCAL))
    config, scene, log = settings(tmp_path), tmp_path / "scene", tmp_path / "log.txt"
    kills = [*STAGES]
    for stage, steps in STEPS.items():
        kills[kills.index(stage) + 1 : kills.index(stage) + 1] = steps
    command = ["sfm", str(tmp_path / "images"), "--output", str(scene), "--focal", str(FOCAL), "--quiet"]
    models = ["--matcher", config.matcher, "--depth", config.depth]
    run = subprocess.run(
        [sys.executable, "-c", DRIVER, "|".join((str(log), *kills)), *command, *models],
        capture_output=True,
        text=True,
        check=True,
        timeout=HANG_S,
    )
    assert [int(line) for line in run.stdout.split()] == [signal.SIGKILL] * len(kills) + [0], run.stderr
    assert "Traceback" not in run.stderr
    assert everything(scene) == everything(tmp_path / "whole")
    assert not list(scene.rglob("*.part"))
    done = log.read_text().splitlines()
    num_steps = sum(line.startswith("step") for line in done)
    assert num_steps >= 4 and len(done) == len(set(done)) == num_steps + 4 + 4 + 6  # features, depth, verified pairs


def test_all_stages_are_in_the_list(tmp_path):
    write_scene(tmp_path, num_frames=2)
    result = reconstruct(tmp_path / "images", tmp_path / "scene", settings(tmp_path, focal=FOCAL))
    assert tuple(stage.name for stage in result.report.stages) == STAGES
