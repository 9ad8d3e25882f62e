"""The page's tables: rows of summary.csv as text with intervals, units in the headings, and numbers to sort by."""

import math
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from sdbench.metrics.cells import BASELINES, metrics_of
from sdbench.metrics.columns import spread_names
from sdbench.metrics.stats import Estimate
from sdbench.metrics.text import also_of, format_interval, format_number
from sdbench.report.captions import FORMATS, MEASURES, PAGE_TABLES
from sdbench.report.sweep import Sweep
from sdbench.types import Metric

SPEEDS = ("speedup", "speedup_over_lossless")
MODELLED = {"speedup": "speedup_modelled"}  # shown instead, marked, where a measure is missing
BARRED = ("difference", *SPEEDS, "acceptance")  # columns of the first table with a bar under the number
MINUS = "\N{MINUS SIGN}"


class Value(NamedTuple):
    """A number as text. `sort` orders its column; `bar`: the positions of low, value and high in per cent."""

    text: str = ""
    interval: str = ""
    sort: float | None = None
    bar: tuple[float, ...] | None = None


class Column(NamedTuple):
    """A measure's name, title, unit and definition, and its values by row; `zero`: the position of 0 (ratio: 1), in per cent."""

    name: str
    title: str
    unit: str
    text: str
    values: Sequence[Value]
    zero: float | None = None


class Table(NamedTuple):
    """`rows`: settings, each with its kind ("baseline", "advised" or "")."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[tuple[str, str]]
    is_open: bool


def tables_of(sweep: Sweep, advised: str | None) -> list[Table]:
    """Return every table of a sweep that holds a number, without columns that were not measured."""
    kinds = {key: "baseline" for key, verifier in sweep.cells["verifier"].items() if verifier in BASELINES}
    kinds |= {} if advised is None else {advised: "advised"}
    labels = {
        key: ", ".join(filter(None, [cell["label"], also_of(cell["also"])])) for key, cell in sweep.cells.iterrows()
    }
    rows = [(label, kinds.get(str(key), "")) for key, label in labels.items()]
    measured = sweep.rows.join(sweep.answer_times)
    known = set(measured.columns[measured.notna().any()])
    first, *others = (
        (title, [column_of(measured, name, sweep.metric) for name in names if {name, MODELLED.get(name)} & known])
        for title, names in PAGE_TABLES.items()
    )
    barred = [_with_bars(measured, column) if column.name in BARRED else column for column in first[1]]
    tables = [(first[0], barred), ("Every score", _score_columns(sweep)), *others]
    return [Table(title, columns, rows, index < 2) for index, (title, columns) in enumerate(tables) if columns]


def _score_columns(sweep: Sweep) -> list[Column]:
    """Return the headline and every other score of the task; none if the headline is the only one."""
    metrics, scores = metrics_of(sweep.cells.iloc[0].to_dict()), sweep.scores()
    known = [metric for metric in metrics.values() if any(metric.name in values for values in scores.values())]
    known = sorted(known, key=lambda metric: metric.name != sweep.metric.name) if len(known) > 1 else []
    none = Estimate(math.nan, math.nan, math.nan, 0)
    estimates = {m: [scores.get(key, {}).get(m.name, none) for key in sweep.rows.index] for m in known}
    return [
        Column(m.name, m.name, _unit("points", m), "", [_value(each, "points", m) for each in column])
        for m, column in estimates.items()
    ]


def column_of(rows: pd.DataFrame, name: str, metric: Metric) -> Column:
    """Return one measure of all rows."""
    measure = MEASURES[name]
    title = f"{measure.title} ({metric.name})" if name == "quality" else measure.title
    values = [value_of(row, name, metric) for row in rows.to_dict("records")]
    return Column(name, title, _unit(measure.kind, metric), measure.text, values)


def _with_bars(rows: pd.DataFrame, column: Column) -> Column:
    """Return a column with a bar under each number, on a scale from the lowest to the highest end of all intervals."""
    ends = rows.reindex(columns=[f"{column.name}{end}" for end in ("_low", "", "_high")]).astype("float64")
    low, high = ends.min(axis=None), ends.max(axis=None)
    ends = ends.apply(lambda end: end.fillna(rows[column.name])).astype("float64")
    scale = (lambda x: (100 * (x - low) / (high - low)).round(2)) if high > low else lambda x: 0 * x + 50.0
    bars = scale(ends).itertuples(index=False, name=None)
    values = [
        value._replace(bar=None if math.isnan(bar[1]) else bar) for value, bar in zip(column.values, bars, strict=True)
    ]
    zero = float(scale(np.float64(MEASURES[column.name].kind == "ratio")))
    return column._replace(values=values, zero=zero if 0 <= zero <= 100 else None)


def _unit(kind: str, metric: Metric) -> str:
    """Return a kind's unit; a score is shown in points of 100, or as raw numbers."""
    return "" if kind == "p" or (kind == "points" and metric.unit == "raw") else FORMATS[kind][0]


def value_of(row: Mapping[Any, Any], name: str, metric: Metric) -> Value:
    """Return a number of a summary row with its interval; an empty value if nothing was measured."""
    kind, is_signed = MEASURES[name].kind, name.startswith("difference")
    names = (*spread_names((name,)), MODELLED.get(name))
    value, low, high, modelled = (float(row[key]) if isinstance(row.get(key), Real) else math.nan for key in names)
    if math.isnan(value) and not math.isnan(modelled):
        instead = _value(Estimate(modelled, math.nan, math.nan, 0), kind, metric)
        return instead._replace(text=f"~{instead.text}")
    return _value(Estimate(value, low, high, 0), kind, metric, is_signed=is_signed)


def _value(estimate: Estimate, kind: str, metric: Metric, *, is_signed: bool = False) -> Value:
    value = estimate.value
    if math.isnan(value):
        return Value()
    if kind == "p":
        return Value("< 0.001" if value < 0.001 else f"{value:.3f}", "", value)
    _, scale, digits = FORMATS[kind]
    scale = metric.scale if kind == "points" else scale
    is_finer = (kind == "count" and not value.is_integer()) or (kind == "seconds" and abs(scale * value) < 10)
    is_small = kind == "points" and metric.unit == "raw" and abs(value) < 10  # it may lie between 0 and 1
    digits += 2 * is_small + is_finer
    written = format_interval(estimate, digits, scale=scale, is_signed=is_signed).replace("-", MINUS)
    text, _, interval = written.partition(" ")
    return Value(text, interval, value)


def format_signed(points: float) -> str:
    """Return points with a sign and a true minus; "" if unknown."""
    return "" if math.isnan(points) else format_number(points, 1, is_signed=True).replace("-", MINUS)
