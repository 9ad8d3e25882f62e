"""How long texts in progress will become, estimated from the texts that have ended."""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

STEPS = 48  # of the sum in `expected_longest`
FITS = 30  # steps of expectation maximisation
GOLDEN = (math.sqrt(5) - 1) / 2  # its multiples modulo 1 are spread evenly, however many there are
PRIOR_TEXTS, PRIOR_SIGMA = 3, 1.0  # prior on the spread of log lengths: its weight, in texts, and its value
STANDARD = NormalDist()


@dataclass
class LogLengths:
    """Logarithms of the lengths of finished texts, as sums for a fit of a normal law."""

    count: int = 0
    total: float = 0.0
    squares: float = 0.0

    def add(self, length: int) -> None:
        log = log_of(length)
        self.count += 1
        self.total += log
        self.squares += log * log

    def fit(self, ages: Sequence[float], texts_per_age: float) -> NormalDist:
        """Fit the law to the finished texts and to texts in progress, which become longer than their `ages`.

        Without the texts in progress the fit would be biased to short texts, which end first. It maximises the likelihood of
        censored data times the prior, by expectation maximisation. Each age stands for `texts_per_age` texts.
        """
        logs = [log_of(age) for age in ages]
        count = self.count + texts_per_age * len(logs)
        mean, sigma = (self.total + texts_per_age * sum(logs)) / count, PRIOR_SIGMA
        for _ in range(FITS):
            total, squares = self.total, self.squares
            for log in logs:
                z = (log - mean) / sigma
                beyond = mean_beyond(z)
                total += texts_per_age * (mean + sigma * beyond)
                squares += texts_per_age * (mean * mean + 2 * mean * sigma * beyond + sigma * sigma * (1 + z * beyond))
            mean = total / count
            deviations = max(squares - count * mean * mean, 0)
            sigma = math.sqrt((deviations + PRIOR_TEXTS * PRIOR_SIGMA**2) / (count + PRIOR_TEXTS))
        return NormalDist(mean, sigma)


def likely_lengths(law: NormalDist, ages: Sequence[float], texts_per_age: float, longest: float) -> list[float]:
    """Return likely lengths of texts that have `ages` tokens so far: evenly spread quantiles of this law of their logarithms."""
    lengths = []
    for number, age in enumerate([*ages] * max(1, round(texts_per_age))):
        shorter = law.cdf(log_of(age))
        share = shorter + (1 - shorter) * ((number + 0.5) * GOLDEN % 1)
        length = math.exp(law.inv_cdf(share)) if 0 < share < 1 else age
        lengths.append(min(max(length, age + 1), longest))
    return lengths


def log_of(length: float) -> float:
    return math.log(max(length, 1))


def mean_beyond(z: float) -> float:
    """Return the mean of a standard normal variable, given that it exceeds z."""
    share = STANDARD.cdf(-z)
    return STANDARD.pdf(z) / share if share > 0 else z


def mean_rest(lengths: Sequence[float], age: float) -> float:
    """Return by how much those of the sorted `lengths` that exceed `age` exceed it on average; 0 if there is none."""
    longer = lengths[bisect_right(lengths, age) :]
    return sum(longer) / len(longer) - age if longer else 0.0


def expected_longest(lengths: Sequence[float], ages: Sequence[float], texts_per_age: float) -> float:
    """Estimate the tokens that the longest of several texts still needs. The texts have `ages` tokens so far, and their lengths
    are distributed as the sorted `lengths`. A text that is longer than all of these counts as finished.
    """
    if not ages:
        return 0.0
    longer = [len(lengths) - bisect_right(lengths, age) for age in ages]
    step = max(lengths[-1] - min(ages), 0) / STEPS
    total = 0.0
    for number in range(STEPS):
        more = (number + 0.5) * step
        shares = (
            1 - (len(lengths) - bisect_right(lengths, age + more)) / count
            for age, count in zip(ages, longer, strict=True)
            if count
        )
        total += step * (1 - math.prod(share**texts_per_age for share in shares))
    return total
