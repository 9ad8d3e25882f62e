"""E-values: evidence against a claimed distribution. Under the claim their mean is at most 1, however often they are checked.

By Ville's inequality P(e ever reaches m/α) ≤ α/m. With m tests in a run the family-wise error is at most α, without approximation.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, logsumexp

Floats = NDArray[np.float64]
ALPHA = 0.01  # the family-wise error of a run
POWER = 0.95
MIN_EXPECTED = 5  # cells expected less often than this at the horizon are pooled
SHARES = (1 / 4, 1 / 32)  # concentration of the Dirichlet alternatives, as shares of the horizon
TILTS = tuple(sign * 2.0**-power for power in range(7) for sign in (-1, 1))  # of the log odds of an acceptance


def pool_rare(law: Floats, horizon: float) -> tuple[NDArray[np.int64], Floats]:
    """Return cell -> pool, and the pools' probabilities: rare cells share the second last pool, impossible ones the last."""
    kind = np.where(law <= 0, 2, np.where(law * horizon < MIN_EXPECTED, 1, 0))
    num_single = int((kind == 0).sum())
    pool = np.where(kind == 0, np.cumsum(kind == 0) - 1, num_single + kind - 1).astype(np.int64)
    return pool, np.bincount(pool, law, num_single + 2).astype(float)


@dataclass(frozen=True, slots=True)
class Deviation:
    """Cells whose counts together deviate from their law: z = |seen − expected|/√max(expected, 1), infinite if impossible."""

    z: float
    cells: NDArray[np.int64]
    seen: float
    expected: float


@dataclass
class CountEvidence:
    """Counts of cells against their probabilities [C]: the mean likelihood ratio of Dirichlet alternatives around them."""

    law: Floats
    horizon: float
    has_rest: bool = False  # the last cell stands for many

    def __post_init__(self) -> None:
        self.pool, self.expected = pool_rare(self.law, self.horizon)
        self.seen, self.raw = np.zeros_like(self.expected), np.zeros(len(self.law))

    def add(self, cells: NDArray[np.int64]) -> None:
        counts = np.bincount(cells, minlength=len(self.law)).astype(float)
        self.raw += counts
        self.seen += np.bincount(self.pool, counts, len(self.expected))

    @property
    def size(self) -> int:
        return int(self.seen.sum())

    @property
    def pooled(self) -> float:
        """Return the probability of the cells that are not counted singly: a change among them is not detected."""
        is_rest_single = self.has_rest and self.pool[-1] < len(self.expected) - 2
        return float(self.expected[-2] + (self.law[-1] if is_rest_single else 0.0))

    def log_e(self, seen: Floats | None = None) -> Floats:
        """Return log e [...] of counts [..., C]; infinite where a cell of probability 0 was seen."""
        seen = self.seen if seen is None else seen
        is_possible = self.expected > 0
        law, counts, total = self.expected[is_possible], seen[..., is_possible], seen[..., is_possible].sum(-1)
        log_ratios = []
        for k in (max(float(self.horizon) * share, 8.0) for share in SHARES):
            inside = (gammaln(k * law + counts) - gammaln(k * law) - counts * np.log(law)).sum(-1)
            log_ratios.append(inside + gammaln(k) - gammaln(k + total))
        mean = logsumexp(np.stack(log_ratios), axis=0) - np.log(len(SHARES))
        return np.where(seen[..., ~is_possible].sum(-1) > 0, np.inf, mean)

    def worst(self) -> Deviation:
        """Return the cell that deviates most. Rare cells count as one, since a chance hit of one of them would deviate most."""
        pool, law = pool_rare(self.law, self.size)
        seen, expected = np.bincount(pool, self.raw, len(law)), law * self.size
        z = np.abs(seen - expected) / np.sqrt(np.maximum(expected, 1))
        z[-1] = np.inf if seen[-1] else 0.0
        index = int(z.argmax())
        cells = np.flatnonzero(pool == index)
        if index == len(law) - 1:
            cells = cells[[self.raw[cells].argmax()]]
        return Deviation(float(z[index]), cells, float(self.raw[cells].sum()), float(expected[index]))

    def shift_evenly(self, tv: float) -> Floats:
        """Return the distribution at this TV from the claim whose difference is spread most evenly, which is hardest to detect.

        If one cell has nearly all mass, mass moves from it to the rare cells or, without rare cells, to impossible ones. A table
        with a single cell cannot show a difference, so its distribution stays the same.
        """
        order = np.argsort(-self.expected)
        up = np.zeros(len(order), bool)
        mass = [0.0, 0.0]
        for cell in order:
            up[cell] = mass[0] <= mass[1]
            mass[0 if up[cell] else 1] += float(self.expected[cell])
        if min(mass) > tv:
            return self.expected * np.where(up, 1 + tv / mass[0], 1 - tv / mass[1])
        law, rest = self.expected.copy(), float(self.expected[order[1:]].sum())
        has_impossible = bool((self.pool == len(self.expected) - 1).any())
        if not rest and not has_impossible:
            return law
        law *= (rest + tv) / rest if rest else 1.0
        law[order[0]] = self.expected.max() - tv
        law[-1] += 0.0 if rest else tv
        return law.clip(0)

    def effect(self) -> tuple[float, float, float]:
        """Return the TV between counts and claim with McDiarmid's 95 % interval; the lower limit also excludes sampling noise."""
        n = max(self.size, 1)
        share = self.seen / n
        tv = float(np.abs(share - self.expected).sum() / 2)
        noise = float(np.sqrt(share * (1 - share) / n).sum() / 2)
        reach = float(np.sqrt(np.log(2 / 0.05) / (2 * n)))
        return tv, max(0.0, tv - noise - reach), min(1.0, tv + reach)


@dataclass
class AcceptanceEvidence:
    """Accepted drafts against their exact probabilities, given all before them: the mean likelihood ratio of tilted odds."""

    log_ratio: Floats = field(default_factory=lambda: np.zeros(len(TILTS)))
    log_means: Floats = field(default_factory=lambda: np.zeros(len(TILTS)))  # of the weights by which counts are tilted
    total: float = 0.0
    expected: float = 0.0
    variance: float = 0.0
    samples: int = 0
    most: int = 1  # drafts that a sample can keep
    most_rough: float = 0.0  # by how much its distribution may be off

    def add_kept(self, is_kept: NDArray[np.bool_], chance: Floats, rough: float = 0.0) -> None:
        """Add drafts [N], kept or not, each with its probability [N], which may be off by `rough`."""
        chance = np.clip(chance, 0.0, 1.0)
        self.add_counts(is_kept.astype(np.int64), np.stack((1 - chance, chance), 1), rough)

    def add_counts(self, kept: NDArray[np.int64], law: Floats, rough: float = 0.0) -> None:
        """Add numbers [N] of drafts kept, each with its distribution [N,K+1], from probabilities that may be off by `rough`."""
        each, most = np.arange(law.shape[1]), law.shape[1] - 1
        rough *= most  # the TV between distributions of how many of K drafts are kept
        self.most, self.most_rough = max(self.most, most), max(self.most_rough, rough)
        for index, tilt in enumerate(TILTS):
            weights = np.exp(tilt * each)
            # No distribution within this TV gives the weights a larger mean than `largest`, so the weights divided by it are an
            # e-value under each of them. A rule that keeps all of a million drafts, as it claims, then adds no evidence.
            largest = np.minimum((law * weights).sum(1) + rough * np.ptp(weights), weights.max())
            self.log_ratio[index] += float((tilt * kept - np.log(largest)).sum())
            self.log_means[index] += float(np.log(largest).sum())
        if not rough and (law[np.arange(len(kept)), kept] <= 0).any():
            self.log_ratio[:] = np.inf
        mean = (law * each).sum(1)
        self.total, self.expected = self.total + float(kept.sum()), self.expected + float(mean.sum())
        self.variance += float(np.maximum((law * each**2).sum(1) - mean**2, rough).sum())
        self.samples += len(kept)

    def log_e(self) -> float:
        return float(logsumexp(self.log_ratio) - np.log(len(TILTS)))

    def gap(self) -> tuple[float, float, float]:
        """Return the mean of kept − expected, with a 95 % interval."""
        n, reach = max(self.samples, 1), 1.96 * np.sqrt(self.variance)
        gap = self.total - self.expected
        return gap / n, (gap - reach) / n, (gap + reach) / n

    def least(self, log_wanted: float) -> float:
        """Return the difference in acceptance, up or down, that is detected with probability .95; inf if none is.

        A tilt needs (log e + log mean of its weights) / tilt kept drafts, whatever the rule, and the best of the few tilts decides.
        To be above that in 95 % of runs, the mean is higher by their noise: the variance of the claim, plus `most` times the
        difference, as a Poisson count has it.
        """
        if not self.variance:  # all is certain: a single draft that should not be kept refutes the claim
            return 0.0 if self.samples else float("inf")
        tilts, z = np.array(TILTS), 1.645
        needed = (log_wanted + np.log(len(TILTS)) + self.log_means - tilts * self.expected) / np.abs(tilts)
        rise, fall = needed[tilts > 0].min(), needed[tilts < 0].min()
        gaps = np.array([rise, fall])
        gaps += z**2 * self.most / 2 + z * np.sqrt(self.variance + self.most * gaps + z**2 * self.most**2 / 4)
        room = np.array([self.samples * self.most - self.expected, self.expected])  # no rule differs by more
        if (gaps > room).all():
            return float("inf")
        return self.most_rough + float(np.minimum(gaps, room).max() / self.samples)


def log_mean(log_values: Sequence[float]) -> float:
    """Return the log of the mean of e-values, which is an e-value whatever their dependence."""
    return float(logsumexp(np.asarray(log_values, float)) - np.log(len(log_values)))


# fmt: off
GRID = (.005, .0075, .01, .015, .02, .025, .03, .035, .04, .045, .05, .06, .07, .08, .1, .12, .15, .2, .3, .4, .6)
# fmt: on


def least_tv(part: Sequence[CountEvidence], sizes: Sequence[int], log_wanted: float) -> float:
    """Return the smallest TV of GRID that a test detects with probability POWER, by simulation; inf where none is.

    The tables of a part count different texts, `sizes` of each, and all tables are shifted.
    """
    generator = np.random.default_rng(0)

    def is_enough(tv: float) -> bool:
        total = np.zeros(200)
        for counts, size in zip(part, sizes, strict=True):
            if size:
                law = counts.shift_evenly(tv)
                total += counts.log_e(generator.multinomial(size, law / law.sum(), 200).astype(float))
        return float((total >= log_wanted).mean()) >= POWER

    return first_of(GRID, is_enough)


def first_of(values: Sequence[float], is_enough: Callable[[float], bool]) -> float:
    """Return the first of ascending values that is enough, by bisection; inf where none is."""
    index = bisect_left(values, True, key=is_enough)
    return values[index] if index < len(values) else float("inf")
