"""What an audit returns: a result for each claim, the verdict over all of them, and the exit code of that verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sdbench.audit.claims import ClaimVerdict, ContingencyCell, Effect

EXIT_CODES: dict[ClaimVerdict, int] = {"sound": 0, "violated": 1, "too few": 3}


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

    @classmethod
    def of_fault(cls, setting: str, claim: str, trace: str) -> ClaimResult:
        """An exception in the rule or the drafter under test violates the claim; `trace` is its traceback."""
        cell = ContingencyCell(trace.strip().splitlines()[-1], 1, 0)
        return cls(setting, claim, "violated", 1, None, None, 1, cell, trace)


@dataclass(frozen=True)
class ExactCheck:
    """A claim without randomness: how many comparisons were made, and the deviations in words."""

    setting: str
    claim: str
    compared: int
    deviations: Sequence[str]
    near_ties: int = 0
    note: str = ""

    def result(self) -> ClaimResult:
        first = ContingencyCell(self.deviations[0], 1, 0) if self.deviations else None
        note = f"{self.near_ties} near-ties" if self.near_ties else self.note
        verdict: ClaimVerdict = "violated" if self.deviations else "sound"
        num_off = len(self.deviations)
        return ClaimResult(self.setting, self.claim, verdict, num_off, None, None, self.compared, first, note)


@dataclass
class AuditReport:
    rows: list[ClaimResult]
    texts: int = 0  # drawn, of all settings
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def verdict(self) -> ClaimVerdict:
        verdicts = {row.verdict for row in self.rows} or {"too few"}
        return next(verdict for verdict in ("violated", "too few", "sound") if verdict in verdicts)


@dataclass(frozen=True)
class AuditRun:
    """A report under the name of its folder, and the device of its models."""

    name: str
    report: AuditReport
    device: Any
