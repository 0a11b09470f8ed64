"""Elimination of anchors: from their derivatives to the normal equations of a star, all edges of one source frame.

Columns of a star are those of each edge (relative pose, then pairs of intrinsics), log alpha and beta of its source
frame, on which only the residual of the depth map depends, and last the residual. Rows of anchors are dense over the
targets of a star, so that elimination is one product of matrices.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mbasfm.objective.anchor_block import (
    AnchorBlock,
    Prior,
    Sight,
    factor,
    forward,
    latent_system,
    weights_of,
    with_prior,
)
from mbasfm.objective.edge_block import POSE_COLUMNS, fill_reprojection, gram
from mbasfm.objective.losses import WeightTable

EDGE_COLUMNS = POSE_COLUMNS
"""Columns of an edge before those of intrinsics: reprojection does not depend on depth corrections."""
OWN_COLUMNS = 3
"""Columns of a star that belong to no edge: log alpha, beta, residual."""


@dataclass(frozen=True)
class Star:
    """Edges of one source frame in a block."""

    source: int
    targets: Int[Tensor, " D"]
    """Frames that observe its anchors, sorted."""
    rows: slice
    """Its rows of the block."""
    target: Int[Tensor, " r"]
    """Number of each row's target among the targets."""
    anchors: slice
    """Its anchors, as numbered in the block."""


@dataclass(frozen=True)
class AnchorRows:
    """Derivatives of a block, weighted, and what couples them to the latent unknowns."""

    anchors: AnchorBlock
    edges: Float[Tensor, "e C1 2 K"]
    """Derivatives of every observation by the columns of its edge, then the error, scaled by the root of the weight."""
    coupling: list[Float[Tensor, "e C K"]]
    """For each latent unknown, products of its derivatives with those columns, whitened."""
    own: Float[Tensor, "L A O"]
    """The same with the star's own columns: log alpha, beta and the residual."""
    own_of_matches: Float[Tensor, "L A"]
    """The part of the residual's that is due to matches."""
    of_map: Float[Tensor, "A O"]
    """Derivatives of the depth map's residual by the star's own columns, weighted, and that residual."""
    map_coupling: Float[Tensor, "L A"]
    """What couples that residual to the latent unknowns, whitened."""


def anchor_rows(
    anchors: AnchorBlock, sight: Sight, latent: Float[Tensor, "L A"], prior: Prior, table: WeightTable
) -> AnchorRows:
    """Derivatives of a block at the given latent unknowns."""
    weight = weights_of(table, sight.squared, anchors.weight)
    host = weights_of(table, sight.host_squared, anchors.host_weight)
    matches = latent_system(anchors, sight, weight, host, latent)
    system = with_prior(matches, prior, latent[0])
    lower, root = factor(system.curvature), weight.sqrt()
    edges = edge_rows(anchors, sight, root)
    planes = (sight.by_latent * root[:, None, None]).unbind(1)
    coupling = [(edges[:, :-1] * plane[:, None]).sum(2) for plane in planes]
    of_samples = [[anchors.gather(entry)[:, None] for entry in row] for row in lower]
    map_root = prior.pull(latent[0])[0].sqrt()
    of_map = torch.stack([-prior.by_scale, -prior.by_shift, latent[0] - prior.rho], -1) * map_root[:, None]
    others = [torch.zeros_like(map_root)] * (len(planes) - 1)
    map_coupling = torch.stack(forward(lower, [map_root, *others]))
    depth = map_coupling[..., None] * of_map[:, :2]
    gradient, of_matches = (torch.stack(forward(lower, list(some.gradient))) for some in (system, matches))
    own = torch.cat([depth, gradient[..., None]], -1)
    return AnchorRows(anchors, edges, forward(of_samples, coupling), own, of_matches, of_map, map_coupling)


def edge_rows(anchors: AnchorBlock, sight: Sight, root: Float[Tensor, "e K"]) -> Float[Tensor, "e C1 2 K"]:
    """Derivatives by relative pose and intrinsics, then the error, scaled by the root of the weight."""
    num_edges, num_samples = root.shape
    num_columns = EDGE_COLUMNS + 2 * len(anchors.block.intrinsic_steps)
    rows = root.new_empty(num_edges, num_columns + 1, 2, num_samples)
    place = sight.inverse_z, sight.rho * sight.inverse_z
    fill_reprojection(rows, anchors.block, sight.pixel, place, root, EDGE_COLUMNS)
    torch.mul(sight.error, root[:, None], out=rows[:, -1])
    return rows


def reduced_gram(rows: AnchorRows, star: Star) -> Float[Tensor, "W W"]:
    """Normal equations of a star with its anchors eliminated."""
    grams = gram(rows.edges[star.rows])
    num_targets, num_columns = len(star.targets), grams.shape[-1] - 1
    width = num_targets * num_columns
    of_map = rows.of_map[star.anchors]
    matrix = torch.zeros(width + OWN_COLUMNS, width + OWN_COLUMNS, dtype=torch.float64)
    matrix[width:, width:] = (of_map.mT @ of_map).double()
    summed = torch.zeros(num_targets, num_columns + 1, num_columns + 1, dtype=torch.float64)
    summed.index_add_(0, star.target, grams)
    inner = matrix[:width, :width].view(num_targets, num_columns, num_targets, num_columns)
    inner.diagonal(dim1=0, dim2=2).add_(summed[:, :-1, :-1].permute(1, 2, 0))
    matrix[:width, -1] = summed[:, :-1, -1].reshape(-1)
    for dense in _dense_coupling(rows, star, rows.own):
        matrix -= (dense.mT @ dense).double()
    return matrix


def score_gram(rows: AnchorRows, star: Star) -> Float[Tensor, "W W"]:
    """Sum of squared gradients of a star: all observations of an anchor err together, the depth map as it is believed.

    Gradients are those of the reduced problem, in which latent unknowns follow.
    """
    products = (rows.edges[:, :-1] * rows.edges[:, -1:]).sum(2)
    dense = _dense(rows.anchors, star, products)
    own = torch.zeros(len(dense), OWN_COLUMNS, dtype=dense.dtype)
    matches, of_map = torch.cat([dense, own], -1), torch.cat([torch.zeros_like(dense), rows.of_map[star.anchors]], -1)
    of_map[:, -1] = matches[:, -1] = 0
    for latent, coupled in enumerate(_dense_coupling(rows, star, rows.own)):
        matches = matches - rows.own_of_matches[latent, star.anchors, None] * coupled
        of_map = of_map - rows.map_coupling[latent, star.anchors, None] * coupled
    return (matches.mT @ matches + of_map.mT @ of_map).double()


def _dense_coupling(rows: AnchorRows, star: Star, own: Float[Tensor, "L A O"]) -> list[Float[Tensor, "a W"]]:
    """Coupling of each latent unknown with all columns of a star, a row per anchor."""
    return [
        torch.cat([_dense(rows.anchors, star, plane), mine[star.anchors]], -1)
        for plane, mine in zip(rows.coupling, own, strict=True)
    ]


def _dense(anchors: AnchorBlock, star: Star, values: Float[Tensor, "e C K"]) -> Float[Tensor, "a DC"]:
    """Values of observations as rows of anchors, with columns for every target; zero where it sees nothing."""
    num_targets, num_columns = len(star.targets), values.shape[1]
    number = anchors.anchor.view(len(values), -1)[star.rows] - star.anchors.start
    place = (number * num_targets + star.target[:, None]).reshape(-1)
    count = star.anchors.stop - star.anchors.start
    rows = values.new_zeros(count * num_targets, num_columns)
    rows.index_add_(0, place, values[star.rows].mT.reshape(-1, num_columns))
    return rows.view(count, num_targets * num_columns)
