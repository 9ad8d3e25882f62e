"""Whether a setting is safe: its loss against lossless lies within a margin, and it does not run into loops.

Non-inferiority, one-sided 2.5 %: the limit of the paired difference on the side of loss lies within the margin. Within a curve
the settings are tested in a preset order, from the strict end outwards, and testing stops at the first failure; over R
curves (rules, draft lengths, other options) each gets 2.5 %/R. So the chance of calling any setting safe that loses the margin
or more is at most 2.5 %. Loss and margin are in points of 100 of the metric's range: 5 is 0.05 of a score on 0–1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from sdbench.metrics import quality
from sdbench.metrics.cells import metric_of, reference, setting
from sdbench.metrics.quality import Rows
from sdbench.metrics.stats import NAN, Estimate
from sdbench.types import Metric

ALPHA = 0.025


@dataclass(frozen=True, slots=True)
class Comparison:
    """One setting against lossless at the level left for it; `change` and `worst` in points, a loss is negative.

    `difference` is as scores are stored; of its limits the one on the side of loss counts. `loops`: points of 100 by which
    more of its texts end in a loop than of lossless's, NaN where that is not known.
    """

    cell: str
    verifier: str
    setting: str  # KNOB=VALUE, or nothing for a rule without a knob
    num_draft: int
    difference: Estimate
    change: float
    worst: float
    loops: float = NAN

    def is_safe(self, margin: float) -> bool:
        """Within the margin for sure, and not by more than the margin more loops."""
        return self.worst > -margin and not self.loops > margin


def sequences(group: pd.DataFrame) -> list[list[str]]:
    """Cells of each rule, draft length and set of other options, from the strict end outwards; lossless ones need no test."""
    keys = group[["verifier", "num_draft", "knobs"]].astype(str).agg("|".join, axis=1)
    # Values without an order stand in no sequence: each is a curve of its own.
    alone = pd.Series(group.index.astype(str), index=group.index).where(group["rank"].isna(), "")
    lenient = group[~group["is_lossless"].astype(bool)]
    ordered = lenient.sort_values("rank", kind="stable")
    names = keys + "|" + alone
    return [list(part.index) for _, part in ordered.groupby(names.loc[ordered.index], sort=True)]


def compared(
    order: Sequence[str],
    cells: pd.DataFrame,
    rows: Mapping[str, Rows],
    alpha: float,
    options: Mapping[str, Any],
    loops: Mapping[str, Mapping[str, float]] | None = None,
) -> list[Comparison]:
    """Every setting of a sequence against lossless; `loops` {cell: {example: share of its texts that end in a loop}}."""
    done: list[Comparison] = []
    for key in order:
        metric, base = metric_of(cells, key), reference(cells, key, "lossless")
        if base is None or base not in rows:
            break
        level = 1 - 2 * cautious(alpha, rows[key], rows[base])
        gap = quality.difference(rows[key], rows[base], metric, level=level, **options)
        change, worst = (quality.points(value, metric) for value in (gap.value, _limit(gap, metric)))
        own = cells.loc[key]
        more = _more_loops(loops or {}, key, base)
        done.append(
            Comparison(key, str(own["verifier"]), setting(own), int(own["num_draft"]), gap, change, worst, more)
        )
    return done


def _limit(gap: Estimate, metric: Metric) -> float:
    """The limit on the side of loss."""
    return gap.low if metric.best == "high" else gap.high


def _more_loops(loops: Mapping[str, Mapping[str, float]], key: str, base: str) -> float:
    own, others = loops.get(key, {}), loops.get(base, {})
    both = [example for example in own if example in others]
    return 100 * sum(own[example] - others[example] for example in both) / len(both) if both else NAN


def tested(sequence: Sequence[Comparison], margin: float) -> list[Comparison]:
    """Fixed-sequence testing: the settings up to and including the first that is not safe."""
    done: list[Comparison] = []
    for one in sequence:
        done.append(one)
        if not one.is_safe(margin):
            break
    return done


def cautious(alpha: float, a: Rows, b: Rows) -> float:
    """The level at which a test errs at most alpha: Tango's score test does at its own, a bootstrap a little less."""
    first, second = quality.shared(a, b)
    is_pass_fail = first.ndim == 1 and quality.is_binary(first) and quality.is_binary(second)
    return alpha if is_pass_fail else shrunk(alpha, len(first))


def shrunk(alpha: float, n: int) -> float:
    """With losses as skewed as an exponential the studentised bootstrap errs 1.2·alpha at n = 100, 1.07·alpha at 500.

    So it is asked for less, by an amount that vanishes with n: 60,000 simulated sweeps of three rules at the margin then
    gave 2.2 % false recommendations at n = 100 and 2.3 % at n = 500.
    """
    return alpha * (1 - min(3 / math.sqrt(max(n, 1)), 0.75))
