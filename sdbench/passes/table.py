"""The table at the end of a run: one line a cell, baselines first, then from lossless outwards; 95 % intervals in brackets."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sdbench.config import Run
from sdbench.records import Cell
from sdbench.types import Axis

if TYPE_CHECKING:
    import pandas as pd

FIRST = {"target": 0, "draft": 1, "lossless": 2}
PLAIN_WIDTH = 132  # where the output is no terminal


def labels(cells: Sequence[Cell]) -> dict[str, str]:
    """cell -> its rule in words, with what tells it from the others of the sweep."""
    varying = _varying(cells)
    return {
        cell.key: " ".join(
            [
                cell.verifier,
                *(_worded(axis) for axis in varying[cell.key]),
                *([f"num_draft={cell.num_draft}"] if cell.num_draft else []),
            ]
        )
        for cell in cells
    }


def print_table(run: Run, cells: Sequence[Cell], frame: pd.DataFrame) -> None:
    """`frame` has the columns of summary.csv; cells without a record have no line."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    from sdbench.metrics.cells import metrics_of

    rows = {row["cell"]: row for row in frame.to_dict("records")}
    shown = sorted((cell for cell in cells if cell.key in rows), key=_place)
    metric = next((str(row["metric"]) for row in rows.values()), "quality")
    varying = _varying(shown)
    knob = _common(varying)
    n = max((row["n"] for row in rows.values()), default=0)
    facts = f"T = {run.temperature:g}, num_draft = {', '.join(map(str, run.num_draft))}, n = {n:g}, seed = {run.seed}"
    table = Table(title=f"{run.model.name} on {run.task.name}: {facts}", box=SIMPLE_HEAD)
    scales = {cell.key: metrics_of(cell.to_json())[cell.metric].scale for cell in shown}
    lines = [_line(cell, varying[cell.key], knob, rows[cell.key], scales[cell.key]) for cell in shown]
    names = [
        "rule",
        knob or "",
        "K",
        "acceptance",
        "tokens/round",
        "bias",
        "speed-up",
        f"{metric}, of 100",
        "against lossless",
    ]
    for name in names:
        table.add_column(name, justify="left" if name == "rule" else "right", no_wrap=True)
    for line in lines:
        table.add_row(*line)
    hidden = {
        "": True,
        "K": len(run.num_draft) == 1,
        "speed-up": not any(line[names.index("speed-up")] for line in lines),
    }
    table.columns = [column for column in table.columns if not hidden.get(str(column.header))]
    Console(width=None if sys.stdout.isatty() else PLAIN_WIDTH).print(table)
    if any(line[names.index("speed-up")].startswith("~") for line in lines):
        print("~ modelled: the cell's recorded rounds at the measured prices of single calls")


def _line(cell: Cell, axes: Sequence[Axis], knob: str | None, row: Mapping[Any, Any], scale: float) -> list[str]:
    value = next((_value(axis) for axis in axes if axis.knob == knob), "")
    speed = _interval(row, "speedup", 2) or (f"~{row['speedup_modelled']:.2f}" if _has(row, "speedup_modelled") else "")
    return [
        " ".join([cell.verifier, *(_worded(axis) for axis in axes if axis.knob != knob)]),
        value,
        str(cell.num_draft or ""),
        _interval(row, "acceptance", 3),
        f"{row['tokens_per_round']:.2f}" if cell.num_draft and _has(row, "tokens_per_round") else "",
        f"{row['bias']:.3f}" if cell.num_draft and _has(row, "bias") else "",
        speed,
        _interval(row, "quality", 1, scale),
        "" if cell.verifier in ("target", "lossless") else _interval(row, "difference", 1, scale, sign="+"),
    ]


def _place(cell: Cell) -> tuple[Any, ...]:
    """Baselines first, then each rule from its strict end outwards."""
    axes = _axes(cell)
    without_order = str([(axis.knob, axis.value) for axis in axes if axis.rank is None])
    ranks = tuple(axis.rank for axis in axes if axis.rank is not None)
    return FIRST.get(cell.verifier, 3), cell.verifier, cell.num_draft, without_order, ranks


def _axes(cell: Cell) -> list[Axis]:
    return [Axis.from_json(axis) for axis in cell.axes]


def _varying(cells: Sequence[Cell]) -> dict[str, list[Axis]]:
    """cell -> those of its axes on which the cells of its rule differ."""
    seen: dict[tuple[str, str], set[str]] = {}
    for cell in cells:
        for axis in _axes(cell):
            seen.setdefault((cell.verifier, axis.knob), set()).add(str(axis.value))
    return {cell.key: [axis for axis in _axes(cell) if len(seen[cell.verifier, axis.knob]) > 1] for cell in cells}


def _common(varying: Mapping[str, Sequence[Axis]]) -> str | None:
    """The knob that has a column of its own: with an order, and the only such one of all rules."""
    knobs = {axis.knob for axes in varying.values() for axis in axes if axis.rank is not None}
    return next(iter(knobs)) if len(knobs) == 1 else None


def _worded(axis: Axis) -> str:
    return f"{axis.knob}={_value(axis)}"


def _value(axis: Axis) -> str:
    is_number = isinstance(axis.value, int | float) and not isinstance(axis.value, bool)
    return f"{axis.value:g}" if is_number else str(axis.value)


def _interval(row: Mapping[Any, Any], name: str, digits: int, scale: float = 1, *, sign: str = "") -> str:
    if not _has(row, name):
        return ""
    text = f"{scale * row[name]:{sign}.{digits}f}"
    if not _has(row, f"{name}_low") or not _has(row, f"{name}_high"):
        return text
    low, high = (f"{scale * row[f'{name}_{end}']:{sign}.{digits}f}" for end in ("low", "high"))
    return f"{text} [{low}, {high}]"


def _has(row: Mapping[Any, Any], name: str) -> bool:
    value = row.get(name)
    return isinstance(value, int | float) and math.isfinite(value)
