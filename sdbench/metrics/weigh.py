"""What is known of a sweep whatever the margin: each setting's loss at the level left for it, its measured and its modelled speed.

`recommend.decide` makes a decision of it, `sentences` the words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pandas as pd

from sdbench.metrics import quality, speed
from sdbench.metrics.cells import BASELINES, metric_of, table_of, titles
from sdbench.metrics.degenerate import degenerate
from sdbench.metrics.gain import Passes, lossless_settings
from sdbench.metrics.safety import ALPHA, Comparison, compared, sequences
from sdbench.metrics.stats import Estimate, affordable
from sdbench.metrics.text import names_of
from sdbench.records import Results
from sdbench.types import Metric

SMALL = 50
Margin = float | Mapping[str, float]  # points; by task where tasks differ


@dataclass(frozen=True, slots=True)
class Gain:
    """Measured speed of a setting: over each lossless setting of its pass, the best of them by name, and over the target."""

    over_each: Mapping[str, Estimate]
    best: str
    over_target: Estimate | None = None

    @property
    def over_lossless(self) -> Estimate:
        return self.over_each[self.best]

    @property
    def is_faster(self) -> bool:
        """Than every lossless setting, for sure."""
        return all(one.low > 1 for one in self.over_each.values())


@dataclass(frozen=True, slots=True)
class Weighed:
    """What is known of one sweep whatever the margin. `problem`: why nothing can be decided; then all else may be empty."""

    model: str
    task: str
    title: str
    metric: Metric
    curves: tuple[tuple[Comparison, ...], ...] = ()
    gains: Mapping[str, Gain] = field(default_factory=dict)
    modelled: Mapping[str, float] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)  # of each cell, as ensemble w=0.7 K=5
    lossless: Mapping[str, Estimate | None] = field(default_factory=dict)  # lossless setting: speed over the target
    problem: str = ""

    @property
    def n(self) -> int:
        """Examples of the smallest comparison."""
        return min((one.difference.n for curve in self.curves for one in curve), default=0)


def margin_of(margin: Margin, task: str) -> float:
    """The margin of one task; a toy task (NAME-tiny) has that of NAME where it has none itself."""
    if not isinstance(margin, Mapping):
        return float(margin)
    accepted = margin.get(task, margin.get(task.removesuffix("-tiny"), margin.get("default")))
    if accepted is None:
        raise ValueError(f"margin names no points for task {task}: add {task}: POINTS, or default: POINTS")
    return float(accepted)


def weigh_sweeps(results: Results, *, resamples: int = 10_000, seed: int = 0) -> tuple[Weighed, ...]:
    """Weigh every sweep that has a swept rule, in the order of its name."""
    cells = table_of(results.cells)
    parts = {str(key): part for key, part in results.generations.groupby("cell", sort=True)}
    rows = {
        key: quality.rows_of(part, metric)
        for key, part in parts.items()
        if quality.is_held(part, metric := metric_of(cells, key))
    }
    options = {"resamples": affordable(results.generations["example"].nunique(), resamples), "seed": seed}
    swept = cells[~cells["verifier"].isin(BASELINES) & cells.index.isin(list(rows))]
    weigher = _Weigher(results, cells, parts, rows, options)
    groups = [group for _, group in swept.groupby("sweep", sort=True)]
    names = titles([(results.name, group) for group in groups])
    return tuple(weigher.weigh(group, title) for group, title in zip(groups, names, strict=True))


@dataclass(frozen=True)
class _Weigher:
    """What all sweeps of a folder are weighed with."""

    results: Results
    cells: pd.DataFrame
    parts: Mapping[str, pd.DataFrame]
    rows: Mapping[str, quality.Rows]
    options: Mapping[str, Any]

    def weigh(self, group: pd.DataFrame, title: str) -> Weighed:
        """One sweep from the rows of its swept cells."""
        model, task = group[["model", "task"]].iloc[0]
        metric = metric_of(self.cells, str(group.index[0]))
        orders = sequences(group)
        sizes = [len(self.rows[key]) for order in orders for key in order]
        if not sizes:
            problem = "nothing lenient was run, so there is nothing to recommend"
        elif not metric.is_bounded:
            problem = (
                f"no recommendation, since no loss of {metric.name} can be called small: its bounds are not declared"
            )
        elif min(sizes) < SMALL:
            problem = f"no recommendation, n is small (n={min(sizes)}; at least {SMALL} examples are needed)"
        else:
            problem = ""
        if problem:
            return Weighed(model, task, title, metric, problem=problem)
        loops = self._loops(group["sweep"].iloc[0])
        curves = [compared(o, self.cells, self.rows, ALPHA / len(orders), self.options, loops) for o in orders]
        curves = [curve for curve in curves if curve]
        if not curves:
            problem = "no recommendation, there is no lossless run to compare with"
            return Weighed(model, task, title, metric, problem=problem)
        same = self.cells[self.cells["sweep"] == group["sweep"].iloc[0]]
        lossless = lossless_settings(same)
        timed = self._gains([one.cell for curve in curves for one in curve], lossless)
        modelled = {one.cell: self._modelled(one.cell) for curve in curves for one in curve}
        over_target = {key: self._over_target(key) for key in lossless}
        compared_cells = tuple(map(tuple, curves))
        return Weighed(model, task, title, metric, compared_cells, timed, modelled, names_of(same), over_target)

    def _loops(self, sweep: str) -> dict[str, dict[str, float]]:
        """{cell: {example: share of its texts that end in a loop}} of one sweep."""
        own = self._degenerate[self._degenerate["cell"].isin(self.cells.index[self.cells["sweep"] == sweep])]
        means = own.groupby(["cell", "example"], sort=True)["is_loop"].mean()
        return {str(cell): part.droplevel(0).to_dict() for cell, part in means.groupby(level=0)}

    @cached_property
    def _passes(self) -> Passes:
        return Passes.of(self.results.timings)

    @cached_property
    def _degenerate(self) -> pd.DataFrame:
        return degenerate(self.results)

    def _gains(self, keys: Sequence[str], lossless: Sequence[str]) -> dict[str, Gain]:
        gains = {}
        for key in keys:
            best = self._passes.best_of(lossless, key)
            over = {base: self._passes.ratio(key, base) for base in lossless} if best else {}
            if best is not None:
                known = {base: one for base, one in over.items() if one is not None}
                gains[key] = Gain(known, best, self._over_target(key))
        return gains

    def _over_target(self, key: str) -> Estimate | None:
        """Speed over the fastest target-alone baseline of the same pass."""
        alone = self.cells.index[self.cells["verifier"].isin(speed.ALONE) & self._is_same_pair(key)]
        best = self._passes.best_of([str(one) for one in alone], key)
        return None if best is None else self._passes.ratio(key, best)

    def _is_same_pair(self, key: str) -> pd.Series:
        return (self.cells["model"] == self.cells.at[key, "model"]) & (self.cells["task"] == self.cells.at[key, "task"])

    def _modelled(self, key: str) -> float:
        model, task = str(self.cells.at[key, "model"]), str(self.cells.at[key, "task"])
        calls = speed.prices(self.results.calls, self.results.timings, model, task)
        return speed.modelled(self.parts[key], calls, resamples=100).value
