"""Work on all cores, with results in order."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

import torch

from mbasfm.runtime.distributed import own_cores

Item = TypeVar("Item")
Result = TypeVar("Result")
WORKERS = own_cores()


def in_parallel(work: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """Results in the order of the items, from one worker per core that computes on that core only."""
    iterator = iter(items)
    with ThreadPoolExecutor(WORKERS, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        waiting = [pool.submit(work, item) for item in islice(iterator, 4 * WORKERS)]
        while waiting:
            yield waiting.pop(0).result()
            waiting += [pool.submit(work, item) for item in islice(iterator, 1)]
