"""What the audit found, for people and for programs: a table, audit.json, one line."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sdbench.audit.audit import Report, Row

WIDTH = 150
COLOURS = {"sound": "green", "violated": "red", "too few": "yellow"}


def effect(row: Row) -> str:
    if row.effect is None:
        return ""
    one = row.effect
    return f"{one.name} {one.value:+.4f} [{one.low:+.4f}, {one.high:+.4f}]".replace("TV +", "TV ")


def least(row: Row) -> str:
    if row.effect is None or not math.isfinite(row.effect.least):
        return ""
    return f"{row.effect.least:.3g}"


def show(report: Report, title: str) -> None:
    """On stderr: stdout has one line alone."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for name in ("setting", "claim", "log e", "p corrected", "effect [95 %]", "found with .95", "samples", "verdict"):
        table.add_column(
            name, justify="right" if name in ("log e", "p corrected", "found with .95", "samples") else "left"
        )
    for row in report.rows:
        exact = row.p is None
        table.add_row(
            row.setting,
            row.claim,
            f"{row.statistic:g} off" if exact else f"{row.statistic:.1f}",
            "" if row.p is None else f"{row.p:.2g}",
            effect(row) or ("an exception" if "Traceback" in row.note else row.note),
            least(row),
            f"{row.samples:,}",
            f"[{COLOURS[row.verdict]}]{row.verdict}[/]",
        )
    console = Console(stderr=True, width=WIDTH)
    console.print(table)
    for row in report.rows:
        if row.verdict == "violated" and row.cell is not None:
            console.print(f"{row.setting}, {row.claim}: {sentence(row)}", highlight=False, markup=False)
    console.print(power(report), highlight=False, markup=False)


def sentence(row: Row) -> str:
    """The cell that deviates most."""
    assert row.cell is not None
    if row.p is None:
        return row.cell.name
    return f"{row.cell.name}: seen {row.cell.seen:g} times, expected {row.cell.expected:.1f}"


def power(report: Report) -> str:
    stated = [row.effect.least for row in report.rows if row.effect is not None and row.effect.name == "TV"]
    if not stated:
        return "Nothing here was left to chance."
    if not math.isfinite(max(stated)):
        return "Too few samples to have found even a TV of .6 with probability .95."
    return f"A TV of {max(stated):.3g} between prefixes of two tokens would have been found with probability .95."


def line(report: Report, file: Path) -> str:
    """The one line on stdout."""
    counts = {name: sum(row.verdict == name for row in report.rows) for name in COLOURS}
    said = ", ".join(f"{count} {name}" for name, count in counts.items())
    return f"{report.verdict}: {len(report.rows)} claims tested, {said}; {file}"


def finite(value: Any) -> Any:
    """Plain JSON has no infinity and no NaN."""
    if isinstance(value, Mapping):
        return {key: finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [finite(one) for one in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value) if math.isinf(value) else None
    return value


def write(report: Report, file: Path, provenance: Mapping[str, Any]) -> None:
    tree = {
        "verdict": report.verdict,
        "rows": [asdict(row) for row in report.rows],
        "texts": report.texts,
        "seconds": report.seconds,
        "provenance": dict(provenance),
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(finite(json.loads(json.dumps(tree, default=float))), indent=1) + "\n")
