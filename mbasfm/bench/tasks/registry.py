"""Kinds of tasks by name. A new kind is one more entry."""

from collections.abc import Mapping

from mbasfm.bench.tasks.base import Task
from mbasfm.bench.tasks.localization import Relocalization
from mbasfm.bench.tasks.retrieval import Retrieval
from mbasfm.bench.tasks.sfm import StructureFromMotion
from mbasfm.bench.tasks.two_view import TwoView
from mbasfm.errors import ConfigError

TASKS: Mapping[str, Task] = {
    "sfm": StructureFromMotion(),
    "localize": Relocalization(),
    "two-view": TwoView(),
    "retrieval": Retrieval(),
}


def find_task(name: str) -> Task:
    """Task of a name; the error for an unknown name lists all."""
    if name not in TASKS:
        raise ConfigError(f"no task is named {name!r}; there are {', '.join(TASKS)}")
    return TASKS[name]
