"""Limits of the mean of bounded values that also hold where few examples differ.

Gaffke 2005 (Statistics 39, "Three test statistics for a nonparametric one-sided hypothesis on the mean of a nonnegative
variable"): add one example at the bound, weight all n + 1 by a flat Dirichlet distribution, and take the quantile of the
weighted mean. For pass/fail it is exactly Clopper and Pearson's limit. Where all n values are equal, a share of 1 − α^(1/n) of
the range, about 3.7/n at α = 2.5 %, cannot be excluded. That the error is at most α is proved for these cases and for n ≤ 2,
and no distribution is known that violates it. The quantile comes from the saddlepoint of the sum of exponentials
(Barndorff-Nielsen's r*), within about 1 % of its distance from the mean; no draws, so no seed.
"""

from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike

from sdbench.metrics.stats.base import Array, check_level

STEPS = 36  # bisections of a range of 23 powers of ten
MOST_SPARSE, LEAST_DENSE = 10.0, 40.0  # differing examples; chosen by scripts/simulate_intervals.py


def hidden_share(n: int, *, level: float = 0.95) -> float:
    """Return the largest share of examples unlike all n seen that stays unseen with probability (1 − level)/2."""
    if n < 1:
        raise ValueError(f"n must be at least 1, got {n}")
    return 1 - ((1 - check_level(level)) / 2) ** (1 / n)


def conservative_limits(columns: Array, bounds: tuple[ArrayLike, ArrayLike], *, level: float) -> tuple[Array, Array]:
    """Return limits [C] of the means of columns [n,C] of values within bounds, each a number or [C]."""
    low, high = np.asarray(bounds[0], np.float64), np.asarray(bounds[1], np.float64)
    return low + _least(columns - low, level), high - _least(high - columns, level)


def _least(values: Array, level: float) -> Array:
    """Return lower limits [C] of the means of values [n,C] that are at least 0."""
    n, z = len(values), NormalDist().inv_cdf((1 + level) / 2)
    largest = values.max(0)
    y = np.concatenate([values, np.zeros((1, values.shape[1]))]) / np.where(largest > 0, largest, 1.0)
    # Each tilt g of the weights 1/(g + y) gives one possible mean. The limit is the mean whose r* equals z.
    first, last = np.full(values.shape[1], -45.0), np.full(values.shape[1], np.log(4.0 * (n + 1)))
    for _ in range(STEPS):
        middle = (first + last) / 2
        is_far = _tilt(y, np.exp(middle))[1] > z
        first, last = np.where(is_far, middle, first), np.where(is_far, last, middle)
    limits = largest * _tilt(y, np.exp((first + last) / 2))[0]
    return np.where(values.min(0) == largest, largest * (1 - hidden_share(n, level=level)), limits)


def _tilt(y: Array, g: Array) -> tuple[Array, Array]:
    """Return the mean [C] of y [n+1,C] under weights 1/(g + y), and r*: how many standard errors it lies below the plain mean."""
    weights = 1 / (g + y)
    mean = (y * weights).sum(0) / weights.sum(0)
    with np.errstate(divide="ignore", invalid="ignore"):
        distance = np.sqrt(np.maximum(2 * np.log1p((y - mean) / (g + mean)).sum(0), 0))
        spread = np.sqrt((((y - mean) * weights) ** 2).sum(0))
        return mean, distance + np.log(spread / distance) / distance


def density(columns: Array, *, is_bounded: bool = True) -> Array:
    """Return [C] from 0, if few values of columns [n,C] differ, to 1, if many do: the weight of the studentised bootstrap.

    Differing values are those whose distance from the median is at least a twentieth of the largest: many tiny differences
    beside a few large ones count as few. Without bounds there is no conservative limit, and half of the examples are enough.
    """
    away = np.abs(columns - np.median(columns, axis=0))
    counts = ((away > away.max(0) / 20) & (away > 0)).sum(0)
    by_count = trust(counts)
    return by_count if is_bounded else np.maximum(by_count, np.clip(4 * counts / len(columns) - 1, 0, 1))


def trust(count: ArrayLike) -> Array:
    """Return 0 up to ten differing examples, 1 from forty: in between, both kinds of limits are mixed, so that none jumps."""
    return np.clip((np.asarray(count, np.float64) - MOST_SPARSE) / (LEAST_DENSE - MOST_SPARSE), 0, 1)


def known_or_guessed(columns: Array, least: float, most: float) -> tuple[Array, Array]:
    """Return bounds [C] of columns [n,C]. An infinite, unknown bound is guessed: the range of the values is added beyond them."""
    low, high = columns.min(0), columns.max(0)
    guesses = low - (high - low), high + (high - low)
    return (
        np.minimum(least, low) if np.isfinite(least) else guesses[0],
        np.maximum(most, high) if np.isfinite(most) else guesses[1],
    )
