"""What every kind of benchmark offers: a task runs one job and says what a failure counts as."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

from mbasfm.bench.jobs import Job
from mbasfm.io.files import write_text
from mbasfm.runtime.progress import Progress


@dataclass(frozen=True)
class Outcome:
    """Result of a run."""

    measures: dict[str, float]
    stages: dict[str, float] = field(default_factory=dict)
    """Seconds by name; what was found in the cache counts with the seconds it took when it was computed."""
    num_images: int = 0
    num_registered: int = 0
    num_pairs: int = 0
    """Number of pairs, by which scenes are weighted where a protocol pools."""
    num_strangers: int = 0
    curve: tuple[float, ...] = ()
    errors: dict[str, tuple[float, ...]] = field(default_factory=dict)
    """Errors by query, [cm, deg], or by pair, [deg], if the task has such."""


@runtime_checkable
class Task(Protocol):
    """A kind of benchmark."""

    @property
    def methods(self) -> tuple[str, ...]:
        """Names of the methods that it can run."""
        ...

    def run(self, job: Job, work: Path, cache: Path) -> Outcome:
        """Do one job. ``work`` is thrown away afterwards, ``cache`` stays for other jobs of the same results folder."""
        ...

    def failed(self, job: Job) -> Outcome:
        """Result that counts for a run that crashed or took too long."""
        ...


CONTENT_STAGES = (
    *("photos", "depth", "features", "pairs", "matching"),
    *("map features", "map depth"),
)
"""Stages whose results all runs of a scene but the first find in the cache."""
MAPPING_STAGES = ("adjust", "depth check", "polish", "retry", "map", "register")
"""Stages from first poses to the end."""


def stage_seconds(progress: Progress, job: Job, cache: Path | None) -> dict[str, float]:
    """Seconds by stage; those before mapping are the longest that any run took, if the cache is given.

    Later runs find their results in the cache, and should not seem faster for that.
    """
    seconds: dict[str, float] = {}
    for stage in progress.stages:  # a second matcher has stages of the same name
        seconds[stage["name"]] = seconds.get(stage["name"], 0.0) + stage["seconds"]
    if cache is None:
        return seconds
    key = " ".join((job.scene, str(job.settings.get("depth")), str(job.settings.get("matcher"))))
    path = cache / "ours_seconds.json"
    known = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    longest = known.get(key, {})
    content = {name: max(seconds[name], longest.get(name, 0.0)) for name in CONTENT_STAGES if name in seconds}
    write_text(path, json.dumps(known | {key: longest | content}))
    return seconds | content
