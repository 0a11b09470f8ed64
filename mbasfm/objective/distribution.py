"""Residual distributions: histograms over the whole graph or per group (paper Sec. 3.2)."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
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
