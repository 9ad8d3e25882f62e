"""The page's tables: rows of summary.csv as text with intervals, units in the headings, and a number to sort each column by."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

import pandas as pd

from sdbench.metrics.cells import BASELINES, metrics_of
from sdbench.metrics.stats import Estimate
from sdbench.report.page.measures import MEASURES, Measure
from sdbench.report.sweep import Sweep
from sdbench.types import Metric

SPEEDS = ("speedup", "speedup_over_lossless")
MODELLED = {"speedup": "speedup_modelled"}  # what stands in, marked, where a measure was not taken
TABLES: Mapping[str, Sequence[str]] = {
    "The settings": ("quality", "difference", *SPEEDS, "acceptance", "tokens_per_round", "loop_rate", "n"),
    "Acceptance and bias": (
        *("acceptance", "acceptance_expected", "block_acceptance", "tokens_per_round", "tv", "bias", "bias_per_token"),
    ),
    "Quality against lossless, tested": ("quality", "difference", "p_value", "p_holm", "detectable"),
    "Quality against the target alone, tested": (
        *("difference_from_target", "p_value_from_target", "p_holm_from_target", "detectable_from_target"),
    ),
    "Answers": (
        "num_generations",
        "mean_tokens",
        "repeated_4grams",
        "loop_rate",
        "truncated_rate",
        "empty_rate",
        "extraction_failed_rate",
        "prompt_cut_rate",
    ),
    "Speed": ("num_timed", "tokens_per_s", *SPEEDS, "speedup_modelled", "speedup_end_to_end", "time_ratio"),
    "Where the time goes": (
        *("first_token_s", "round_p50_s", "round_p90_s", "round_p99_s", "num_split", "draft_s", "verify_s", "rest_s"),
    ),
}
UNITS = {"seconds": "ms", "share": "%", "per_s": "1/s", "ratio": "×"}
DRAWN = (
    "difference",
    "speedup",
    "speedup_over_lossless",
    "acceptance",
)  # columns of the first table with a bar under the number
MINUS = "\N{MINUS SIGN}"


@dataclass(frozen=True, slots=True)
class Column:
    """A heading: the measure's name, title, unit and definition."""

    name: str
    title: str
    unit: str
    text: str


@dataclass(frozen=True, slots=True)
class Value:
    """One number as it is read; `sort` is what its column is ordered by, `bar` its place in the column in per cent."""

    text: str = ""
    interval: str = ""
    sort: float | None = None
    bar: tuple[float, float, float] | None = None  # low, value, high


@dataclass(frozen=True, slots=True)
class Line:
    """One setting; the name of its kind marks it in print and for readers of the screen."""

    label: str
    kind: str  # "baseline", "advised" or ""
    order: int
    values: tuple[Value, ...] = ()


@dataclass(frozen=True, slots=True)
class Table:
    title: str
    columns: tuple[Column, ...]
    rows: tuple[Line, ...]
    zero: Mapping[str, float]  # of the columns with bars: where 0 (of a ratio: 1) lies, in per cent
    is_open: bool = False


def tables_of(sweep: Sweep, advised: str | None) -> list[Table]:
    """Every table of one sweep that holds a number; columns that nothing was measured for are left out."""
    first, *others = [_table(title, names, sweep, advised) for title, names in TABLES.items()]
    return [table for table in (first, _scores(sweep, advised), *others) if table.columns]


def _scores(sweep: Sweep, advised: str | None) -> Table:
    """The headline and every other score of the task beside it; no table where the headline is the only one."""
    metrics, scores = metrics_of(sweep.cells.iloc[0].to_dict()), sweep.scores()
    held = [one for one in metrics.values() if any(one.name in scores.get(key, {}) for key in sweep.rows.index)]
    held = sorted(held, key=lambda one: one.name != sweep.metric.name) if len(held) > 1 else []
    columns = tuple(Column(one.name, one.name, unit_of(one), "") for one in held)
    lines = [
        replace(line, values=tuple(_score(scores.get(key, {}).get(one.name), one) for one in held))
        for key, line in _lines(sweep, advised)
    ]
    return Table("Every score", columns, tuple(lines), {}, is_open=True)


def _score(estimate: Estimate | None, metric: Metric) -> Value:
    if estimate is None:
        return Value()
    row = {"quality": estimate.value, "quality_low": estimate.low, "quality_high": estimate.high}
    return value_of(row, "quality", metric)


def _lines(sweep: Sweep, advised: str | None) -> Iterator[tuple[str, Line]]:
    """A line without values for each setting."""
    for order, key in enumerate(sweep.rows.index):
        kind = "baseline" if sweep.cells.at[key, "verifier"] in BASELINES else "advised" if key == advised else ""
        yield str(key), Line(str(sweep.cells.at[key, "label"]), kind, order)


def _table(title: str, names: Sequence[str], sweep: Sweep, advised: str | None) -> Table:
    rows = sweep.rows
    names = [name for name in names if _is_known(rows, name) or _is_known(rows, MODELLED.get(name))]
    drawn = {name: _span(rows, name) for name in names if name in DRAWN and title == next(iter(TABLES))}
    columns = tuple(Column(name, *_heading(name, sweep.metric)) for name in names)
    lines = [
        replace(line, values=tuple(value_of(row, name, sweep.metric, drawn.get(name)) for name in names))
        for (_, line), row in zip(_lines(sweep, advised), rows.to_dict("records"), strict=True)
    ]
    zero = {name: _place(1.0 if MEASURES[name].kind == "ratio" else 0.0, span) for name, span in drawn.items()}
    marks = {name: at for name, at in zero.items() if 0 <= at <= 100}
    return Table(title, columns, tuple(lines), marks, is_open=title == next(iter(TABLES)))


def _is_known(rows: pd.DataFrame, name: str | None) -> bool:
    """Whether any row has this measure."""
    return name in rows and bool(rows[name].notna().any())


def _heading(name: str, metric: Metric) -> tuple[str, str, str]:
    measure = MEASURES[name]
    title = f"{measure.title}" if name != "quality" else f"{measure.title} ({metric.name})"
    unit = unit_of(metric) if measure.kind == "points" else UNITS.get(measure.kind, "")
    return title, unit, measure.text


def unit_of(metric: Metric) -> str:
    """What a score is shown in: points of 100, or its own raw numbers."""
    return "" if metric.unit == "raw" else "points"


def _span(rows: pd.DataFrame, name: str) -> tuple[float, float]:
    """The least and the largest number of a column, intervals included."""
    values = rows[[column for column in (name, f"{name}_low", f"{name}_high") if column in rows]].astype("float64")
    return float(values.min(axis=None)), float(values.max(axis=None))


def _place(value: float, span: tuple[float, float]) -> float:
    low, high = span
    return round(100 * (value - low) / (high - low), 2) if high > low else 50.0


def value_of(row: Mapping[Any, Any], name: str, metric: Metric, span: tuple[float, float] | None = None) -> Value:
    """One number of a summary row with its interval; nothing where nothing was measured."""
    measure = MEASURES[name]
    value, low, high = (_float(row.get(key)) for key in (name, f"{name}_low", f"{name}_high"))
    if value is None:
        stands_in = _float(row.get(MODELLED.get(name)))
        return Value() if stands_in is None else Value(f"~{written(stands_in, measure, metric)}", "", stands_in)
    is_signed = name.startswith("difference")
    interval, ends = "", (value, value, value)
    if low is not None and high is not None:
        interval = f"[{written(low, measure, metric, is_signed)}, {written(high, measure, metric, is_signed)}]"
        ends = (low, value, high)
    bar = None if span is None else (_place(ends[0], span), _place(ends[1], span), _place(ends[2], span))
    return Value(written(value, measure, metric, is_signed), interval, value, bar)


def _float(value: object) -> float | None:
    return float(value) if isinstance(value, Real) and value == value else None


def written(value: float, measure: Measure, metric: Metric, is_signed: bool = False) -> str:
    """A number in the measure's unit with the digits that make sense, a true minus, and a sign where asked."""
    kind = measure.kind
    if kind == "p":
        return "< 0.001" if value < 0.001 else f"{value:.3f}"
    scaled = value * metric.scale if kind == "points" else value * {"seconds": 1000, "share": 100}.get(kind, 1)
    if kind == "count":
        text = f"{scaled:.0f}" if float(scaled).is_integer() else f"{scaled:.1f}"
    elif kind == "seconds":
        text = f"{scaled:.2f}" if abs(scaled) < 10 else f"{scaled:.1f}"
    else:
        text = f"{scaled:{'+' if is_signed else ''}.{ {'rate': 3, 'points': 1, 'ratio': 2, 'per_s': 1, 'share': 1}[kind] }f}"
    if text.strip("+-0.") == "":
        text = text.replace("-", "").replace("+", "")
    return text.replace("-", MINUS)
