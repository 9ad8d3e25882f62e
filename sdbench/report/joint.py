"""A setting for several sweeps at once: safe on every one of them, the fastest of those; or where each setting fails.

Each sweep tests its settings at its own level. A setting that is called safe on all of them although it loses too much on one of
them is a wrong result of that sweep's own test, so asking for all needs no further correction.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sdbench.metrics.recommend import Recommendation
from sdbench.metrics.safety import Comparison, run_in_sequence
from sdbench.metrics.text import format_interval, format_number
from sdbench.metrics.weigh import Weighed

MOST = 3  # settings that are named where none is safe on all


class JointDecision(NamedTuple):
    """The setting for all sweeps by its name, None where there is none, and the decision in words."""

    setting: str | None
    text: str


class _Tested(NamedTuple):
    """A sweep with its margin, and its tests by the name of the setting."""

    sweep: Weighed
    margin: float
    tests: Mapping[str, Comparison]

    def is_safe(self, name: str) -> bool:
        return name in self.tests and self.tests[name].is_safe(self.margin)

    def speed(self, name: str) -> float:
        """Return the modelled speed; 0 where there is none."""
        speed = self.sweep.modelled.get(self.tests[name].cell, 0.0)
        return speed if speed == speed else 0.0


def decide_jointly(advice: Sequence[Recommendation]) -> JointDecision:
    """Return the setting that is safe on every sweep of these folders, each at its own margin, or where the nearest fail."""
    pairs = [pair for folder in advice for pair in zip(folder.weighed, folder.advices, strict=True)]
    if len(pairs) < 2 or any(math.isnan(each.margin) for _, each in pairs):
        raise ValueError("joint=true needs two sweeps or more and a margin: name several folders, without speed=")
    problems = [f"{sweep.title}: {sweep.problem}" for sweep, _ in pairs if sweep.problem]
    if problems:
        return JointDecision(None, f"joint: none: {'; '.join(problems)}.")
    tested = []
    for sweep, each in pairs:
        done = [test for curve in sweep.curves for test in run_in_sequence(curve, each.margin)]
        tested.append(_Tested(sweep, each.margin, {sweep.names[test.cell]: test for test in done}))
    counts = {name: sum(each.is_safe(name) for each in tested) for known in tested for name in known.tests}
    common = [name for name, count in counts.items() if count == len(tested)]
    if not common:
        nearest = sorted(counts, key=lambda name: -counts[name])[:MOST]
        failures = "; ".join(f"{name} fails on {_failures(name, tested)}" for name in nearest)
        return JointDecision(None, f"joint: none is safe on all {len(tested)} sweeps: {failures}.")
    best = max(common, key=lambda name: min(each.speed(name) for each in tested))
    return JointDecision(best, f"joint: {_describe(best, tested)}")


def _failures(name: str, tested: Sequence[_Tested]) -> str:
    """Return the sweeps on which a setting is not safe, with the limit of its loss where it was tested."""
    failed = [each for each in tested if not each.is_safe(name)]
    limits = [format_number(each.tests[name].worst, 1, is_signed=True) if name in each.tests else "" for each in failed]
    words = [f"at worst {limit}" if limit else "not reached" for limit in limits]
    return ", ".join(f"{each.sweep.title} ({text})" for each, text in zip(failed, words, strict=True))


def _describe(name: str, tested: Sequence[_Tested]) -> str:
    """Return what is shipped, its largest possible loss, and its speed over lossless on each sweep."""
    worst, where = min((each.tests[name].worst, each.sweep.title) for each in tested)
    gains = {each.sweep.title: each.sweep.gains.get(each.tests[name].cell) for each in tested}
    speeds = [
        f"{'not timed' if gain is None else format_interval(gain.over_lossless, 2, unit='×')} on {title}"
        for title, gain in gains.items()
    ]
    is_faster = all(gain is not None and gain.is_faster for gain in gains.values())
    verdict = f"ship {name}: safe" if is_faster else f"stay lossless; {name} is safe"
    lacking = "" if is_faster else ", but a speed-up over lossless and the target alone is not proven on all"
    limit = f"at worst {format_number(worst, 1, is_signed=True)} points, on {where}"
    return f"{verdict} on all {len(tested)} sweeps ({limit}){lacking}; over lossless: {', '.join(speeds)}."
