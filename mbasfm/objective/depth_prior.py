"""The depth map as a prior on the inverse depths of anchors: how large its errors are, and how many votes it has.

Errors of depth are not independent: a network that is wrong about a wall is wrong about all of it. Their spread and
their correlation are measured where matches alone know the depth well, and all depths of a frame together count as
many times as there would be independent ones.
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int, Int64
from torch import Tensor

from mbasfm.objective.losses import MAD_TO_SIGMA

FIRST_SPREAD = 0.1
"""Relative error of depth that is assumed before anything has been measured."""
SPREAD_RANGE = (0.002, 1.0)
MIN_KNOWN = 20
"""Least number of anchors of a frame to measure its depth error from, and the number at which a frame's own spread
counts as much as the common one."""
KNOWN_SHARE = 1 / 3
"""Share of a frame's anchors to measure from, those that matches know best, where too few are known well enough."""
CELLS = (8, 6)
"""Cells across and down an image; errors of depth within one are compared with those of others."""
MAX_SIGMAS = 3.0
CAUCHY = 2.385
"""Errors, in sigmas, at which depth begins to count less: 95 % efficient where they are normal."""
NEAREST_FAR = 0.1
"""Share of a frame's median inverse depth: what is farther away has errors as large as there."""


@dataclass(frozen=True)
class DepthErrors:
    """What matches alone say about the depth of each anchor; NaN where they or the depth map say nothing."""

    frame: Int[Tensor, " A"]
    cell: Int[Tensor, " A"]
    error: Float[Tensor, " A"]
    """Inverse depth by matches minus that of the map, relative to the latter."""
    variance: Float[Tensor, " A"]
    """Variance of that error due to matches."""
    nearness: Float[Tensor, " A"]
    """Inverse depth by the map."""


@dataclass(frozen=True)
class DepthTrust:
    """How far the depth of each frame is believed."""

    spread: Float[Tensor, " N"]
    """Relative standard deviation of one depth."""
    correlation: float
    """Share of the variance that errors of one cell have in common."""
    weight: Float[Tensor, " A"]
    """Weight of each anchor's relative depth error; 0 where there is none."""


def inverse_depth_of(
    raw: Tensor, scale: Tensor, shift: Tensor, disparity: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Inverse depth by the map, its derivatives by log alpha and beta, and where the map says something."""
    corrected = scale * raw + shift
    known = raw.isfinite() & (disparity | (corrected > 0))
    safe = corrected.where(known, torch.ones_like(corrected))
    rho = torch.where(disparity, safe, 1 / safe)  # a disparity below 0 is as far as can be, and still pulls there
    by_shift = torch.where(disparity, torch.ones_like(rho), -rho.square())
    by_scale = by_shift * scale * raw.nan_to_num(0.0, 0.0, 0.0)
    return rho, by_scale * known, by_shift * known, known


def typical_of(frame: Tensor, raw: Tensor, num_frames: int) -> Float[Tensor, " N"]:
    """Median raw depth of the anchors of each frame; 1 where there is none."""
    found = np.ones(num_frames)
    values, start = raw.double().numpy(), np.searchsorted(frame.numpy(), np.arange(num_frames + 1))
    for number in range(num_frames):
        mine = values[start[number] : start[number + 1]]
        mine = mine[np.isfinite(mine) & (mine > 0)]
        found[number] = np.median(mine) if len(mine) else 1.0
    return torch.from_numpy(found)


def usual_of(
    typical_raw: Float[Tensor, " N"], scale: Float[Tensor, " N"], shift: Float[Tensor, " N"], disparity: Tensor
) -> Float[Tensor, " N"]:
    """Usual inverse depth of each frame by its map, always positive.

    A shift may push most of a map beyond infinity; without it the map still has a size.
    """
    shifted, unshifted = (inverse_depth_of(typical_raw, scale, by, disparity)[0] for by in (shift, 0 * shift))
    return torch.maximum(shifted, NEAREST_FAR * unshifted)


def weigh_depth(errors: DepthErrors, earlier: Float[Tensor, " N"]) -> DepthTrust:
    """Spread, correlation and weights from comparing depth with what matches say, given the spread believed before."""
    frame, cell = errors.frame.numpy(), errors.cell.numpy()
    error, variance = errors.error.double().numpy(), errors.variance.double().numpy()
    has_depth, num_frames = np.isfinite(error), len(earlier)
    start = np.searchsorted(frame, np.arange(num_frames + 1))
    own, count, shared = np.full(num_frames, np.nan), np.zeros(num_frames), []
    for number, before in enumerate(earlier.tolist()):
        mine = slice(int(start[number]), int(start[number + 1]))
        known = _well_known(variance[mine], has_depth[mine], before)
        if known is None:
            continue
        own[number] = _spread(error[mine][known], variance[mine][known])
        limit = MAX_SIGMAS * own[number]
        shared.append(shared_variance(np.clip(error[mine][known], -limit, limit), cell[mine][known]))
        count[number] = known.sum()
    spread = _shrunk(own, count)
    correlation = float(np.clip(np.median(shared), 0.0, 1.0)) if shared else 1.0
    num_depths = np.bincount(frame[has_depth], minlength=num_frames)
    crowd = 1 + np.maximum(num_depths / (CELLS[0] * CELLS[1]) - 1, 0) * correlation
    told = _told(errors.nearness.double().numpy(), has_depth, start, spread)
    surprise = error**2 / (spread[frame] ** 2 + variance)
    weight = told[frame] / (1 + surprise / CAUCHY**2) / (spread[frame] ** 2 * crowd[frame])
    return DepthTrust(torch.from_numpy(spread), correlation, torch.from_numpy(np.where(has_depth, weight, 0.0)))


def _told(
    nearness: Float64[np.ndarray, " A"],
    has_depth: Bool[np.ndarray, " A"],
    start: Int64[np.ndarray, " N1"],
    spread: Float64[np.ndarray, " N"],
) -> Float64[np.ndarray, " N"]:
    """Share of what a map tells apart that is not its error.

    A map without relief knows nothing. As a prior it would flatten the scene, and the flatter that is, the better it
    would seem to fit.
    """
    relief = np.zeros(len(spread))
    for number in range(len(spread)):
        mine = slice(int(start[number]), int(start[number + 1]))
        values = nearness[mine][has_depth[mine]]
        if len(values):
            middle = float(np.median(values))
            relief[number] = MAD_TO_SIGMA * float(np.median(np.abs(values - middle))) / middle
    return relief**2 / (relief**2 + spread**2)


def _well_known(
    variance: Float64[np.ndarray, " M"], has_depth: Bool[np.ndarray, " M"], spread: float
) -> Bool[np.ndarray, " M"] | None:
    """Anchors whose depth matches know far better than the map, else the best known share; None if there are few."""
    if has_depth.sum() < MIN_KNOWN:
        return None
    known = has_depth & (variance < (0.5 * spread) ** 2)
    if known.sum() < MIN_KNOWN:
        known = has_depth & (variance <= np.quantile(variance[has_depth], KNOWN_SHARE))
    return known


def _spread(error: Float64[np.ndarray, " M"], variance: Float64[np.ndarray, " M"]) -> float:
    """Spread of the errors beyond what matches explain."""
    total = (MAD_TO_SIGMA * float(np.median(np.abs(error)))) ** 2 - float(np.median(variance))
    return float(np.sqrt(max(total, SPREAD_RANGE[0] ** 2)))


def _shrunk(own: Float64[np.ndarray, " N"], count: Float64[np.ndarray, " N"]) -> Float64[np.ndarray, " N"]:
    """Spread of each frame, drawn to the common one where few depths could be compared."""
    measured = np.isfinite(own)
    common = float(np.median(own[measured])) if measured.any() else 3 * FIRST_SPREAD
    logarithm = np.log(np.where(measured, own, common))
    share = count / (count + MIN_KNOWN)
    return np.clip(np.exp(share * logarithm + (1 - share) * np.log(common)), *SPREAD_RANGE)


def cells_of(pixels: Float[Tensor, "M 2"], sizes: Float[Tensor, "M 2"]) -> Int[Tensor, " M"]:
    """Cell of each pixel of an image of the given size."""
    grid = torch.tensor(CELLS)
    place = (pixels / sizes * grid).long().clamp_min(0).minimum(grid - 1)
    return place[:, 1] * CELLS[0] + place[:, 0]


def shared_variance(values: Float64[np.ndarray, " M"], cell: Int64[np.ndarray, " M"]) -> float:
    """Share of the variance that values of one cell have in common (intraclass correlation); 0 if independent."""
    number = np.unique(cell, return_inverse=True)[1]
    members = np.bincount(number)
    cells, count = len(members), len(values)
    if cells < 2 or count <= cells:
        return 1.0
    mean = np.bincount(number, values) / members
    between = float((members * (mean - values.mean()) ** 2).sum()) / (cells - 1)
    within = float(((values - mean[number]) ** 2).sum()) / (count - cells)
    typical = (count - float((members**2).sum()) / count) / (cells - 1)
    return (between - within) / max(between + (typical - 1) * within, 1e-300)
