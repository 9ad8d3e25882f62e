"""Intervals of means, ratios, proportions, medians and of functions of sums."""

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sdbench.metrics.stats.base import NAN, Array, Bounds, Estimate, check_bounds, check_level, values_of
from sdbench.metrics.stats.conservative import conservative_limits, density, known_or_guessed, trust
from sdbench.metrics.stats.resample import FEW, affordable, bootstrap_sums, quantiles, student, studentised_limits

Ends = tuple[Array, Array]  # lower and upper limits [C]
SLACK = 1e-6  # of a count: sums of a bootstrap are rounded


def mean_limits(
    columns: Array, *, level: float = 0.95, resamples: int = 10_000, seed: int = 0, bounds: Bounds | None = None
) -> Ends:
    """Return limits [C] of the means of columns [n,C], n > 1; NaN where nothing varies and the bound is unknown."""

    def dense() -> Ends:
        return studentised_limits(columns, level=level, resamples=resamples, seed=seed)

    return mix_ends(columns, dense, check_bounds(columns, bounds), level=level)


def mix_ends(columns: Array, dense: Callable[[], Ends], bounds: tuple[float, float], *, level: float) -> Ends:
    """Return limits [C]: conservative ones where few values of columns [n,C] differ, `dense` where many do, mixed in between.

    The columns' means are the estimates, or vary like them. An infinite bound is unknown.
    """
    is_bounded = math.isfinite(bounds[0]) and math.isfinite(bounds[1])
    share = density(columns, is_bounded=is_bounded)
    low, high = np.zeros_like(share), np.zeros_like(share)
    for weight, limits in ((1 - share, lambda: _conservative(columns, bounds, level)), (share, dense)):
        if (weight > 0).any():
            ends = limits()
            low, high = (
                np.where(weight > 0, end + weight * limit, end) for end, limit in zip((low, high), ends, strict=True)
            )
    return np.clip(low, *bounds), np.clip(high, *bounds)  # NaN stays NaN


def _conservative(columns: Array, bounds: tuple[float, float], level: float) -> Ends:
    """Return conservative limits [C]; NaN on a side without a bound if all values are equal."""
    is_constant = columns.min(0) == columns.max(0)
    limits = conservative_limits(columns, known_or_guessed(columns, *bounds), level=level)
    low, high = (
        np.where(is_constant & ~np.isfinite(bound), NAN, end) for bound, end in zip(bounds, limits, strict=True)
    )
    return low, high


def mean_interval(
    values: ArrayLike, *, level: float = 0.95, resamples: int = 10_000, seed: int = 0, bounds: Bounds | None = None
) -> Estimate:
    """Return the mean of values within bounds (None: unknown)."""
    x, level = values_of(values), check_level(level)
    n = len(x)
    if n < 2:
        return Estimate(float(x[0]) if n else NAN, NAN, NAN, n)
    low, high = mean_limits(x[:, None], level=level, resamples=resamples, seed=seed, bounds=bounds)
    return Estimate(float(x.mean()), float(low[0]), float(high[0]), n)


def ratio_interval(
    num: ArrayLike,
    den: ArrayLike,
    *,
    level: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
    bounds: Bounds | None = None,
) -> Estimate:
    """Return Σnum / Σden, studentised on the log scale; bounds are those of num/den of one example (None: unknown, at least 0)."""
    a, b = values_of(num, "num"), values_of(den, "den")
    check_level(level)
    if len(a) != len(b):
        raise ValueError(f"num and den must be equally long, got {len(a)} and {len(b)}")
    if (a < 0).any() or (b < 0).any():
        raise ValueError("num and den of a ratio must not be negative")
    ends = check_bounds(a[b > 0] / b[b > 0], bounds, "num/den")
    n = len(a)
    if not n or b.sum() == 0:
        return Estimate(NAN, NAN, NAN, n)
    ratio = float(a.sum() / b.sum())
    if n < 2:
        return Estimate(ratio, NAN, NAN, n)
    residuals = a - ratio * b
    is_constant = np.abs(residuals).max() <= 1e-12 * b.mean()
    values = np.full(n, ratio) if is_constant else ratio + residuals / b.mean()  # their mean varies like the ratio

    def dense() -> Ends:
        return _log_ratio_limits(a, b, level=level, resamples=resamples, seed=seed)

    low, high = mix_ends(values[:, None], dense, (max(ends[0], 0.0), ends[1]), level=level)
    return Estimate(ratio, float(low[0]), float(high[0]), n)


def _log_ratio_limits(a: Array, b: Array, *, level: float, resamples: int, seed: int) -> Ends:
    """Return limits [1] of Σa / Σb > 0 by the studentised bootstrap of its logarithm, Student's below FEW examples."""
    n, ratio = len(a), float(a.sum() / b.sum())
    error = float(np.sqrt(((a / a.sum() - b / b.sum()) ** 2).sum() * n / (n - 1)))
    if n < FEW:
        first, last = np.array([-student(n, level)]), np.array([student(n, level)])
    else:
        pivots = _log_ratio_pivots(a - ratio * b, b, ratio, error, resamples=resamples, seed=seed)
        first, last = quantiles(pivots, level)
    # Few examples can give a limit beyond all floats, so it is cut where exp is still finite.
    return ratio * np.exp(-last * error), ratio * np.exp(np.minimum(-first * error, 700))


def _log_ratio_pivots(e: Array, b: Array, ratio: float, error: float, *, resamples: int, seed: int) -> Array:
    """Return [R,1] of residuals e = num − ratio·den. Those of a resample with ratio r are e − (r − ratio)·b: no cancellation."""
    n = len(e)
    sums = bootstrap_sums(np.stack([e, b, e * e, e * b, b * b], 1), resamples=resamples, seed=seed)
    with np.errstate(divide="ignore", invalid="ignore"):
        se, sb, see, seb, sbb = sums.T
        sa, shift = se + ratio * sb, se / sb
        squared = (see - 2 * shift * seb + shift**2 * sbb) / sa**2
        errors = np.sqrt(np.maximum(squared, 0) * n / (n - 1))
        return np.where(errors > 1e-6 * error, np.log1p(shift / ratio) / errors, np.nan)[:, None]


def rates_interval(rows: Array, powers: tuple[int, ...], *, level: float = 0.95) -> Estimate:
    """Return Π (Σ column)^power of rows [n,S] above 0, such as a ratio of tokens per second: Student's t on the log scale.

    The standard error is the jackknife's. For times of a few examples. A sum of 0 in the first column, the tokens, makes the
    product 0; any other one leaves it unknown.
    """
    check_level(level)
    n, total, exponents = len(rows), rows.sum(0), np.array(powers)
    if not n or (total[(exponents < 0) | (np.arange(len(total)) > 0)] <= 0).any():
        return Estimate(NAN, NAN, NAN, n)
    if total[0] <= 0:
        return Estimate(0.0, 0.0, 0.0, n)
    log = float(np.log(total) @ exponents)
    if n < 2:
        return Estimate(math.exp(log), NAN, NAN, n)
    with np.errstate(divide="ignore", invalid="ignore"):
        left_out = np.log(np.maximum(total - rows, 0)) @ exponents
    if not np.isfinite(left_out).all():  # one example makes up a whole sum, so there is no jackknife
        return Estimate(math.exp(log), NAN, NAN, n)
    error = math.sqrt((n - 1) / n * float(((left_out - left_out.mean()) ** 2).sum()))
    reach = student(n, level) * error
    return Estimate(math.exp(log), math.exp(log - reach), math.exp(min(log + reach, 700)), n)


def proportion_interval(k: int, n: int, *, level: float = 0.95) -> Estimate:
    """Return k of n with Wilson's score interval, or Clopper and Pearson's if few are unlike the others."""
    from statsmodels.stats.proportion import proportion_confint

    check_level(level)
    if not 0 <= k <= n:
        raise ValueError(f"k must be between 0 and n={n}, got {k}")
    if n == 0:
        return Estimate(NAN, NAN, NAN, 0)
    share = float(trust(min(k, n - k)))
    wilson, exact = (
        np.array(proportion_confint(k, n, alpha=1 - level, method=method), dtype=np.float64)
        for method in ("wilson", "beta")
    )
    low, high = share * wilson + (1 - share) * exact
    return Estimate(k / n, float(low), float(high), n)


def quantile_interval(values: ArrayLike, share: float, *, level: float = 0.95) -> Estimate:
    """Return a quantile between order statistics, exact for any distribution; a NaN limit if n is too small for it."""
    from scipy.stats import quantile_test

    x, level = values_of(values), check_level(level)
    if len(x) < 2:
        return Estimate(float(x[0]) if len(x) else NAN, NAN, NAN, len(x))
    value = float(np.quantile(x, share))
    limits = quantile_test(x, q=value, p=share).confidence_interval(level)
    return Estimate(value, float(limits.low), float(limits.high), len(x))


def pooled_quantiles(
    groups: Sequence[ArrayLike],
    shares: Sequence[float],
    *,
    level: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
) -> list[Estimate]:
    """Return quantiles of all values of groups whose values depend on each other: whole groups are resampled.

    The draws are of the share of values below a quantile; its limits are the values with that share below them (Woodruff 1952,
    JASA 47:635). With one value per group this resamples the order statistics of `quantile_interval`. No limits are narrower than
    those of independent values. n is the number of groups with values; below FEW of them there are no limits.
    """
    check_level(level)
    filled = [x for x in map(values_of, groups) if len(x)]
    n = len(filled)
    if not n:
        return [Estimate(NAN, NAN, NAN, 0) for _ in shares]
    x, group = np.concatenate(filled), np.repeat(np.arange(n), list(map(len, filled)))
    independent = [quantile_interval(x, share, level=level) for share in shares]
    if n < FEW:
        return [Estimate(each.value, NAN, NAN, n) for each in independent]
    below = [_count_below(x, group, share) for share in shares]
    counts = np.stack([*below, np.bincount(group).astype(np.float64)], 1)
    sums = bootstrap_sums(counts, resamples=affordable(n, resamples), seed=seed)
    low, high = np.quantile(sums[:, :-1] / sums[:, -1:], [(1 - level) / 2, (1 + level) / 2], axis=0) * len(x)
    padded = np.concatenate([[NAN], np.sort(x), [NAN]])  # a limit beyond all values is none
    low, high = padded[np.floor(low + SLACK).astype(int)], padded[np.ceil(high - SLACK).astype(int) + 1]
    return [
        Estimate(each.value, float(np.minimum(low[i], each.low)), float(np.maximum(high[i], each.high)), n)
        for i, each in enumerate(independent)
    ]


def _count_below(x: Array, group: NDArray[np.int64], share: float) -> Array:
    """Return how many values of each group are below a quantile; equal ones count in part, so that the sum is `share` of all."""
    n, value = int(group.max()) + 1, np.quantile(x, share, method="inverted_cdf")
    below, equal = (np.bincount(group[where], minlength=n).astype(np.float64) for where in (x < value, x == value))
    return below + equal * ((share * len(x) - below.sum()) / equal.sum())


def median_interval(values: ArrayLike, *, level: float = 0.95) -> Estimate:
    """Return the median, as `quantile_interval`."""
    return quantile_interval(values, 0.5, level=level)


def statistic_interval(
    rows: Array,
    statistic: Callable[[Array], Array],
    *,
    level: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
    bounds: Bounds | None = None,
) -> Estimate:
    """Return a smooth function of summed statistics rows [n,S] (corpus BLEU, …): BCa; bounds are those of the function.

    Where few examples matter, conservative limits of the mean of its jackknife pseudo-values are used. Examples whose statistics
    are all 0, such as those of another kind of question, are not counted, nor in n: they do not show what others may score.
    """
    check_level(level)
    if len(rows) == 0:
        return Estimate(NAN, NAN, NAN, 0)
    is_counted = rows.any(1)
    n = int(is_counted.sum())
    total = rows.sum(0, keepdims=True)
    value = float(statistic(total)[0])
    if n < 2:
        return Estimate(value, NAN, NAN, n)
    left_out = statistic(total - rows)
    counted = left_out[is_counted]

    def dense() -> Ends:
        draws = statistic(bootstrap_sums(rows, resamples=resamples, seed=seed))
        return _bca_limits(value, draws, left_out, level=level)

    # Centred on the value: the jackknife's correction of bias is not part of the reported estimate.
    influence = (n - 1) * (counted.mean() - counted)
    is_constant = np.abs(influence).max() <= 1e-9 * max(1.0, abs(value))
    values = value + (np.zeros(n) if is_constant else influence)
    low, high = mix_ends(values[:, None], dense, check_bounds(np.array([value]), bounds), level=level)
    return Estimate(value, float(low[0]), float(high[0]), n)


def _bca_limits(value: float, draws: Array, left_out: Array, *, level: float) -> Ends:
    """Return limits [1] from draws [R], corrected for bias and for the skewness of the jackknife values [n]."""
    from scipy.stats import norm

    below = ((draws < value).mean() + (draws <= value).mean()) / 2
    bias = norm.ppf(np.clip(below, 1 / len(draws), 1 - 1 / len(draws)))
    skew = left_out.mean() - left_out
    scale = (skew**2).sum() ** 1.5
    acceleration = float((skew**3).sum() / (6 * scale)) if scale else 0.0
    z = norm.ppf([(1 - level) / 2, (1 + level) / 2])
    low, high = np.quantile(draws, norm.cdf(bias + (bias + z) / (1 - acceleration * (bias + z))))
    return np.array([low]), np.array([high])
