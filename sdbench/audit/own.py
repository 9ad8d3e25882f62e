"""The audit of this package's engine, with any rule and any drafter."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from typing import Any

from sdbench.audit import checks, knobs, plan
from sdbench.audit.audit import Check, Options, Report, Row, arrays, drawing, sample
from sdbench.audit.build import Built, Command, build, options
from sdbench.audit.claims import Cell
from sdbench.audit.outcomes import has_outcomes
from sdbench.audit.subject import Subject
from sdbench.config import ConfigError

FEW = 40  # texts of a prompt whose records are recomputed


def audit_own(given: Command) -> tuple[str, Report, Any]:
    """(name, report, device) of a command line."""
    wanted = options(given.own)
    built = build(given)
    if not built.subject.is_enumerable and set(wanted.claims) <= {"law", "losslessness"}:
        size = f"{built.subject.vocab}^{built.subject.budget}"
        raise ConfigError(
            f"claims={given.own['claims']}: {size} texts are too many to enumerate; prefixes and pit test the law"
        )
    report = audit(built.subject, wanted)
    if "knob" in wanted.claims:
        report.rows += [row for sweep in built.sweeps if (row := _knob(built, sweep)) is not None]
    model = built.run.model.name if built.trained else "random"
    rules = "+".join(sweep.name for sweep in built.sweeps)
    return f"{model}-{rules}-{built.run.drafter.name}", report, built.subject.engine.target.device


def _knob(built: Built, sweep: Any) -> Row | None:
    return _guarded(sweep.name, "knob", lambda: knobs.check(sweep, built.make(sweep), built.subject.widths))


def audit(subject: Subject, wanted: Options | None = None) -> Report:
    """Every claim of every setting of the subject."""
    wanted = wanted or Options()
    begun = time.perf_counter()
    source = subject.source()
    made = plan.make(subject, wanted, source)
    _refuse_unknown(subject, made, wanted)
    ready = time.perf_counter()
    seconds: dict[str, float] = {}
    names = [setting.name for setting in subject.settings]
    rows, total = sample(names, made.trials, wanted, horizon=made.horizon, draw=drawing(subject, seconds))
    sampled = time.perf_counter()
    rows += _certain(subject, wanted, source)
    seconds |= {"plan": ready - begun, "samples": sampled - ready, "checks": time.perf_counter() - sampled}
    return Report(rows, total, {key: round(value, 3) for key, value in seconds.items()})


def _refuse_unknown(subject: Subject, made: plan.Plan, wanted: Options) -> None:
    """A law that nobody has written down is no pass: the user names the claims that remain."""
    for setting in subject.settings:
        if not setting.draws(subject.sampling):
            continue  # its only text is compared with a plain loop's
        why = made.untested.get(setting.name)
        if (
            why
            and not setting.is_lossless
            and not has_outcomes(setting.rule)
            and {"law", "acceptance"} & set(wanted.claims)
        ):
            rest = ",".join(plan.remaining(subject))
            raise ConfigError(f"{setting.name}: {why}; what remains to be tested is claims=[{rest}]")


def _certain(subject: Subject, wanted: Options, source: Any) -> list[Row]:
    """The claims that leave nothing to chance."""
    every = list(range(len(subject.settings)))
    rows: list[Row] = []
    count = FEW if not subject.sampling.is_greedy else 1
    for number in every:
        setting = subject.settings[number]
        if not {"q", "counters"} & set(wanted.claims):
            break
        try:
            texts = subject.decode([number], count, look=800)[0]
        except Exception:  # noqa: BLE001 - a stranger's rule may raise anything: that is a finding, not a crash
            if not any(row.setting == setting.name and row.claim == "runs" for row in rows):
                rows.append(_fault(setting.name, "runs"))
            continue
        if "counters" in wanted.claims:
            rows.append(checks.counters(setting.name, texts, subject.num_draft, subject.budget).row())
        if "q" in wanted.claims:
            rounds = arrays(texts, subject)[1].first(400)
            row = _guarded(
                setting.name,
                "recorded q",
                lambda rounds=rounds, name=setting.name: checks.recorded(
                    name, rounds, source, subject, subject.sampling
                ),
            )
            rows += [row] if row is not None else []
    for claim, run in (("invariance", checks.invariance), ("greedy", checks.greedy)):
        if claim in wanted.claims:
            rows += _all(subject, claim, every, run)
    return rows


def _all(subject: Subject, claim: str, every: list[int], run: Callable[[Subject, list[int]], list[Check]]) -> list[Row]:
    """A check of all settings at once; where one raises, of each by itself."""
    try:
        return [check.row() for check in run(subject, every)]
    except Exception:  # noqa: BLE001
        rows: list[Row] = []
        for number in every:
            try:
                rows += [check.row() for check in run(subject, [number])]
            except Exception:  # noqa: BLE001
                rows.append(_fault(subject.settings[number].name, claim))
        return rows


def _guarded(name: str, claim: str, run: Callable[[], Check]) -> Row | None:
    try:
        check = run()
    except Exception:  # noqa: BLE001
        return _fault(name, claim)
    return check.row() if check.compared else None


def _fault(name: str, claim: str) -> Row:
    said = traceback.format_exc()
    return Row(name, claim, "violated", 1, None, None, 1, Cell(said.strip().splitlines()[-1], 1, 0), said)
