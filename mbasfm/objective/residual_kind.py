"""What a kind of residual offers the solvers, and what all kinds share: streaming and frozen losses.

A form measures residuals (histograms, and the loss under what was frozen before), freezes the loss that those
histograms define, and linearises it. All three stream over blocks of edges.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mbasfm.objective.distribution import Distribution
from mbasfm.objective.edge_block import Block, Columns, blocks, load_block
from mbasfm.objective.losses import WeightTable
from mbasfm.runtime.distributed import Share
from mbasfm.types.cameras import Cameras
from mbasfm.types.samples import SampleSource

NO_INTRINSICS = Columns(focal=False, radial=False)

GramSink = Callable[[slice, Float[Tensor, "e C1 C1"]], None]


@runtime_checkable
class Form(Protocol):
    """What the solver needs of a form; statistics and frozen losses are the form's own business."""

    @property
    def share(self) -> Share:
        """Which blocks of edges this process computes."""

    def start(self, cameras: Cameras) -> Any:
        """The frozen loss at the first cameras."""

    def measure(self, cameras: Cameras, frozen: Any) -> tuple[float, Any]:
        """Loss under what is frozen, and the statistics of the residuals."""

    def freeze(self, statistics: Any) -> Any:
        """The loss that statistics define."""

    def linearize(self, cameras: Cameras, frozen: Any, columns: Columns, sink: GramSink) -> float:
        """Gram matrices of this process's edges into ``sink``; returns the loss of all."""
        ...

    def distribution(self, statistics: Any) -> Distribution:
        """The residual distribution over the whole graph."""
        ...


def source_mass(samples: SampleSource, num_frames: int) -> Float[Tensor, " N"]:
    """Mass of the samples that each frame is the source of."""
    mass = torch.zeros(num_frames, dtype=torch.float64)
    return mass.index_add_(0, samples.edges[:, 0], samples.edge_mass())


def stream(
    cameras: Cameras, samples: SampleSource, columns: Columns, share: Share | None = None
) -> Iterator[tuple[slice, Block]]:
    """Blocks of edges, all or this process's share, in their fixed order, so that sums are reproducible."""
    for chunk in blocks(samples) if share is None else share.blocks:
        yield chunk, load_block(cameras, samples.rows(chunk), columns)


def look_up(
    table: WeightTable,
    gain: Tensor | None,
    index: Int[Tensor, "e K"],
    group: Int[Tensor, " e"] | None,
    dtype: torch.dtype,
) -> Float[Tensor, "e K"]:
    """Weight of each residual from its bin."""
    table, gain, group = _present(table, gain, group)
    weight = table.weight if gain is None else table.weight * gain[:, None]
    return weight.to(dtype).view(-1).index_select(0, table.slots(index, group)).view(index.shape)


def _present(
    table: WeightTable, gain: Tensor | None, group: Int[Tensor, " e"] | None
) -> tuple[WeightTable, Tensor | None, Int[Tensor, " e"] | None]:
    """Of many groups those that occur in a block, numbered anew: its cost must not depend on all others."""
    if group is None:
        return table, gain, None
    present, number = group.unique(return_inverse=True)
    few = replace(table, weight=table.weight[present], offset=table.offset[present])
    return few, None if gain is None else gain[present], number


def frozen_loss(
    table: WeightTable,
    gain: Tensor | None,
    index: Int[Tensor, "e K"],
    group: Int[Tensor, " e"] | None,
    squared: Float[Tensor, "e K"],
    weight: Float[Tensor, "e K"],
) -> float:
    """Weighted sum of the frozen, saturating loss."""
    table, gain, group = _present(table, gain, group)
    slots = table.slots(index, group)
    factor, offset = 0.5 * table.weight, table.offset
    if gain is not None:
        factor, offset = factor * gain[:, None], offset * gain[:, None]
    dtype = squared.dtype
    bounded = squared.clamp_max(table.binning.tau_max**2)  # beyond it the factor is 0, and 0 * inf is NaN
    curve = factor.to(dtype).view(-1).index_select(0, slots).view(index.shape)
    level = offset.to(dtype).view(-1).index_select(0, slots).view(index.shape)
    return float((torch.addcmul(level, curve, bounded) * weight).sum(dtype=torch.float64))
