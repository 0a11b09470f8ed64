"""Kernels of anchors: pixels of a source frame whose inverse depth is unknown, observed in the frames of its star.

A block holds whole stars, so that all observations of an anchor are in it. An anchor has L latent unknowns: its inverse
depth and, if its pixel is free, the two offsets of that pixel from where it was found [px at the reference size], whose
own residual is that offset. Sums over an anchor's observations are scattered by its number; the L x L systems are
solved by Cholesky's recipe on planes, one plane per entry, for all anchors at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mbasfm.objective.edge_block import Block, dot, start_points
from mbasfm.objective.losses import WeightTable

MAX_SHRINK, MAX_GROWTH = -0.6, 1.5
"""Largest relative changes of an inverse depth in one step."""
FARTHEST, NEAREST = 1e-5, 1e4
"""Bounds of an inverse depth, as shares of the map's: what matches push to infinity or into the camera is finite."""
MIN_PARALLAX_PX, MAX_PARALLAX_PX = 2.0, 20.0
"""Parallax from which an observation tells inverse depth, and beyond which more does not count more [px]."""


@dataclass(frozen=True)
class Prior:
    """What the depth map says about the inverse depth of each anchor of a block."""

    rho: Float[Tensor, " A"]
    """Inverse depth by the map; the anchor's own where it says nothing."""
    unit: Float[Tensor, " A"]
    """Inverse depth that a relative error of 1 means."""
    weight: Float[Tensor, " A"]
    """Weight of the squared relative error."""
    by_scale: Float[Tensor, " A"]
    by_shift: Float[Tensor, " A"]
    """Derivatives of ``rho`` by log alpha and beta of the frame."""
    is_known: Bool[Tensor, " A"]
    """Whether the map says anything."""

    def pull(self, rho: Float[Tensor, " A"]) -> tuple[Float[Tensor, " A"], Float[Tensor, " A"]]:
        """Curvature and gradient in inverse depth."""
        curvature = self.weight / self.unit.square()
        return curvature, curvature * (rho - self.rho)

    def loss(self, rho: Float[Tensor, " A"]) -> float:
        """Weighted sum of the squared relative errors, halved."""
        return float((0.5 * self.weight * ((rho - self.rho) / self.unit).square()).sum(dtype=torch.float64))


@dataclass(frozen=True)
class AnchorBlock:
    """A block of edges with the anchors of their samples."""

    block: Block
    anchor: Int[Tensor, " M"]
    """Number of each sample's anchor in the block, flattened."""
    num_anchors: int
    share: Float[Tensor, " A"]
    """Mean weight of the anchor's observations: less than 1 where other anchors observe the same."""
    weight: Float[Tensor, "e K"]
    """Multiplicity of each observation."""
    host_weight: Float[Tensor, " A"]
    """Multiplicity of the anchor's own observation; 0 where its pixel is not free."""
    inflation: Float[Tensor, "e K"]
    host_inflation: Float[Tensor, " A"]
    """Factor on residuals that makes up for what the latent unknowns absorb of them."""
    start: Float[Tensor, "e 3 K"]
    turn: Float[Tensor, "e 3 2"] | None
    """Derivative of ``start`` by the offset of the anchor's pixel; None where that is not free."""

    @property
    def num_latents(self) -> int:
        """Number of latent unknowns per anchor."""
        return 1 if self.turn is None else 3

    def gather(self, values: Float[Tensor, " A"]) -> Float[Tensor, "e K"]:
        """Value of each sample's anchor."""
        return values.index_select(0, self.anchor).view(self.weight.shape)

    def total(self, values: Float[Tensor, "e K"]) -> Float[Tensor, " A"]:
        """Sum over the samples of each anchor."""
        return values.new_zeros(self.num_anchors).index_add_(0, self.anchor, values.reshape(-1))


def anchor_block(block: Block, anchor: Int[Tensor, "e K"], free_pixel: bool) -> AnchorBlock:
    """Block with numbers of anchors from 0."""
    flat, (low, high) = anchor.reshape(-1), torch.aminmax(anchor)
    flat, count = flat - low, int(high - low) + 1
    weight = block.weight
    num_seen = weight.new_zeros(count).index_add_(0, flat, (weight > 0).to(weight).reshape(-1))
    share = weight.new_zeros(count).index_add_(0, flat, weight.reshape(-1)) / num_seen.clamp_min(1)
    components = 2 * (num_seen + 1 if free_pixel else num_seen)
    left = (components - (3 if free_pixel else 1)).clamp_min(1)
    inflation = (components.clamp_min(1) / left).sqrt()
    host = share if free_pixel else torch.zeros_like(share)
    turn = None
    if free_pixel:
        focal = block.cameras.focal_i * block.cameras.scale_i
        turn = block.cameras.projection[..., :2] / focal.mT
    return AnchorBlock(
        block,
        flat,
        count,
        share,
        weight,
        host,
        inflation.index_select(0, flat).view_as(weight),
        inflation,
        start_points(block),
        turn,
    )


@dataclass(frozen=True)
class Sight:
    """Where the anchors are seen, given their latent unknowns."""

    pixel: Float[Tensor, "e 2 K"]
    error: Float[Tensor, "e 2 K"]
    inverse_z: Float[Tensor, "e K"]
    rho: Float[Tensor, "e K"]
    squared: Float[Tensor, "e K"]
    """Squared length of the error, inflated; infinite behind the camera."""
    host_squared: Float[Tensor, " A"]
    by_latent: Float[Tensor, "e L 2 K"]
    """Derivatives of the pixel by the latent unknowns."""


def look(anchors: AnchorBlock, latent: Float[Tensor, "L A"]) -> Sight:
    """Projection of all anchors into the frames that observe them."""
    block, step = anchors.block, anchors.block.step
    rho = anchors.gather(latent[0])
    point = torch.addcmul(anchors.start, rho[:, None], step)
    if anchors.turn is not None:
        offset = torch.stack([anchors.gather(plane) for plane in latent[1:]], 1)
        point = torch.baddbmm(point, anchors.turn, offset)
    behind = point[:, 2] <= 0
    inverse_z = point[:, 2].reciprocal().masked_fill_(behind, 0)
    pixel = point[:, :2] * inverse_z[:, None]
    error = pixel - block.target
    squared = dot(error, error).mul_(anchors.inflation.square()).masked_fill_(behind, torch.inf)
    by_latent = pixel.new_empty(len(rho), anchors.num_latents, 2, rho.shape[1])
    torch.sub(step[:, :2], pixel * step[:, 2:], out=by_latent[:, 0])
    if anchors.turn is not None:
        for axis in range(2):
            column = anchors.turn[:, :, axis : axis + 1]
            torch.sub(column[:, :2], pixel * column[:, 2:], out=by_latent[:, 1 + axis])
    by_latent.mul_(inverse_z[:, None, None])
    host = latent[1:].square().sum(0) if anchors.turn is not None else torch.zeros_like(latent[0])
    return Sight(pixel, error, inverse_z, rho, squared, host * anchors.host_inflation.square(), by_latent)


def weights_of(table: WeightTable, squared: Tensor, multiplicity: Tensor) -> Tensor:
    """Weight of each residual by the table, times its multiplicity."""
    index = table.binning.index(squared.sqrt())
    return table.weight.to(squared).view(-1).index_select(0, index.reshape(-1)).view_as(squared) * multiplicity


def costs_of(table: WeightTable, squared: Tensor, multiplicity: Tensor) -> Tensor:
    """Frozen loss of each inflated residual, times its multiplicity."""
    index = table.binning.index(squared.sqrt()).reshape(-1)
    bounded = squared.clamp_max(table.binning.tau_max**2)  # beyond it the weight is 0, and 0 * inf is NaN
    curve = table.weight.to(squared).view(-1).index_select(0, index).view_as(squared)
    level = table.offset.to(squared).view(-1).index_select(0, index).view_as(squared)
    return torch.addcmul(level, curve, bounded, value=0.5) * multiplicity


def loss_of(table: WeightTable, squared: Tensor, multiplicity: Tensor, inflation: Tensor) -> float:
    """Sum of the frozen loss; in the unit of residuals that are not inflated."""
    values = costs_of(table, squared, multiplicity) / inflation.square()
    return float(values.sum(dtype=torch.float64))


@dataclass(frozen=True)
class LatentSystem:
    """Normal equations of the latent unknowns, each anchor's own, with cameras held."""

    curvature: Sequence[Sequence[Float[Tensor, " A"]]]
    """Lower triangle, a plane per entry."""
    gradient: Sequence[Float[Tensor, " A"]]


def latent_system(
    anchors: AnchorBlock, sight: Sight, weight: Tensor, host: Float[Tensor, " A"], latent: Float[Tensor, "L A"]
) -> LatentSystem:
    """System of the observations; the prior of depth is not in it."""
    planes = sight.by_latent.unbind(1)
    curvature = [
        [anchors.total(weight * dot(planes[row], planes[column])) for column in range(row + 1)]
        for row in range(len(planes))
    ]
    gradient = [anchors.total(weight * dot(plane, sight.error)) for plane in planes]
    for row in range(1, len(planes)):
        curvature[row][row] = curvature[row][row] + host
        gradient[row] = gradient[row] + host * latent[row]
    return LatentSystem(curvature, gradient)


def with_prior(system: LatentSystem, prior: Prior, rho: Float[Tensor, " A"]) -> LatentSystem:
    """System with the prior of depth added."""
    curvature, gradient = prior.pull(rho)
    first = [[system.curvature[0][0] + curvature], *system.curvature[1:]]
    return LatentSystem(first, [system.gradient[0] + gradient, *system.gradient[1:]])


def factor(curvature: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
    """Cholesky factors; a latent that nothing determines gets a huge pivot, so that it stays where it is."""
    rows: list[list[Tensor]] = []
    for number, row in enumerate(curvature):
        found: list[Tensor] = []
        for column in range(number):
            left = row[column]
            for k in range(column):
                left = left - found[k] * rows[column][k]
            found.append(left / rows[column][column])
        pivot = row[number]
        for value in found:
            pivot = pivot - value.square()
        is_flat = pivot <= 1e-9 * row[number].clamp_min(torch.finfo(pivot.dtype).tiny)
        found.append(pivot.masked_fill(is_flat, torch.inf).sqrt())
        rows.append(found)
    return rows


def forward(rows: Sequence[Sequence[Tensor]], values: Sequence[Tensor]) -> list[Tensor]:
    """Solution of L x = values."""
    found: list[Tensor] = []
    for row, value in zip(rows, values, strict=True):
        left = value
        for k, earlier in enumerate(found):
            left = left - row[k] * earlier
        found.append(left / row[-1])
    return found


def solve(rows: Sequence[Sequence[Tensor]], values: Sequence[Tensor]) -> list[Tensor]:
    """Solution of L L^T x = values."""
    found = forward(rows, values)
    for number in reversed(range(len(found))):
        value = found[number]
        for later in range(number + 1, len(found)):
            value = value - rows[later][number] * found[later]
        found[number] = value / rows[number][number]
    return found


def refine(
    anchors: AnchorBlock, latent: Float[Tensor, "L A"], prior: Prior, table: WeightTable, steps: int
) -> tuple[Float[Tensor, "L A"], Sight]:
    """Latent unknowns after some re-weighted Newton steps with cameras held, and where they are seen then."""
    sight = look(anchors, latent)
    for _ in range(steps):
        weight = weights_of(table, sight.squared, anchors.weight)
        host = weights_of(table, sight.host_squared, anchors.host_weight)
        system = with_prior(latent_system(anchors, sight, weight, host, latent), prior, latent[0])
        step = solve(factor(system.curvature), system.gradient)
        change = (-step[0] / latent[0]).nan_to_num(0.0, 0.0, 0.0).clamp(MAX_SHRINK, MAX_GROWTH)
        rho = (latent[0] * (1 + change)).clamp(FARTHEST * prior.unit, NEAREST * prior.unit)
        moved = [rho, *(old - new for old, new in zip(latent[1:], step[1:], strict=True))]
        latent = torch.stack(moved)
        sight = look(anchors, latent)
    return latent, sight


def first_latents(anchors: AnchorBlock, prior: Prior, table: WeightTable, steps: int) -> Float[Tensor, "L A"]:
    """Latent unknowns from nothing: the better of those that start at the depth map and at what matches triangulate."""
    usual = prior.rho[prior.is_known & (prior.rho > 0)]
    middle = usual.median() if len(usual) else torch.ones((), dtype=prior.rho.dtype)
    mapped = prior.rho.where(prior.is_known & (prior.rho > 1e-4 * middle), middle)
    best, least = None, None
    for rho in (mapped, triangulate(anchors, mapped)):
        latent = torch.zeros(anchors.num_latents, anchors.num_anchors, dtype=rho.dtype)
        latent[0] = rho
        latent, sight = refine(anchors, latent, prior, table, steps)
        cost = anchors.total(costs_of(table, sight.squared, anchors.weight))
        if best is None or least is None:
            best, least = latent, cost
        else:
            best, least = torch.where(cost < least, latent, best), torch.minimum(cost, least)
    assert best is not None
    return best


@dataclass(frozen=True)
class Nearest:
    """The inverse depths with which samples come nearest to their matches."""

    rho: Float[Tensor, "e K"]
    """Inverse depth, at least 0."""
    squared: Float[Tensor, "e K"]
    """Squared distance to the match that is left; infinite behind the camera."""
    by_rho: Float[Tensor, "e K"]
    """Way of the projection per unit of inverse depth [px]."""


def nearest(block: Block) -> Nearest:
    """Every sample at the inverse depth that its match alone suggests: what is left is the error across the line."""
    start, step = start_points(block), block.step
    to_start = start[:, :2] - block.target * start[:, 2:]
    to_step = step[:, :2] - block.target * step[:, 2:]
    rho = (-dot(to_start, to_step) / dot(to_step, to_step)).nan_to_num(0.0, 0.0, 0.0).clamp_min(0)
    point = torch.addcmul(start, rho[:, None], step)
    behind = point[:, 2] <= 0
    inverse_z = point[:, 2].reciprocal().masked_fill_(behind, 0)[:, None]
    pixel = point[:, :2] * inverse_z
    error, way = pixel - block.target, (step[:, :2] - pixel * step[:, 2:]) * inverse_z
    return Nearest(rho, dot(error, error).masked_fill_(behind, torch.inf), dot(way, way).sqrt())


def triangulate(anchors: AnchorBlock, rho: Float[Tensor, " A"]) -> Float[Tensor, " A"]:
    """Median over an anchor's observations of the inverse depths that bring it nearest to each of them.

    Observations count by their parallax; where all have too little, the given inverse depth stays.
    """
    block, step = anchors.block, anchors.block.step
    to_start = anchors.start[:, :2] - block.target * anchors.start[:, 2:]
    to_step = step[:, :2] - block.target * step[:, 2:]
    length = dot(to_step, to_step)
    found = -dot(to_start, to_step) / length.clamp_min(torch.finfo(length.dtype).tiny)
    usual = anchors.gather(rho)
    parallax = length.sqrt() * usual
    likely = (found > 1e-4 * usual) & (found < 1e3 * usual) & (parallax > MIN_PARALLAX_PX) & (block.weight > 0)
    weight = parallax.clamp_max(MAX_PARALLAX_PX).square() * likely
    order = np.lexsort((found.reshape(-1).numpy(), anchors.anchor.numpy()))
    anchor = anchors.anchor.numpy()[order]
    total = np.cumsum(weight.double().reshape(-1).numpy()[order])
    ends = np.searchsorted(anchor, np.arange(anchors.num_anchors + 1))
    before = np.concatenate([[0.0], total])
    low, high = before[ends[:-1]], before[ends[1:]]
    middle = np.searchsorted(total, (low + high) / 2).clip(max=len(total) - 1)
    median = found.reshape(-1)[torch.from_numpy(order[middle])]
    return median.where(torch.from_numpy(high > low), rho)
