"""Which setting to ship: safe in quality, and faster than the best lossless setting; else stay lossless, or say why neither.

`weighed` gathers everything that the margin does not decide: each setting's loss at the level left for it (safety.py), its
measured speed over lossless (gain.py), its modelled speed. `decided` is then a function of that and of a margin, so that a
report can be decided again without decoding, and a page can do it live.

Which of the safe settings is chosen is decided by its modelled speed, which comes from the records of the quality pass. Its
measured speed has no part in that, so it needs no correction: one setting is tested for speed, one-sided 2.5 %, and against every
lossless draft length, so that no luck of the best one makes it pass.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import pandas as pd

from sdbench.metrics import quality, sentences, speed
from sdbench.metrics.cells import BASELINES, metric_of, table_of, titles
from sdbench.metrics.degenerate import degenerate
from sdbench.metrics.gain import Passes, lossless_settings
from sdbench.metrics.safety import ALPHA, Comparison, compared, sequences, tested
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


@dataclass(frozen=True, slots=True)
class Advice:
    """What to ship for one pair and task. `cell` is a lenient setting, or None: "stay" lossless, or "none" can be said.

    `speedup` is over the target alone, `gain` over the best lossless setting `rival`; `tests` were made in this order.
    """

    model: str
    task: str
    cell: str | None
    text: str
    tests: tuple[Comparison, ...] = ()
    speedup: Estimate | None = None
    kind: Literal["ship", "stay", "none"] = "none"
    gain: Estimate | None = None
    rival: str | None = None
    margin: float = math.nan


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The advice for every pair, task and temperature of a folder, and all of it as text; `weighed` is what it came from."""

    advices: tuple[Advice, ...]
    weighed: tuple[Weighed, ...] = ()

    @property
    def text(self) -> str:
        return "\n".join(advice.text for advice in self.advices)


def recommend(results: Results, margin: Margin, *, resamples: int = 10_000, seed: int = 0) -> Recommendation:
    """Advice for each pair, task and temperature that has a swept rule."""
    for value in margin.values() if isinstance(margin, Mapping) else (margin,):
        if not value > 0:
            raise ValueError(f"margin must be above 0 points, got {value}")
    sweeps = weighed(results, resamples=resamples, seed=seed)
    return Recommendation(tuple(decided(one, margin_of(margin, one.task)) for one in sweeps), sweeps)


def margin_of(margin: Margin, task: str) -> float:
    """The margin of one task; a tiny twin has that of its elder where it has none of its accepted."""
    if not isinstance(margin, Mapping):
        return float(margin)
    accepted = margin.get(task, margin.get(task.removesuffix("-tiny"), margin.get("default")))
    if accepted is None:
        raise ValueError(f"margin names no points for task {task}: add {task}: POINTS, or default: POINTS")
    return float(accepted)


def weighed(results: Results, *, resamples: int = 10_000, seed: int = 0) -> tuple[Weighed, ...]:
    """Every sweep that has a swept rule, in the order of its name."""
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


def decided(sweep: Weighed, margin: float, *, written: str = "") -> Advice:
    """The advice at this margin, which the text calls `written`."""
    written = written or f"{margin:g}"
    if sweep.problem:
        return Advice(sweep.model, sweep.task, None, f"{sweep.title}: none: {sweep.problem}.", margin=margin)
    curves = [tested(curve, margin) for curve in sweep.curves]
    tests = tuple(one for curve in curves for one in curve)
    safe = [one for one in tests if one.is_safe(margin)]
    best = fastest(sweep, safe)
    if best is None:
        text = sentences.none(sweep, tests, margin, written, num_curves=len(curves))
        return Advice(sweep.model, sweep.task, None, f"{sweep.title}: {text}", tests, margin=margin)
    gain = sweep.gains.get(best.cell)
    if gain is None:
        text = sentences.untimed(sweep, best, written)
        return Advice(sweep.model, sweep.task, None, f"{sweep.title}: {text}", tests, margin=margin)
    if gain.is_faster:
        kind, cell, over, sentence = "ship", best.cell, gain.over_target, sentences.ship
    else:
        kind, cell, over, sentence = "stay", None, sweep.lossless.get(gain.best), sentences.stay
    text = f"{sweep.title}: {sentence(sweep, best, gain, written)}"
    return Advice(sweep.model, sweep.task, cell, text, tests, over, kind, gain.over_lossless, gain.best, margin=margin)


def fastest(sweep: Weighed, safe: Sequence[Comparison]) -> Comparison | None:
    """Of the safe settings the fastest by the model, the more lenient where the model is silent; timed ones first."""
    timed = [one for one in safe if one.cell in sweep.gains]
    places = {one.cell: place for curve in sweep.curves for place, one in enumerate(curve)}
    return max(timed or safe, key=lambda one: (_or_zero(sweep.modelled.get(one.cell)), places[one.cell]), default=None)


def timed_settings(results: Results, margin: Margin, *, resamples: int = 2_000, seed: int = 0) -> list[str]:
    """The cells to put on the clock once quality is known: lossless at every draft length, and of each curve the most lenient
    safe setting (the strictest where none is safe) with its neighbours. Works without any timing; the target is not named.
    """
    chosen: dict[str, None] = {}
    for sweep in weighed(results, resamples=resamples, seed=seed):
        chosen |= dict.fromkeys(sweep.lossless)
        points = margin_of(margin, sweep.task)
        for curve in sweep.curves:
            safe = [one for one in tested(curve, points) if one.is_safe(points)]
            place = max(len(safe) - 1, 0)
            chosen |= dict.fromkeys(one.cell for one in curve[max(place - 1, 0) : place + 2])
    return list(chosen)


def breakpoints(sweep: Weighed) -> list[float]:
    """The margins at which a decision may change, ascending, above 0: between two of them it stays."""
    ends = [
        end
        for curve in sweep.curves
        for one in curve
        for end in (-one.worst, -one.change, one.loops)
        if 0 < end < math.inf
    ]
    return sorted({round(end, 6) for end in ends})


def _or_zero(value: float | None) -> float:
    return 0.0 if value is None or math.isnan(value) else value
