"""Estimates with intervals by example. Unit of resampling: the example; several samples of one are averaged before.

Which method where: Wilson for a proportion; Tango's score interval for a difference of paired proportions; the
studentised bootstrap for means, and on the log scale for ratios of sums; BCa for other functions of sums.
Below FEW examples resamples hardly differ, and Student's t on the same (linearised) scale stands in for the bootstrap.
Degenerate inputs: n = 0 gives NaN; n = 1 gives the value and NaN limits; no variation between the examples gives limits
equal to the value (it says nothing about examples unlike them); a NaN among the values is an error of the caller.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
CHUNK = 2_000_000  # weights made at once: 8 MB
WEIGHTS = 10_000_000  # weights kept from cell to cell: 40 MB, which the cache below must hold
ONE_THREAD = 200_000  # multiplications of one product: from about 260,000 BLAS wakes threads that wait on each other
FEW = 10
NAN = math.nan


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number, its interval, and how many examples stand behind it."""

    value: float
    low: float
    high: float
    n: int


def values_of(values: ArrayLike, name: str = "values") -> Array:
    """One-dimensional float64, none of them NaN."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1:
        raise ValueError(f"{name} must have one dimension, got {array.ndim}")
    if np.isnan(array).any():
        raise ValueError(f"{name} must not contain NaN: drop or count what is missing before")
    return array


def check_level(level: float) -> float:
    if not 0 < level < 1:
        raise ValueError(f"level must be in (0, 1), got {level}")
    return level


@lru_cache(maxsize=8)
def _weights(n: int, resamples: int, seed: int, chunk: int) -> NDArray[np.float32]:
    """[R,n] how often each example is drawn; float32 holds these small counts exactly."""
    rng = np.random.default_rng((seed, n, resamples, chunk))
    size = min(max(1, CHUNK // n), resamples - chunk * max(1, CHUNK // n))
    draws = rng.integers(0, n, (size, n)) + np.arange(size)[:, None] * n
    return np.bincount(draws.ravel(), minlength=size * n).reshape(size, n).astype(np.float32)


def resampled(columns: Array, *, resamples: int, seed: int) -> Array:
    """Sums [R,C] of columns [n,C] over bootstrap samples; the same draws for every column, cell and call of one n."""
    n = len(columns)
    step = max(1, CHUNK // n)
    means = columns.mean(0)
    # Weights of a draw add up to n, so that columns may be centred: single precision then is enough, and twice as fast.
    centred = (columns - means).astype(np.float32)
    rows = max(1, ONE_THREAD // (n * max(columns.shape[1], 1)))
    parts = []
    for chunk in range(-(-resamples // step)):
        weights = _weights(n, resamples, seed, chunk)
        parts += [weights[i : i + rows] @ centred for i in range(0, len(weights), rows)]
    return np.concatenate(parts).astype(np.float64) + n * means


def affordable(n: int, resamples: int) -> int:
    """Resamples for a table of many cells: all up to n = 1,000, fewer beyond, never below 1,000."""
    return min(resamples, max(1_000, WEIGHTS // max(n, 1)))


def _quantiles(pivots: Array, level: float) -> tuple[Array, Array]:
    """Both quantiles [C] of pivots [R,C]; resamples without any variation have no pivot and are left out."""
    ends = [(1 - level) / 2, (1 + level) / 2]
    if np.isfinite(pivots).all():
        low, high = np.quantile(pivots, ends, axis=0)
    else:
        low, high = np.stack(
            [np.quantile(c[np.isfinite(c)], ends) if np.isfinite(c).any() else (0, 0) for c in pivots.T], 1
        )
    return low, high


def _student(n: int, level: float) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(n - 1, (1 + level) / 2))


def mean_limits(columns: Array, *, level: float = 0.95, resamples: int = 10_000, seed: int = 0) -> tuple[Array, Array]:
    """Limits [C] of the means of columns [n,C], n > 1, by the studentised bootstrap (Efron and Tibshirani 1993, ch. 12)."""
    n = len(columns)
    means, errors = columns.mean(0), columns.std(0, ddof=1) / math.sqrt(n)
    if n < FEW:
        return means - _student(n, level) * errors, means + _student(n, level) * errors
    centred = columns - means
    sums = resampled(np.concatenate([centred, centred**2], 1), resamples=resamples, seed=seed) / n
    shift, square = np.split(sums, 2, axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        drawn = np.sqrt(np.maximum(square - shift**2, 0) / (n - 1))
        pivots = np.where(drawn > 1e-6 * errors, shift / drawn, np.nan)
    low, high = _quantiles(pivots, level)
    return means - high * errors, means - low * errors


def mean_interval(values: ArrayLike, *, level: float = 0.95, resamples: int = 10_000, seed: int = 0) -> Estimate:
    """A mean, by the studentised bootstrap."""
    x, level = values_of(values), check_level(level)
    n = len(x)
    if n < 2:
        return Estimate(float(x[0]) if n else NAN, NAN, NAN, n)
    mean = float(x.mean())
    if x.std(ddof=1) / math.sqrt(n) <= 1e-12 * max(1.0, abs(mean)):
        return Estimate(mean, mean, mean, n)
    low, high = mean_limits(x[:, None], level=level, resamples=resamples, seed=seed)
    return Estimate(mean, float(low[0]), float(high[0]), n)


def ratio_interval(
    num: ArrayLike, den: ArrayLike, *, level: float = 0.95, resamples: int = 10_000, seed: int = 0
) -> Estimate:
    """Σnum / Σden, studentised on the log scale. A ratio of counts out of counts (num <= den) stays at most 1."""
    a, b = values_of(num, "num"), values_of(den, "den")
    check_level(level)
    if len(a) != len(b):
        raise ValueError(f"num and den must be equally long, got {len(a)} and {len(b)}")
    if (a < 0).any() or (b < 0).any():
        raise ValueError("num and den of a ratio must not be negative")
    n = len(a)
    if not n or b.sum() == 0:
        return Estimate(NAN, NAN, NAN, n)
    ratio = float(a.sum() / b.sum())
    if n < 2:
        return Estimate(ratio, NAN, NAN, n)
    if ratio == 0:
        return Estimate(0.0, 0.0, 0.0, n)
    influence = a / a.sum() - b / b.sum()
    error = float(np.sqrt((influence**2).sum() * n / (n - 1)))
    if error <= 1e-12:
        return Estimate(ratio, ratio, ratio, n)
    if n < FEW:
        first, last = -_student(n, level), _student(n, level)
    else:
        low, high = _quantiles(_log_ratio_pivots(a - ratio * b, b, ratio, error, resamples=resamples, seed=seed), level)
        first, last = float(low[0]), float(high[0])
    # A few examples can give a limit beyond all floats: it is cut where exp still has a value.
    low, high = (math.exp(min(math.log(ratio) - end * error, 700)) for end in (last, first))
    return Estimate(ratio, low, min(high, 1.0) if _is_counts(a, b) else high, n)


def _log_ratio_pivots(e: Array, b: Array, ratio: float, error: float, *, resamples: int, seed: int) -> Array:
    """[R,1] of residuals e = num − ratio·den: those of a resample with ratio r are e − (r − ratio)·b, nothing cancels."""
    n = len(e)
    sums = resampled(np.stack([e, b, e * e, e * b, b * b], 1), resamples=resamples, seed=seed)
    with np.errstate(divide="ignore", invalid="ignore"):
        se, sb, see, seb, sbb = sums.T
        sa, shift = se + ratio * sb, se / sb
        squared = (see - 2 * shift * seb + shift**2 * sbb) / sa**2
        errors = np.sqrt(np.maximum(squared, 0) * n / (n - 1))
        return np.where(errors > 1e-6 * error, np.log1p(shift / ratio) / errors, np.nan)[:, None]


def _is_counts(a: Array, b: Array) -> bool:
    """Whether a counts some of what b counts: then no ratio is above 1."""
    return bool((a <= b).all() and (a == np.round(a)).all() and (b == np.round(b)).all())


def proportion_interval(k: int, n: int, *, level: float = 0.95) -> Estimate:
    """k of n, Wilson's score interval."""
    from statsmodels.stats.proportion import proportion_confint

    check_level(level)
    if not 0 <= k <= n:
        raise ValueError(f"k must be between 0 and n={n}, got {k}")
    if n == 0:
        return Estimate(NAN, NAN, NAN, 0)
    low, high = proportion_confint(k, n, alpha=1 - level, method="wilson")
    return Estimate(k / n, float(low), float(high), n)  # type: ignore[arg-type]


def median_interval(values: ArrayLike, *, level: float = 0.95) -> Estimate:
    """A median, between order statistics: exact for any law; NaN limits where n is too small for this level."""
    from scipy.stats import quantile_test

    x, level = values_of(values), check_level(level)
    if len(x) < 2:
        return Estimate(float(x[0]) if len(x) else NAN, NAN, NAN, len(x))
    limits = quantile_test(x, q=float(np.median(x)), p=0.5).confidence_interval(level)
    return Estimate(float(np.median(x)), float(limits.low), float(limits.high), len(x))


def paired_interval(
    a: ArrayLike, b: ArrayLike, *, level: float = 0.95, resamples: int = 10_000, seed: int = 0
) -> Estimate:
    """The mean of a − b over the same examples: Tango's score interval for pass/fail, else studentised bootstrap."""
    x, y = values_of(a, "a"), values_of(b, "b")
    if len(x) != len(y):
        raise ValueError(f"a and b must be paired, got {len(x)} and {len(y)} values")
    if len(x) > 1 and is_binary(x) and is_binary(y):
        return tango(x, y, level=level)
    return mean_interval(x - y, level=level, resamples=resamples, seed=seed)


def is_binary(x: Array) -> bool:
    return bool(np.isin(x, (0.0, 1.0)).all())


def tango(x: Array, y: Array, *, level: float = 0.95) -> Estimate:
    """Difference of paired proportions: the score test of Tango 1998 (Statistics in Medicine 17:891), inverted.

    Its one-sided error stays at or below its nominal one at n = 50 to 1,000, which Newcombe's method 10 does not.
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
    """z of the difference being delta, its variance at the most likely share of losses under delta (eq. 6 to 9)."""
    b = (2 * n - wins + losses) * delta - wins - losses
    c = -losses * delta * (1 - delta)
    share = (math.sqrt(max(b * b - 8 * n * c, 0.0)) - b) / (4 * n)
    variance = n * (2 * share + delta * (1 - delta))
    return (wins - losses - n * delta) / math.sqrt(max(variance, 1e-300))


def statistic_interval(
    rows: Array, statistic: Callable[[Array], Array], *, level: float = 0.95, resamples: int = 10_000, seed: int = 0
) -> Estimate:
    """A smooth function of summed statistics rows [n,S] (corpus BLEU, …): bootstrap, bias-corrected (BCa)."""
    from scipy.stats import norm

    check_level(level)
    n = len(rows)
    if n == 0:
        return Estimate(NAN, NAN, NAN, 0)
    value = float(statistic(rows.sum(0, keepdims=True))[0])
    if n < 2:
        return Estimate(value, NAN, NAN, n)
    draws = statistic(resampled(rows, resamples=resamples, seed=seed))
    left_out = statistic(rows.sum(0, keepdims=True) - rows)
    if np.ptp(draws) == 0:
        return Estimate(value, value, value, n)
    below = ((draws < value).mean() + (draws <= value).mean()) / 2
    bias = norm.ppf(np.clip(below, 1 / resamples, 1 - 1 / resamples))
    skew = left_out.mean() - left_out
    scale = (skew**2).sum() ** 1.5
    acceleration = float((skew**3).sum() / (6 * scale)) if scale else 0.0
    z = norm.ppf([(1 - level) / 2, (1 + level) / 2])
    low, high = np.quantile(draws, norm.cdf(bias + (bias + z) / (1 - acceleration * (bias + z))))
    return Estimate(value, float(low), float(high), n)


def mcnemar(a: ArrayLike, b: ArrayLike) -> float:
    """Exact two-sided p-value that a and b pass equally often, from the examples where they differ."""
    from statsmodels.stats.contingency_tables import mcnemar as exact_mcnemar

    x, y = values_of(a, "a"), values_of(b, "b")
    table = [[float((x * y).sum()), float((x * (1 - y)).sum())], [float(((1 - x) * y).sum()), 0.0]]
    return float(exact_mcnemar(table, exact=True).pvalue)  # type: ignore[attr-defined]


def paired_p_value(a: ArrayLike, b: ArrayLike) -> float:
    """Two-sided p of no difference: McNemar for pass/fail, paired t otherwise; 1 where all pairs are equal."""
    from scipy.stats import ttest_rel

    x, y = values_of(a, "a"), values_of(b, "b")
    if len(x) < 2 or (x == y).all():
        return 1.0
    return mcnemar(x, y) if is_binary(x) and is_binary(y) else float(ttest_rel(x, y).pvalue)  # type: ignore[attr-defined]


def holm(p_values: ArrayLike) -> Array:
    """Holm's step-down adjustment over a sweep; NaN where there was no test."""
    from statsmodels.stats.multitest import multipletests

    p = np.asarray(p_values, dtype=np.float64)
    adjusted = np.full_like(p, np.nan)
    known = ~np.isnan(p)
    if known.any():
        adjusted[known] = multipletests(p[known], method="holm")[1]
    return adjusted


def detectable(a: ArrayLike, b: ArrayLike, *, power: float = 0.8, level: float = 0.95) -> float:
    """Smallest true mean of a − b that a paired test at this n finds with this power, from the spread of the pairs."""
    from scipy.stats import norm

    difference = values_of(a, "a") - values_of(b, "b")
    if len(difference) < 2:
        return NAN
    quantiles = norm.ppf((1 + level) / 2) + norm.ppf(power)
    return float(quantiles * difference.std(ddof=1) / math.sqrt(len(difference)))
