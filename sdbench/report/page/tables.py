"""The page's tables: rows of summary.csv as text with intervals, units in the headings, and a number to sort each column by."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import pandas as pd

from sdbench.metrics.cells import BASELINES, metrics_of
from sdbench.metrics.stats import NAN, Estimate
from sdbench.metrics.text import format_interval
from sdbench.report.page.measures import MEASURES
from sdbench.report.sweep import Sweep
from sdbench.types import Metric

SPEEDS = ("speedup", "speedup_over_lossless")
MODELLED = {"speedup": "speedup_modelled"}  # what stands in, marked, where a measure was not taken
FIRST = "The settings"
TABLES: Mapping[str, Sequence[str]] = {
    FIRST: ("quality", "difference", *SPEEDS, "acceptance", "tokens_per_round", "loop_rate", "n"),
    "Acceptance and bias": (
        *("acceptance", "acceptance_expected", "block_acceptance", "tokens_per_round", "tv", "bias", "bias_per_token"),
    ),
    "Quality against lossless, tested": ("quality", "difference", "p_value", "p_holm", "detectable"),
    "Quality against the target alone, tested": (
        *("difference_from_target", "p_value_from_target", "p_holm_from_target", "detectable_from_target"),
    ),
    "Answers": (
        *("num_generations", "mean_tokens", "repeated_4grams", "loop_rate", "truncated_rate", "empty_rate"),
        *("extraction_failed_rate", "prompt_cut_rate"),
    ),
    "Speed": ("num_timed", "tokens_per_s", *SPEEDS, "speedup_modelled", "speedup_end_to_end"),
    "How long an answer takes": (
        "num_timed",
        "mean_tokens",
        "first_token_s",
        "answer_p50_s",
        "answer_p95_s",
        "time_ratio",
    ),
    "Where the time goes": (
        *("round_p50_s", "round_p90_s", "round_p99_s", "num_split", "draft_s", "verify_s", "rest_s"),
    ),
}
UNITS = {"seconds": "ms", "share": "%", "per_s": "1/s", "ratio": "×"}
SCALES = {"seconds": 1000, "share": 100}
DIGITS = {"rate": 3, "points": 1, "ratio": 2, "per_s": 1, "share": 1}
BARRED = ("difference", *SPEEDS, "acceptance")  # columns of the first table with a bar under the number
MINUS = "\N{MINUS SIGN}"
Span = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Column:
    """A heading: the measure's name, title, unit and definition."""

    name: str
    title: str
    unit: str
    text: str


@dataclass(frozen=True, slots=True)
class Value:
    """A number as it is read; `sort` is what its column is ordered by, `bar` where it lies in the column in percent."""

    text: str = ""
    interval: str = ""
    sort: float | None = None
    bar: tuple[float, float, float] | None = None  # low, value, high


@dataclass(frozen=True, slots=True)
class TableRow:
    """A setting; the name of its kind marks it in print and for screen readers."""

    label: str
    kind: str  # "baseline", "advised" or ""
    values: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Table:
    title: str
    columns: tuple[Column, ...]
    rows: tuple[TableRow, ...]
    zero: Mapping[str, float]  # of the columns with bars: where 0 (of a ratio: 1) lies, in percent
    is_open: bool = False


def tables_of(sweep: Sweep, advised: str | None) -> list[Table]:
    """Return every table of a sweep that holds a number; columns for which nothing was measured are left out."""
    first, *others = [_summary_table(title, names, sweep, advised) for title, names in TABLES.items()]
    return [table for table in (first, _score_table(sweep, advised), *others) if table.columns]


def _score_table(sweep: Sweep, advised: str | None) -> Table:
    """Return the headline and every other score of the task; no columns where the headline is the only one."""
    metrics, scores = metrics_of(sweep.cells.iloc[0].to_dict()), sweep.scores()
    known = [metric for metric in metrics.values() if any(metric.name in values for values in scores.values())]
    known = sorted(known, key=lambda metric: metric.name != sweep.metric.name) if len(known) > 1 else []
    columns = tuple(Column(metric.name, metric.name, unit_of(metric), "") for metric in known)
    rows = [
        [_value(scores.get(key, {}).get(metric.name), "points", metric) for metric in known] for key in sweep.rows.index
    ]
    return Table("Every score", columns, _rows(sweep, advised, rows), {}, is_open=True)


def _rows(sweep: Sweep, advised: str | None, values: Iterable[Sequence[Value]]) -> tuple[TableRow, ...]:
    """Return a row for each setting."""
    kinds = {key: "baseline" for key, verifier in sweep.cells["verifier"].items() if verifier in BASELINES}
    kinds |= {} if advised is None else {advised: "advised"}
    labels = sweep.cells["label"].items()
    return tuple(
        TableRow(label, kinds.get(key, ""), tuple(row)) for (key, label), row in zip(labels, values, strict=True)
    )


def _summary_table(title: str, names: Sequence[str], sweep: Sweep, advised: str | None) -> Table:
    rows, is_first = sweep.rows.join(sweep.answer_times), title == FIRST
    names = [name for name in names if _is_known(rows, name) or _is_known(rows, MODELLED.get(name))]
    spans = {name: _span(rows, name) for name in names if name in BARRED and is_first}
    columns = tuple(_column(name, sweep.metric) for name in names)
    values = [[value_of(row, name, sweep.metric, spans.get(name)) for name in names] for row in rows.to_dict("records")]
    zero = {name: _percent(1.0 if MEASURES[name].kind == "ratio" else 0.0, span) for name, span in spans.items()}
    marks = {name: at for name, at in zero.items() if 0 <= at <= 100}
    return Table(title, columns, _rows(sweep, advised, values), marks, is_open=is_first)


def _is_known(rows: pd.DataFrame, name: str | None) -> bool:
    """Return whether any row has this measure."""
    return name in rows and bool(rows[name].notna().any())


def _column(name: str, metric: Metric) -> Column:
    measure = MEASURES[name]
    title = f"{measure.title} ({metric.name})" if name == "quality" else measure.title
    unit = unit_of(metric) if measure.kind == "points" else UNITS.get(measure.kind, "")
    return Column(name, title, unit, measure.text)


def unit_of(metric: Metric) -> str:
    """Return what a score is shown in: points of 100, or its own raw numbers."""
    return "" if metric.unit == "raw" else "points"


def _span(rows: pd.DataFrame, name: str) -> Span:
    """Return the least and the largest number of a column, intervals included."""
    values = rows[[column for column in (name, f"{name}_low", f"{name}_high") if column in rows]].astype("float64")
    return float(values.min(axis=None)), float(values.max(axis=None))


def _percent(value: float, span: Span) -> float:
    low, high = span
    return round(100 * (value - low) / (high - low), 2) if high > low else 50.0


def value_of(row: Mapping[Any, Any], name: str, metric: Metric, span: Span | None = None) -> Value:
    """Return a number of a summary row with its interval; nothing where nothing was measured."""
    kind, is_signed = MEASURES[name].kind, name.startswith("difference")
    value, low, high = (_float(row.get(key)) for key in (name, f"{name}_low", f"{name}_high"))
    if not math.isnan(value):
        return _value(Estimate(value, low, high, 0), kind, metric, span, is_signed=is_signed)
    modelled = _value(Estimate(_float(row.get(MODELLED.get(name))), NAN, NAN, 0), kind, metric)
    return modelled if modelled.sort is None else Value(f"~{modelled.text}", "", modelled.sort)


def _value(
    estimate: Estimate | None, kind: str, metric: Metric, span: Span | None = None, *, is_signed: bool = False
) -> Value:
    if estimate is None or math.isnan(estimate.value):
        return Value()
    value = estimate.value
    if kind == "p":
        return Value("< 0.001" if value < 0.001 else f"{value:.3f}", "", value)
    scale = metric.scale if kind == "points" else SCALES.get(kind, 1)
    digits = {"count": 0 if value.is_integer() else 1, "seconds": 2 if abs(scale * value) < 10 else 1} | DIGITS
    written = format_interval(estimate, digits[kind], scale=scale, is_signed=is_signed).replace("-", MINUS)
    text, _, interval = written.partition(" ")
    low, high = (value if math.isnan(end) else end for end in (estimate.low, estimate.high))
    bar = None if span is None else (_percent(low, span), _percent(value, span), _percent(high, span))
    return Value(text, interval, value, bar)


def _float(value: object) -> float:
    return float(value) if isinstance(value, Real) else NAN
