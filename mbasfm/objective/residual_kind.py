"""What a kind of residual offers the solvers, and what all kinds share: streaming and frozen losses.

A form is a kind of residual on given samples. It measures residuals (histograms, and the loss under what was frozen
before), freezes the loss that those histograms define, and linearises it. All three stream over blocks of edges.

A kind may have latent unknowns of its own, each of one source frame. They are values inside what is frozen and inside
statistics: ``start`` finds them from cameras alone, ``linearize`` eliminates them, ``back_substitute`` moves them with
a step, ``measure`` takes them over into statistics, and ``freeze`` from there. A step that is refused leaves no trace.
Between steps the solver may rescale the world, so latents are held without unit of length: an inverse depth as a
multiple of what the depth correction of its frame makes of a raw depth.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mbasfm.objective.distribution import Binning, Distribution
from mbasfm.objective.edge_block import Block, Columns, blocks, load_block
from mbasfm.objective.losses import WeightTable
from mbasfm.runtime.distributed import Share
from mbasfm.types.cameras import Cameras
from mbasfm.types.samples import Samples, SampleSource

NO_INTRINSICS = Columns(focal=False, radial=False)

DEPTH_VOTES = 8.0
"""Depth errors of one frame are correlated: all its residuals along lines weigh like so many independent ones.

Chosen on made-up scenes, checked on others (benchmarks/covariance.py): 8 and 20 give better poses than 64, and only
with 8 the covariance holds the truth about as often as it says."""


@dataclass(frozen=True)
class CrossGram:
    """What eliminated unknowns leave between two different edges of one source frame, each pair of edges once."""

    first: Int[Tensor, " P"]
    second: Int[Tensor, " P"]
    """Numbers of the edges, counted from the first of all."""
    gram: Float[Tensor, "P C1 C1"]
    """Columns and residual of the first by those of the second."""


@runtime_checkable
class GramSink(Protocol):
    """Takes the normal equations of a block of edges."""

    def __call__(self, chunk: slice, gram: Float[Tensor, "e C1 C1"], cross: CrossGram | None = None) -> None:
        """Gram matrices of the edges and, where unknowns were eliminated, those between them."""


EdgeStep = Callable[[slice], Float[Tensor, "e C"]]
"""A step of the cameras in the columns of a block of edges."""
BlockLoss = Callable[[Cameras, Samples, slice], tuple[Tensor, float]]
"""Of a block of edges: its part of the loss, differentiable, and the sum of its samples' scores."""


@runtime_checkable
class Form(Protocol):
    """What solvers, covariance and diagnosis need; statistics and frozen losses are the form's own business."""

    can_be_per_star: ClassVar[bool]
    """Whether it can have one distribution per star."""
    statistics_types: ClassVar[tuple[type, ...]]
    """Classes that its statistics are made of besides tensors, so that a file of progress may hold them."""

    @staticmethod
    def build(samples: SampleSource, num_frames: int, binning: Binning, loss: str, per_star: bool) -> "Form":
        """The form of these samples."""
        ...

    @property
    def share(self) -> Share:
        """Which blocks of edges this process computes."""

    def start(self, cameras: Cameras) -> Any:
        """The frozen loss at the first cameras."""

    def measure(self, cameras: Cameras, frozen: Any) -> tuple[float, Any]:
        """Loss under what is frozen, and the statistics of the residuals."""

    def freeze(self, statistics: Any) -> Any:
        """The loss that statistics define."""

    def linearize(self, cameras: Cameras, frozen: Any, columns: Columns, sink: GramSink) -> tuple[float, Any]:
        """Gram matrices of this process's edges into ``sink``, without latents.

        Returns the loss of all edges, and what back_substitute needs to know of the latents that were eliminated.
        """
        ...

    def coupled_frames(self) -> Int[Tensor, "P 2"]:
        """Pairs of frames that eliminated latents couple, beside those that edges connect."""
        ...

    def back_substitute(self, frozen: Any, eliminated: Any, step: EdgeStep) -> Any:
        """What is frozen, with latents moved along with a step of the cameras."""

    def distribution(self, statistics: Any) -> Distribution:
        """The residual distribution over the whole graph."""
        ...

    def curvature(self, frozen: Any) -> tuple[Any, Any | None]:
        """Losses whose normal equations are the positive and the negated negative curvature (None: there is none)."""
        ...

    def squared_gradients(self, frozen: Any) -> Any:
        """The loss whose normal equations are the sum of the squared gradients of independent residuals."""

    def first_order_loss(self, cameras: Cameras) -> BlockLoss:
        """The loss of blocks of edges per sample of the graph, with what the present residuals define held fixed."""
        ...

    @staticmethod
    def agreeing(block: Block, limit_px: float) -> Bool[Tensor, "e K"]:
        """Samples that agree with the poses up to the limit."""
        ...

    @staticmethod
    def chance_share(limit_px: float) -> float:
        """Share of wrong matches that agree by chance."""
        ...


class WithoutLatents:
    """The part of a form that has no unknowns of its own."""

    def coupled_frames(self) -> Int[Tensor, "0 2"]:
        """No pairs."""
        return torch.empty(0, 2, dtype=torch.long)

    def back_substitute(self, frozen: Any, eliminated: None, step: EdgeStep) -> Any:
        """What is frozen, as it is."""
        return frozen


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
