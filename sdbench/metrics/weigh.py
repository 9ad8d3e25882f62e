"""What is known of a sweep before a margin is chosen: each setting's loss at its level of the test, its measured and its
modelled speed.

`recommend.decide` decides from it, and `sentences` has the texts.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import pandas as pd

from sdbench.errors import without_force
from sdbench.metrics import quality, speed
from sdbench.metrics.cells import BASELINES, can_share_command, metric_of, reference, table_of
from sdbench.metrics.degenerate import degenerate
from sdbench.metrics.gain import Passes, at_level, lossless_settings, p_value_of
from sdbench.metrics.safety import ALPHA, FAILURES, LOOP, Comparison, compare_settings, sequences
from sdbench.metrics.stats import NAN, Estimate, affordable, ratio_interval
from sdbench.metrics.text import names_of
from sdbench.metrics.titles import titles
from sdbench.records import Results
from sdbench.types import Metric

SMALL = 50
MOST_UNREADABLE = 0.1  # share of lossless answers; above it a comparison could not show a loss
UNREADABLE = {
    "is_truncated": ("are cut off at the length limit", "raise max_new_tokens"),
    "is_empty": ("are empty", "check the prompt and the stop strings (task.protocol=, task.stop=)"),
    "is_extraction_failed": ("have no result that can be read", "raise max_new_tokens or change task.protocol="),
}
Margin = float | Mapping[str, float]  # points, or {task: points}


@dataclass(frozen=True, slots=True)
class Gain:
    """Measured speed of a setting: over each lossless setting of its pass, the best of them by name, and over the target alone.

    `sooner_each` is the time per answer of each lossless setting over that of this one, whatever the lengths of their texts;
    `sooner_target` the same for the target alone. `apart` are lossless settings that one command could time beside this one, but
    that were timed in other passes only, so this one is not known to be faster than they are.
    """

    over_each: Mapping[str, Estimate]
    best: str
    over_target: Estimate | None = None
    sooner_each: Mapping[str, Estimate] = field(default_factory=dict)
    sooner_target: Estimate | None = None
    apart: tuple[str, ...] = ()

    @property
    def over_lossless(self) -> Estimate:
        return self.over_each[self.best]

    @property
    def sooner(self) -> Estimate | None:
        return self.sooner_each.get(self.best)

    def is_sooner(self, level: float) -> bool:
        """Return whether an answer is proven to come sooner than from lossless and from the target alone; true if not timed."""
        times = [time for time in (self.sooner, self.sooner_target) if time is not None]
        return all(at_level(time, level).low > 1 for time in times)

    @property
    def p_value(self) -> float:
        """One-sided p-value of not being faster than lossless and the target alone, in tokens per second and time per answer."""
        if self.apart:
            return 1.0
        alone = [ratio for ratio in (self.over_target, self.sooner_target) if ratio is not None]
        return max(p_value_of(ratio) for ratio in (*self.over_each.values(), *self.sooner_each.values(), *alone))

    @property
    def is_faster(self) -> bool:
        """Whether it is proven to be faster if it is the only setting tested."""
        return self.p_value < ALPHA


@dataclass(frozen=True, slots=True)
class Weighed:
    """What is known of a sweep before a margin is chosen. `problem`: why nothing can be decided; other fields may then be empty."""

    model: str
    task: str
    title: str
    metric: Metric
    curves: tuple[tuple[Comparison, ...], ...] = ()
    gains: Mapping[str, Gain] = field(default_factory=dict)
    modelled: Mapping[str, float] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)  # of each cell, such as ensemble w=0.7 K=5
    lossless: Mapping[str, Estimate | None] = field(default_factory=dict)  # lossless setting: speed over the target
    problem: str = ""
    lengths: Mapping[str, Estimate] = field(default_factory=dict)  # tokens per answer over those of lossless
    left_out: Mapping[str, int] = field(default_factory=dict)  # unfinished setting: examples it shares with lossless
    quality: Estimate | None = None  # of lossless, in points above the worst possible score
    draft: Estimate | None = None  # the draft alone minus lossless, in points
    command: str = ""  # of the last run with a latency pass
    batch_size: int = 1  # of the latency pass
    shortest: int = 0  # number of tokens of the shortest drafts that were timed losslessly; 0: none
    cells: pd.DataFrame = field(default_factory=pd.DataFrame)  # what was tested and what was left out
    settings: Mapping[str, str] = field(default_factory=dict)  # of each cell; set by a report of several sweeps
    sweep: str = ""  # its key, as in the table of cells

    @property
    def n(self) -> int:
        """Number of examples of the smallest comparison."""
        return min((test.difference.n for curve in self.curves for test in curve), default=0)

    @property
    def alpha(self) -> float:
        """The level of each comparison: that of the decision, divided by the number of curves."""
        return ALPHA / max(len(self.curves), 1)

    @property
    def best_lossless(self) -> str | None:
        """The lossless setting with the highest speed over the target alone in any pass; None if none is known."""
        known = {key: over.value for key, over in self.lossless.items() if over is not None}
        return max(known, key=lambda key: known[key], default=None)

    def answers_of(self, cell: str) -> float:
        """Return the modelled speed in answers instead of tokens; 0 without one."""
        speed = self.modelled.get(cell, NAN) / (self.lengths[cell].value if cell in self.lengths else 1.0)
        return speed if speed == speed else 0.0


def margin_of(margin: Margin, task: str) -> float:
    """Return the margin of a task; a toy task (NAME-tiny) without one uses that of NAME."""
    if not isinstance(margin, Mapping):
        return float(margin)
    accepted = margin.get(task, margin.get(task.removesuffix("-tiny"), margin.get("default")))
    if accepted is None:
        raise ValueError(f"margin has no value for task {task}: add {task}: POINTS, or default: POINTS")
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
    is_swept = ~cells["verifier"].isin(BASELINES) | (cells["also"].map(len) > 0)
    swept = cells[is_swept & cells.index.isin(list(rows))]
    weigher = _Weigher(results, cells, parts, rows, options)
    groups = [group for _, group in swept.groupby("sweep", sort=True)]
    names = titles([(results.name, group) for group in groups])
    return tuple(weigher.weigh(group, title) for group, title in zip(groups, names, strict=True))


@dataclass(frozen=True)
class _Weigher:
    """What is needed to weigh the sweeps of a folder."""

    results: Results
    cells: pd.DataFrame
    parts: Mapping[str, pd.DataFrame]
    rows: Mapping[str, quality.Rows]
    options: Mapping[str, Any]

    def weigh(self, group: pd.DataFrame, title: str) -> Weighed:
        """Weigh one sweep from the rows of its swept cells."""
        model, task = group[["model", "task"]].iloc[0]
        metric = metric_of(self.cells, str(group.index[0]))
        sweep = str(group["sweep"].iloc[0])
        bare = Weighed(model, task, title, metric, sweep=sweep)
        orders = sequences(group)
        bases = {key: base for order in orders for key in order if (base := self._base(key)) is not None}
        sizes = {key: len(quality.shared_rows(self.rows[key], self.rows[base])[0]) for key, base in bases.items()}
        left_out = {key: size for key, size in sizes.items() if size < SMALL}
        if not orders:
            return replace(bare, problem="nothing lenient was run, so there is nothing to recommend")
        if not metric.is_bounded:
            loss = f"no loss of {metric.name} can be called small, since its bounds are not declared"
            return replace(bare, problem=loss)
        if not bases:
            return replace(bare, problem="there is no lossless run to compare with")
        orders = [kept for order in orders if (kept := [key for key in order if key in bases and key not in left_out])]
        if not orders:
            size = f"n is too small (n={max(left_out.values())}; at least {SMALL} examples are needed)"
            return replace(bare, problem=size)
        if problem := self._unreadable(bases[orders[0][0]]):
            return replace(bare, problem=problem)
        same = self.cells[self.cells["sweep"] == sweep]
        failures = self._failures(same)
        curves = [
            compare_settings(o, self.cells, self.rows, ALPHA / len(orders), self.options, failures) for o in orders
        ]
        keys, lossless = [key for order in orders for key in order], lossless_settings(same)
        over = {key: self._over_target(key) for key in lossless}
        timed = [int(same.at[key, "num_draft"]) for key, known in over.items() if known is not None]
        config = self.results.timed_config_of(list(same.index))
        return replace(
            bare,
            curves=tuple(map(tuple, curves)),
            gains=self._gains(keys, lossless),
            modelled={key: self._modelled_speed(key) for key in keys},
            names=names_of(same),
            cells=same.loc[[*keys, *left_out]],
            lossless=over,
            lengths={key: self._length(key, bases[key]) for key in keys},
            left_out=left_out,
            quality=self._above_worst(bases[keys[0]], metric),
            draft=self._draft(bases[keys[0]], metric),
            command=without_force(str(config.get("command") or "")),
            batch_size=int((config.get("timing") or {}).get("batch_size", 1)),
            shortest=min(timed, default=0),
        )

    def _base(self, key: str) -> str | None:
        base = reference(self.cells, key, "lossless")
        return base if base in self.rows else None

    def _unreadable(self, base: str) -> str:
        """Return why the answers of lossless are unusable; "" if at least nine in ten are complete and have a result."""
        part = self.parts[base]
        for flag, (words, advice) in UNREADABLE.items():
            share = part[flag].astype("float64").groupby(part["example"]).mean().mean() if flag in part else 0.0
            if share > MOST_UNREADABLE:
                return f"this run cannot tell: {share:.0%} of the lossless answers {words}; {advice}"
        return ""

    def _above_worst(self, base: str, metric: Metric) -> Estimate:
        """Return the quality of lossless in points above the worst possible score."""
        low, high = metric.bounds or (None, None)
        worst = low if metric.best == "high" else high
        return _in_points(quality.quality(self.rows[base], metric, **self.options), metric, worst or 0.0)

    def _draft(self, base: str, metric: Metric) -> Estimate | None:
        """Return the draft alone minus lossless, in points; None if it was not run on enough examples."""
        draft = reference(self.cells, base, "draft")
        if (
            draft is None
            or draft not in self.rows
            or len(quality.shared_rows(self.rows[draft], self.rows[base])[0]) < SMALL
        ):
            return None
        return _in_points(quality.difference(self.rows[draft], self.rows[base], metric, **self.options), metric)

    def _length(self, key: str, base: str) -> Estimate:
        """Return the tokens per answer over those of lossless, over the examples that both have."""
        means = [self.parts[cell].groupby("example", sort=True)["tokens"].mean() for cell in (key, base)]
        pair = pd.concat(means, axis=1, join="inner").to_numpy(dtype="float64")
        return ratio_interval(pair[:, 0], pair[:, 1], **self.options)

    def _failures(self, same: pd.DataFrame) -> dict[str, pd.DataFrame]:
        """Return {cell: shares of each example's texts that loop or fail}."""
        loops = {str(key): part for key, part in degenerate(self.results).groupby("cell", sort=True)}
        shares = {}
        for key in same.index.intersection(list(self.parts)):
            part = self.parts[key]
            flags = part[[flag for flag in FAILURES if flag in part]].astype("float64").rename(columns=FAILURES)
            shares[key] = flags.groupby(part["example"]).mean()
            if key in loops:
                shares[key][LOOP] = loops[key].groupby("example")["is_loop"].mean()
        return shares

    @cached_property
    def _passes(self) -> Passes:
        return Passes.of(self.results.timings)

    def _gains(self, keys: Sequence[str], lossless: Sequence[str]) -> dict[str, Gain]:
        gains, timed = {}, set(self._passes.started.index.get_level_values("cell"))
        for key in keys:
            pass_id = self._passes.newest_id(key, lossless)
            if pass_id is not None:  # two passes, maybe on two machines, cannot be compared
                same = self._passes.only(pass_id)
                best = same.best_of(lossless, key)
                assert best is not None, "the pass timed one of them"
                over, sooner = (
                    {base: known for base in lossless if (known := ratio(key, base)) is not None}
                    for ratio in (same.ratio, same.sooner)
                )
                target = self._over_target(key, self._passes.sooner)
                apart = [
                    base for base in lossless if base in timed - set(over) and can_share_command(self.cells, key, base)
                ]
                gains[key] = Gain(over, best, self._over_target(key), sooner, target, tuple(sorted(apart)))
        return gains

    def _over_target(self, key: str, ratio: Callable[[str, str], Estimate | None] | None = None) -> Estimate | None:
        """Return speed, or another `ratio`, over the fastest target-alone baseline of the same pass."""
        # Not matched by the pair's name: if a folder has two names for one target, the target alone has the older name. A pass has
        # one target.
        alone = self.cells.index[self.cells["verifier"].isin(speed.ALONE)]
        best = self._passes.best_of(list(map(str, alone)), key)
        return None if best is None else (ratio or self._passes.ratio)(key, best)

    def _modelled_speed(self, key: str) -> float:
        calls = speed.prices_of(self.results, self.parts[key])
        return speed.modelled_speedup(self.parts[key], calls, resamples=100).value


def _in_points(estimate: Estimate, metric: Metric, zero: float = 0.0) -> Estimate:
    """Return scores minus `zero` in points, positive for a gain."""
    low, high = sorted(quality.points(end - zero, metric) for end in (estimate.low, estimate.high))
    return Estimate(quality.points(estimate.value - zero, metric), low, high, estimate.n)
