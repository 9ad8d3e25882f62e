"""The audit of this package's engine, with any rule and any drafter."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from sdbench.audit import checks, knobs
from sdbench.audit.build import BuiltAudit, build
from sdbench.audit.command import AuditCommand, AuditOptions
from sdbench.audit.outcomes import why_unknown
from sdbench.audit.plan import Fault, plan_tests, run_each, sample
from sdbench.audit.report import AuditReport, ClaimResult, ExactCheck
from sdbench.audit.source import Source
from sdbench.audit.subject import Subject
from sdbench.audit.untested import row_of, testable_without_law, untested_claims
from sdbench.config import ConfigError

CHECKED_TEXTS = 40  # texts of a prompt whose records are recomputed


def audit_engine(given: AuditCommand) -> AuditReport:
    """Audit what the command line names, or the default rule on the random pair."""
    options, built = given.options, build(given)
    if "claims" in given.values:
        size = f"claims={given.values['claims']}: {built.subject.vocab}^{built.subject.budget} texts are"
        if built.subject.is_enumerable and {"prefixes", "pit"} & set(options.claims):
            raise ConfigError(f"{size} few enough to enumerate: test the distribution by claims=[law]")
        if not built.subject.is_enumerable and {"law", "losslessness"} & set(options.claims):
            raise ConfigError(f"{size} too many to enumerate; test the distribution by claims=[prefixes,pit]")
    options = replace(options, num_subjects=len(built.subjects))
    reports = [audit(subject, options) for subject in built.subjects]
    report = reports[0]
    for more in reports[1:]:
        report.rows += more.rows
        report.texts += more.texts
        names = {**report.seconds, **more.seconds}
        report.seconds = {name: report.seconds.get(name, 0.0) + more.seconds.get(name, 0.0) for name in names}
    if "knob" in options.claims:
        report.rows += knob_results(built)
        swept = {row.setting for row in report.rows if row.claim == "knob"}
        missing = [sweep.name for sweep in built.sweeps if options.names_claims and sweep.name not in swept]
        why = "it has neither an ordered knob of a token-wise rule nor a published bound"
        report.rows += [row_of(name, "knob", why) for name in missing]
    model = built.run.model.name if given.has("model") else "random"
    report.name = f"{model}-{'+'.join(sweep.name for sweep in built.sweeps)}-{'+'.join(d.name for d in built.drafters)}"
    return report


def knob_results(built: BuiltAudit) -> list[ClaimResult]:
    def check(which: Sequence[int]) -> list[ExactCheck]:
        return [knobs.check_knobs(built.sweeps[n], built.markers, built.subject.widths) for n in which]

    return _results([sweep.name for sweep in built.sweeps], "knob", range(len(built.sweeps)), check)


def audit(subject: Subject, options: AuditOptions | None = None) -> AuditReport:
    """Test every claim of every setting of the subject."""
    options = options or AuditOptions()
    times, seconds = [time.perf_counter()], dict[str, float]()
    source = subject.source()
    plan = plan_tests(subject, options, source)
    refuse_unknown_laws(subject, options)
    times.append(time.perf_counter())
    names = [setting.name for setting in subject.settings]
    rows, total = sample(names, plan.settings, options, horizon=plan.horizon, draw=subject.sampler(seconds))
    rows += plan.untested
    times.append(time.perf_counter())
    rows += record_results(subject, options, source, {row.setting for row in rows if row.claim == "runs"})
    for claim, check in (("invariance", checks.check_invariance), ("greedy", checks.check_greedy)):
        if claim in options.claims:
            rows += _results(names, claim, range(len(names)), partial(check, subject))
    rows += untested_claims(subject, options, rows)
    times.append(time.perf_counter())
    seconds |= dict(zip(("plan", "samples", "checks"), np.diff(times).tolist(), strict=True))
    seconds = {key: round(value, 3) for key, value in seconds.items()}
    return AuditReport("+".join(names), rows, total, seconds, subject.engine.target.device)


def refuse_unknown_laws(subject: Subject, options: AuditOptions) -> None:
    """Raise ConfigError for rules with an unknown law, unless the user names only claims that can be tested without it."""
    if not {"law", "acceptance"} & set(options.claims):
        return
    for setting in subject.settings:
        # A setting without randomness has a single text, which `check_greedy` compares with a plain loop's.
        reason = why_unknown(setting.rule)
        if reason and setting.is_random(subject.sampling) and not setting.is_lossless:
            testable = ",".join(testable_without_law(subject, setting))
            raise ConfigError(f"{setting.name}: {reason}; what can be tested is claims=[{testable}]")


def record_results(subject: Subject, options: AuditOptions, source: Source, failed: set[str]) -> list[ClaimResult]:
    """Return the results on the records of some texts: counters, recorded p and q. `failed`: settings that already raised."""
    results, names = list[ClaimResult](), [setting.name for setting in subject.settings]
    samples = CHECKED_TEXTS if not subject.sampling.is_greedy else 1
    wants_records = bool({"q", "counters"} & set(options.claims))
    for number, setting in enumerate(subject.settings if wants_records else ()):
        if setting.name in failed:
            continue
        (texts,) = run_each([number], lambda which: subject.decode(which, samples, look=800))
        if isinstance(texts, Fault):
            results.append(ClaimResult.of_fault(setting.name, "runs", texts.trace))
            continue
        if "counters" in options.claims:
            results.append(checks.check_counters(setting.name, texts, subject.num_draft, subject.budget).result())
        if "q" in options.claims:
            rounds = subject.arrays(texts)[1].first(400)
            check = partial(checks.check_recorded, setting.name, rounds, source, subject)
            results += _results(names, "recorded q", [number], lambda _, check=check: [check()])
    return results


def _results(
    names: Sequence[str], claim: str, which: Sequence[int], check: Callable[[Sequence[int]], Sequence[ExactCheck]]
) -> list[ClaimResult]:
    """Return the results of a check, without those that compared nothing; an exception violates the claim."""
    return [
        ClaimResult.of_fault(names[done.setting], claim, done.trace) if isinstance(done, Fault) else done.result()
        for done in run_each(which, check)
        if isinstance(done, Fault) or done.compared
    ]
