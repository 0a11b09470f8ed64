"""Number of cores that a computation uses.

Threads that wait for each other at every step crawl when anything else runs on the machine, and gain nothing
where a step takes less than a millisecond. So pipelines compute on one core, except for networks and large problems.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch

from mbasfm.runtime.distributed import own_cores


@contextmanager
def cores(count: int | None) -> Iterator[None]:
    """Let torch compute on ``count`` cores (None: all of this process) inside the context."""
    before = torch.get_num_threads()
    torch.set_num_threads(own_cores() if count is None else count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


one_core = partial(cores, 1)
"""Context for small problems, and for many at once; ``@one_core()`` decorates a function."""
all_cores = partial(cores, None)
"""Context for networks and large problems."""
