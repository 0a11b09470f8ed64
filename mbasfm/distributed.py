"""Several processes, on one machine or many: who computes what, and how their sums come together.

This is the only file that talks to other processes; alone, every function is the identity. Work is cut into blocks that
do not depend on the number of processes, and sums over processes are added in the order of their ranks, so that every
number of processes gives the same answer up to the rounding of sums in float64.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

PIECE = 1 << 22
"""Numbers sent at once: bounds the memory of a sum over many processes."""
SHUFFLE_SEED = 0


def rank() -> int:
    """Number of this process."""
    return dist.get_rank() if _is_many() else 0


def world_size() -> int:
    """How many processes there are."""
    return dist.get_world_size() if _is_many() else 1


def _is_many() -> bool:
    return dist.is_available() and dist.is_initialized()


@dataclass(frozen=True)
class Share:
    """The blocks of edges that this process computes, and the sums over all of them."""

    blocks: tuple[slice, ...]
    is_whole: bool = True
    """Whether these are all blocks there are, so that sums are complete."""

    def total(self, *sums: Tensor) -> None:
        """Add up what all processes have summed over their own blocks, in place."""
        if not self.is_whole:
            for tensor in sums:
                _add_up(tensor)

    def largest(self, values: Tensor) -> Tensor:
        """The largest over all processes."""
        return values if self.is_whole else torch.stack(_gather(values)).amax(0)


def deal(blocks: Sequence[slice], at_random: bool) -> Share:
    """This process's share of the blocks: neighbours, or (the same on every process) at random."""
    if world_size() == 1:
        return Share(tuple(blocks))
    order = torch.arange(len(blocks))
    if at_random:
        order = torch.randperm(len(blocks), generator=torch.Generator().manual_seed(SHUFFLE_SEED))
    own = order.tensor_split(world_size())[rank()].sort().values
    return Share(tuple(blocks[number] for number in own.tolist()), is_whole=False)


def _add_up(tensor: Tensor) -> None:
    """Sum over processes in the order of their ranks: the same bits everywhere, whatever the network does."""
    flat = tensor.view(-1)
    for piece in flat.split(PIECE):
        first, *others = _gather(piece)
        for other in others:
            first += other
        piece.copy_(first)


def _gather(tensor: Tensor) -> list[Tensor]:
    """The tensor of every process, by rank."""
    parts = [torch.empty_like(tensor) for _ in range(world_size())]
    dist.all_gather(parts, tensor.contiguous())
    return parts
