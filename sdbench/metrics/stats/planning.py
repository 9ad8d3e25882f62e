"""What a run of this size can find, and how many more examples a decision asks for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike

from sdbench.metrics.stats.base import NAN, Bounds, check_bounds, values_of
from sdbench.metrics.stats.paired import paired_interval

SURE = 0.9  # how sure the range of more examples is meant to be
MOST_UNSURE = 30  # a range wider than this says nothing


@dataclass(frozen=True, slots=True)
class MoreExamples:
    """How many more examples would do: at least `low`, at most `high`, which is None where no number can be said."""

    low: int
    high: int | None

    @property
    def text(self) -> str:
        low = _rounded(self.low)
        return f"at least {low} more examples" if self.high is None else f"{low} to {_rounded(self.high)} more examples"


def _rounded(count: int) -> str:
    """Two leading digits: the range itself is not known better."""
    digits = max(len(str(count)) - 2, 0)
    return f"{round(count, -digits):,}"


def detectable(a: ArrayLike, b: ArrayLike, *, power: float = 0.8, level: float = 0.95) -> float:
    """Smallest true mean of a − b that a paired test at this n finds with this power, from the spread of the pairs."""
    from scipy.stats import norm

    difference = values_of(a, "a") - values_of(b, "b")
    if len(difference) < 2:
        return NAN
    quantiles = norm.ppf((1 + level) / 2) + norm.ppf(power)
    return float(quantiles * difference.std(ddof=1) / math.sqrt(len(difference)))


def more_examples(
    a: ArrayLike,
    b: ArrayLike,
    margin: float,
    *,
    alpha: float = 0.025,
    power: float = 0.8,
    bounds: Bounds | None = None,
    seed: int = 0,
) -> MoreExamples | None:
    """How many more examples give this power to prove that a is less than `margin` below b, both larger is better.

    A range, because the true loss is known no better than its interval says; None where that lies beyond the margin as a whole.
    `margin` is in units of the scores. No fewer would do than those that rule out the margin where nothing differs at all.
    """
    if not margin > 0:
        raise ValueError(f"margin must be above 0, got {margin}")
    x, y = values_of(a, "a"), values_of(b, "b")
    n = len(x)
    gap = paired_interval(x, y, level=SURE, resamples=2_000, seed=seed, bounds=bounds)
    if n < 2 or gap.high <= -margin:
        return None
    reach = NormalDist().inv_cdf(1 - alpha) + NormalDist().inv_cdf(power)
    spread = float((x - y).std(ddof=1))
    least, most = check_bounds(np.concatenate([x, y]), bounds)
    floor = math.log(alpha) / math.log1p(-margin / (most - least)) if margin < most - least < math.inf else 0.0
    fewest, expected, enough = (_needed(mean, margin, reach * spread, floor) for mean in (gap.high, gap.value, gap.low))
    low = max(1, math.ceil(fewest - n))
    is_known = spread > 0 and enough <= MOST_UNSURE * max(fewest, 1.0) and math.isfinite(expected)
    return MoreExamples(low, max(low, math.ceil(enough - n)) if is_known else None)


def _needed(mean: float, margin: float, reach: float, floor: float) -> float:
    """Examples, in all, that find a true mean difference to lie above −margin."""
    return max((reach / (mean + margin)) ** 2, floor) if mean > -margin else math.inf
