"""How many cores a computation takes.

Threads that wait for each other at every step crawl as soon as something else runs on the machine, and gain nothing
where a step takes less than a millisecond. So pipelines compute on one core, except for networks and large problems.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from mbasfm.runtime.distributed import own_cores


@contextmanager
def cores(count: int) -> Iterator[None]:
    """Let torch compute on ``count`` cores, and on as many as before afterwards; also a decorator."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def one_core():  # type: ignore[no-untyped-def]  # the type of a context manager that decorates has no name
    """Compute on one core: for small problems, and for many at once."""
    return cores(1)


def all_cores():  # type: ignore[no-untyped-def]
    """Compute on all cores: for networks and large problems."""
    return cores(own_cores())
