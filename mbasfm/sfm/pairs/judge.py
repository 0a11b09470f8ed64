"""The verdict on every pair from two witnesses: the strength with which its matches agree, and the order of depth.

Depth testifies whether what matches triangulate to is near and far where the map says so. Only the order counts
(Spearman), so that scale, shift and any monotone error of a map drop out. What order comes about by chance is read off
these photographs: maps that are shifted and mirrored against the matches keep what all photographs have in common, such
as a ground that is near and below.

What either says about right and about wrong pairs differs from photographs to photographs, between matchers and between
depth networks. Both are read off the run itself, as a mixture of two kinds of pairs (EM; Dempster, Laird & Rubin 1977).
Wrong pairs have the depth order of maps that were moved, and strengths as chance brings them with these matches.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool, Float32, Float64, Int64
from scipy.special import expit
from scipy.stats import rankdata

from mbasfm.estimators.two_view import LN_10, MIN_INLIER_RATIO, MIN_INLIERS, stands_alone
from mbasfm.geometry.camera import inverse_depth_error, triangulated_inverse_depth, values_at
from mbasfm.geometry.rigid import invert
from mbasfm.objective.losses import MAD_TO_SIGMA
from mbasfm.types.observations import DepthEstimate, Keypoints, TwoView

SHIFTS = (0.25, 0.375, 0.5, 0.625, 0.75)
MIRRORED_SHIFTS = (0.0, 0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875)
"""By how many widths a map, or its mirror image, is moved sideways to see what chance brings."""
MIN_POINTS, MAX_POINTS = 8, 200
"""Fewer have no order worth the name; more cost time and say the same."""
MATCH_PX = 1.0
"""Error of a match [px at a long side of 1024]."""
MIN_RELIEF = 3.0
"""Spread of triangulated inverse depth from which its order means something, in errors of it."""
MIN_DEPTH_SPREAD = 0.02
"""Relative spread of a depth map at the matches; with less it is flat."""
MAX_CORRELATION = 0.999
SILENT = (np.nan, np.nan, np.nan, np.nan)
PRIOR_PAIRS = 3.0
"""So many pairs of either kind, as in ``PRIOR``, are imagined beside those of the run when looks are found."""
LIES = 0.01
"""Share of right pairs whose depth is in no order, and of wrong ones whose depth is: it bounds what depth can say."""
ODD_SHARE, WIDEST_ORDER = 0.1, 3.8
ODD_DENSITY = ODD_SHARE * np.sqrt(2 * np.pi) / (2 * WIDEST_ORDER)
"""Some orders have nothing to do with the rest of their kind and may be anything that Fisher's z can be."""
MIN_ORDER_SIGMA = 0.5
"""Depth is not equally good in all photographs, however few of them there are."""
VETO_SIGMAS, REVERSED_SIGMAS = 3.0, 2.0
"""An order is reversed where no right pair of the run has it, and no shift of the map makes it positive."""
TWIN_LOG10 = 1.0
"""How much more likely depth must make one of a plane's two poses to decide."""
MIN_LOG10_ODDS = -1.0
"""Of pairs that triangles may still judge; less is hopeless."""
ROUNDS = 30
MOST_CHANCE = 20.0
"""Largest start and tail: chance brings no more, whatever a depth that is in no order says. Wrong pairs have tails of 3
(tum_fr3_cabinet58) to 18 (dup_street19)."""
MEDIAN_OF_TAIL, SPREAD_OF_TAIL = np.log(2.0), 0.4812
"""Median, and median absolute deviation from it, of an exponential distribution of length 1."""


@dataclass(frozen=True)
class DepthOrders:
    """Rank correlations of triangulated inverse depth with nearness by the depth map, as Fisher's z.

    One row per pair, one column for i and for j; NaN where depth, or triangulation, says too little.
    """

    found: Float64[np.ndarray, "P 2"]
    chance: Float64[np.ndarray, "P 2"]
    """Mean with maps that were moved."""
    chance_sigma: Float64[np.ndarray, "P 2"]
    error: Float64[np.ndarray, "P 2"]
    """Standard deviation from the number of points alone."""


class DepthWitness:
    """All that is needed to ask depth about a pose of a pair."""

    def __init__(
        self,
        keypoints: Sequence[Keypoints],
        depths: Sequence[DepthEstimate],
        sizes: Int64[np.ndarray, "N 2"],
        rays: Sequence[Float64[np.ndarray, "_ 3"]],
        focal: Float64[np.ndarray, " N"],
    ):
        """Look depth up at all keypoints. Rays have z = 1; focal lengths are those at a long side of 1024."""
        self._nearness = [
            nearness_of(points.pixels, size, depth)
            for points, size, depth in zip(keypoints, sizes, depths, strict=True)
        ]
        self._rays, self._error = rays, MATCH_PX / focal
        self._asked: dict[int, tuple[TwoView, list[tuple[float, float, float, float]]]] = {}

    def ask(self, views: Sequence[TwoView]) -> DepthOrders:
        """Agreement of depth with the pose of every pair; the same object is asked once."""
        for view in views:
            if id(view) not in self._asked:
                self._asked[id(view)] = view, self._ask(view)
        rows = [self._asked[id(view)][1] for view in views]
        found, chance, sigma, error = np.array(rows).reshape(-1, 2, 4).transpose(2, 0, 1)
        # The spread over few moved maps is itself uncertain: half of what counts is the usual one.
        variance = sigma**2
        usual = np.nanmedian(variance) if np.isfinite(variance).any() else 1.0
        return DepthOrders(found, chance, np.sqrt((variance + usual) / 2), error)

    def _ask(self, view: TwoView) -> list[tuple[float, float, float, float]]:
        chosen = np.linspace(0, view.num_inliers - 1, min(view.num_inliers, MAX_POINTS)).astype(np.int64)
        first, second = view.matches[chosen].T
        rays_i, rays_j = self._rays[view.i][first], self._rays[view.j][second]
        j_from_i = torch.from_numpy(view.j_from_i)
        seen_in_i = j_from_i, torch.from_numpy(rays_i), torch.from_numpy(rays_j)
        seen_in_j = invert(j_from_i), seen_in_i[2], seen_in_i[1]
        return [
            _compare(seen_in_i, self._error[view.j], self._nearness[view.i][:, first]),
            _compare(seen_in_j, self._error[view.i], self._nearness[view.j][:, second]),
        ]


def _compare(
    seen: tuple[torch.Tensor, torch.Tensor, torch.Tensor], match_error: float, nearness: Float32[np.ndarray, "K M"]
) -> tuple[float, float, float, float]:
    """The order of triangulated depth and of the map, for (other_from_own, own rays, other's rays)."""
    inverse, per_unit = triangulated_inverse_depth(*seen).numpy(), inverse_depth_error(*seen).numpy()
    return compare_orders(inverse, per_unit * match_error, nearness)


def nearness_of(
    pixels: Float32[np.ndarray, "M 2"], size: Int64[np.ndarray, " 2"], depth: DepthEstimate
) -> Float32[np.ndarray, "K M"]:
    """Inverse depth by the map at the pixels, up to a monotone change; further rows are of maps that were moved."""
    x, y = (pixels / size.astype(np.float32)).T
    moved = [x, *((x + shift) % 1 for shift in SHIFTS), *((shift - x) % 1 for shift in MIRRORED_SHIFTS)]
    values = np.stack([values_at(depth.values, np.column_stack([place, y])) for place in moved])
    values = np.where(values > 0, values, np.nan).astype(np.float32)
    return values if depth.is_disparity else 1 / values


def compare_orders(
    inverse: Float64[np.ndarray, " M"], error: Float64[np.ndarray, " M"], nearness: Float32[np.ndarray, "K M"]
) -> tuple[float, float, float, float]:
    """Fisher's z of the rank correlation, mean and spread with moved maps, and error; NaN where nothing can be said."""
    known = np.isfinite(inverse) & np.isfinite(nearness).all(0)
    if known.sum() < MIN_POINTS:
        return SILENT
    inverse, error, nearness = inverse[known], error[known], nearness[:, known]
    far, middle, near = np.quantile(nearness[0], (0.1, 0.5, 0.9))
    relief = MAD_TO_SIGMA * np.median(np.abs(inverse - np.median(inverse)))
    if near - far < MIN_DEPTH_SPREAD * middle or relief < MIN_RELIEF * np.median(np.abs(error)):
        return SILENT
    z = np.arctanh(np.clip(rank_correlations(inverse, nearness), -MAX_CORRELATION, MAX_CORRELATION))
    return float(z[0]), float(z[1:].mean()), float(z[1:].std(ddof=1)), float(1 / np.sqrt(len(inverse) - 3))


def rank_correlations(one: Float64[np.ndarray, " M"], many: Float32[np.ndarray, "K M"]) -> Float64[np.ndarray, " K"]:
    """Spearman's correlation of one series with each of many; zero where a series is constant."""
    first, others = rankdata(one), rankdata(many, axis=1)
    first, others = first - first.mean(), others - others.mean(1, keepdims=True)
    scale = np.linalg.norm(first) * np.linalg.norm(others, axis=1)
    return others @ first / np.maximum(scale, 1e-12)


@dataclass(frozen=True)
class Law:
    """What right and wrong pairs of a run look like."""

    right_share: float
    chance_start: float
    chance_tail: float
    """The strength of wrong pairs begins about here, and has an exponential tail of this length."""
    most_strength: float
    """Right pairs have all strengths up to this, evenly in the logarithm."""
    order: float
    """Mean of Fisher's z of the depth order of right pairs."""
    order_sigma: float


PRIOR = Law(0.5, 0.0, MIN_INLIERS * MIN_INLIER_RATIO**2, 100.0, 1.5, 0.75)
"""Wrong pairs are as strong as verification just lets pass; the depth order of right ones is 0.6 to 0.98."""
PRIOR_STRENGTHS = -PRIOR.chance_tail * np.log(1 - np.array([0.125, 0.375, 0.625, 0.875]))
"""Some wrong pairs as the prior has them."""


@dataclass(frozen=True)
class Verdict:
    """Pairs that are believed, and how much."""

    views: list[TwoView]
    log10_odds: dict[tuple[int, int], float]
    """That a pair is right, by all witnesses; of all pairs, believed or not."""
    log10_depth: dict[tuple[int, int], float]
    """What depth has added to that; 0 where it is silent."""
    law: Law
    turned: int
    """Planes whose other pose was taken."""
    reversed: int
    """Pairs left out because their depth is in reversed order."""
    doubtful: int
    """Other pairs left out."""


def judge_pairs(views: Sequence[TwoView], witness: DepthWitness) -> Verdict:
    """Choose poses of planes by depth where it can tell, and leave out pairs that are wrong more likely than right.

    A pair that stands alone and that depth says nothing about is left to its triangles.
    """
    settled = settle_twins(views, witness)
    answers = witness.ask(settled)
    # What has chosen a pose is no witness of it.
    orders = _silenced(answers, np.array([view.is_by_depth for view in settled], dtype=bool))
    strength = strengths_of(settled)
    law = find_law(strength, orders)
    depth = depth_log_ratio(orders, law) / LN_10
    odds = _log_odds(strength, orders, law) / LN_10
    speaks = np.isfinite(answers.found).any(1)
    is_reversed = _is_reversed(answers, law)
    alone = np.array([stands_alone(view) for view in settled], dtype=bool)
    kept = ~is_reversed & np.where(alone, (odds > MIN_LOG10_ODDS) | ~speaks, (odds > 0) & (depth > 0))
    pairs = [(view.i, view.j) for view in settled]
    return Verdict(
        [settled[number] for number in np.flatnonzero(kept).tolist()],
        dict(zip(pairs, odds.tolist(), strict=True)),
        dict(zip(pairs, depth.tolist(), strict=True)),
        law,
        sum(new.j_from_i is not old.j_from_i for new, old in zip(settled, views, strict=True)),
        int(is_reversed.sum()),
        int((~kept & ~is_reversed).sum()),
    )


def _silenced(orders: DepthOrders, silent: Bool[np.ndarray, " P"]) -> DepthOrders:
    """Orders, but none of some pairs."""
    return replace(orders, found=np.where(silent[:, None], np.nan, orders.found))


def strengths_of(views: Sequence[TwoView]) -> Float64[np.ndarray, " P"]:
    """Strength, or -log10 of the false alarms if that is less: matches along a line, or in one spot, agree easily."""
    return np.array([min(view.strength, max(-view.log10_false_alarms, 0.0)) for view in views], dtype=np.float64)


def settle_twins(views: Sequence[TwoView], witness: DepthWitness) -> list[TwoView]:
    """Give pairs that see one plane the pose that depth prefers; where it does not, both stay."""
    planes = [number for number, view in enumerate(views) if view.rival is not None]
    first = [views[number] for number in planes]
    second = [_turned(view) for view in first]
    gain = depth_log_ratio(witness.ask(second), PRIOR) - depth_log_ratio(witness.ask(first), PRIOR)
    settled = list(views)
    for number, one, other, by in zip(planes, first, second, (gain / LN_10).tolist(), strict=True):
        if abs(by) > TWIN_LOG10:
            settled[number] = replace(other if by > 0 else one, rival=None)
    return settled


def _turned(view: TwoView) -> TwoView:
    """The pair with its other pose."""
    return view if view.rival is None else replace(view, j_from_i=view.rival, rival=view.j_from_i)


def depth_log_ratio(orders: DepthOrders, law: Law) -> Float64[np.ndarray, " P"]:
    """Log-likelihood ratio of right against wrong in the frame where it is lower; 0 where depth is silent."""
    found = np.minimum(orders.found, law.order)  # more than usual is not worse
    right = _normal(found, law.order, np.hypot(law.order_sigma, orders.error))
    wrong = (1 - ODD_SHARE) * _normal(found, orders.chance, orders.chance_sigma) + ODD_DENSITY
    ratio = np.log((1 - LIES) * right + LIES * wrong) - np.log((1 - LIES) * wrong + LIES * right)
    return np.nan_to_num(ratio).min(1, initial=np.inf)


def strength_log_ratio(strength: Float64[np.ndarray, " P"], law: Law) -> Float64[np.ndarray, " P"]:
    """Log-likelihood ratio of right against wrong by the strength of pairs; it never falls as strength grows."""
    beyond = np.maximum(strength - law.chance_start, 0.0) / law.chance_tail
    # Both densities are per length of the tail.
    return beyond - np.log1p(beyond) - np.log(np.log1p(law.most_strength / law.chance_tail))


def find_law(strength: Float64[np.ndarray, " P"], orders: DepthOrders) -> Law:
    """Most likely law of a run. Depth makes the first guess, as what strength is worth here is not known before."""
    law = replace(PRIOR, most_strength=float(strength.max(initial=PRIOR.most_strength)))
    speaks = np.isfinite(orders.found).all(1).astype(np.float64)
    law = _refit(strength, orders, law, expit(depth_log_ratio(orders, law)), speaks)
    for _ in range(ROUNDS):
        law = _refit(strength, orders, law, expit(_log_odds(strength, orders, law)), np.ones(len(strength)))
    return law


def _log_odds(strength: Float64[np.ndarray, " P"], orders: DepthOrders, law: Law) -> Float64[np.ndarray, " P"]:
    prior = np.log(law.right_share / (1 - law.right_share))
    return prior + strength_log_ratio(strength, law) + depth_log_ratio(orders, law)


def _refit(
    strength: Float64[np.ndarray, " P"],
    orders: DepthOrders,
    law: Law,
    right: Float64[np.ndarray, " P"],
    weight: Float64[np.ndarray, " P"],
) -> Law:
    """Law that fits best if pairs are right with these probabilities."""
    yes, no = weight * right, weight * (1 - right)
    # Strength alone cannot tell what chance brings: weak pairs would make each other wrong.
    start, tail = _tail_of(strength, no * np.isfinite(orders.found).any(1))
    found = np.nan_to_num(orders.found)
    usual = (1 - ODD_SHARE) * _normal(found, law.order, law.order_sigma)
    counts = np.isfinite(orders.found) * yes[:, None] / 2 * usual / (usual + ODD_DENSITY)
    order = _mean(found, counts, PRIOR.order)
    order_sigma = np.sqrt(_mean((found - order) ** 2, counts, PRIOR.order_sigma**2))
    share = _mean(right, weight, PRIOR.right_share)
    return replace(
        law,
        right_share=share,
        chance_start=start,
        chance_tail=tail,
        order=order,
        order_sigma=max(MIN_ORDER_SIGMA, float(order_sigma)),
    )


def _tail_of(strength: Float64[np.ndarray, " P"], weight: Float64[np.ndarray, " P"]) -> tuple[float, float]:
    """Start and length of an exponential tail. By medians: a few strong pairs are not what chance usually brings."""
    values = np.concatenate([strength, PRIOR_STRENGTHS])
    weight = np.concatenate([weight, np.full(len(PRIOR_STRENGTHS), PRIOR_PAIRS / len(PRIOR_STRENGTHS))])
    middle = _median(values, weight)
    tail = float(np.clip(_median(np.abs(values - middle), weight) / SPREAD_OF_TAIL, PRIOR.chance_tail, MOST_CHANCE))
    return float(np.clip(middle - MEDIAN_OF_TAIL * tail, 0.0, MOST_CHANCE)), tail


def _median(values: Float64[np.ndarray, " P"], weight: Float64[np.ndarray, " P"]) -> float:
    order = np.argsort(values, kind="stable")
    total = np.cumsum(weight[order])
    return float(values[order][np.searchsorted(total, total[-1] / 2)])


def _mean(values: np.ndarray, weight: np.ndarray, prior: float) -> float:
    return float(((weight * values).sum() + PRIOR_PAIRS * prior) / (weight.sum() + PRIOR_PAIRS))


def _normal(values: np.ndarray, mean: np.ndarray | float, sigma: np.ndarray | float) -> np.ndarray:
    """Density of a normal distribution times the square root of two pi."""
    return np.exp(-(((values - mean) / sigma) ** 2) / 2) / sigma


def _is_reversed(orders: DepthOrders, law: Law) -> Bool[np.ndarray, " P"]:
    """Whether depth is in reversed order in either frame, beyond what a right pair or chance explains."""
    lowest = min(0.0, law.order - VETO_SIGMAS * law.order_sigma)
    limit = np.minimum(lowest, -REVERSED_SIGMAS * orders.chance_sigma)
    return np.asarray((orders.found < limit).any(1))
