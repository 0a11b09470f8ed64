"""Closed forms and laws of residual distributions, the marginalized loss, and the tables of weights."""

import math

import pytest
import torch
from helpers import assert_close
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from mbasfm.objective.losses import (
    LOSSES,
    Binning,
    Distribution,
    fit_distribution,
    fit_weights,
    marginalized_score,
    mixture_weights,
    non_increasing,
    robust_sigma,
    surrogate_loss,
    table_from_weights,
)

TAU = 20.0
BINNINGS = {
    "linear": Binning(TAU),
    "few": Binning(3.7, 7),
    "log": Binning(1000.0, 100, log_scale=0.2),
    "coarse": Binning(math.expm1(10.0), 100, log_scale=1.0),
}
ADAPTIVE = ("mba", "median", "mixture")
all_binnings = pytest.mark.parametrize("binning", BINNINGS.values(), ids=BINNINGS.keys())


def double(values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def uniform(seed: int, *shape: int) -> torch.Tensor:
    return torch.rand(*shape, generator=seeded(seed), dtype=torch.float64)


def normal(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


def fit(residuals: torch.Tensor, binning: Binning, **options) -> Distribution:
    """With weight 1 for all."""
    return fit_distribution(residuals, torch.ones_like(residuals), binning, **options)


def cumulative_at(distribution: Distribution, r: torch.Tensor) -> torch.Tensor:
    """F of the first group by its definition: linear in the bin coordinate between the borders."""
    coordinate = distribution.binning.coordinate(r)
    lower = coordinate.long().clamp_max(distribution.binning.num_bins - 1)
    values = distribution.cumulative()[0]
    return values[lower] + (coordinate - lower) * (values[lower + 1] - values[lower])


HISTOGRAMS = st.one_of(
    arrays(float, (2, 100), elements=st.floats(0, 1000)),
    st.integers(0, 99).map(lambda spike: torch.eye(100)[[spike, 99 - spike]].double().numpy()),
    st.just(torch.zeros(2, 100).double().numpy()),
).map(torch.from_numpy)


def from_counts(counts: torch.Tensor, beyond: float = 0.0, binning: Binning | None = None) -> Distribution:
    return Distribution(binning or BINNINGS["linear"], counts, counts.sum(-1) + beyond)


# Bins


@all_binnings
def test_borders_have_whole_coordinates(binning):
    edges = binning.edges()
    assert_close(binning.coordinate(edges), torch.arange(binning.num_bins + 1).double(), atol=1e-9)
    assert edges[0] == 0 and float(edges[-1]) == pytest.approx(binning.tau_max, rel=1e-12)
    assert (edges.diff() > 0).all()


@all_binnings
def test_index_is_the_bin_between_whose_borders_a_residual_lies(binning):
    r = uniform(0, 5000) ** 3 * binning.tau_max
    index, edges = binning.index(r).long(), binning.edges()
    assert (edges[index] <= r * (1 + 1e-12)).all() and (r <= edges[index + 1] * (1 + 1e-12)).all()
    assert_close(binning.coordinate(r).floor().long(), index)


@all_binnings
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_is_beyond_infinite_or_missing_has_the_last_index(binning, dtype):
    r = torch.tensor([binning.tau_max * (1 + 1e-6), 1e30, math.inf, math.nan], dtype=dtype)
    assert (binning.index(r) == binning.num_bins).all()
    assert binning.index(torch.zeros(1, dtype=dtype)) == 0


def test_tau_max_itself_is_beyond():
    assert BINNINGS["linear"].index(double([TAU, math.nextafter(TAU, 0)])).tolist() == [100, 99]


def test_logarithmic_bins_by_hand():
    # log(1 + r) up to 10 in 100 bins: the borders are exp(b / 10) - 1.
    assert_close(BINNINGS["coarse"].edges()[[1, 10, 50]], double([math.expm1(0.1), math.expm1(1), math.expm1(5)]))


# Distribution


@pytest.mark.parametrize("share", [1.0, 0.6])
def test_uniform_residuals_have_a_straight_cumulative(share):
    # A share of them evenly in [0, tau], the rest beyond: F(r) = share * r / tau.
    inside = (torch.arange(5000).double() + 0.5) / 5000 * TAU
    outside = torch.full((round(5000 * (1 / share - 1)),), 30.0).double()
    distribution = fit(torch.cat([inside, outside])[None], BINNINGS["linear"])
    r = uniform(0, 100) * TAU
    assert_close(cumulative_at(distribution, r), share * r / TAU, rtol=1e-3)
    assert_close(distribution.density(), torch.full((1, 100), share / 100).double(), rtol=1e-3)


@all_binnings
def test_cumulative_is_the_empirical_one_at_the_borders(binning):
    r = uniform(1, 1, 3000) ** 4 * 1.3 * binning.tau_max
    expected = (r[0] < binning.edges()[:, None]).double().mean(-1)
    assert_close(fit(r, binning).cumulative()[0], expected)


def test_weight_counts_as_mass():
    r = double([[1.0, 3.0, 3.1, 25.0]])
    twice = fit_distribution(r, double([[1.0, 2.0, 0.0, 2.0]]), BINNINGS["linear"])
    listed = fit(double([[1.0, 3.0, 3.0, 25.0, 25.0]]), BINNINGS["linear"])
    assert torch.equal(twice.counts, listed.counts) and torch.equal(twice.total, listed.total)
    assert float(twice.total) == 5 and float(twice.counts.sum()) == 3


def test_groups_are_fitted_as_if_alone():
    r, weight = uniform(0, 6, 50) * 30, uniform(1, 6, 50)
    group = torch.tensor([2, 0, 2, 0, 3, 2])
    together = fit_distribution(r, weight, BINNINGS["linear"], group, 4)
    for number in (0, 2, 3):
        alone = fit_distribution(r[group == number], weight[group == number], BINNINGS["linear"])
        assert_close(together.counts[number], alone.counts[0])
        assert_close(together.cumulative()[number], alone.cumulative()[0])
        assert_close(together.quantile(0.3)[number], alone.quantile(0.3)[0])
    assert (together.counts[1] == 0).all() and (together.density()[1] == 0).all() and together.total[1] == 0


@all_binnings
def test_density_is_the_derivative_of_the_cumulative(binning):
    distribution = fit(uniform(0, 1, 400) ** 3 * 1.2 * binning.tau_max, binning)
    middle = 0.5 * (binning.edges()[1:] + binning.edges()[:-1])
    step = 1e-3 * binning.edges().diff()
    rise = cumulative_at(distribution, middle + step) - cumulative_at(distribution, middle - step)
    run = binning.coordinate(middle + step) - binning.coordinate(middle - step)
    assert_close(rise / run, distribution.density()[0], atol=1e-9)


@all_binnings
@pytest.mark.parametrize("q", [0.1, 0.5, 0.9])
def test_quantile_is_within_a_bin_of_the_exact_one(binning, q):
    r = uniform(2, 1, 5000) ** 3 * binning.tau_max
    found, exact = fit(r, binning).quantile(q), torch.quantile(r, q)
    assert abs(float(binning.coordinate(found) - binning.coordinate(exact))) < 1.01


def test_quantile_of_evenly_spread_residuals_and_beyond_the_end():
    r = torch.cat([(torch.arange(600).double() + 0.5) / 600 * TAU, torch.full((400,), math.inf).double()])[None]
    distribution = fit(r, BINNINGS["linear"])
    assert_close(distribution.quantile(0.3), double([TAU / 2]))  # 0.3 of 1000 is the middle of the 600
    assert_close(distribution.quantile(0.9), double([TAU]))
    assert torch.equal(fit(r * torch.inf, BINNINGS["linear"]).quantile(0.5), double([TAU]))


# Surrogate loss


@all_binnings
def test_surrogate_is_the_cumulative_and_its_gradient_the_density(binning):
    seen = uniform(0, 1, 500) ** 3 * 1.3 * binning.tau_max
    distribution = fit(seen, binning)
    r = (uniform(1, 1, 300) ** 3 * binning.tau_max).requires_grad_()
    loss = surrogate_loss(r, distribution)
    assert_close(loss.detach()[0], cumulative_at(distribution, r.detach()[0]))
    (gradient,) = torch.autograd.grad(loss.sum(), r)
    # The slope of the bin coordinate: T / tau for even bins, T / (log(1 + tau / s) (s + r)) for logarithmic ones.
    if binning.log_scale is None:
        slope = torch.full_like(r, binning.num_bins / binning.tau_max)
    else:
        slope = binning.num_bins / (math.log1p(binning.tau_max / binning.log_scale) * (binning.log_scale + r))
    index = binning.index(r).long()[0]
    assert_close(gradient[0], distribution.density()[0][index] * slope.detach()[0])


def test_surrogate_saturates_beyond_tau_max_with_zero_gradient():
    distribution = fit(double([[1.0, 5.0, 30.0, math.inf]]), BINNINGS["linear"])
    r = double([[1.0, 19.999, TAU, 25.0, 1e30, math.inf, math.nan]]).requires_grad_()
    loss = surrogate_loss(r, distribution)
    (gradient,) = torch.autograd.grad(loss.sum(), r)
    assert_close(loss[0, 2:].detach(), torch.full((5,), 0.5).double())
    assert gradient.isfinite().all() and (gradient[0, 2:] == 0).all() and gradient[0, 0] > 0


def test_surrogate_takes_the_distribution_of_its_own_group():
    r, group = uniform(0, 4, 30) * 25, torch.tensor([1, 0, 1, 2])
    distribution = fit(r, BINNINGS["linear"], group=group, num_groups=3)
    together = surrogate_loss(r, distribution, group)
    for number in range(3):
        mine = group == number
        assert_close(together[mine], surrogate_loss(r[mine], fit(r[mine], BINNINGS["linear"])))


def descend(x: torch.Tensor, targets: torch.Tensor, sign: float, steps: int, rate: float) -> torch.Tensor:
    """Residuals |x - targets| after plain gradient descent on sign * F(r)."""
    for _ in range(steps):
        x = x.detach().requires_grad_()
        r = (x - targets).abs()
        loss = sign * surrogate_loss(r, fit(r.detach(), BINNINGS["linear"])).mean()
        x = x - rate * torch.autograd.grad(loss, x)[0]
    return (x.detach() - targets).abs()


def test_sign_of_the_loss_descent_shrinks_residuals():
    # Each residual has its own unknown: a step down the loss must make every inlier smaller and move no outlier.
    targets = torch.zeros(1, 200, dtype=torch.float64)
    start = torch.cat([0.1 + uniform(0, 1, 150) * 10, 30 + uniform(1, 1, 50) * 100], -1)
    after = descend(start, targets, 1.0, 1, 1.0)
    assert (after[:, :150] < start[:, :150]).all()
    assert torch.equal(after[:, 150:], start[:, 150:])
    assert (descend(start, targets, -1.0, 1, 1.0)[:, :150] > start[:, :150]).all()


def test_sign_of_the_loss_decides_between_convergence_and_divergence():
    # One unknown, the place of 70 % of the targets; the others are anywhere.
    targets = torch.cat([0.2 * normal(0, 1, 700), 200 * uniform(1, 1, 300) - 100], -1)
    start = double([[6.0]])
    before = (start - targets).abs().median()
    assert descend(start, targets, 1.0, 300, 3.0).median() < 0.1 * before
    assert descend(start, targets, -1.0, 300, 3.0).median() > 1.5 * before


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_value_after_refitting_says_nothing_but_the_share_of_inliers(share):
    # F of residuals is evenly spread in [0, F(tau)], so that the mean of F(r) 1[r < tau] is F(tau)^2 / 2 whatever they
    # are. A loss fitted anew to halved residuals is the same: values may be compared under one distribution only.
    r = uniform(0, 1, 20000) ** 2 * TAU / share**2
    values = []
    for residuals in (r, r * 0.5 if share == 1 else r):
        distribution = fit(residuals, BINNINGS["linear"])
        inlier_share = float(distribution.cumulative()[0, -1])
        value = float((surrogate_loss(residuals, distribution) * (residuals < TAU)).mean())
        assert value == pytest.approx(inlier_share**2 / 2, abs=1 / 100)
        values.append(value)
    assert values[0] == pytest.approx(values[1], abs=1 / 100)
    frozen = fit(r, BINNINGS["linear"])
    assert surrogate_loss(r * 0.5, frozen).mean() < 0.9 * surrogate_loss(r, frozen).mean()


def test_score_by_hand():
    assert float(marginalized_score(double([[5.0, 19.0, 20.0, 50.0], [0, math.inf, math.nan, 20]]), TAU)) == 4.5


@pytest.mark.parametrize("name", ["linear", "few"])
def test_score_is_the_mean_distance_to_tau_max(name):
    # The integral of F over [0, tau] is the mean of max(0, tau - r); bins move each residual by less than their width.
    binning = BINNINGS[name]
    r = uniform(3, 1, 4000) ** 2 * 2 * binning.tau_max
    score = marginalized_score(r, binning.tau_max)
    assert_close(score, (binning.tau_max - r).clamp_min(0).mean())
    assert float(fit(r, binning).score()) == pytest.approx(float(score), abs=0.5 * binning.tau_max / binning.num_bins)


def test_score_of_logarithmic_bins_is_right_to_a_bin():
    binning = BINNINGS["log"]
    r = uniform(3, 1, 4000) ** 2 * 2 * binning.tau_max
    widest = float(binning.edges().diff().max())
    assert float(fit(r, binning).score()) == pytest.approx(float(marginalized_score(r, binning.tau_max)), abs=widest)


# Tables of weights


def random_table(binning: Binning, groups: int = 1):
    return table_from_weights(binning, uniform(5, groups, binning.num_bins).sort(descending=True).values + 0.1)


@all_binnings
def test_derivative_of_the_table_is_weight_times_residual(binning):
    table = random_table(binning)
    r = (uniform(1, 1, 300) ** 3 * binning.tau_max).requires_grad_()
    (gradient,) = torch.autograd.grad(table.loss(r).sum(), r)
    assert_close(gradient[0], table.weight[0][binning.index(r).long()[0]] * r.detach()[0])


@all_binnings
def test_table_is_continuous_zero_at_zero_and_saturates(binning):
    table = random_table(binning)
    edges = binning.edges()[1:]
    below, above = table.loss((edges * (1 - 1e-9))[None]), table.loss((edges * (1 + 1e-9))[None])
    assert_close(below, above, atol=0, rtol=1e-6)
    assert float(table.loss(double([[0.0]]))) == 0
    far = double([[binning.tau_max * 1.001, 1e30, math.inf, math.nan]]).requires_grad_()
    loss = table.loss(far)
    assert_close(loss.detach(), below[:, -1:].expand(1, 4), rtol=1e-6)
    (gradient,) = torch.autograd.grad(loss.sum(), far)
    assert (gradient == 0).all()


def test_table_of_one_weight_is_half_the_square():
    table = table_from_weights(BINNINGS["linear"], torch.full((1, 100), 3.0).double())
    r = uniform(0, 2, 20) * TAU
    assert_close(table.loss(r), 1.5 * r**2, atol=1e-9)
    assert_close(table.loss(double([[99.0]])), double([[1.5 * TAU**2]]))


def test_table_takes_the_row_of_the_group():
    table, group = random_table(BINNINGS["linear"], 3), torch.tensor([2, 0])
    r = uniform(0, 2, 20) * 25
    for row, number in enumerate(group):
        alone = table_from_weights(table.binning, table.weight[number : number + 1, :-1])
        assert_close(table.loss(r, group)[row], alone.loss(r[row : row + 1])[0])


@given(HISTOGRAMS, st.sampled_from(ADAPTIVE), st.sampled_from([1, 2]), st.sampled_from([0.0, 50.0]))
def test_adaptive_weights_are_finite_and_non_increasing(counts, loss, dimension, beyond):
    weight = LOSSES[loss](from_counts(counts, beyond), dimension)
    assert weight.shape == counts.shape and weight.isfinite().all() and (weight >= 0).all()
    assert (weight.diff(dim=-1) <= 1e-9 * weight.amax(-1, keepdim=True)).all()


@given(HISTOGRAMS, st.sampled_from(ADAPTIVE), st.sampled_from([1, 2]), st.integers(0, 1000))
def test_reweighted_square_majorises_the_loss(counts, loss, dimension, seed):
    # loss(r) <= loss(r0) + w(r0) (r^2 - r0^2) / 2, with equality at r0: a step that lowers the square lowers the loss.
    table = fit_weights(from_counts(counts, 10.0), loss, dimension)
    r, start = uniform(seed, 2, 2, 100) * 1.2 * TAU
    group = torch.arange(2)
    at_start = table.loss(start, group)
    weight = table.weight.flatten()[table.slots(table.binning.index(start), group)].view_as(start)
    bound = at_start + 0.5 * weight * (r**2 - start**2)
    assert (bound >= table.loss(r, group) - 1e-9 * at_start.amax().clamp_min(1)).all()


@given(
    arrays(float, (2, 8), elements=st.floats(0, 10)),
    arrays(float, 8, elements=st.floats(0.1, 5)),
)
def test_non_increasing_is_the_nearest_and_keeps_the_mass(weight, mass):
    # The max-min formula: at b, the least over first <= b of the greatest over last >= b of the mean of first..last.
    weight, mass = torch.from_numpy(weight), torch.from_numpy(mass)
    result = non_increasing(weight, mass)
    for row, fitted in zip(weight, result, strict=True):
        for b in range(8):
            means = [
                [float((row * mass)[first : last + 1].sum() / mass[first : last + 1].sum()) for last in range(b, 8)]
                for first in range(b + 1)
            ]
            assert float(fitted[b]) == pytest.approx(min(max(row_means) for row_means in means), abs=1e-9)
    assert_close((result * mass).sum(-1), (weight * mass).sum(-1), atol=1e-9)
    assert (result.diff(dim=-1) <= 0).all()


def test_non_increasing_leaves_what_decreases():
    weight = torch.tensor([[5.0, 3, 3, 0]]).double()
    assert_close(non_increasing(weight, torch.ones(4).double()), weight)


def test_mba_weights_are_the_density_over_the_residual():
    # For a histogram that already falls: w at a bin's centre is p / r.
    counts = torch.arange(100, 0, -1).double()[None]
    weight = LOSSES["mba"](from_counts(counts), 2)
    center = (torch.arange(100).double() + 0.5) * TAU / 100
    density = counts[0] / counts.sum() / (TAU / 100)
    assert_close(weight[0], density / center)


def test_mba_weights_of_a_planar_gaussian_are_its_density():
    # p(r) = r / sigma^2 exp(-r^2 / 2 sigma^2), so that p / r falls as the density of the vector itself does.
    sigma = 4.0
    r = (sigma * normal(0, 1, 400_000, 2)).norm(dim=-1)
    weight = LOSSES["mba"](fit(r, BINNINGS["linear"]), 2)[0]
    center = (torch.arange(100).double() + 0.5) * TAU / 100
    expected = torch.exp(-0.5 * (center / sigma) ** 2) / sigma**2
    near = center < 2.5 * sigma
    assert_close(weight[near] / expected[near], torch.ones(int(near.sum())).double(), atol=0.1)


@pytest.mark.parametrize("dimension", [1, 2])
def test_mixture_weights_tell_noise_from_background(dimension):
    # Pure noise has the weight 1 / sigma^2. With a third of background the far residuals weigh next to nothing.
    sigma, binning = 0.5, BINNINGS["linear"]
    noise = sigma * normal(0, 1, 40_000, dimension).norm(dim=-1)
    pure = mixture_weights(fit(noise, binning), dimension)[0]
    near = slice(0, round(2 * sigma / TAU * 100))
    assert (pure[near] * sigma**2 < 2.5).all() and (pure[near] * sigma**2 > 1 / 2.5).all()
    background = TAU * uniform(1, 1, 20_000) ** (1 / dimension)
    mixed = mixture_weights(fit(torch.cat([noise, background], -1), binning), dimension)[0]
    assert (mixed[near] * sigma**2 < 2.5).all() and (mixed[near] * sigma**2 > 1 / 2.5).all()
    far = slice(round(6 * sigma / TAU * 100), 100)
    assert (mixed[far] < 0.02 * mixed[0]).all()


@pytest.mark.parametrize("dimension", [1, 2])
def test_mixture_loss_is_the_negative_logarithm_of_the_density(dimension):
    # w r = -(log f)', so that exp(-loss) is f up to a factor. Noise and background have known densities f per length
    # or per area: far out and at one sigma they compare as the background alone and both together.
    sigma, share, binning = 1.0, 0.5, Binning(TAU, 400)
    noise = sigma * normal(0, 1, 200_000, dimension).norm(dim=-1)
    background = TAU * uniform(1, 1, 200_000) ** (1 / dimension)
    table = fit_weights(fit(torch.cat([noise, background], -1), binning), "mixture", dimension)
    floor = share / (TAU if dimension == 1 else math.pi * TAU**2)
    top = (1 - share) * ((2 / math.pi) ** 0.5 / sigma if dimension == 1 else 1 / (2 * math.pi * sigma**2))
    near = floor + top * math.exp(-0.5)
    drop = float(table.loss(double([[0.9 * TAU]])) - table.loss(double([[sigma]])))
    assert math.exp(-drop) == pytest.approx(floor / near, rel=0.1)


@given(HISTOGRAMS, st.sampled_from([0.0, 50.0]))
def test_density_weights_keep_the_mass_of_the_distribution(counts, beyond):
    # The integral of w r is that of p: smoothing to a non-increasing weight adds nothing and takes nothing away.
    distribution = from_counts(counts, beyond)
    edges = distribution.binning.edges()
    share = distribution.cumulative()[:, -1]
    assert_close((LOSSES["mba"](distribution, 2) * edges.square().diff() / 2).sum(-1), share, atol=1e-9)
    density = LOSSES["median"](distribution, 1) * robust_sigma(distribution, 1)[:, None]
    assert_close((density * edges.diff()).sum(-1), share, atol=1e-9)


@pytest.mark.parametrize("dimension", [1, 2])
def test_sigma_of_a_gaussian_is_found_from_its_median(dimension):
    r = 2.5 * normal(0, 1, 100_000, dimension).norm(dim=-1)
    assert float(robust_sigma(fit(r, BINNINGS["linear"]), dimension)) == pytest.approx(2.5, rel=0.02)


TEXTBOOK = {
    # Weight at r, over that at 0, for a unit sigma.
    "l2": lambda r: 1.0,
    "soft_l1": lambda r: (1 + (r / 1.345) ** 2) ** -0.5,
    "cauchy": lambda r: 1 / (1 + (r / 2.385) ** 2),
    "tukey": lambda r: max(0.0, 1 - (r / 4.685) ** 2) ** 2,
}


@pytest.mark.parametrize("loss", TEXTBOOK)
def test_rival_losses_have_their_textbook_weights(loss):
    r = 2.0 * normal(0, 1, 50_000).abs()
    distribution = fit(r, BINNINGS["linear"])
    sigma = float(robust_sigma(distribution, 1))
    weight = LOSSES[loss](distribution, 1)[0]
    center = (torch.arange(100).double() + 0.5) * TAU / 100
    expected = double([TEXTBOOK[loss](float(c) / sigma) for c in center]) / sigma**2
    assert_close(weight, expected, rtol=1e-9)


def test_cauchy_weighs_half_at_its_scale_and_tukey_nothing_beyond():
    r = 1.5 * normal(0, 1, 50_000).abs()
    binning = Binning(TAU, 4000)
    distribution = fit(r, binning)
    sigma = robust_sigma(distribution, 1)
    cauchy, tukey = LOSSES["cauchy"](distribution, 1)[0], LOSSES["tukey"](distribution, 1)[0]
    at = int(binning.index(2.385 * sigma))
    assert float(cauchy[at] / cauchy[0]) == pytest.approx(0.5, abs=0.003)
    end = int(binning.index(4.685 * sigma))
    assert (tukey[end + 1 :] == 0).all() and (tukey[:end] > 0).all()


def test_truncated_l1_has_a_constant_gradient():
    # Its loss is r / tau_max: weight times residual is 1 / tau_max everywhere. This is the gradient of the score.
    distribution = fit(uniform(0, 1, 100) * TAU, BINNINGS["linear"])
    center = (torch.arange(100).double() + 0.5) * TAU / 100
    assert_close(LOSSES["truncated_l1"](distribution, 1)[0] * center, double([1 / TAU] * 100))


def test_every_loss_is_covered_by_a_law():
    assert set(LOSSES) == {*ADAPTIVE, *TEXTBOOK, "truncated_l1"}
