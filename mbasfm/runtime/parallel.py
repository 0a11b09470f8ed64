"""Work on several cores and in several processes, on one machine or many (torchrun).

This is the only file that talks to other processes; alone, every function is the identity. Work is cut into blocks that
do not depend on the number of processes, and sums over processes are added in the order of their ranks, so that every
number of processes gives the same answer up to the rounding of sums in float64.

Threads that wait for each other at every step crawl when anything else runs on the machine, and gain nothing where a
step takes less than a millisecond. So pipelines compute on one core, except for networks and large problems.
"""

import os
import socket
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from mbasfm.errors import WorkerLostError

Item = TypeVar("Item")
PIECE = 1 << 21
"""Numbers sent at once; bounds the memory of a sum over many processes."""
SHUFFLE_SEED = 0
PATIENCE = timedelta(days=2)
"""How long a process waits for the others, whose features may take long. A process that dies is noticed at once."""
DYING_SECONDS = 2.0
"""Grace period: a process's connections close a little before it is gone."""
LEAVING_SECONDS = 10.0
"""How long the first process waits for the others at the end."""
_STORE: list[dist.Store] = []
"""Store where the processes meet; empty before they have met."""
SETTLING_SECONDS = 0.2
_HELD: list[tuple[object, ...]] = []
"""What was sent or received last. Gloo's own threads let go of it a little later than this one. If one of them were the
last to hold it, it would need the interpreter, and if that is shutting down by then the process is aborted. So it is
held here, and at the end the threads are given time to let go of what they hold themselves."""
_MEMBERS: list[tuple[str, int]] = []
"""Host and process id by rank, so that a lost process can be named."""
_ALONE = ContextVar("alone", default=False)
Result = TypeVar("Result")


def start() -> None:
    """Join the other processes if torchrun started this one among several."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and not _is_many():
        store, number, count = next(dist.rendezvous("env://", timeout=PATIENCE))
        store = dist.PrefixStore(_new_name(store, number, count), store)
        dist.init_process_group("gloo", store=store, rank=number, world_size=count, timeout=PATIENCE)
        _STORE[:] = [store]
        _MEMBERS[:] = _gather_objects((socket.gethostname(), os.getpid()))


def _new_name(store: dist.Store, number: int, count: int) -> str:
    """Name under which the processes of this attempt meet, and none of an earlier one.

    The store of torchrun outlives restarts, so addresses of the dead are still in it, and how often a worker was
    started differs between machines (pytorch #135712). The first process answers every call, also old ones; only
    those who live hear it.
    """
    call = uuid.uuid4().hex
    if number > 0:
        store.set(f"call/{number}", call)
        name = store.get(f"answer/{call}").decode()
        store.add(f"heard/{name}", 1)
        return name
    while store.add(f"heard/{call}", 0) < count - 1:
        for other in range(1, count):
            if store.check([f"call/{other}"]):
                store.set(f"answer/{store.get(f'call/{other}').decode()}", call)
        time.sleep(0.02)
    return call


def finish() -> None:
    """Leave the other processes. The first leaves last, as the others meet at its address."""
    if not _is_many():
        return
    (store,), others, deadline = _STORE, world_size() - 1, time.monotonic() + LEAVING_SECONDS
    while is_main() and store.add("left", 0) < others and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(SETTLING_SECONDS)
    dist.destroy_process_group()
    store.add("left", 1)


def rank() -> int:
    """Rank of this process."""
    return dist.get_rank() if _is_many() else 0


def is_main() -> bool:
    """Whether this is the process that writes."""
    return rank() == 0


def world_size() -> int:
    """Number of processes."""
    return dist.get_world_size() if _is_many() else 1


def own_cores() -> int:
    """Number of cores for this process: its share of the machine's, at most OMP_NUM_THREADS if that is set."""
    # Containers and schedulers often give a process fewer cores than the machine has; not every system can tell.
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    kin = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    if wanted.isdigit() and kin == 1:  # torchrun sets it to 1 by itself
        allowed = min(allowed, int(wanted))
    return max(1, allowed // kin)


def _is_many() -> bool:
    return not _ALONE.get() and dist.is_available() and dist.is_initialized()


@contextmanager
def alone() -> Iterator[None]:
    """Let this process compute as if there were no others, after they have left."""
    token = _ALONE.set(True)
    try:
        yield
    finally:
        _ALONE.reset(token)


# ----------------------------------------------------------------------------------------------------------------
# Shares of the work


@dataclass(frozen=True)
class Share:
    """The blocks of edges that this process computes, and the sums over all of them."""

    blocks: tuple[slice, ...]
    is_whole: bool = True
    """Whether this share has all blocks, so that its sums are complete."""

    def total(self, *sums: Tensor) -> None:
        """Sum over all processes, in place."""
        if not self.is_whole:
            for tensor in sums:
                add_up(tensor)

    def largest(self, values: Tensor) -> Tensor:
        """Largest values over all processes."""
        return values if self.is_whole else torch.stack(_gather(values)).amax(0)


def deal(blocks: Sequence[slice], at_random: bool) -> Share:
    """This process's share of the blocks: contiguous, or at random with the same draw on every process."""
    if world_size() == 1:
        return Share(tuple(blocks))
    order = torch.arange(len(blocks))
    if at_random:
        order = torch.randperm(len(blocks), generator=torch.Generator().manual_seed(SHUFFLE_SEED))
    own = order.tensor_split(world_size())[rank()].sort().values
    return Share(tuple(blocks[number] for number in own.tolist()), is_whole=False)


def mine(items: Sequence[Item]) -> Sequence[Item]:
    """This process's part of independent items, dealt in turn because neighbours often cost alike."""
    return items[rank() :: world_size()]


def own_part(count: int) -> slice:
    """This process's part of ``count`` consecutive rows."""
    size = _part_size(count)
    return slice(min(rank() * size, count), min((rank() + 1) * size, count))


def join_parts(own: Tensor, count: int) -> Tensor:
    """All rows, joined from the parts of all processes."""
    if world_size() == 1:
        return own
    padded = torch.cat([own, own.new_zeros(_part_size(count) - len(own), *own.shape[1:])])
    return torch.cat(_gather(padded))[:count]


def _part_size(count: int) -> int:
    """Number of rows of each part; the last parts may be smaller."""
    return -(-count // world_size())


def add_up(tensor: Tensor) -> None:
    """Sum over processes in place, in the order of their ranks: the same bits on every process and network."""
    if world_size() == 1:
        return
    for piece in tensor.view(-1).split(PIECE) if tensor.numel() else ():
        first, *others = _gather(piece)
        for other in others:
            first += other
        piece.copy_(first)


def wait_for_all() -> None:
    """Wait until all processes are here."""
    if _is_many():
        _talk(dist.barrier)


def from_main(compute: Callable[[], Item]) -> Item:
    """Result of the main process's computation, on all processes."""
    if not _is_many():
        return compute()
    box: list[Any] = [compute() if is_main() else None]
    _talk(dist.broadcast_object_list, box, 0)
    return box[0]


# ----------------------------------------------------------------------------------------------------------------
# Communication


def _gather(tensor: Tensor) -> list[Tensor]:
    """The tensor of every process, by rank."""
    parts = [torch.empty_like(tensor) for _ in range(world_size())]
    _talk(dist.all_gather, parts, tensor.contiguous())
    return parts


def _gather_objects(item: Item) -> list[Item]:
    found: list[Any] = [None] * world_size()
    _talk(dist.all_gather_object, found, item)
    return found


def _talk(call: Callable[..., object], *arguments: object) -> None:
    try:
        call(*arguments)
        _HELD[:] = [arguments]
    except RuntimeError as error:
        advice = "what was computed so far is kept; run the same command again with --resume"
        raise WorkerLostError(f"{_who_is_gone()} of {world_size()} is gone ({_first_line(error)}); {advice}") from error


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0][:120]


def _who_is_gone() -> str:
    """Ranks whose process has ended on this machine; those on other machines can only be guessed at."""
    host, deadline = socket.gethostname(), time.monotonic() + DYING_SECONDS
    while time.monotonic() < deadline:
        gone = [number for number, (where, pid) in enumerate(_MEMBERS) if where == host and not _is_alive(pid)]
        if gone:
            return f"worker {', '.join(map(str, gone))}"
        time.sleep(0.05)
    elsewhere = sorted({where for where, _ in _MEMBERS if where != host})
    return f"a worker on {' or '.join(elsewhere)}" if elsewhere else "a worker"


def _is_alive(pid: int) -> bool:
    """Whether a process runs; one that ended but was not yet waited for does not."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except ProcessLookupError:
        return False
    except OSError:  # no /proc, or another user's
        return True


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


WORKERS = own_cores()


def in_parallel(work: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """Results in the order of the items, from one worker per core that computes on that core only."""
    iterator = iter(items)
    with ThreadPoolExecutor(WORKERS, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        waiting = [pool.submit(work, item) for item in islice(iterator, 4 * WORKERS)]
        while waiting:
            yield waiting.pop(0).result()
            waiting += [pool.submit(work, item) for item in islice(iterator, 1)]
