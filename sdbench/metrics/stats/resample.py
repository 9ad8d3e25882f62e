"""Bootstrap sums over examples: one set of draws for all cells of one n.

All in double precision, because a studentised pivot divides by a spread that cancels where only few examples differ.
"""

import math
from functools import lru_cache

import numpy as np

from sdbench.metrics.stats.base import Array

CHUNK = 2_000_000  # weights drawn at once: 16 MB
WEIGHTS = 10_000_000  # weights kept between cells: 80 MB, which the cache below must hold
FEW = 10  # with fewer examples resamples hardly differ, and Student's t is used
ONE_THREAD = 200_000  # multiplications of one product; from about 260,000 on BLAS uses threads that wait on each other


@lru_cache(maxsize=8)
def _weights(n: int, resamples: int, seed: int, chunk: int) -> Array:
    """Return [R,n]: how often each example is drawn."""
    rng = np.random.default_rng((seed, n, resamples, chunk))
    size = min(max(1, CHUNK // n), resamples - chunk * max(1, CHUNK // n))
    draws = rng.integers(0, n, (size, n)) + np.arange(size)[:, None] * n
    return np.bincount(draws.ravel(), minlength=size * n).reshape(size, n).astype(np.float64)


def bootstrap_sums(columns: Array, *, resamples: int, seed: int) -> Array:
    """Return sums [R,C] of columns [n,C] over bootstrap samples, with the same draws for every column, cell and call of one n."""
    n = len(columns)
    step = max(1, CHUNK // n)
    rows = max(1, ONE_THREAD // (n * max(columns.shape[1], 1)))
    # Draws of a row add up to n. Columns are centred, so that large offsets lose no digits.
    means = columns.mean(0)
    centred = np.ascontiguousarray(columns - means)
    parts = []
    for chunk in range(-(-resamples // step)):
        weights = _weights(n, resamples, seed, chunk)
        parts += [weights[i : i + rows] @ centred for i in range(0, len(weights), rows)]
    return np.concatenate(parts) + n * means


def affordable(n: int, resamples: int) -> int:
    """Return the number of resamples for many cells: all up to n = 1,000, fewer beyond, never below 1,000."""
    return min(resamples, max(1_000, WEIGHTS // max(n, 1)))


def quantiles(pivots: Array, level: float) -> tuple[Array, Array]:
    """Return both quantiles [C] of pivots [R,C]; resamples without variation have no pivot and are left out."""
    ends = [(1 - level) / 2, (1 + level) / 2]
    if np.isfinite(pivots).all():
        low, high = np.quantile(pivots, ends, axis=0)
    else:
        low, high = np.stack(
            [np.quantile(c[np.isfinite(c)], ends) if np.isfinite(c).any() else (0, 0) for c in pivots.T], 1
        )
    return low, high


def student(n: int, level: float) -> float:
    """Return Student's quantile for n examples."""
    from scipy.special import stdtrit

    return float(stdtrit(n - 1, (1 + level) / 2))


def studentised_limits(columns: Array, *, level: float, resamples: int, seed: int) -> tuple[Array, Array]:
    """Return limits [C] of the means of columns [n,C], n > 1 (Efron and Tibshirani 1993, ch. 12); Student's below FEW."""
    n = len(columns)
    means, errors = columns.mean(0), columns.std(0, ddof=1) / math.sqrt(n)
    if n < FEW:
        return means - student(n, level) * errors, means + student(n, level) * errors
    centred = columns - means
    sums = bootstrap_sums(np.concatenate([centred, centred**2], 1), resamples=resamples, seed=seed) / n
    shift, square = np.split(sums, 2, axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        drawn = np.sqrt(np.maximum(square - shift**2, 0) / (n - 1))
        pivots = np.where(drawn > 1e-6 * errors, shift / drawn, np.nan)
    low, high = quantiles(pivots, level)
    return means - high * errors, means - low * errors
