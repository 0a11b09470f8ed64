"""Watching a run: seconds and peak memory of every stage for the report, progress with time left for the user."""

import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

Item = TypeVar("Item")


class Watch:
    """Records stages; shows them on a console if there is one."""

    def __init__(self, console: Console | None = None):
        self._console = console
        self.stages: list[dict[str, Any]] = []
        self.notes: list[str] = []

    @contextmanager
    def stage(self, name: str) -> Iterator[dict[str, Any]]:
        """Time a stage; what the caller puts into the dictionary goes into the report."""
        facts: dict[str, Any] = {}
        begin = time.perf_counter()
        yield facts
        seconds = time.perf_counter() - begin
        self.stages.append({"name": name, "seconds": seconds, "peak_memory_mb": peak_memory_mb(), **facts})
        if self._console is not None:
            shown = ", ".join(f"{key} {_text(value)}" for key, value in facts.items())
            self._console.print(f"[bold]{name:<11}[/] {seconds:7.1f} s  {shown}", highlight=False)

    def each(self, items: Iterable[Item], total: int, what: str) -> Iterator[Item]:
        """Pass items on, with a progress bar while they come."""
        if self._console is None:
            yield from items
            return
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=self._console, transient=True) as progress:
            yield from progress.track(items, total=total, description=what)

    def say(self, note: str) -> None:
        """A sentence that the user should see, now and in the report."""
        self.notes.append(note)
        if self._console is not None:
            self._console.print(note, highlight=False)


def peak_memory_mb() -> float:
    """Largest memory of this process so far; NaN where the system does not say."""
    try:
        import resource
    except ImportError:  # Windows
        return float("nan")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20 if sys.platform == "darwin" else 1 << 10)


def _text(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
