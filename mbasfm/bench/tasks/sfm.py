"""The task of structure from motion: ours and COLMAP's two mappers on the same images."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from mbasfm.bench.jobs import Job
from mbasfm.bench.tasks import colmap
from mbasfm.bench.tasks.base import Outcome, stage_seconds
from mbasfm.bench.tasks.covisible_pairs import covisible_pairs
from mbasfm.config import Config
from mbasfm.datasets.base import DatasetScene
from mbasfm.datasets.registry import open_dataset
from mbasfm.errors import InputError
from mbasfm.evaluation.protocols import find_protocol
from mbasfm.evaluation.score_files import score_poses
from mbasfm.io.names import join_names
from mbasfm.reconstruct import reconstruct
from mbasfm.runtime.progress import Progress

Poses = dict[str, Float64[np.ndarray, "3 4"]]
COLMAP, OF_COLMAPS_PAIRS = "colmap", " of COLMAP's pairs"


@dataclass(frozen=True)
class Assignment:
    """Input of a method."""

    job: Job
    scene: DatasetScene
    """Scene with only the images of the job."""
    whole: DatasetScene
    work: Path
    cache: Path

    @property
    def paths(self) -> list[str]:
        """Paths of all images, strangers last."""
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
        if not find_protocol(job.protocol).covisible:
            return _outcome(job, scene, poses, stages)
        pairs = covisible_pairs(scene)
        outcome = _outcome(job, scene, poses, stages, pairs)
        return replace(outcome, measures=outcome.measures | _of_colmaps_pairs(job, scene, poses, pairs, cache))

    def failed(self, job: Job) -> Outcome:
        """Outcome in which no image has a pose."""
        whole = open_dataset(job.dataset, Path(job.data)).load(job.scene)
        return _outcome(job, whole.only(job.names) if job.names else whole, {}, {})


def _outcome(
    job: Job, scene: DatasetScene, poses: Poses, stages: dict[str, float], pairs: Int64[Tensor, "P 2"] | None = None
) -> Outcome:
    score = score_poses(poses, scene.names, scene.cam_from_world, find_protocol(job.protocol), pairs)
    counts = (score.num_images, score.num_registered, score.num_pairs, score.num_strangers)
    return Outcome(score.measures, stages, *counts, score.curve)


def _of_colmaps_pairs(
    job: Job, scene: DatasetScene, poses: Poses, pairs: Int64[Tensor, "P 2"], cache: Path
) -> dict[str, float]:
    """Measures over the pairs of which COLMAP registered both images, if it ran before."""
    path = cache / "registered" / f"{replace(job, method=COLMAP, variant=job.intrinsics).key}.json"
    if job.method == COLMAP:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(sorted(poses)))
    theirs = set(json.loads(path.read_text())) if path.is_file() else set()
    registered = torch.tensor([name in theirs for name in scene.names])
    both = pairs[registered[pairs].all(-1)]
    if not len(both):
        return {}
    score = score_poses(poses, scene.names, scene.cam_from_world, find_protocol(job.protocol), both)
    return {f"{name}{OF_COLMAPS_PAIRS}": value for name, value in score.measures.items() if "@" in name}


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
    progress = Progress()
    result = reconstruct(source, None, Config(**settings), cache=assignment.cache / "ours", progress=progress)
    entry_of = join_names(result.names, assignment.paths).entry_of
    row_of = {name: row for row, name in enumerate(result.names)}
    poses: Poses = {}
    for name, photo in zip([*scene.names, *job.strangers], assignment.paths, strict=True):
        row = row_of.get(entry_of.get(photo, ""))
        if row is not None and int(result.component[row]) == 0:
            poses[name] = result.cameras.cam_from_world[row].double().numpy()
    is_whole = not job.names and not job.strangers
    return poses, stage_seconds(progress, job, assignment.cache if is_whole else None)


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
    how = colmap.Mapper(mapper, calibration is not None, job.seed)
    poses = colmap.run(how, verified, whole.images, assignment.scene.names, assignment.work)
    seconds = {"features": prepared.features, "matching": prepared.matching, "verify": verify_seconds}
    return poses, seconds | {"map": time.perf_counter() - begin}
