"""Whether a setting is safe: its loss against lossless is within a margin, and its share of answers that loop or fail exceeds that
of lossless by at most the margin.

Non-inferiority, one-sided 2.5 %: the limit of the paired difference on the side of loss is within the margin. Within a curve
the settings are tested in a fixed order, from the strict end outwards, and testing stops at the first failure; with R curves
(rules, drafters, draft lengths, other options) each has 2.5 %/R. So the chance of calling any setting safe that loses the margin
or more is at most 2.5 %. Loss and margin are in points of 100 of the metric's range: 5 is 0.05 of a score on 0–1.

The limit is Tango's for pass/fail and otherwise Gaffke's (stats/conservative.py), which allows for losses that n examples may
not have shown, of up to about 3.7/n of the range. The intervals of tables and figures do not allow for them, and are narrower
where all examples differ a little.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from sdbench.metrics import quality
from sdbench.metrics.cells import metric_of, reference
from sdbench.metrics.quality import Rows
from sdbench.metrics.stats import NAN, Array, Estimate, conservative_limits, known_or_guessed
from sdbench.metrics.text import setting_of
from sdbench.types import Metric

ALPHA = 0.025
ROUNDING = 1e-9  # points by which an excess may miss a round number: 7 texts of 100 are 7.000000000000001
LOOP = "end in a loop"
FAILURES = {"is_truncated": "are cut off at the length limit", "is_empty": "are empty", "is_crash": "crash"}  # by flag


@dataclass(frozen=True, slots=True)
class Comparison:
    """One setting against lossless at its level of the test; `change` and `worst` in points, a loss is negative.

    `difference` is in the unit of the stored scores. `loops`: points of 100 by which its share of looping texts exceeds that of
    lossless; `failures`: the same for answers that are cut off, empty, or crash; `error`: the standard error of `change`; NaN:
    unknown.
    """

    cell: str
    verifier: str
    setting: str  # KNOB=VALUE, or "" for a rule without a knob
    num_draft: int
    difference: Estimate
    change: float
    worst: float
    loops: float = NAN
    error: float = NAN
    num_differing: int | None = None  # examples whose score differs from that of lossless
    failures: Mapping[str, float] = field(default_factory=dict)  # by the texts of FAILURES

    @property
    def excesses(self) -> dict[str, float]:
        """Points by which looping texts, and each kind of failing ones, exceed those of lossless; unknown ones are left out."""
        return {words: points for words, points in {LOOP: self.loops, **self.failures}.items() if points == points}

    @property
    def excess(self) -> tuple[float, str]:
        """The largest number of points by which looping or failing texts exceed those of lossless, and its kind as text."""
        return max(((points, words) for words, points in self.excesses.items()), default=(0.0, LOOP))

    def has_excess(self, margin: float) -> bool:
        """Return whether looping or failing texts exceed those of lossless by more than the margin."""
        return self.excess[0] > margin + ROUNDING

    def is_safe(self, margin: float) -> bool:
        """Return whether the loss is proven to be within the margin, and the excess of looping or failing texts is within it."""
        return self.worst > -margin and not self.has_excess(margin)


def sequences(group: pd.DataFrame) -> list[list[str]]:
    """Return the lenient cells of each rule, drafter, draft length and set of other options, from the strict end outwards."""
    keys = group[["verifier", "num_draft", "knobs", "drafter"]].astype(str).agg("|".join, axis=1)
    # Values without an order are separate curves.
    alone = pd.Series(group.index.astype(str), index=group.index).where(group["rank"].isna(), "")
    lenient = group[~group["is_lossless"].astype(bool)]
    ordered = lenient.sort_values("rank", kind="stable")
    names = keys + "|" + alone
    return [list(part.index) for _, part in ordered.groupby(names.loc[ordered.index], sort=True)]


def compare_settings(
    order: Sequence[str],
    cells: pd.DataFrame,
    rows: Mapping[str, Rows],
    alpha: float,
    options: Mapping[str, Any],
    failures: Mapping[str, pd.DataFrame] | None = None,
) -> list[Comparison]:
    """Compare every setting of a sequence with lossless; `failures` {cell: shares of texts [example, LOOP or a flag]}."""
    done: list[Comparison] = []
    for key in order:
        metric, base = metric_of(cells, key), reference(cells, key, "lossless")
        if base is None or base not in rows:
            break
        gap = quality.difference(rows[key], rows[base], metric, level=1 - 2 * alpha, **options)
        cell, changes = cells.loc[key], _changes(rows[key], rows[base], metric, gap)
        first, second = quality.shared_rows(rows[key], rows[base])
        more = _more_failures(failures or {}, key, base)
        done.append(
            Comparison(
                key,
                str(cell["verifier"]),
                setting_of(cell),
                int(cell["num_draft"]),
                gap,
                quality.points(gap.value, metric),
                _worst(changes, gap, metric, alpha, is_pass_fail=quality.is_pass_fail(first, second, metric)),
                more.pop(LOOP, NAN),
                float(changes.std(ddof=1)) / math.sqrt(len(changes)) if len(changes) > 1 else NAN,
                int((first != second).reshape(len(first), -1).any(1).sum()),
                more,
            )
        )
    return done


def _changes(a: Rows, b: Rows, metric: Metric, gap: Estimate) -> Array:
    """Return [n] in points: what each example gains or loses; for a corpus metric its part of the change of the whole."""
    first, second = (quality.influence(values, metric) for values in quality.shared_rows(a, b))
    changes = (first - second) * quality.points(1.0, metric)
    return changes + (quality.points(gap.value, metric) - changes.mean())


def _worst(changes: Array, gap: Estimate, metric: Metric, alpha: float, *, is_pass_fail: bool) -> float:
    """Return the limit of the change on the side of loss, in points: the true loss is larger with probability at most alpha."""
    if is_pass_fail:
        return quality.points(gap.low if metric.best == "high" else gap.high, metric)
    columns = changes[:, None]
    return float(conservative_limits(columns, known_or_guessed(columns, -100.0, 100.0), level=1 - 2 * alpha)[0][0])


def _more_failures(failures: Mapping[str, pd.DataFrame], key: str, base: str) -> dict[str, float]:
    """Return {kind: points of 100 by which failing texts exceed those of `base`} over the examples that both have."""
    if key not in failures or base not in failures:
        return {}
    more = (failures[key] - failures[base]).dropna(axis=0, how="all").mean()
    return {str(way): 100 * float(points) for way, points in more.items()}


def run_in_sequence(sequence: Sequence[Comparison], margin: float) -> list[Comparison]:
    """Return the settings up to and including the first that is not safe: fixed-sequence testing."""
    done: list[Comparison] = []
    for test in sequence:
        done.append(test)
        if not test.is_safe(margin):
            break
    return done
