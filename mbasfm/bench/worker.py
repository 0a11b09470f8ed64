"""One run in a process of its own, so that it cannot harm the others: python -m mbasfm.bench.worker."""

import json
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from mbasfm.bench.jobs import Job
from mbasfm.bench.tasks.registry import find_task
from mbasfm.errors import MBAError
from mbasfm.runtime.progress import peak_memory_mb

EXIT_ERROR = 2


def main(arguments: list[str]) -> int:
    """Run the job of JOB.json and write RESULT.json; the arguments are JOB.json RESULT.json CACHE."""
    job_file, result_file, cache = map(Path, arguments)
    job = Job.from_json(json.loads(job_file.read_text(encoding="utf-8")))
    begin = time.perf_counter()
    try:
        with tempfile.TemporaryDirectory() as work:
            outcome = find_task(job.task).run(job, Path(work), cache)
    except MBAError as error:
        print(error, file=sys.stderr)
        return EXIT_ERROR
    content = {"wall_seconds": time.perf_counter() - begin, "peak_memory_mb": peak_memory_mb(), **asdict(outcome)}
    result_file.write_text(json.dumps(content), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
