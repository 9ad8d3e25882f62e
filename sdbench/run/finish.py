"""What a run leaves and says at its end: summary.csv, a table, the recommendation, the report. All from the records."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sdbench.config import Run
from sdbench.records import read

if TYPE_CHECKING:
    import pandas as pd

    from sdbench.run.cells import Point

COLUMNS = ("verifier", "w", "K", "acceptance", "expected", "speed-up", "quality", "vs lossless")


def finish(run: Run, points: Sequence[Point], failed: Mapping[str, str]) -> None:
    """Has the records reported, and says what came out; failed cells are named."""
    import pandas as pd

    from sdbench.metrics.recommend import recommend
    from sdbench.report import build

    page = build(run.folder)
    results = read(run.folder)
    summary = run.folder / "summary.csv"
    frame = pd.read_csv(summary)
    mine = {point.cell.key for point in points}
    print_table(run, frame[frame["cell"].isin(mine)])
    print(recommend(results, run.margin).text)
    for problem in results.problems:
        print(f"sdbench: {problem.kind}: {problem.name}: {problem.message}", file=sys.stderr)
    for point in points:
        if point.cell.key in failed:
            cell = point.cell
            name = cell.verifier + ("" if cell.w is None else f" w={cell.w:g}")
            print(f"sdbench: failed: {name} num_draft={cell.num_draft}: {failed[cell.key]}", file=sys.stderr)
    figures = sorted((run.folder / "figures").glob("pareto*.png"))[:1]
    for label, path in (
        ("records", run.folder),
        ("summary", summary),
        *(("figure", figure) for figure in figures),
        ("report", page),
    ):
        print(f"{label + ':':<9}{path}")


def print_table(run: Run, frame: pd.DataFrame) -> None:
    """One row a cell, baselines first, then from lossless outwards."""
    from rich.console import Console
    from rich.table import Table

    table = Table(
        title=f"{run.model.name} on {run.task.name}, T = {run.temperature:g}, n = {max(frame['n'], default=0):g}"
    )
    for name in COLUMNS:
        table.add_column(name, justify="left" if name == "verifier" else "right")
    for row in _sorted(frame).to_dict("records"):
        table.add_row(*_cells(row))
    Console(width=None if sys.stdout.isatty() else 120).print(table)


def _sorted(frame: pd.DataFrame) -> pd.DataFrame:
    first = {"target": 0, "draft": 1, "lossless": 2}
    place = frame["verifier"].map(lambda name: first.get(name, 3))
    return frame.assign(_place=place, _w=-frame["w"].fillna(9)).sort_values(
        ["_place", "num_draft", "_w"], kind="stable"
    )


def _cells(row: Mapping[Any, Any]) -> list[str]:
    accepted = _interval(row, "acceptance", 3)
    modelled = row.get("speedup_modelled")
    speed = _interval(row, "speedup", 2) or (f"~{modelled:.2f}" if _is_known(modelled) else "")
    scale = 100 if str(row.get("metric")) in ("strict", "pass@1", "flexible", "numeric") else 1
    return [
        str(row["verifier"]),
        f"{row['w']:g}" if _is_known(row["w"]) else "",
        str(row["num_draft"] or ""),
        accepted,
        f"{row['acceptance_expected']:.3f}" if _is_known(row.get("acceptance_expected")) else "",
        speed,
        _interval(row, "quality", 1, scale),
        _interval(row, "difference", 1, scale),
    ]


def _interval(row: Mapping[Any, Any], name: str, digits: int, scale: float = 1) -> str:
    value, low, high = (row.get(key, math.nan) for key in (name, f"{name}_low", f"{name}_high"))
    if not _is_known(value):
        return ""
    text = f"{scale * value:.{digits}f}"
    return (
        f"{text} [{scale * low:.{digits}f}, {scale * high:.{digits}f}]" if _is_known(low) and _is_known(high) else text
    )


def _is_known(value: Any) -> bool:
    return isinstance(value, int | float) and value == value
