"""Distributions of paired differences within −100 and 100 points for simulations of intervals. Each has draws [n,R] and a mean."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
BOUNDS = (-100.0, 100.0)
SIZES = (60, 100, 200, 500, 1000)
SPARSE = ((0.005, 50), (0.01, 50), (0.02, 25), (0.02, 100), (0.05, 25), (0.05, 100), (0.1, 50), (0.2, 50), (0.3, 50))
MIXED = ((0.01, 50, 0.2), (0.02, 25, 1), (0.05, 50, 1), (0.1, 50, 1))


@dataclass(frozen=True)
class Law:
    """`kind`: dense, skewed, sparse, or mixed (rare large losses among small differences everywhere)."""

    name: str
    kind: str
    mean: float
    draw: Callable[[np.random.Generator, int, int], Array]


def laws() -> Iterator[Law]:
    """Yield all distributions; the last argument of a draw is the number of columns."""
    for spread in (2.0, 10.0):
        yield Law(f"normal, sd {spread:g}", "dense", 0.0, lambda rng, n, r, s=spread: rng.normal(0, s, (n, r)))
    yield Law("uniform −30 … 30", "dense", 0.0, lambda rng, n, r: rng.uniform(-30, 30, (n, r)))
    yield Law("beta scores, independent", "dense", 0.0, _beta_scores)
    yield Law("exponential 5 + normal 4", "skewed", -5.0, lambda rng, n, r: _normal(rng, 4, n, r) - _exp(rng, 5, n, r))
    yield Law("exponential 5", "skewed", -5.0, lambda rng, n, r: -_exp(rng, 5, n, r))
    yield Law("gamma, shape 2, mean 20", "skewed", -20.0, lambda rng, n, r: -np.minimum(rng.gamma(2, 10, (n, r)), 100))
    yield Law("half lose, exponential 2", "skewed", -1.0, lambda rng, n, r: -_some(rng, 0.5, n, r) * _exp(rng, 2, n, r))
    for share, size in SPARSE:
        yield losing(share, size)
    for share in (0.01, 0.05, 0.1):
        yield Law(f"{share:g} × exponential 10", "sparse", -10 * share, _rare_exponential(share))
    for lose, win in ((0.02, 0.02), (0.05, 0.05), (0.1, 0.08)):
        yield Law(f"{lose:g} lose 50, {win:g} win 50", "sparse", 50 * (win - lose), _two_sided(lose, win))
    for share, samples in ((0.01, 2), (0.05, 2), (0.02, 4)):
        yield losing(share, 100, samples)
    for share, size, spread in MIXED:
        yield Law(f"{share:g} × {size:g} + normal {spread:g}", "mixed", -size * share, _noisy(share, size, spread))


def losing(share: float, size: float, samples: int = 1) -> Law:
    """Return a distribution in which each sample of an example loses `size` with this probability; an example is the mean."""
    name = f"{share:g} × {size:g}" + (f", samples={samples}" if samples > 1 else "")

    def draw(rng: np.random.Generator, n: int, r: int) -> Array:
        return -(rng.uniform(size=(samples, n, r)) < share).mean(0) * size

    return Law(name, "sparse", -share * size, draw)


def _beta_scores(rng: np.random.Generator, n: int, r: int) -> Array:
    first, second = rng.beta(2, 2, (2, n, r))
    return 100 * (first - second)


def _normal(rng: np.random.Generator, spread: float, n: int, r: int) -> Array:
    return rng.normal(0, spread, (n, r))


def _exp(rng: np.random.Generator, mean: float, n: int, r: int) -> Array:
    """Draw from an exponential distribution; a value is beyond the bounds with probability below 5e-5."""
    return np.minimum(rng.exponential(mean, (n, r)), 75)


def _some(rng: np.random.Generator, share: float, n: int, r: int) -> Array:
    return (rng.uniform(size=(n, r)) < share).astype(np.float64)


def _rare_exponential(share: float) -> Callable[[np.random.Generator, int, int], Array]:
    return lambda rng, n, r: -_some(rng, share, n, r) * _exp(rng, 10, n, r)


def _two_sided(lose: float, win: float) -> Callable[[np.random.Generator, int, int], Array]:
    def draw(rng: np.random.Generator, n: int, r: int) -> Array:
        u = rng.uniform(size=(n, r))
        return 50.0 * (u > 1 - win) - 50.0 * (u < lose)

    return draw


def _noisy(share: float, size: float, spread: float) -> Callable[[np.random.Generator, int, int], Array]:
    return lambda rng, n, r: _normal(rng, spread, n, r) - size * _some(rng, share, n, r)
