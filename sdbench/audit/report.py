"""The result of an audit: a row for each claim, the overall verdict and its exit code; a table, one line, audit.json."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from sdbench.audit.claims import ClaimVerdict, ContingencyCell, Effect
from sdbench.subcommand import Exit

EXIT_CODES: dict[ClaimVerdict, int] = {"sound": Exit.DONE, "violated": Exit.FAILED, "too few": Exit.TOO_FEW}
WIDTH = 150
COLOURS = {"sound": "green", "violated": "red", "too few": "yellow"}
NUMBERS = ("log e", "p corrected", "detected at .95", "samples")  # right-aligned columns
MOST_TIES = 0.25  # share of texts that may have a near-tie


@dataclass(frozen=True)
class ClaimResult:
    """A row of the table."""

    setting: str
    claim: str
    verdict: ClaimVerdict
    statistic: float  # log e, or the number of deviations of an exact check
    p: float | None  # corrected for all tests of the run; None for an exact check
    effect: Effect | None
    samples: int
    cell: ContingencyCell | None = None
    note: str = ""

    @property
    def sentence(self) -> str:
        """Return the text on the cell that deviates most."""
        if self.cell is None:
            return "nothing deviates"
        return self.cell.name + (
            "" if self.p is None else f": seen {self.cell.seen:g} times, expected {self.cell.expected:.1f}"
        )

    @classmethod
    def of_fault(cls, setting: str, claim: str, trace: str) -> Self:
        """An exception in the rule or the drafter under test violates the claim; `trace` is its traceback."""
        cell = ContingencyCell(trace.strip().splitlines()[-1], 1, 0)
        return cls(setting, claim, "violated", 1, None, None, 1, cell, trace)


@dataclass(frozen=True)
class ExactCheck:
    """A claim that needs no samples: the number of comparisons, and the deviations in words."""

    setting: str
    claim: str
    compared: int
    deviations: Sequence[str]
    near_ties: int = 0
    note: str = ""

    def result(self) -> ClaimResult:
        cell = ContingencyCell(self.deviations[0], 1, 0) if self.deviations else None
        note = f"{self.near_ties} near-ties" if self.near_ties else self.note
        verdict, num_off = "violated" if self.deviations else "sound", len(self.deviations)
        if verdict == "sound" and self.near_ties > MOST_TIES * self.compared:
            verdict = "too few"  # after a near-tie the rest of a text cannot be compared
        return ClaimResult(self.setting, self.claim, verdict, num_off, None, None, self.compared, cell, note)


@dataclass
class AuditReport:
    name: str  # of its folder
    rows: list[ClaimResult]
    texts: int = 0  # drawn, of all settings
    seconds: dict[str, float] = field(default_factory=dict)
    device: Any = "cpu"  # of its models

    @property
    def verdict(self) -> ClaimVerdict:
        verdicts = {row.verdict for row in self.rows} or {"too few"}
        return next(verdict for verdict in ("violated", "too few", "sound") if verdict in verdicts)


def print_table(report: AuditReport) -> None:
    """Print the table to stderr; stdout gets one line only."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"sdbench.audit: {report.name}", title_justify="left")
    for name in ("setting", "claim", "log e", "p corrected", "effect [95 %]", "detected at .95", "samples", "verdict"):
        table.add_column(name, justify="right" if name in NUMBERS else "left")
    for row in report.rows:
        table.add_row(
            row.setting,
            row.claim,
            _statistic_of(row),
            "" if row.p is None else f"{row.p:.2g}",
            _effect_of(row),
            f"{row.effect.least:.3g}" if row.effect is not None and math.isfinite(row.effect.least) else "",
            f"{row.samples:,}",
            f"[{COLOURS[row.verdict]}]{row.verdict}[/]",
        )
    console = Console(stderr=True, width=WIDTH)
    console.print(table)
    for row in report.rows:
        if row.verdict == "violated":
            console.print(f"{row.setting}, {row.claim}: {row.sentence}", highlight=False, markup=False)
    console.print(_power(report), highlight=False, markup=False)


def _statistic_of(row: ClaimResult) -> str:
    if not row.samples:  # it was not tested
        return ""
    return f"{row.statistic:g} off" if row.p is None else f"{row.statistic:.1f}"


def _effect_of(row: ClaimResult) -> str:
    if row.effect is None:
        return "an exception" if "Traceback" in row.note else row.note
    return f"{row.effect.name} {row.effect.value:+.4f} [{row.effect.low:+.4f}, {row.effect.high:+.4f}]".replace(
        "TV +", "TV "
    )


def _power(report: AuditReport) -> str:
    effects = [row.effect for row in report.rows if row.effect is not None]
    if not effects:
        return "None of these claims is tested by random samples."
    tables = [effect for effect in effects if effect.name == "TV"]
    if not tables:
        name, most = max(((effect.name, effect.least) for effect in effects), key=lambda pair: pair[1])
        if not math.isfinite(most):
            return f"Too few samples: no difference in {name} would have been detected with probability .95."
        return f"A difference of {most:.3g} in {name} would have been detected with probability .95."
    weakest = max(tables, key=lambda effect: effect.least)
    if not math.isfinite(weakest.least):
        text = f"Too few samples: even a TV of .6 between {weakest.view} would not have been detected with probability .95."
    else:
        text = f"A TV of {weakest.least:.3g} between {weakest.view} would have been detected with probability .95"
        if percent := round(100 * weakest.pooled):
            text += (
                f", apart from changes among the {percent} % of {weakest.view} that are too rare to be counted singly"
            )
        text += "."
    untested = {(row.effect.untested, row.setting) for row in report.rows if row.effect and row.effect.untested}
    return "\n".join([text, *(f"Of {setting}, {counts} were not tested." for counts, setting in sorted(untested))])


def line_of(report: AuditReport, file: Path) -> str:
    """Return the line for stdout."""
    tested = [row for row in report.rows if row.samples]
    counts = [f"{sum(row.verdict == name for row in tested)} {name}" for name in COLOURS]
    counts += [f"{missing} not tested"] if (missing := len(report.rows) - len(tested)) else []
    return f"{report.verdict}: {len(tested)} claims tested, {', '.join(counts)}; {file}"


def finite(value: Any) -> Any:
    """Replace infinities by words and NaN by null, which plain JSON does not have."""
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value) if math.isinf(value) else None
    return value


def write_json(file: Path, tree: Mapping[str, Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(finite(json.loads(json.dumps(tree, default=float))), indent=1) + "\n")
