"""Expected number of false alarms: how many models random matches would support as well."""

import numpy as np
from jaxtyping import Float64
from scipy.special import gammaln

MAX_LOG10_FALSE_ALARMS = -3.0
ESSENTIAL_POINTS, FUNDAMENTAL_POINTS = 5, 7
LN_10 = float(np.log(10.0))


def log10_false_alarms(num_matches: int, num_inliers: int, minimal: int, chance: float) -> float:
    """Expected number of models that random matches would support as well (Moisan & Stival, IJCV 2004).

    Chance is the probability that a random match lies near a given epipolar line.
    """
    if num_inliers <= minimal:
        return np.inf
    tests = np.log((num_matches - minimal) * (3 if minimal == FUNDAMENTAL_POINTS else 10))
    subsets = _log_binomial(num_matches, num_inliers) + _log_binomial(num_inliers, minimal)
    return float((tests + subsets + (num_inliers - minimal) * np.log(chance)) / LN_10)


def _log_binomial(n: int, k: int) -> float:
    return float(gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1))


def chance_near_line(points: Float64[np.ndarray, "M 2"], limit: float) -> float:
    """Probability that a match lies near a given line, within the area that matches cover, not the whole image."""
    width, height = np.maximum(np.sqrt(12) * points.std(0), 4 * limit)  # sides of a uniform box with this spread
    return float(min(0.5, 2 * limit * np.hypot(width, height) / (width * height)))
