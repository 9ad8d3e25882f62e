"""The table printed at the end of a run: one line for each cell, 95 % intervals in brackets."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sdbench.config import Run
from sdbench.records import Cell

if TYPE_CHECKING:
    import pandas as pd

PLAIN_WIDTH = 132  # at least this width where the output is not a terminal


def names_of_cells(cells: Sequence[Cell]) -> dict[str, str]:
    """Return {cell: name} of cells that need no records, in reading order."""
    from sdbench.metrics.cells import table_of
    from sdbench.metrics.text import full_names_of, sort_cells
    from sdbench.records.keys import frame_of_cells

    return full_names_of(sort_cells(table_of(frame_of_cells(cells))))


def print_table(run: Run, cells: Sequence[Cell], frame: pd.DataFrame) -> None:
    """Print the rows of summary.csv, `frame`, that belong to `cells`."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    from sdbench.metrics.cells import metrics_of
    from sdbench.metrics.text import full_names_of

    metrics = {key: metrics_of(cell.to_json())[cell.metric] for cell in cells for key in (cell.key, *cell.also)}
    shown = frame[frame["cell"].isin(list(metrics))].set_index("cell")
    names = full_names_of(shown)
    metric, n = shown["metric"].iloc[0] if len(shown) else "quality", shown["n"].max() if len(shown) else 0
    table = Table(title=f"{run.model.name} on {run.task.name}: T = {run.temperature:g}, n = {n:g}, seed = {run.seed}")
    table.box = SIMPLE_HEAD
    quality = metric if any(each.unit == "raw" for each in metrics.values()) else f"{metric}, of 100"
    heads = ["acceptance", "tokens/round", "bias", "speed-up", quality, "against lossless"]
    lines = [
        _line(row, metrics[str(key)].scale) for key, row in zip(shown.index, shown.to_dict("records"), strict=True)
    ]
    kept = [index for index, head in enumerate(heads) if head != "speed-up" or any(line[index] for line in lines)]
    # two settings could look the same if names were cut off
    table.add_column("setting", no_wrap=True, min_width=max(map(len, names.values()), default=0))
    for index in kept:
        table.add_column(heads[index], justify="right", no_wrap=True)
    for name, line in zip(names.values(), lines, strict=True):
        table.add_row(name, *(line[index] for index in kept))
    width = max(PLAIN_WIDTH, Console(width=10 * PLAIN_WIDTH).measure(table).maximum)
    Console(width=None if sys.stdout.isatty() else width).print(table)
    if any(cell.startswith("~") for line in lines for cell in line):
        print(
            "~ marks a modelled speed-up: the recorded rounds of the setting times the measured seconds of single calls"
        )


def _line(row: Mapping[Any, Any], scale: float) -> list[str]:
    from sdbench.metrics.columns import estimate_of
    from sdbench.metrics.text import format_interval

    is_base = row["verifier"] in ("target", "lossless")
    speed, modelled = format_interval(estimate_of(row, "speedup"), 2), _number(row["speedup_modelled"], 2)
    return [
        format_interval(estimate_of(row, "acceptance"), 3),
        *(
            _number(row[name], digits) if row["num_draft"] else ""
            for name, digits in (("tokens_per_round", 2), ("bias", 3))
        ),
        speed or (modelled and f"~{modelled}"),
        format_interval(estimate_of(row, "quality"), 1, scale=scale),
        "" if is_base else format_interval(estimate_of(row, "difference"), 1, scale=scale, is_signed=True),
    ]


def _number(value: float | None, digits: int) -> str:
    return "" if value is None or value != value else f"{value:.{digits}f}"
