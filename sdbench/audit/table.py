"""An audit's report for people and for programs: a table, one line, audit.json."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sdbench.audit.report import AuditReport, ClaimResult

WIDTH = 150
COLOURS = {"sound": "green", "violated": "red", "too few": "yellow"}
NUMBERS = ("log e", "p corrected", "detected at .95", "samples")  # right-aligned columns


def print_table(report: AuditReport, title: str) -> None:
    """Print to stderr; stdout gets one line only."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for name in ("setting", "claim", "log e", "p corrected", "effect [95 %]", "detected at .95", "samples", "verdict"):
        table.add_column(name, justify="right" if name in NUMBERS else "left")
    for row in report.rows:
        table.add_row(
            row.setting,
            row.claim,
            f"{row.statistic:g} off" if row.p is None else f"{row.statistic:.1f}",
            "" if row.p is None else f"{row.p:.2g}",
            _effect(row) or ("an exception" if "Traceback" in row.note else row.note),
            f"{row.effect.least:.3g}" if row.effect is not None and math.isfinite(row.effect.least) else "",
            f"{row.samples:,}",
            f"[{COLOURS[row.verdict]}]{row.verdict}[/]",
        )
    console = Console(stderr=True, width=WIDTH)
    console.print(table)
    for row in report.rows:
        if row.verdict == "violated" and row.cell is not None:
            console.print(f"{row.setting}, {row.claim}: {sentence_of(row)}", highlight=False, markup=False)
    console.print(_power(report), highlight=False, markup=False)


def _effect(row: ClaimResult) -> str:
    effect = row.effect
    if effect is None:
        return ""
    return f"{effect.name} {effect.value:+.4f} [{effect.low:+.4f}, {effect.high:+.4f}]".replace("TV +", "TV ")


def sentence_of(row: ClaimResult) -> str:
    """The cell that deviates most."""
    assert row.cell is not None
    if row.p is None:
        return row.cell.name
    return f"{row.cell.name}: seen {row.cell.seen:g} times, expected {row.cell.expected:.1f}"


def _power(report: AuditReport) -> str:
    least = [row.effect.least for row in report.rows if row.effect is not None and row.effect.name == "TV"]
    if not least:
        return "None of these claims is tested by random samples."
    if not math.isfinite(max(least)):
        return "Too few samples: even a TV of .6 would not have been detected with probability .95."
    return f"A TV of {max(least):.3g} between prefixes of two tokens would have been detected with probability .95."


def line_of(report: AuditReport, file: Path) -> str:
    """The one line on stdout."""
    counts = [f"{sum(row.verdict == name for row in report.rows)} {name}" for name in COLOURS]
    return f"{report.verdict}: {len(report.rows)} claims tested, {', '.join(counts)}; {file}"


def finite(value: Any) -> Any:
    """Replace infinities by words and NaN by null: plain JSON has neither."""
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value) if math.isinf(value) else None
    return value


def write_json(report: AuditReport, file: Path, provenance: Mapping[str, Any]) -> None:
    tree = {
        "verdict": report.verdict,
        "rows": [asdict(row) for row in report.rows],
        "texts": report.texts,
        "seconds": report.seconds,
        "provenance": dict(provenance),
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(finite(json.loads(json.dumps(tree, default=float))), indent=1) + "\n")
