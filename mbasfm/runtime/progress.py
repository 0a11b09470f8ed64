"""Progress of a run: seconds and peak memory of every stage for the report, time left for the user.

Who starts a run makes its `Progress` the active one. Stages then need not be handed it: `stage`, `each` and `say` reach
whatever is active, and nothing where nobody is listening.
"""

import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as ProgressBar

Item = TypeVar("Item")
SECONDS_BETWEEN_LINES = 15.0
"""Seconds between two lines of progress in a log."""


class Progress:
    """Records stages; shows them on a console if there is one, in every detail if asked to."""

    def __init__(self, console: Console | None = None, verbose: bool = False):
        self._console, self._verbose = console, verbose
        self._stage = ""
        self.stages: list[dict[str, Any]] = []
        self.notes: list[str] = []

    @contextmanager
    def active(self) -> Iterator["Progress"]:
        """Make this the progress that `stage`, `each` and `say` of this module reach."""
        token = _ACTIVE.set(self)
        try:
            yield self
        finally:
            _ACTIVE.reset(token)

    @contextmanager
    def stage(self, name: str) -> Iterator[dict[str, Any]]:
        """Time a stage; what the caller puts into the dictionary goes into the report."""
        facts: dict[str, Any] = {}
        begin, self._stage = time.perf_counter(), name
        yield facts
        seconds = time.perf_counter() - begin
        self.stages.append({"name": name, "seconds": seconds, "peak_memory_mb": peak_memory_mb(), **facts})
        if self._console is not None:
            told = {key: value for key, value in facts.items() if self._verbose or not isinstance(value, (list, dict))}
            shown = ", ".join(f"{key} {_text(value)}" for key, value in told.items())
            self._console.print(f"[bold]{name:<11}[/] {seconds:7.1f} s  {shown}", highlight=False)

    def each(self, items: Iterable[Item], total: int) -> Iterator[Item]:
        """Pass the items of a stage on and show progress: a bar on a terminal, else a line now and then."""
        if self._console is None:
            yield from items
            return
        if not self._console.is_terminal:
            yield from self._each_with_lines(items, total)
            return
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        with ProgressBar(*columns, console=self._console, transient=True) as bar:
            yield from bar.track(items, total=total, description=self._stage)

    def _each_with_lines(self, items: Iterable[Item], total: int) -> Iterator[Item]:
        assert self._console is not None
        begin = last = time.perf_counter()
        for number, item in enumerate(items, 1):
            yield item
            now = time.perf_counter()
            if now - last > SECONDS_BETWEEN_LINES:
                last, left = now, (now - begin) / number * (total - number)
                self._console.print(f"{self._stage} {number} of {total}, about {left:.0f} s left", highlight=False)

    def say(self, note: str) -> None:
        """Tell the user a sentence, now and in the report."""
        self.notes.append(note)
        if self._console is not None:
            self._console.print(note, highlight=False)


_ACTIVE: ContextVar[Progress] = ContextVar("progress")


def active_progress() -> Progress:
    """The progress of this run; one that nobody listens to if there is none."""
    return _ACTIVE.get(None) or Progress()


def stage(name: str) -> AbstractContextManager[dict[str, Any]]:
    """Time a stage of the active run; what the caller puts into the dictionary goes into the report."""
    return active_progress().stage(name)


def each(items: Iterable[Item], total: int) -> Iterator[Item]:
    """Pass the items of a stage on, showing the progress of the active run."""
    return active_progress().each(items, total)


def say(note: str) -> None:
    """Tell the user of the active run a sentence, now and in the report."""
    active_progress().say(note)


def peak_memory_mb() -> float:
    """Peak memory of this process [MB]; NaN where the system does not report it."""
    try:
        # Unlike getrusage, which begins with the memory of the process that started this one.
        status = Path("/proc/self/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) / (1 << 10)
    except (OSError, IndexError):  # not Linux
        pass
    try:
        import resource
    except ImportError:  # Windows
        return float("nan")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20 if sys.platform == "darwin" else 1 << 10)


def present_memory_mb() -> float:
    """Present memory of this process [MB]; its peak where the system does not report it."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return peak_memory_mb()
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def _text(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
