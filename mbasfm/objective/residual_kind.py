"""What a kind of residual offers the solvers, and what all kinds share: streaming and frozen losses.

A form is a kind of residual on given samples. It measures residuals (histograms, and the loss under what was frozen
before), freezes the loss that those histograms define, and linearises it. All three stream over blocks of edges.

A kind may have latent unknowns of its own, each of one source frame. They are values inside what is frozen and inside
statistics: ``start`` finds them from cameras alone, ``linearize`` eliminates them, ``measure`` lets them follow the
cameras into statistics, and ``freeze`` takes them from there. A step that is refused leaves no trace.
Between steps the solver may rescale the world: ``rescaled`` lets latents follow.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mbasfm.objective.edge_block import Block, Columns, blocks, load_block
from mbasfm.objective.losses import Binning, Distribution, WeightTable
from mbasfm.runtime.parallel import Share
from mbasfm.types.cameras import Cameras
from mbasfm.types.observations import Samples, SampleSource

NO_INTRINSICS = Columns(focal=False, radial=False)

DEPTH_VOTES = 8.0
"""Number of independent residuals that all those of a frame along lines weigh, as its depth errors are correlated.

Chosen on made-up scenes, checked on others (benchmarks/covariance.py): 8 and 20 give better poses than 64, and only
with 8 does the covariance hold the truth about as often as it claims."""


@dataclass(frozen=True)
class Anchoring:
    """How the inverse depths of anchors are treated."""

    free_pixel: bool = False
    """Whether the pixel of an anchor is unknown as well, with the error of a match."""
    prior: Literal["measured", "fixed", "none"] = "measured"
    """The depth map as prior: with measured spread and votes; with a fixed spread and a vote per anchor; not at all."""
    sigma: float = 0.1
    """The fixed spread."""
    faith: float = 1.0
    """Factor on the measured prior's weight. With next to none, depth follows the cameras and does not move them."""


@dataclass(frozen=True)
class StarGram:
    """Normal equations of all edges of one source frame, with the frame's own latent unknowns eliminated."""

    source: int
    targets: Int[Tensor, " D"]
    """The other frames of the edges, sorted."""
    gram: Float[Tensor, "W W"]
    """Products of columns: of each target's edge (relative pose, then pairs of intrinsics), then of log alpha and beta
    of the source, and last the residual."""


@runtime_checkable
class GramSink(Protocol):
    """Takes the normal equations of a kind of residual."""

    def add(self, chunk: slice, gram: Float[Tensor, "e C1 C1"]) -> None:
        """Take the Gram matrices of a block of edges."""

    def add_star(self, star: StarGram) -> None:
        """Take the normal equations of one frame's edges together."""


BlockLoss = Callable[[Cameras, Samples, slice], tuple[Tensor, float]]
"""Loss of a block of edges, differentiable, and the sum of its samples' scores."""


@dataclass(frozen=True)
class LossShape:
    """What a stage says about the loss; a kind takes of it what concerns it."""

    binning: Binning
    loss: str
    per_star: bool = False
    anchoring: Anchoring = Anchoring()


@runtime_checkable
class Form(Protocol):
    """What solvers, covariance and diagnosis need; statistics and frozen losses are opaque to them."""

    can_be_per_star: ClassVar[bool]
    """Whether the kind can have one distribution per star."""
    needs_depth: ClassVar[bool]
    """Whether every sample must have a depth."""
    statistics_types: ClassVar[tuple[type, ...]]
    """Classes besides tensors that its statistics consist of, so that a checkpoint may hold them."""

    @staticmethod
    def build(samples: SampleSource, num_frames: int, shape: "LossShape") -> "Form":
        """Form on the given samples."""
        ...

    @property
    def share(self) -> Share:
        """Blocks of edges that this process computes."""

    def start(self, cameras: Cameras) -> Any:
        """Frozen loss at the first cameras."""

    def measure(self, cameras: Cameras, frozen: Any) -> tuple[float, Any]:
        """Loss under the frozen one, and the statistics of the residuals."""

    def freeze(self, statistics: Any) -> Any:
        """Loss that the statistics define."""

    def rescaled(self, statistics: Any, growth: Float[Tensor, " N"]) -> Any:
        """Statistics after the worlds of frames have grown by these factors."""

    def linearize(self, cameras: Cameras, frozen: Any, columns: Columns, sink: GramSink) -> float:
        """Hand the normal equations of this process's edges, without latents, to ``sink``; returns the loss of all."""
        ...

    def coupled_frames(self) -> Int[Tensor, "P 2"]:
        """Pairs of frames that eliminated latents couple, in addition to those that edges connect."""
        ...

    def distribution(self, statistics: Any) -> Distribution:
        """Residual distribution over the whole graph."""
        ...

    def curvature(self, frozen: Any) -> tuple[Any, Any | None]:
        """Losses whose normal equations are the positive and the negated negative curvature (None: there is none)."""
        ...

    def squared_gradients(self, frozen: Any) -> Any:
        """Loss whose normal equations are the sum of the squared gradients of independent residuals."""

    def first_order_loss(self, cameras: Cameras) -> BlockLoss:
        """Loss of blocks of edges per sample of the graph, with what the present residuals define held fixed."""
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
        """An empty list of pairs."""
        return torch.empty(0, 2, dtype=torch.long)

    def rescaled(self, statistics: Any, growth: Float[Tensor, " N"]) -> Any:
        """The statistics, unchanged: residuals do not depend on the size of the world."""
        return statistics


def source_mass(samples: SampleSource, num_frames: int) -> Float[Tensor, " N"]:
    """Mass of the samples whose source is each frame."""
    mass = torch.zeros(num_frames, dtype=torch.float64)
    return mass.index_add_(0, samples.edges[:, 0], samples.edge_mass())


def stream(
    cameras: Cameras, samples: SampleSource, columns: Columns, share: Share | None = None
) -> Iterator[tuple[slice, Block]]:
    """Blocks of edges, all or this process's share, in a fixed order, so that sums are reproducible."""
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
    """Table, gain and groups restricted to the groups in a block, so that its cost does not depend on the others."""
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
