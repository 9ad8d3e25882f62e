"""A decision in one sentence: the setting, what it costs at most, what it gains over lossless, and how sure that is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

from sdbench.metrics.safety import ALPHA, Comparison
from sdbench.metrics.stats import Estimate
from sdbench.metrics.text import format_interval, format_number
from sdbench.metrics.weigh import Gain, Weighed

POWER = 0.8
SURE = 0.95  # on each side of a range of examples
WIDEST = 25  # a range wider than this says nothing


def ship(sweep: Weighed, best: Comparison, gain: Gain, margin: str) -> str:
    """Safe and faster than lossless."""
    target = f", {gain.over_target.value:.2f}× the target alone" if gain.over_target else ""
    over = f"{ratio_text(gain.over_lossless)} over {sweep.names[gain.best]}{target}"
    return f"ship {sweep.names[best.cell]}: {over}; {loss(sweep, best, margin)}."


def stay(sweep: Weighed, best: Comparison, gain: Gain, margin: str) -> str:
    """Safe, but no proven gain over the best lossless setting."""
    over = sweep.lossless.get(gain.best)
    speed = f": {ratio_text(over)} the target alone" if over else ""
    return (
        f"stay {sweep.names[gain.best]}{speed}; {sweep.names[best.cell]} is safe ({loss(sweep, best, margin)}), but a speed-up "
        f"over lossless is not proven ({ratio_text(gain.over_lossless)})."
    )


def untimed(sweep: Weighed, best: Comparison, margin: str) -> str:
    """Safe, but its speed was not measured."""
    modelled = sweep.modelled.get(best.cell, math.nan)
    speed = f" and runs at about {modelled:.2f}× the target alone (modelled)" if modelled == modelled else ""
    return (
        f"none yet: {sweep.names[best.cell]} is safe ({loss(sweep, best, margin)}){speed}, but its speed was not "
        f"measured beside lossless; run again with timing on (nothing is decoded again)."
    )


def none(sweep: Weighed, tests: Sequence[Comparison], margin: float, written: str, *, num_curves: int) -> str:
    """A loss beyond the margin; loops; or too few examples to tell, with how many the best setting might need."""
    if any(one.worst > -margin for one in tests) and not any(one.is_safe(margin) for one in tests):
        worst = max((one.loops for one in tests if one.worst > -margin), default=0.0)
        return f"none within the margin of {points(written)}: {worst:.1f} points more texts end in a loop than with lossless."
    hopeful = [one for one in tests if one.change > -margin]
    if not hopeful:
        return f"none within the margin of {points(written)}."
    best = max(hopeful, key=lambda one: one.worst)
    limit = (
        f"but its loss may be as large as {-best.worst:.1f} points" if best.worst == best.worst else "its loss is open"
    )
    more = needed(best, margin, ALPHA / num_curves) if written == f"{margin:g}" else ""
    tail = f"; {more}" if more else ""
    return (
        f"none: n is too small to tell (n={best.difference.n}); nearest is {sweep.names[best.cell]}: {signed(best.change)} "
        f"points of {sweep.metric.name} against lossless, {limit} (margin {written}){tail}."
    )


def points(written: str) -> str:
    """Such as 0.5 points, 1 point."""
    return f"{written} point{'' if written == '1' else 's'}"


def needed(best: Comparison, margin: float, alpha: float) -> str:
    """How many examples would do for 80 % power: a range over the 90 % interval of the loss, open where that reaches the margin.

    The limit lies below the estimate by z standard errors, which shrink as 1/√n, and by what n examples cannot show, as 1/n:
    for Gaffke's limit the two add up as squares, within about 5 %.
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
        as_seen = f", {rounded(max(n + 1, about))} if the loss is as measured" if about < math.inf else ""
        return f"at least {rounded(low)} examples in all are needed{as_seen}"
    count = rounded(low) if rounded(low) == rounded(high) else f"{rounded(low)} to {rounded(high)}"
    return f"{count} examples in all would do, if they differ as much as these"


def _times(room: float, seen: float, hidden: float, power: float) -> float:
    """So many times the examples after which the distances, as they shrink, add up to `room`; infinite where none do."""
    low, high = 0.0, 1.0  # of the root of one over that
    for _ in range(60):
        middle = (low + high) / 2
        is_within = math.hypot(seen * middle, hidden * middle**2) + power * middle <= room
        low, high = (middle, high) if is_within else (low, middle)
    return 1 / low**2 if low > 0 else math.inf


def rounded(count: float) -> str:
    """Two digits: more would promise what nobody knows."""
    digits = max(len(str(math.ceil(count))) - 2, 0)
    return f"{math.ceil(count / 10**digits) * 10**digits:,}"


def loss(sweep: Weighed, one: Comparison, margin: str) -> str:
    """Return what a setting costs: as seen, at worst, and by what measure."""
    n, name = one.difference.n, sweep.metric.name
    if one.num_differing == 0:
        limit = f"a loss of up to {-one.worst:.1f} points of {name} cannot be excluded at n = {n}"
        return f"no example changed; {limit} (margin {margin})"
    change = f"{signed(one.change)} points of {name} against lossless"
    return f"{change}, at worst {signed(one.worst)} (margin {margin}, n={n})"


def signed(points: float) -> str:
    """Return +0.5, -1.2."""
    return format_number(points, 1, is_signed=True)


def ratio_text(estimate: Estimate) -> str:
    """Return 1.24× [1.18, 1.31]."""
    return format_interval(estimate, 2, unit="×")
