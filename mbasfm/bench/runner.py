"""Running the jobs of a recipe: one process each, results kept, failures counted, what is done not done again."""

import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from mbasfm import __version__
from mbasfm.bench.jobs import Job
from mbasfm.bench.tasks.registry import find_task
from mbasfm.errors import InputError
from mbasfm.io.files import plain_json, write_text

Record = dict[str, Any]
"""Content of the JSON file of a run."""
MESSAGE_LINES = 3


@dataclass(frozen=True)
class Results:
    """A results folder."""

    folder: Path
    shared_cache: Path | None = None
    """Cache of features, depth and matches, if several folders share one."""

    @property
    def cache(self) -> Path:
        """Folder of cached results."""
        return self.shared_cache or self.folder / "cache"

    @property
    def runs(self) -> Path:
        """Folder with one JSON file per run."""
        return self.folder / "runs"

    def read(self, job: Job) -> Record | None:
        """Record of a job; None if it is missing or was made with other settings."""
        path = self.runs / f"{job.key}.json"
        try:
            record: Record = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except ValueError:  # cut off by a kill
            return None
        return record if record.get("job") == job.as_json() else None

    def write(self, job: Job, record: Record) -> None:
        """Write a record atomically."""
        self.runs.mkdir(parents=True, exist_ok=True)
        content = json.dumps(plain_json(record), indent=1, allow_nan=False)
        write_text(self.runs / f"{job.key}.json", content)

    def all(self) -> list[Record]:
        """Every record of the folder."""
        paths = sorted(self.runs.glob("*.json"))
        if not paths:
            raise InputError(f"{self.folder}: no results in it; give the folder that mba bench wrote")
        return [json.loads(path.read_text(encoding="utf-8")) for path in paths]


def run_jobs(
    jobs: Sequence[Job], results: Results, timeout_seconds: float, retry: bool
) -> Iterator[tuple[Job, Record, bool]]:
    """Each job with its record and whether it was done now."""
    for job in jobs:
        record = results.read(job)
        is_new = record is None or (retry and record["status"] != "ok")
        if record is None or is_new:
            record = run_job(job, results, timeout_seconds)
            results.write(job, record)
        yield job, record, is_new


def run_job(job: Job, results: Results, timeout_seconds: float) -> Record:
    """Run a job in another process; its death is a result too."""
    cache, log = results.cache, results.folder / "logs" / f"{job.key}.txt"
    for path in (cache, log.parent):
        path.mkdir(parents=True, exist_ok=True)
    head = {"job": job.as_json(), "version": __version__, "machine": machine()}
    with tempfile.TemporaryDirectory() as temporary:
        job_file, result_file = Path(temporary) / "job.json", Path(temporary) / "result.json"
        job_file.write_text(json.dumps(job.as_json()), encoding="utf-8")
        command = [sys.executable, "-m", "mbasfm.bench.worker", str(job_file), str(result_file), str(cache.resolve())]
        status = "ok"
        with log.open("w", encoding="utf-8") as output:
            try:
                done = subprocess.run(
                    command, stdout=output, stderr=subprocess.STDOUT, timeout=timeout_seconds, check=False
                )
                if done.returncode != 0 or not result_file.is_file():
                    status = f"ended with code {done.returncode}"
            except subprocess.TimeoutExpired:
                status = f"stopped after {timeout_seconds:g} s"
        if status == "ok":
            return head | {"status": "ok"} | json.loads(result_file.read_text(encoding="utf-8"))
    return head | {"status": f"{status}: {_last_lines(log)}"} | asdict(find_task(job.task).failed(job))


def machine() -> dict[str, Any]:
    """Description of the machine that a run's seconds depend on."""
    return {
        "system": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def _last_lines(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return " / ".join(lines[-MESSAGE_LINES:]) or "it said nothing"
