"""Estimate how many examples would show a refused setting to be safe, from the spread of the examples at hand."""

import math
from statistics import NormalDist

from sdbench.metrics.safety import Comparison

POWER = 0.8
SURE = 0.95  # one-sided level of each end of the range
WIDEST = 25  # a wider range, as a ratio, is not shown


def needed_examples(best: Comparison, margin: float, alpha: float) -> str:
    """Return the examples needed for 80 % power, as a range over the 90 % interval of the loss. The range has no upper end if
    that interval reaches the margin, or if it would be too wide.

    The limit lies below the estimate by z standard errors, which shrink as 1/√n, and by the loss that n examples cannot show,
    which shrinks as 1/n. For Gaffke's limit the squares of the two add up, within about 5 %.
    """
    width, n, quantile = best.change - best.worst, best.difference.n, NormalDist().inv_cdf
    if not (0 < width < math.inf and best.error < math.inf):
        return ""
    seen = min(quantile(1 - alpha) * best.error, width)
    reach = (seen, math.sqrt(width**2 - seen**2), quantile(POWER) * best.error)
    few, about, many = (
        n * _times(margin + best.change + sign * quantile(SURE) * best.error, *reach) for sign in (1, 0, -1)
    )
    if few == math.inf:
        return ""
    low, high = max(n + 1, few), max(n + 1, many)
    if high > WIDEST * low:
        as_seen = f", {round_number(max(n + 1, about))} if the loss is as measured" if about < math.inf else ""
        return f"at least {round_number(low)} examples in all are needed{as_seen}"
    count = (
        round_number(low) if round_number(low) == round_number(high) else f"{round_number(low)} to {round_number(high)}"
    )
    return f"{count} examples in all would do, if they differ as much as these"


def examples_needed(test: Comparison, margin: float, alpha: float) -> str:
    """Return how many examples would show a refused setting safe, such as 61 to 1,200, or why none would; "" for a safe one."""
    if test.is_safe(margin):
        return ""
    if test.has_excess(margin):
        return f"no number is enough: more texts {test.excess[1]}"
    count, _, _ = needed_examples(test, margin, alpha).partition(" examples")
    return count or ("no number is enough: it loses more than the margin" if test.change <= -margin else "not known")


def _times(room: float, seen: float, hidden: float, power: float) -> float:
    """Return the factor on the number of examples at which the shrinking distances fit into `room`; infinite if they never do."""
    low, high = 0.0, 1.0  # bounds of 1/√factor
    for _ in range(60):
        middle = (low + high) / 2
        is_within = math.hypot(seen * middle, hidden * middle**2) + power * middle <= room
        low, high = (middle, high) if is_within else (low, middle)
    return 1 / low**2 if low > 0 else math.inf


def round_number(count: float) -> str:
    """Round to two digits, since the estimate is no more precise."""
    digits = max(len(str(math.ceil(count))) - 2, 0)
    return f"{math.ceil(count / 10**digits) * 10**digits:,}"
