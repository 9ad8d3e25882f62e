"""Published intervals for the mean of bounded values, the candidates for sdbench's own; all columns [n,R] at once.

Every function takes values within `bounds` and returns two-sided limits [R] whose one-sided errors are (1 − level)/2 each.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from sdbench.metrics.stats.conservative import conservative_limits, hidden_share
from sdbench.metrics.stats.resample import student, studentised_limits

Array = NDArray[np.float64]
Limits = tuple[Array, Array]
Bounds = tuple[float, float]
BLOCK = 100  # columns that are resampled at once


def mirrored(lower: Callable[[Array, float], Array]) -> Callable[[Array, Bounds, float], Limits]:
    """Return both limits, given a function for the lower limit of values in [0, 1] at a one-sided level alpha."""

    def limits(values: Array, bounds: Bounds, level: float) -> Limits:
        low, width = bounds[0], bounds[1] - bounds[0]
        unit, alpha = (values - low) / width, (1 - level) / 2
        return low + width * lower(unit, alpha), low + width * (1 - lower(1 - unit, alpha))

    return limits


def rising(is_refused: Callable[[Array], Array], last: Array) -> Array:
    """Return the largest rejected candidate mean below `last` [R], by 30 bisections."""
    low, high = np.zeros_like(last), last.copy()
    for _ in range(30):
        middle = (low + high) / 2
        is_out = is_refused(middle)
        low, high = np.where(is_out, middle, low), np.where(is_out, high, middle)
    return low


def betting(x: Array, alpha: float) -> Array:
    """Waudby-Smith and Ramdas 2024 (JRSS B 86:1): the wealth of a bettor with predictable stakes, tuned for this n."""
    n = len(x)
    count = np.arange(1, n + 1)[:, None]
    mean = (0.5 + x.cumsum(0)) / (count + 1)
    variance = (0.25 + ((x - mean) ** 2).cumsum(0)) / (count + 1)
    before = np.concatenate([np.full((1, x.shape[1]), 0.25), variance[:-1]])
    stakes = np.sqrt(2 * np.log(1 / alpha) / (n * before))

    def is_refused(m: Array) -> Array:
        wealth = np.log1p(np.minimum(stakes, 0.75 / np.maximum(m, 1e-12)) * (x - m)).cumsum(0)
        return wealth.max(0) >= np.log(1 / alpha)

    return rising(is_refused, x.mean(0))


def hoeffding_bentkus(x: Array, alpha: float) -> Array:
    """Bates et al. 2021 (J. ACM 68): the smaller of Hoeffding's and Bentkus' tail bounds, inverted."""
    from scipy.special import rel_entr
    from scipy.stats import binom

    n, mean = len(x), x.mean(0)

    def is_refused(m: Array) -> Array:
        hoeffding = np.exp(-n * (rel_entr(mean, m) + rel_entr(1 - mean, 1 - m)))
        bentkus = np.e * binom.sf(np.floor(n * mean + 1e-9) - 1, n, m)
        return np.minimum(hoeffding, bentkus) < alpha

    return rising(is_refused, mean)


def empirical_likelihood(x: Array, alpha: float) -> Array:
    """Owen 1988 with its χ² limit: only observed values have weight."""
    from scipy.stats import norm

    z = norm.ppf(1 - alpha)
    least = x.min(0)
    y = x - least
    first, last = np.full(x.shape[1], -45.0), np.full(x.shape[1], np.log(4.0 * len(x)))
    mean = y.mean(0)
    for _ in range(36):
        g = np.exp((first + last) / 2)
        mean = (y / (g + y)).sum(0) / (1 / (g + y)).sum(0)
        is_far = np.sqrt(2 * np.maximum(np.log1p((y - mean) / (g + mean)).sum(0), 0)) > z
        first, last = np.where(is_far, (first + last) / 2, first), np.where(is_far, last, (first + last) / 2)
    return least + np.where(np.ptp(x, axis=0) > 0, mean, 0.0)


def gaffke(values: Array, bounds: Bounds, level: float) -> Limits:
    return conservative_limits(values, bounds, level=level)


def share_times_loss(values: Array, bounds: Bounds, level: float) -> Limits:
    """Clopper and Pearson's limits of the share that differs from 0, times Student's of their mean loss; half of alpha each."""
    from scipy.stats import beta, t

    n, alpha = len(values), (1 - level) / 4
    count = (values != 0).sum(0)
    most = beta.ppf(1 - alpha, count + 1, np.maximum(n - count, 1e-9))
    least = np.where(count > 0, beta.ppf(alpha, np.maximum(count, 1e-9), n - count + 1), 0.0)
    mean = values.sum(0) / np.maximum(count, 1)
    spread = np.sqrt(
        np.maximum((values**2).sum(0) - count * mean**2, 0) / np.maximum(count - 1, 1) / np.maximum(count, 1)
    )
    reach = np.where(count > 1, t.ppf(1 - alpha, np.maximum(count - 1, 1)) * spread, np.inf)
    low, high = np.clip(mean - reach, *bounds), np.clip(mean + reach, *bounds)
    return np.where(low < 0, most, least) * low, np.where(high > 0, most, least) * high


def body_and_tail(values: Array, bounds: Bounds, level: float) -> Limits:
    """The bootstrap with half of alpha, plus the largest share that may be unobserved (the other half), placed at the bound."""
    low, high = bootstrap(values, bounds, (1 + level) / 2)
    unseen = hidden_share(len(values), level=(1 + level) / 2)
    return low - unseen * (low - bounds[0]), high + unseen * (bounds[1] - high)


def by_skewness(values: Array, bounds: Bounds, level: float) -> Limits:
    """The bootstrap; for a sample with skewness above 1 the wider of the bootstrap's and Gaffke's limits."""
    centred = values - values.mean(0)
    skewness = (centred**3).mean(0) / np.maximum((centred**2).mean(0), 1e-12) ** 1.5
    is_skewed = np.abs(skewness) > 1
    first, second = bootstrap(values, bounds, level), gaffke(values, bounds, level)
    low, high = np.minimum(first[0], second[0]), np.maximum(first[1], second[1])
    return np.where(is_skewed, low, first[0]), np.where(is_skewed, high, first[1])


def bootstrap(values: Array, bounds: Bounds, level: float, resamples: int = 1_000) -> Limits:
    """The studentised bootstrap alone, cut at the bounds."""
    parts = [
        studentised_limits(values[:, i : i + BLOCK], level=level, resamples=resamples, seed=i)
        for i in range(0, values.shape[1], BLOCK)
    ]
    low, high = (np.concatenate(ends) for ends in zip(*parts, strict=True))
    return np.clip(low, *bounds), np.clip(high, *bounds)


def student_t(values: Array, bounds: Bounds, level: float) -> Limits:
    n, mean = len(values), values.mean(0)
    reach = student(n, level) * values.std(0, ddof=1) / np.sqrt(n)
    return np.clip(mean - reach, *bounds), np.clip(mean + reach, *bounds)


RIVALS: dict[str, Callable[[Array, Bounds, float], Limits]] = {
    "Student's t": student_t,
    "studentised bootstrap": bootstrap,
    "empirical likelihood": mirrored(empirical_likelihood),
    "share × loss": share_times_loss,
    "by skewness": by_skewness,
    "body + unseen tail": body_and_tail,
    "Hoeffding–Bentkus": mirrored(hoeffding_bentkus),
    "betting": mirrored(betting),
    "Gaffke": gaffke,
}
