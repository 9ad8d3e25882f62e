"""A setting for several sweeps at once: safe on every one of them, the fastest of those; or where each setting fails.

Each sweep tests its settings at its own level. A setting that is called safe on all of them although it loses too much on one of
them is a wrong result of that sweep's own test, so asking for all needs no further correction.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sdbench.metrics.recommend import Recommendation
from sdbench.metrics.safety import Comparison, run_in_sequence
from sdbench.metrics.text import format_interval, format_number
from sdbench.metrics.weigh import Weighed

MOST = 3  # settings that are named where none is safe on all


@dataclass(frozen=True, slots=True)
class JointDecision:
    """The setting for all sweeps by its name, None where there is none, and the decision in words."""

    setting: str | None
    text: str


def decide_jointly(advice: Sequence[Recommendation]) -> JointDecision:
    """Return the setting that is safe on every sweep of these folders, each at its own margin, or where the nearest fail."""
    sweeps = [sweep for folder in advice for sweep in folder.weighed]
    margins = [each.margin for folder in advice for each in folder.advices]
    if len(sweeps) < 2 or any(map(math.isnan, margins)):
        raise ValueError("joint=true needs two sweeps or more and a margin: name several folders, without speed=")
    problems = [f"{sweep.title}: {sweep.problem}" for sweep in sweeps if sweep.problem]
    if problems:
        return JointDecision(None, f"joint: none: {'; '.join(problems)}.")
    tests = [_tests_by_name(sweep, margin) for sweep, margin in zip(sweeps, margins, strict=True)]
    is_safe = {
        name: [name in known and known[name].is_safe(margin) for known, margin in zip(tests, margins, strict=True)]
        for name in dict.fromkeys(name for known in tests for name in known)
    }
    common = [name for name, safe in is_safe.items() if all(safe)]
    if not common:
        nearest = sorted(is_safe, key=lambda name: -sum(is_safe[name]))[:MOST]
        failures = [f"{name} fails on {_failures(name, sweeps, tests, is_safe[name])}" for name in nearest]
        return JointDecision(None, f"joint: none is safe on all {len(sweeps)} sweeps: {'; '.join(failures)}.")
    best = max(
        common,
        key=lambda name: min(_modelled_speed(sweep, known[name]) for sweep, known in zip(sweeps, tests, strict=True)),
    )
    return JointDecision(best, f"joint: {_describe(best, sweeps, [known[best] for known in tests])}")


def _tests_by_name(sweep: Weighed, margin: float) -> dict[str, Comparison]:
    return {sweep.names[test.cell]: test for curve in sweep.curves for test in run_in_sequence(curve, margin)}


def _modelled_speed(sweep: Weighed, test: Comparison) -> float:
    speed = sweep.modelled.get(test.cell, math.nan)
    return 0.0 if math.isnan(speed) else speed


def _failures(
    name: str, sweeps: Sequence[Weighed], tests: Sequence[Mapping[str, Comparison]], is_safe: Sequence[bool]
) -> str:
    """Return the sweeps on which a setting is not safe, with the limit of its loss where it was tested."""
    failed = [
        f"{sweep.title} (at worst {format_number(known[name].worst, 1, is_signed=True)})"
        if name in known
        else f"{sweep.title} (not reached)"
        for sweep, known, safe in zip(sweeps, tests, is_safe, strict=True)
        if not safe
    ]
    return ", ".join(failed)


def _describe(name: str, sweeps: Sequence[Weighed], tests: Sequence[Comparison]) -> str:
    """Return what is shipped, its largest possible loss, and its speed over lossless on each sweep."""
    worst, where = min((test.worst, sweep.title) for test, sweep in zip(tests, sweeps, strict=True))
    gains = [sweep.gains.get(test.cell) for sweep, test in zip(sweeps, tests, strict=True)]
    speeds = [
        f"{'not timed' if gain is None else format_interval(gain.over_lossless, 2, unit='×')} on {sweep.title}"
        for sweep, gain in zip(sweeps, gains, strict=True)
    ]
    is_faster = all(gain is not None and gain.is_faster for gain in gains)
    verdict = f"ship {name}: safe" if is_faster else f"stay lossless; {name} is safe"
    lacking = "" if is_faster else ", but a speed-up over lossless is not proven on all"
    limit = f"at worst {format_number(worst, 1, is_signed=True)} points, on {where}"
    return f"{verdict} on all {len(sweeps)} sweeps ({limit}){lacking}; over lossless: {', '.join(speeds)}."
