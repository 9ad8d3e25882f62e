"""The audit itself: samples come in growing parts, every claim looks at them, and stops where it is refuted."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sdbench.audit.claims import Cell, DraftTest, Effect, LawTest, Test, Verdict
from sdbench.audit.evidence import ALPHA
from sdbench.audit.subject import Subject
from sdbench.audit.texts import Rounds, Texts

PARTS = (250, 250, 500, 1000, 2000, 4000, 8000, 16000, 32000)  # texts of a prompt and setting at each look
CLAIMS = ("law", "losslessness", "q", "acceptance", "prefixes", "pit", "knob", "invariance", "greedy", "counters")


@dataclass(frozen=True)
class Row:
    """A line of the table."""

    setting: str
    claim: str
    verdict: Verdict
    statistic: float  # log e, or the number of deviations where nothing is left to chance
    p: float | None  # corrected for all tests of the run; None: nothing is left to chance
    effect: Effect | None
    samples: int
    cell: Cell | None = None
    note: str = ""


@dataclass(frozen=True)
class Check:
    """A claim that leaves nothing to chance: (what was compared, the deviations in words, how many were near-ties)."""

    setting: str
    claim: str
    compared: int
    deviations: Sequence[str]
    near_ties: int = 0
    note: str = ""

    def row(self) -> Row:
        first = Cell(self.deviations[0], 1, 0) if self.deviations else None
        note = f"{self.near_ties} near-ties" if self.near_ties else self.note
        verdict: Verdict = "violated" if self.deviations else "sound"
        return Row(self.setting, self.claim, verdict, len(self.deviations), None, None, self.compared, first, note)


@dataclass
class Options:
    """How sure the audit is to be. samples: the most texts of a prompt and setting; None: what the power asks for."""

    tv: float = 0.05
    power: float = 0.95
    samples: int | None = None
    claims: Sequence[str] = CLAIMS


@dataclass
class Trial:
    """The tests of one setting, and whether one of them has refuted its claim."""

    place: int
    tests: list[Test]
    peak: dict[str, float] = field(default_factory=dict)
    fault: str | None = None

    def is_refuted(self, log_wanted: float) -> bool:
        return self.fault is not None or any(peak >= log_wanted for peak in self.peak.values())


@dataclass
class Report:
    """What the audit found."""

    rows: list[Row]
    texts: int = 0  # drawn, of all settings
    seconds: dict[str, float] = field(default_factory=dict)
    faults: dict[str, str] = field(default_factory=dict)  # setting -> traceback

    @property
    def verdict(self) -> Verdict:
        said = {row.verdict for row in self.rows}
        return "violated" if "violated" in said else "too few" if "too few" in said or not self.rows else "sound"


Sample = tuple[Texts, Rounds | None]
Draw = Callable[[Sequence[int], int, int], list[Sample]]  # (settings, texts of a prompt, look) -> a sample of each


def sample(
    names: Sequence[str], trials: Sequence[Trial], options: Options, *, horizon: int, draw: Draw
) -> tuple[list[Row], int]:
    """Draw until the horizon, or until every setting is refuted; the rows of all tests, and how many texts were drawn."""
    num_tests = sum(len(trial.tests) for trial in trials)
    log_wanted = float(np.log(max(num_tests, 1) / ALPHA))
    drawn = total = 0
    for look, part in enumerate(PARTS):
        count = min(part, horizon - drawn)
        alive = [trial for trial in trials if not trial.is_refuted(log_wanted)]
        if count <= 0 or not alive:
            break
        parts = _drawn(alive, lambda which, count=count, look=look: draw(which, count, look))
        for trial, one in zip(alive, parts, strict=True):
            if isinstance(one, str):
                trial.fault = one
                continue
            total += len(one[0].tokens)
            for test in trial.tests:
                test.add(*one)
                trial.peak[test.claim] = max(trial.peak.get(test.claim, -np.inf), test.log_e())
        drawn += count
    rows: list[Row] = []
    for trial in trials:
        name = names[trial.place]
        if trial.fault is not None:
            said = trial.fault.strip().splitlines()[-1]
            rows.append(Row(name, "runs", "violated", 1, None, None, 1, Cell(said, 1, 0), trial.fault))
        rows += [row_of(name, test, trial, log_wanted, num_tests, options) for test in trial.tests if test.samples]
    return rows, total


def _drawn(trials: Sequence[Trial], draw: Callable[[Sequence[int]], list[Sample]]) -> list[Sample | str]:
    """A sample of each trial, or a traceback: where one raises, each is drawn by itself to see whose it is."""
    try:
        return list(draw([trial.place for trial in trials]))
    except Exception:  # noqa: BLE001 - a stranger's rule may raise anything: that is a finding, not a crash
        if len(trials) == 1:
            return [traceback.format_exc()]
    return [_drawn([trial], draw)[0] for trial in trials]


def drawing(subject: Subject, seconds: dict[str, float]) -> Draw:
    """Samples of this package's engine; the time that decoding alone takes is added up under "drawing"."""

    def draw(which: Sequence[int], count: int, look: int) -> list[Sample]:
        begun = time.perf_counter()
        decoded = subject.decode(which, count, look=look)
        seconds["drawing"] = seconds.get("drawing", 0.0) + time.perf_counter() - begun
        return [arrays(texts, subject) for texts in decoded]

    return draw


def arrays(generations: Sequence[Any], subject: Subject) -> tuple[Texts, Rounds]:
    texts = Texts.decoded(generations, subject.budget)
    return texts, Rounds.of(generations, subject.budget, subject.num_draft)


def row_of(name: str, test: Test, trial: Trial, log_wanted: float, num_tests: int, options: Options) -> Row:
    peak = trial.peak.get(test.claim, -np.inf)
    effect = test.effect(log_wanted)
    verdict: Verdict = "violated" if peak >= log_wanted else "sound"
    is_tv = isinstance(test, LawTest | DraftTest) or effect.name.startswith("TV")
    if verdict == "sound" and (not test.samples or (is_tv and not effect.least <= options.tv)):
        verdict = "too few"
    return Row(
        name,
        test.claim,
        verdict,
        float(peak),
        float(min(1.0, num_tests * np.exp(-max(peak, 0.0)))),
        effect,
        test.samples,
        test.worst() if test.samples else None,
        "stopped early" if trial.is_refuted(log_wanted) else "",
    )
