"""Distributions of residuals, the marginalized loss and score, and the rival robust losses (paper Sec. 3.2).

A distribution, a histogram over the whole graph or per group, gives the first-order solver the surrogate loss F(r)
with gradient p(r), and the second-order solver a table of weights w with gradient w(r) r. A rival loss is another way
to fill that table.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.optimize import isotonic_regression
from torch import Tensor

MAD_TO_SIGMA = 1.4826
"""Ratio of a Gaussian's sigma to the median of its absolute value."""
RAYLEIGH_TO_SIGMA = 0.8493
"""Ratio of a planar Gaussian's sigma to the median of its length."""


@dataclass(frozen=True)
class Binning:
    """T bins on [0, tau_max], uniform in r or, with ``log_scale`` s, uniform in log(1 + r / s).

    The paper's coarse residual log(1 + r) up to 10 is ``Binning(exp(10) - 1, log_scale=1)``.
    """

    tau_max: float
    """Upper end of the last bin [px]."""
    num_bins: int = 100
    log_scale: float | None = None
    """Scale of logarithmic bins [px]; None: uniform bins."""

    def coordinate(self, r: Float[Tensor, "*B"]) -> Float[Tensor, "*B"]:
        """Monotone map of [0, tau_max] to [0, T]; bins have width 1 there."""
        if self.log_scale is None:
            return r * (self.num_bins / self.tau_max)
        return torch.log1p(r * (1 / self.log_scale)) * (self.num_bins / np.log1p(self.tau_max / self.log_scale))

    def index(self, r: Float[Tensor, "*B"]) -> Int[Tensor, "*B"]:
        """Bin of each residual; T for those beyond tau_max, infinite ones and NaN."""
        # NaN fails the comparison inside clamp's min, so it is sent to T on purpose.
        return torch.nan_to_num(self.coordinate(r.detach()), nan=self.num_bins).clamp_(max=self.num_bins).int()

    def edges(self) -> Float[Tensor, " T1"]:
        """The T + 1 bin borders [px]."""
        uniform = torch.linspace(0, 1, self.num_bins + 1, dtype=torch.float64)
        if self.log_scale is None:
            return uniform * self.tau_max
        return torch.expm1(uniform * np.log1p(self.tau_max / self.log_scale)) * self.log_scale

    def centers(self) -> Float[Tensor, " T"]:
        """Middles of the bins [px]."""
        edges = self.edges()
        return 0.5 * (edges[1:] + edges[:-1])


@dataclass(frozen=True)
class Distribution:
    """Empirical distributions of G groups of residuals (paper eqn:CDF_function)."""

    binning: Binning
    counts: Float[Tensor, "G T"]
    """Mass of the residuals in each bin."""
    total: Float[Tensor, " G"]
    """Mass |R| of all residuals, including those beyond tau_max."""

    def density(self) -> Float[Tensor, "G T"]:
        """Density p as the slope of F per unit of bin coordinate: piecewise constant, exactly F'."""
        return self.counts / self.total.clamp_min(1e-30)[:, None]

    def cumulative(self) -> Float[Tensor, "G T1"]:
        """Values of F at the bin borders; piecewise linear (in the bin coordinate) between them."""
        return torch.nn.functional.pad(self.density().cumsum(-1), (1, 0))

    def quantile(self, q: float) -> Float[Tensor, " G"]:
        """Residual below which the share q of each group's residuals lies; tau_max where that is beyond."""
        cumulative = self.cumulative()
        upper = torch.searchsorted(cumulative, torch.full_like(self.total, q)[:, None], right=True).squeeze(-1)
        upper = upper.clamp(1, self.binning.num_bins)
        low, high = cumulative.gather(1, torch.stack([upper - 1, upper], 1)).unbind(1)
        part = ((q - low) / (high - low).clamp_min(1e-30)).clamp(0, 1)
        edges = self.binning.edges()
        return edges[upper - 1] + part * (edges[upper] - edges[upper - 1])

    def score(self) -> Float[Tensor, " G"]:
        """S^m / |R| (eqn:binary_scoring_funciton_thresholds): the area under F, here by the trapezoidal rule."""
        return torch.trapezoid(self.cumulative(), self.binning.edges(), dim=-1)


def fit_distribution(
    residuals: Float[Tensor, "E K"],
    weight: Float[Tensor, "E K"],
    binning: Binning,
    group: Int[Tensor, " E"] | None = None,
    num_groups: int = 1,
) -> Distribution:
    """Histogram of the residuals of each group of edges (all edges are one group without ``group``)."""
    counts = count_bins(binning.index(residuals), weight, binning.num_bins, group, num_groups)
    return distribution_from_counts(binning, counts)


def count_bins(
    index: Int[Tensor, "E K"],
    weight: Float[Tensor, "E K"],
    num_bins: int,
    group: Int[Tensor, " E"] | None = None,
    num_groups: int = 1,
) -> Float[Tensor, "G T1"]:
    """Mass per group and bin; the last column holds the mass beyond tau_max."""
    width = num_bins + 1
    flat = index if group is None else index + (group * width)[:, None]
    counts = torch.bincount(flat.reshape(-1), weight.reshape(-1), minlength=num_groups * width)
    return counts.double().view(num_groups, width)


def add_bins(
    counts: Float[Tensor, "G T1"],
    index: Int[Tensor, "E K"],
    weight: Float[Tensor, "E K"],
    group: Int[Tensor, " E"] | None = None,
) -> None:
    """Add the masses of a block of edges in place; only groups that occur in it are touched."""
    num_bins = counts.shape[1] - 1
    if group is None:
        counts += count_bins(index, weight, num_bins)
        return
    present, number = group.unique(return_inverse=True)
    counts.index_add_(0, present, count_bins(index, weight, num_bins, number, len(present)))


def distribution_from_counts(binning: Binning, counts: Float[Tensor, "G T1"]) -> Distribution:
    """Distribution from the masses of count_bins, whose last column counts only in the total."""
    return Distribution(binning, counts[:, :-1], counts.sum(-1))


def robust_sigma(distribution: Distribution, dimension: int) -> Float[Tensor, " G"]:
    """Scale of a Gaussian with the same median."""
    median = distribution.quantile(0.5).clamp_min(float(distribution.binning.edges()[1]))
    return median * (MAD_TO_SIGMA if dimension == 1 else RAYLEIGH_TO_SIGMA)


MIXTURE_SIZE = 8
MIXTURE_STEPS = 40


def surrogate_loss(
    residuals: Float[Tensor, "E K"], distribution: Distribution, group: Int[Tensor, " E"] | None = None
) -> Float[Tensor, "E K"]:
    """F(min(r, tau_max)) of each residual, with the distribution held fixed; its derivative is p(r), and 0 beyond.

    The paper prints -F (eqn:fine_forward) and the gradient -p (eqn:fine_backward). Minimising that makes residuals
    grow; what has to be minimised is +F.
    """
    num_bins = distribution.binning.num_bins
    inside = distribution.binning.index(residuals) < num_bins
    # Outliers leave the graph before any arithmetic: 0 * inf would poison the gradient.
    coordinate = distribution.binning.coordinate(residuals.where(inside, torch.zeros_like(residuals)))
    index = coordinate.detach().long().clamp_max(num_bins - 1)
    if group is not None:
        index = index + (group * num_bins)[:, None]
    density = distribution.density().to(residuals).flatten()[index]
    start = distribution.cumulative()[:, :-1].to(residuals).flatten()[index]
    inlier = start + density * (coordinate - coordinate.detach().floor().clamp_max(num_bins - 1))
    last = distribution.cumulative()[:, -1].to(residuals)
    outlier = last[:1, None] if group is None else last[group][:, None]
    return inlier.where(inside, outlier)


def marginalized_score(residuals: Float[Tensor, "*B"], tau_max: float) -> Float[Tensor, ""]:
    """Score S^m / |R| = mean max(0, tau_max - r), for reports and for choosing between hypotheses, not for descent.

    Its exact gradient is that of a truncated L1 norm, another estimator than the surrogate.
    """
    return (tau_max - residuals).clamp_min(0).nan_to_num(nan=0).mean()


def score_sum(residuals: Float[Tensor, "E K"], tau_max: float) -> float:
    """Sum of the scores of all residuals [px], without gradients."""
    return float(marginalized_score(residuals.detach(), tau_max)) * residuals.numel()


# ----------------------------------------------------------------------------------------------------------------
# Weights of iteratively re-weighted least squares


@dataclass(frozen=True)
class WeightTable:
    """A robust loss per group as a quadratic spline: weight w_b on bin b, so that loss' = w(r) r.

    With non-increasing weights the re-weighted quadratic majorises the loss (it is concave in r^2).
    """

    binning: Binning
    weight: Float[Tensor, "G T1"]
    """Weights; zero in the last column, which stands for all residuals beyond tau_max."""
    offset: Float[Tensor, "G T1"]
    """Offsets in loss(r) = offset + w r^2 / 2; constant beyond tau_max, where the loss saturates."""

    def slots(self, index: Int[Tensor, "E K"], group: Int[Tensor, " E"] | None = None) -> Int[Tensor, " M"]:
        """Flat positions in the table, for looking up weight and offset."""
        if group is not None:
            index = index + (group * self.weight.shape[1])[:, None]
        return index.reshape(-1)

    def loss(self, residuals: Float[Tensor, "E K"], group: Int[Tensor, " E"] | None = None) -> Float[Tensor, "E K"]:
        """Frozen, saturating loss of each residual, by which a step is judged."""
        slots = self.slots(self.binning.index(residuals), group)
        weight = self.weight.to(residuals).flatten()[slots].view_as(residuals)
        offset = self.offset.to(residuals).flatten()[slots].view_as(residuals)
        return offset + 0.5 * weight * residuals.where(weight > 0, torch.zeros_like(residuals)).square()


def signed_loss(table: WeightTable, residuals: Float[Tensor, "E K"]) -> Float[Tensor, "E K"]:
    """Loss of each signed residual; infinite ones saturate without touching the gradient."""
    finite = residuals.isfinite()
    size = residuals.where(finite, torch.zeros_like(residuals)).abs()
    return table.loss(size.where(finite, torch.full_like(size, table.binning.tau_max)))


def score_table(table: WeightTable, dimension: int) -> WeightTable:
    """Table with weights (w r)^2 / d, the mean square of the gradient over directions."""
    inside = (table.weight[:, :-1] * table.binning.centers()).square() / dimension
    return replace(table, weight=torch.nn.functional.pad(inside, (0, 1)))


def curvature_table(table: WeightTable, dimension: int, sign: float) -> WeightTable:
    """Table with the positive (or, with sign -1, negated negative) part of w + w' r / d as weights.

    That is the mean curvature of the loss over directions.
    """
    center, inside = table.binning.centers(), table.weight[:, :-1]
    slope = torch.gradient(inside, spacing=(center,), dim=1)[0]
    curvature = inside + slope * center / dimension
    return replace(table, weight=torch.nn.functional.pad((sign * curvature).clamp_min(0), (0, 1)))


def table_from_weights(binning: Binning, weight: Float[Tensor, "G T"]) -> WeightTable:
    """Table of the loss that integrates w(r) r over the bins."""
    squared = binning.edges().square()
    steps = 0.5 * weight * (squared[1:] - squared[:-1])
    start = torch.nn.functional.pad(steps.cumsum(-1), (1, 0))
    padded = torch.nn.functional.pad(weight, (0, 1))
    return WeightTable(binning, padded, start - 0.5 * padded * squared)


def non_increasing(weight: Float[Tensor, "G T"], mass: Float[Tensor, " T"]) -> Float[Tensor, "G T"]:
    """Nearest non-increasing rows in the norm weighted by ``mass``; row sums of weight * mass stay as they are."""
    rows = [isotonic_regression(row, weights=mass.numpy(), increasing=False).x for row in weight.numpy()]
    return torch.from_numpy(np.stack(rows)).clamp_min_(0)


def density_weights(distribution: Distribution, dimension: int) -> Float[Tensor, "G T"]:
    """Weights w = p(r) / r, for plane vectors (up to 2 pi) their own density (eqn:fine_backward as weights)."""
    edges = distribution.binning.edges()
    area = 0.5 * (edges[1:] ** 2 - edges[:-1] ** 2)  # = bin width * bin centre
    return non_increasing(distribution.density() / area, area)


def median_weights(distribution: Distribution, dimension: int) -> Float[Tensor, "G T"]:
    """Weights w = p(|e|) / sigma with a robust sigma: less noisy near zero than p / |e| where |e| is 1-D."""
    width = distribution.binning.edges().diff()
    density = non_increasing(distribution.density() / width, width)
    return density / robust_sigma(distribution, dimension)[:, None]


def mixture_weights(distribution: Distribution, dimension: int) -> Float[Tensor, "G T"]:
    """Weights of a scale mixture of centred Gaussians and a uniform background, fitted to the histogram by EM.

    w = sum_m gamma_m(r) / sigma_m^2 [px^-2]: non-increasing, hence a majoriser, and smooth although bins are noisy.
    """
    edges = distribution.binning.edges()
    sigma = _mixture_sigmas(distribution, dimension)
    low, high = edges[:-1, None] / sigma[:, None, :], edges[1:, None] / sigma[:, None, :]
    if dimension == 1:
        mass = torch.erf(high / 2**0.5) - torch.erf(low / 2**0.5)
    else:
        mass = torch.exp(-0.5 * low**2) - torch.exp(-0.5 * high**2)
    uniform = (edges**dimension).diff() / edges[-1] ** dimension
    mass = torch.cat([mass, uniform[None, :, None].expand(len(mass), -1, 1)], -1).clamp_min_(1e-300)
    share = torch.full_like(mass[:, :1], 1 / mass.shape[-1])
    counts = distribution.counts / distribution.counts.sum(-1, keepdim=True).clamp_min(1e-30)
    for _ in range(MIXTURE_STEPS):
        joint = share * mass
        share = (counts[..., None] * joint / joint.sum(-1, keepdim=True).clamp_min(1e-300)).sum(1, keepdim=True)
    center = distribution.binning.centers()
    height = torch.exp(-0.5 * (center[:, None] / sigma[:, None, :]) ** 2) / sigma[:, None, :] ** dimension
    # Density at r relative to a common constant, so that the uniform part compares with the Gaussians.
    constant = (2 / np.pi) ** 0.5 if dimension == 1 else 1.0
    background = 1 / (edges[-1] * constant) if dimension == 1 else 2 / edges[-1] ** 2
    joint = share[..., :-1] * height
    total = joint.sum(-1) + share[..., -1] * background
    return (joint / sigma[:, None, :] ** 2).sum(-1) / total.clamp_min(1e-300)


def _mixture_sigmas(distribution: Distribution, dimension: int) -> Float[Tensor, "G M"]:
    """Sigmas of the components, log-spaced from below that of good residuals to the truncation.

    Plane residuals of which something else absorbs one component pile up near 0, where narrow components would follow.
    """
    # A quarter of all residuals are good ones even where most are outliers.
    size = distribution.quantile(0.5) * 0.1 if dimension == 1 else distribution.quantile(0.25) * 0.8
    low = size.clamp_min(float(distribution.binning.edges()[1]) * (0.1 if dimension == 1 else 0.5))
    high = torch.full_like(low, 0.5 * distribution.binning.tau_max)
    steps = torch.linspace(0, 1, MIXTURE_SIZE, dtype=torch.float64)
    return torch.exp(torch.lerp(low.minimum(0.2 * high).log()[:, None], high.log()[:, None], steps))


def _rival(weight: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Callable[[Distribution, int], Tensor]:
    """A classical loss from its weight as a function of r, sigma and tau_max, evaluated at the bin centres."""

    def weights(distribution: Distribution, dimension: int) -> Float[Tensor, "G T"]:
        center, sigma = distribution.binning.centers(), robust_sigma(distribution, dimension)[:, None]
        return weight(center.expand(len(sigma), -1), sigma, distribution.binning.edges()[-1])

    return weights


# Tuning constants for 95 % efficiency under Gaussian noise, the usual choice of the robust-statistics literature.
LOSSES: dict[str, Callable[[Distribution, int], Tensor]] = {
    "mba": density_weights,
    "median": median_weights,
    "mixture": mixture_weights,
    "l2": _rival(lambda r, sigma, tau: sigma**-2 * torch.ones_like(r)),
    "soft_l1": _rival(lambda r, sigma, tau: sigma**-2 / (1 + (r / (1.345 * sigma)) ** 2).sqrt()),
    "cauchy": _rival(lambda r, sigma, tau: sigma**-2 / (1 + (r / (2.385 * sigma)) ** 2)),
    "tukey": _rival(lambda r, sigma, tau: sigma**-2 * (1 - (r / (4.685 * sigma)) ** 2).clamp_min(0) ** 2),
    "truncated_l1": _rival(lambda r, sigma, tau: 1 / (r * tau)),
}
"""Weights (G, T) as a function of a distribution and the dimension of the residual (1 or 2)."""


def fit_weights(distribution: Distribution, loss: str, dimension: int) -> WeightTable:
    """Table of a loss, fitted to the distribution of the present residuals."""
    return table_from_weights(distribution.binning, LOSSES[loss](distribution, dimension))
