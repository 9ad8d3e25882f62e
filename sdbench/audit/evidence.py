"""Evidence against a law, as e-values: under the claim their mean is 1 however often one looks, so that looking costs nothing.

By Ville's inequality P(e ever reaches m/α) ≤ α/m. With m tests in a run the family-wise error is at most α, without approximation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, logsumexp

Floats = NDArray[np.float64]
ALPHA = 0.01  # the family-wise error of a run
LEAST = 5  # cells expected less often than this at the horizon are pooled
SHARES = (1 / 4, 1 / 32)  # of the horizon: how firmly the alternatives hold on to the law
TILTS = tuple(sign * 2.0**-power for power in range(7) for sign in (-1, 1))  # of the log odds of an acceptance


def pooled(law: Floats, horizon: float) -> tuple[NDArray[np.int64], Floats]:
    """cell -> pool, and the law of the pools: cells expected less than LEAST times are one, of what is never expected another."""
    expected = law * horizon
    kind = np.where(law <= 0, 2, np.where(expected < LEAST, 1, 0))
    number = np.cumsum(kind == 0) - 1
    own = int((kind == 0).sum())
    pool = np.where(kind == 0, number, own + kind - 1).astype(np.int64)
    return pool, np.bincount(pool, law, own + 2).astype(float)


@dataclass
class Counts:
    """Counts of cells against their law [C]: the mean likelihood ratio of Dirichlet alternatives around the law."""

    law: Floats
    horizon: float
    pool: NDArray[np.int64] = field(init=False)
    expected: Floats = field(init=False)
    seen: Floats = field(init=False)
    raw: Floats = field(init=False)

    def __post_init__(self) -> None:
        self.pool, self.expected = pooled(self.law, self.horizon)
        self.seen, self.raw = np.zeros_like(self.expected), np.zeros(len(self.law))

    def add(self, cells: NDArray[np.int64]) -> None:
        counts = np.bincount(cells, minlength=len(self.law)).astype(float)
        self.raw += counts
        self.seen += np.bincount(self.pool, counts, len(self.expected))

    @property
    def size(self) -> int:
        return int(self.seen.sum())

    def log_e(self, seen: Floats | None = None) -> Floats:
        """[...] of counts [..., C]; infinite where something was seen that the law excludes."""
        seen = self.seen if seen is None else seen
        some = self.expected > 0
        law, counts, total = self.expected[some], seen[..., some], seen[..., some].sum(-1)
        values = []
        for share in SHARES:
            k = max(float(self.horizon) * share, 8.0)
            inside = (gammaln(k * law + counts) - gammaln(k * law) - counts * np.log(law)).sum(-1)
            values.append(inside + gammaln(k) - gammaln(k + total))
        mean = logsumexp(np.stack(values), axis=0) - np.log(len(SHARES))
        return np.where(seen[..., ~some].sum(-1) > 0, np.inf, mean)

    def shifted(self, tv: float) -> Floats:
        """A law at this distance whose difference is spread as evenly as can be: the hardest to see.

        Where one cell has nearly all mass, that mass goes to what is hardly ever expected, or never.
        """
        order = np.argsort(-self.expected)
        up = np.zeros(len(order), bool)
        mass = [0.0, 0.0]
        for cell in order:
            up[cell] = mass[0] <= mass[1]
            mass[0 if up[cell] else 1] += float(self.expected[cell])
        if min(mass) > tv:
            return self.expected * np.where(up, 1 + tv / mass[0], 1 - tv / mass[1])
        law, rest = self.expected.copy(), 1 - self.expected.max()
        law *= (rest + tv) / rest if rest > 0 else 1.0
        law[order[0]] = self.expected.max() - tv
        law[-1] += 0.0 if rest > 0 else tv
        return law.clip(0)

    def deviations(self) -> Floats:
        """z of every cell: (seen − expected)/√expected, of the cells as they were before pooling."""
        expected = self.law * self.size
        return (self.raw - expected) / np.sqrt(np.maximum(expected, 1e-12))

    def effect(self) -> tuple[float, float, float]:
        """TV between what was seen and the law with a 95 % interval: McDiarmid's, less what chance alone adds to the mean."""
        n = max(self.size, 1)
        share = self.seen / n
        tv = float(np.abs(share - self.expected).sum() / 2)
        chance = float(np.sqrt(share * (1 - share) / n).sum() / 2)
        reach = float(np.sqrt(np.log(2 / 0.05) / (2 * n)))
        return tv, max(0.0, tv - chance - reach), min(1.0, tv + reach)


@dataclass
class Coins:
    """Coins against their own probabilities, one by one, whatever came before: the mean likelihood ratio of tilted odds."""

    log_ratio: Floats = field(default_factory=lambda: np.zeros(len(TILTS)))
    total: float = 0.0
    expected: float = 0.0
    variance: float = 0.0
    size: int = 0

    def add(self, is_kept: NDArray[np.bool_], chance: Floats) -> None:
        chance = np.clip(chance, 0.0, 1.0)
        kept = is_kept.astype(float)
        for place, tilt in enumerate(TILTS):
            self.log_ratio[place] += float((tilt * kept - np.log1p(chance * np.expm1(tilt))).sum())
        if (kept > 0)[chance <= 0].any() or (kept < 1)[chance >= 1].any():
            self.log_ratio[:] = np.inf
        self.total, self.expected = self.total + kept.sum(), self.expected + float(chance.sum())
        self.variance += float((chance * (1 - chance)).sum())
        self.size += len(kept)

    def add_counts(self, kept: NDArray[np.int64], law: Floats) -> None:
        """Numbers [N] against their own laws [N,K+1]."""
        each = np.arange(law.shape[1])
        for place, tilt in enumerate(TILTS):
            self.log_ratio[place] += float((tilt * kept - np.log((law * np.exp(tilt * each)).sum(1))).sum())
        if (law[np.arange(len(kept)), kept] <= 0).any():
            self.log_ratio[:] = np.inf
        mean = (law * each).sum(1)
        self.total, self.expected = self.total + float(kept.sum()), self.expected + float(mean.sum())
        self.variance += float(((law * each**2).sum(1) - mean**2).sum())
        self.size += len(kept)

    def log_e(self) -> float:
        return float(logsumexp(self.log_ratio) - np.log(len(TILTS)))

    def effect(self) -> tuple[float, float, float]:
        """Mean of kept − expected, with a 95 % interval."""
        n, reach = max(self.size, 1), 1.96 * np.sqrt(self.variance)
        gap = self.total - self.expected
        return gap / n, (gap - reach) / n, (gap + reach) / n

    def least(self, log_wanted: float) -> float:
        """The difference in acceptance that would have been found with probability .95: the normal approximation."""
        if not self.variance:
            return float("nan")
        wanted = np.sqrt(2 * (log_wanted + np.log(len(TILTS)))) + 1.645
        return float(wanted * np.sqrt(self.variance) / self.size)


def combined(values: Sequence[float]) -> float:
    """log of the mean of e-values: one e-value again, whatever their dependence."""
    return float(logsumexp(np.asarray(values, float)) - np.log(len(values)))


def least_tv(
    parts: Sequence[Sequence[Counts]], sizes: Sequence[int], log_wanted: float, *, power: float = 0.95
) -> float:
    """The smallest TV that a test finds with this probability, by simulation; inf: none that was tried.

    The parts are ways to look at the same texts, whose e-values are averaged; the tables of a part are of different texts, `sizes`
    of each, and the shift is in all of them.
    """
    each = log_wanted + np.log(len(parts))
    return min(_least(part, sizes, each, power) for part in parts)


GRID = (
    0.005,
    0.0075,
    0.01,
    0.015,
    0.02,
    0.025,
    0.03,
    0.035,
    0.04,
    0.045,
    0.05,
    0.06,
    0.07,
    0.08,
    0.1,
    0.12,
    0.15,
    0.2,
    0.3,
    0.4,
    0.6,
)


def _least(part: Sequence[Counts], sizes: Sequence[int], log_wanted: float, power: float) -> float:
    generator = np.random.default_rng(0)

    def is_enough(tv: float) -> bool:
        total = np.zeros(200)
        for counts, size in zip(part, sizes, strict=True):
            if size:
                law = counts.shifted(tv)
                total += counts.log_e(generator.multinomial(size, law / law.sum(), 200).astype(float))
        return float((total >= log_wanted).mean()) >= power

    return first_of(GRID, is_enough)


def first_of(values: Sequence[float], is_enough: Callable[[float], bool]) -> float:
    """The first of ascending values that is enough, by bisection; inf: none."""
    low, high = 0, len(values)
    while low < high:
        middle = (low + high) // 2
        if is_enough(values[middle]):
            high = middle
        else:
            low = middle + 1
    return values[low] if low < len(values) else float("inf")
