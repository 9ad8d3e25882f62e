"""Two settings on the same examples: their difference and its tests."""

import math

import numpy as np
from numpy.typing import ArrayLike

from sdbench.metrics.stats.base import NAN, Array, Bounds, Estimate, check_bounds, check_level, is_binary, values_of
from sdbench.metrics.stats.intervals import mean_interval


def paired_interval(
    a: ArrayLike,
    b: ArrayLike,
    *,
    level: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
    bounds: Bounds | None = None,
) -> Estimate:
    """Return the mean of a − b over the same examples; bounds are those of the scores a and b (None: unknown), not of a − b."""
    x, y = values_of(a, "a"), values_of(b, "b")
    if len(x) != len(y):
        raise ValueError(f"a and b must be paired, got {len(x)} and {len(y)} values")
    least, most = check_bounds(np.concatenate([x, y]), bounds, "a and b")
    if len(x) > 1 and is_binary(x) and is_binary(y) and bounds in (None, (0, 1)):
        return tango(x, y, level=level)
    gap = (least - most, most - least) if math.isfinite(most - least) else None
    return mean_interval(x - y, level=level, resamples=resamples, seed=seed, bounds=gap)


def tango(x: Array, y: Array, *, level: float = 0.95) -> Estimate:
    """Difference of paired proportions: the score test of Tango 1998 (Statistics in Medicine 17:891), inverted.

    Its one-sided error is at most the nominal one at n = 50 to 1,000, unlike that of Newcombe's method 10. This also holds
    where few pairs differ, so no other limits are mixed in.
    """
    from scipy.optimize import brentq
    from scipy.stats import norm

    check_level(level)
    n, wins, losses = len(x), float((x * (1 - y)).sum()), float(((1 - x) * y).sum())
    z, end = float(norm.ppf((1 + level) / 2)), 1 - 1e-12

    def excess(delta: float, sign: float) -> float:
        return _tango_score(wins, losses, n, delta) - sign * z

    low = brentq(excess, -end, end, (1.0,)) if excess(-end, 1.0) > 0 > excess(end, 1.0) else -1.0
    high = brentq(excess, -end, end, (-1.0,)) if excess(-end, -1.0) > 0 > excess(end, -1.0) else 1.0
    return Estimate((wins - losses) / n, float(low), float(high), n)  # type: ignore[arg-type]


def _tango_score(wins: float, losses: float, n: int, delta: float) -> float:
    """Return z for a difference of delta, its variance at the most likely share of losses given delta (eq. 6 to 9)."""
    b = (2 * n - wins + losses) * delta - wins - losses
    c = -losses * delta * (1 - delta)
    share = (math.sqrt(max(b * b - 8 * n * c, 0.0)) - b) / (4 * n)
    variance = n * (2 * share + delta * (1 - delta))
    return (wins - losses - n * delta) / math.sqrt(max(variance, 1e-300))


def mcnemar(a: ArrayLike, b: ArrayLike) -> float:
    """Return the exact two-sided p-value that a and b pass equally often, from the examples in which they differ."""
    from statsmodels.stats.contingency_tables import mcnemar as exact_mcnemar

    x, y = values_of(a, "a"), values_of(b, "b")
    table = [[float((x * y).sum()), float((x * (1 - y)).sum())], [float(((1 - x) * y).sum()), 0.0]]
    return float(exact_mcnemar(table, exact=True).pvalue)  # type: ignore[attr-defined]


def paired_p_value(a: ArrayLike, b: ArrayLike) -> float:
    """Return the two-sided p-value of no difference: McNemar for pass/fail, paired t otherwise; 1 if all pairs are equal."""
    from scipy.stats import ttest_rel

    x, y = values_of(a, "a"), values_of(b, "b")
    if len(x) < 2 or (x == y).all():
        return 1.0
    if not (is_binary(x) and is_binary(y)) and np.ptp(x - y) <= 1e-12 * np.abs(x - y).max():
        return float(2.0 ** (1 - len(x)))  # no spread to test against: the sign test
    return mcnemar(x, y) if is_binary(x) and is_binary(y) else float(ttest_rel(x, y).pvalue)  # type: ignore[attr-defined]


def detectable(a: ArrayLike, b: ArrayLike, *, power: float = 0.8, level: float = 0.95) -> float:
    """Return the smallest true mean of a − b that a paired test at this n detects with this power, from the pairs' spread; NaN
    where all pairs differ alike, or not at all, so that their spread is not known.
    """
    from scipy.stats import norm

    difference = values_of(a, "a") - values_of(b, "b")
    if len(difference) < 2 or np.ptp(difference) <= 1e-12 * np.abs(difference).max():
        return NAN
    quantiles = norm.ppf((1 + level) / 2) + norm.ppf(power)
    return float(quantiles * difference.std(ddof=1) / math.sqrt(len(difference)))


def holm(p_values: ArrayLike) -> Array:
    """Adjust p-values by Holm's step-down method; NaN stays NaN."""
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p)[: int(np.sum(~np.isnan(p)))]  # NaN sorts last
    adjusted = np.full_like(p, np.nan)
    factors = np.arange(len(order), 0, -1)
    adjusted[order] = np.minimum(1, np.maximum.accumulate(factors * p[order]))
    return adjusted
