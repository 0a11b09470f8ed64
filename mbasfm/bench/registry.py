"""Kinds of tasks by name. A new kind is one more entry."""

from collections.abc import Mapping

from mbasfm.bench.localization import Relocalization
from mbasfm.bench.retrieval import Retrieval
from mbasfm.bench.sfm import StructureFromMotion
from mbasfm.bench.tasks import Task
from mbasfm.errors import ConfigError

TASKS: Mapping[str, Task] = {
    "sfm": StructureFromMotion(),
    "localize": Relocalization(),
    "retrieval": Retrieval(),
}


def find_task(name: str) -> Task:
    """By its name; says which there are."""
    if name not in TASKS:
        raise ConfigError(f"no task is named {name!r}; there are {', '.join(TASKS)}")
    return TASKS[name]
