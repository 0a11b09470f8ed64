"""The task of structure from motion: ours and COLMAP's two mappers on the same images."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64

from mbasfm.bench import colmap
from mbasfm.bench.jobs import Job
from mbasfm.bench.tasks import Outcome, stage_seconds
from mbasfm.config import Config
from mbasfm.datasets.base import DatasetScene
from mbasfm.datasets.registry import open_dataset
from mbasfm.errors import InputError
from mbasfm.evaluation import score_poses
from mbasfm.io.names import join_names
from mbasfm.pipeline import reconstruct
from mbasfm.protocols import find_protocol
from mbasfm.watch import Watch

Poses = dict[str, Float64[np.ndarray, "3 4"]]


@dataclass(frozen=True)
class Assignment:
    """What a method gets."""

    job: Job
    scene: DatasetScene
    """Only the images of the job."""
    whole: DatasetScene
    work: Path
    cache: Path

    @property
    def paths(self) -> list[str]:
        """Of all images, strangers last."""
        return [str((self.scene.images / name).resolve()) for name in self.scene.names] + list(self.job.strangers)

    def calibration(self) -> dict[str, Any] | None:
        """fx, fy, cx, cy and size by name, if the method may know them."""
        return self.whole.calibration() if self.job.intrinsics == "known" else None


class StructureFromMotion:
    """Poses of unordered images; the largest component counts."""

    methods = ("ours", "colmap", "glomap")

    def run(self, job: Job, work: Path, cache: Path) -> Outcome:
        """Run one method and score it."""
        whole = open_dataset(job.dataset, Path(job.data)).load(job.scene)
        scene = whole.only(job.names) if job.names else whole
        runners: Mapping[str, Callable[[Assignment], tuple[Poses, dict[str, float]]]] = {
            "ours": run_ours,
            "colmap": lambda assignment: run_colmap(assignment, "incremental"),
            "glomap": lambda assignment: run_colmap(assignment, "global"),
        }
        poses, stages = runners[job.method](Assignment(job, scene, whole, work, cache))
        return self._outcome(job, scene, poses, stages)

    def failed(self, job: Job) -> Outcome:
        """No image has a pose."""
        whole = open_dataset(job.dataset, Path(job.data)).load(job.scene)
        return self._outcome(job, whole.only(job.names) if job.names else whole, {}, {})

    @staticmethod
    def _outcome(job: Job, scene: DatasetScene, poses: Poses, stages: dict[str, float]) -> Outcome:
        score = score_poses(poses, scene.names, scene.cam_from_world, find_protocol(job.protocol))
        counts = (score.num_images, score.num_registered, score.num_pairs, score.num_strangers)
        return Outcome(score.measures, stages, *counts, score.curve)


def run_ours(assignment: Assignment) -> tuple[Poses, dict[str, float]]:
    """`mba sfm` with the settings of the job, without writing a scene."""
    job, scene = assignment.job, assignment.scene
    settings: dict[str, Any] = {"intrinsics": scene.grouping, "seed": job.seed} | job.settings
    if "{depth}" in settings.get("depth", ""):
        if scene.depth is None:
            raise InputError(f"{scene.name}: the dataset has no sensor depth")
        settings["depth"] = settings["depth"].replace("{depth}", str(scene.depth.resolve()))
    calibration = assignment.calibration()
    if calibration is not None:
        path = assignment.work / "cameras.json"
        path.write_text(json.dumps({"images": calibration}))
        settings["cameras"] = str(path)
    source = assignment.work / "list.txt"
    source.write_text("".join(f"{path}\n" for path in assignment.paths))
    watch = Watch()
    result = reconstruct(source, None, Config(**settings), cache=assignment.cache / "ours", watch=watch)
    entry_of = join_names(result.frames.names, assignment.paths).entry_of
    row_of = {name: row for row, name in enumerate(result.frames.names)}
    poses: Poses = {}
    for name, photo in zip([*scene.names, *job.strangers], assignment.paths, strict=True):
        row = row_of.get(entry_of.get(photo, ""))
        if row is not None and int(result.component[row]) == 0:
            poses[name] = result.cameras.cam_from_world[row].double().numpy()
    is_whole = not job.names and not job.strangers
    return poses, stage_seconds(watch, job, assignment.cache if is_whole else None)


def run_colmap(assignment: Assignment, mapper: str) -> tuple[Poses, dict[str, float]]:
    """COLMAP's features and matches once per scene, its verification once per seed, then one of its mappers."""
    job, whole = assignment.job, assignment.whole
    if job.strangers:
        raise InputError("strangers are mixed in for ours only")
    calibration = assignment.calibration()
    folder = assignment.cache / "colmap"
    prepared = colmap.prepare(whole.images, whole.names, whole.grouping == "shared", folder / f"{whole.name}.db")
    intrinsics = None if calibration is None else {name: entry["K"] for name, entry in calibration.items()}
    verified, verify_seconds = colmap.verify(prepared.database, whole.names, intrinsics, job.seed)
    begin = time.perf_counter()
    poses = colmap.run(
        verified, whole.images, assignment.scene.names, mapper, calibration is not None, job.seed, assignment.work
    )
    seconds = {"features": prepared.features, "matching": prepared.matching, "verify": verify_seconds}
    return poses, seconds | {"map": time.perf_counter() - begin}
