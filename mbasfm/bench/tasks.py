"""What every kind of benchmark offers: a task runs one job and says what a failure counts as."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

from mbasfm.bench.jobs import Job


@dataclass(frozen=True)
class Outcome:
    """What came out of a run."""

    measures: dict[str, float]
    stages: dict[str, float] = field(default_factory=dict)
    """Seconds by name; what was found in the cache counts with the seconds it took when it was computed."""
    num_images: int = 0
    num_registered: int = 0
    num_pairs: int = 0
    """By which scenes are weighed where a protocol pools."""
    num_strangers: int = 0
    curve: tuple[float, ...] = ()


@runtime_checkable
class Task(Protocol):
    """A kind of benchmark."""

    @property
    def methods(self) -> tuple[str, ...]:
        """That can run."""
        ...

    def run(self, job: Job, work: Path, cache: Path) -> Outcome:
        """Do one job. ``work`` is thrown away afterwards, ``cache`` stays for other jobs of the same results folder."""
        ...

    def failed(self, job: Job) -> Outcome:
        """What a run that crashed or took too long counts as."""
        ...


CONTENT_STAGES = ("photos", "depth", "features", "pairs", "matching")
"""Found in the cache by all runs of a scene but the first."""
MAPPING_STAGES = ("adjust", "depth check", "polish", "retry", "map")
"""From first poses to the end."""
