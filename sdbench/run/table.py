"""The table at the end of a run: one line a cell, baselines first, then from lossless outwards; 95 % intervals in brackets."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sdbench.config import Run
from sdbench.records import Cell

if TYPE_CHECKING:
    import pandas as pd

FIRST = {"target": 0, "draft": 1, "lossless": 2}
PLAIN_WIDTH = 132  # where the output is no terminal


def labels(cells: Sequence[Cell]) -> dict[str, str]:
    """cell -> its rule in words, with what tells it from the others of the sweep."""
    knobs = _varying(cells)
    return {
        cell.key: " ".join(
            [
                cell.verifier,
                *([] if cell.w is None else [f"w={cell.w:g}"]),
                *([f"num_draft={cell.num_draft}"] if cell.num_draft else []),
                *knobs[cell.key],
            ]
        )
        for cell in cells
    }


def print_table(run: Run, cells: Sequence[Cell], frame: pd.DataFrame) -> None:
    """`frame` has the columns of summary.csv; cells without a record have no line."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    from sdbench.metrics.quality import points_of

    rows = {row["cell"]: row for row in frame.to_dict("records")}
    shown = sorted((cell for cell in cells if cell.key in rows), key=_place)
    metric = next((str(row["metric"]) for row in rows.values()), "quality")
    knobs = _varying(shown)
    n = max((row["n"] for row in rows.values()), default=0)
    facts = f"T = {run.temperature:g}, num_draft = {', '.join(map(str, run.num_draft))}, n = {n:g}"
    table = Table(title=f"{run.model.name} on {run.task.name}: {facts}", box=SIMPLE_HEAD)
    lines = [_line(cell, knobs[cell.key], rows[cell.key], 1 / points_of(metric)) for cell in shown]
    names = [
        "rule",
        "w",
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
    hidden = {"K": len(run.num_draft) == 1, "speed-up": not any(line[names.index("speed-up")] for line in lines)}
    table.columns = [column for column in table.columns if not hidden.get(str(column.header))]
    Console(width=None if sys.stdout.isatty() else PLAIN_WIDTH).print(table)
    if any(line[names.index("speed-up")].startswith("~") for line in lines):
        print("~ modelled: the cell's recorded rounds at the measured prices of single calls")


def _line(cell: Cell, knobs: Sequence[str], row: Mapping[Any, Any], scale: float) -> list[str]:
    speed = _interval(row, "speedup", 2) or (f"~{row['speedup_modelled']:.2f}" if _has(row, "speedup_modelled") else "")
    return [
        " ".join([cell.verifier, *knobs]),
        "" if cell.w is None else f"{cell.w:g}",
        str(cell.num_draft or ""),
        _interval(row, "acceptance", 3),
        f"{row['tokens_per_round']:.2f}" if cell.num_draft and _has(row, "tokens_per_round") else "",
        f"{row['bias']:.3f}" if cell.num_draft and _has(row, "bias") else "",
        speed,
        _interval(row, "quality", 1, scale),
        "" if cell.verifier in ("target", "lossless") else _interval(row, "difference", 1, scale, sign="+"),
    ]


def _place(cell: Cell) -> tuple[Any, ...]:
    return FIRST.get(cell.verifier, 3), cell.verifier, cell.num_draft, str(sorted(cell.knobs.items())), -(cell.w or 0)


def _varying(cells: Sequence[Cell]) -> dict[str, list[str]]:
    """cell -> those options of its rule, beside w, that differ between the cells of that rule."""
    seen: dict[tuple[str, str], set[str]] = {}
    for cell in cells:
        for name, value in cell.knobs.items():
            seen.setdefault((cell.verifier, name), set()).add(str(value))
    return {
        cell.key: [f"{name}={value}" for name, value in cell.knobs.items() if len(seen[cell.verifier, name]) > 1]
        for cell in cells
    }


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
