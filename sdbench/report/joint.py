"""One setting for several sweeps: the fastest that is safe on every one of them, or where each setting fails.

Each sweep tests its settings at its level. If a setting is called safe on all sweeps although it loses too much on one of them,
that sweep's own test is wrong, so no further correction is needed.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import pandas as pd

from sdbench.metrics import sentences
from sdbench.metrics.cells import variants_of
from sdbench.metrics.recommend import Recommendation
from sdbench.metrics.safety import ALPHA, Comparison, run_in_sequence
from sdbench.metrics.stats import Estimate, holm
from sdbench.metrics.text import full_setting_of
from sdbench.metrics.weigh import Gain, Weighed

MOST = 3  # settings that are named if none is safe on all


class JointDecision(NamedTuple):
    """The setting for all sweeps by name, None if there is none, and the decision as text."""

    setting: str | None
    text: str


class _Tested(NamedTuple):
    """A sweep with its margin, its tests by the name of the setting, and why each of its other settings was not tested."""

    sweep: Weighed
    margin: float
    tests: Mapping[str, Comparison]
    untested: Mapping[str, str]

    def is_safe(self, name: str) -> bool:
        return name in self.tests and self.tests[name].is_safe(self.margin)

    def answers(self, name: str) -> float:
        """Return the modelled speed in answers; 0 without one."""
        return self.sweep.answers_of(self.tests[name].cell)

    def gain(self, name: str) -> Gain | None:
        return self.sweep.gains.get(self.tests[name].cell)

    @property
    def lossless(self) -> Estimate | None:
        """The speed of the best lossless setting over the target alone; None if it was not timed."""
        return self.sweep.lossless.get(self.sweep.best_lossless or "")

    def failure(self, name: str) -> str:
        """Return why a setting is not safe here."""
        if name not in self.tests:
            return self.untested.get(name, "not run there")
        test = self.tests[name]
        if test.worst > -self.margin:
            return sentences.excess_text(test, self.margin)
        return f"at worst {sentences.worst_text(test.worst, self.margin, self.sweep.metric)}"

    def problem(self) -> str:
        """Return why this run cannot tell; "" if it can."""
        sweep = self.sweep
        if sweep.problem or sweep.quality is None or sweep.quality.low > self.margin:
            return sweep.problem
        return sentences.at_the_floor(sweep, sweep.quality, f"{self.margin:g}").removesuffix(".")


def decide_jointly(advice: Sequence[Recommendation]) -> JointDecision:
    """Return the setting that is safe on every sweep of these folders, each at its own margin, or where the nearest fail."""
    pairs = [pair for folder in advice for pair in zip(folder.weighed, folder.advices, strict=True)]
    if len(pairs) < 2 or any(math.isnan(each.margin) for _, each in pairs):
        raise ValueError("joint=true needs two sweeps or more and a margin: name several folders, without speed=")
    sweeps = _with_settings([sweep for sweep, _ in pairs])
    name_of = _names(sweeps)
    tested = []
    for sweep, (_, each) in zip(sweeps, pairs, strict=True):
        done = [test for curve in sweep.curves for test in run_in_sequence(curve, each.margin)]
        untested = {test.cell: "not reached" for curve in sweep.curves for test in curve}
        untested |= {cell: f"left out, n={n}" for cell, n in sweep.left_out.items()}
        name = {cell: name_of[_setting(sweep, cell)] for cell in untested}
        tests = {name[test.cell]: test for test in done}
        tested.append(_Tested(sweep, each.margin, tests, {name[cell]: reason for cell, reason in untested.items()}))
    problems = [f"{each.sweep.title}: {problem}" for each in tested if (problem := each.problem())]
    if problems:
        return JointDecision(None, f"joint: none: {'; '.join(problems)}.")
    counts = {name: sum(each.is_safe(name) for each in tested) for known in tested for name in known.tests}
    common = [name for name, count in counts.items() if count == len(tested)]
    if not common:
        nearest = sorted(counts, key=lambda name: -counts[name])[:MOST]
        failures = "; ".join(f"{name} fails on {_failures(name, tested)}" for name in nearest)
        text = f"joint: none is safe on all {len(tested)} sweeps: {failures}."
        return JointDecision(None, " ".join([text, *_remarks(tested)]))
    timed = [name for name in common if all(each.gain(name) is not None for each in tested)]
    p_values = holm([max(gain.p_value for each in tested if (gain := each.gain(name))) for name in timed])
    proven = [name for name, p in zip(timed, p_values, strict=True) if p < ALPHA]
    best = max(proven or timed or common, key=lambda name: min(each.answers(name) for each in tested))
    return JointDecision(best, f"joint: {_describe(best, tested, is_faster=best in proven)}")


def _with_settings(sweeps: Sequence[Weighed]) -> list[Weighed]:
    """Return the sweeps with a text for each setting: equal texts in two sweeps mean the same rule, options, draft and versions.

    Where a draft or a version differs between the sweeps, the names of their settings include it.
    """
    rows = [sweep.cells.assign(sweep=sweep.model) for sweep in sweeps]
    whole = pd.concat(rows, keys=range(len(rows)))
    whole = whole.assign(**variants_of(whole)) if len(whole) else whole
    known = []
    for number, sweep in enumerate(sweeps):
        settings, names = {}, dict(sweep.names)
        for key in sweep.cells.index:
            cell = whole.loc[number, key]
            settings[key] = full_setting_of(cell)
            words = (cell["rule_variant"], cell["draft_variant"])
            names[key] = " ".join([names[key], *(word for word in words if word not in names[key])])
        known.append(replace(sweep, settings=settings or sweep.settings, names=names))
    return known


def _setting(sweep: Weighed, cell: str) -> str:
    return sweep.settings.get(cell, sweep.names[cell])


def _names(sweeps: Sequence[Weighed]) -> dict[str, str]:
    """Return {setting: name}: its shortest name in any sweep, or the setting itself where two settings would share that."""
    known: dict[str, set[str]] = {}
    for sweep in sweeps:
        for cell in sweep.settings or sweep.names:
            known.setdefault(_setting(sweep, cell), set()).add(sweep.names[cell])
    names = {setting: min(shown, key=lambda name: (len(name), name)) for setting, shown in known.items()}
    counts = Counter(names.values())
    return {setting: name if counts[name] == 1 else setting for setting, name in names.items()}


def _failures(name: str, tested: Sequence[_Tested]) -> str:
    """Return the sweeps on which a setting is not safe, and why."""
    failed = [each for each in tested if not each.is_safe(name)]
    return ", ".join(f"{each.sweep.title} ({each.failure(name)})" for each in failed)


def _describe(name: str, tested: Sequence[_Tested], *, is_faster: bool) -> str:
    """Return the recommendation, its largest possible loss, and its gain over lossless on each sweep."""
    tightest = min(tested, key=lambda each: (each.tests[name].worst + each.margin, each.sweep.title))
    gains = ", ".join(f"on {each.sweep.title} {_gain_text(each, name)}" for each in tested)
    verdict = f"ship {name}: safe" if is_faster else f"{_without_leniency(tested)}; {name} is safe"
    lacking = "" if is_faster else ", but a speed-up over lossless and the target alone is not proven on all"
    worst = sentences.worst_text(tightest.tests[name].worst, tightest.margin, tightest.sweep.metric, " points")
    limit = f"at worst {worst} (margin {tightest.margin:g}), on {tightest.sweep.title}"
    notes = _warnings(name, tested) if is_faster else []
    return " ".join([f"{verdict} on all {len(tested)} sweeps ({limit}){lacking}; {gains}.", *notes, *_remarks(tested)])


def _without_leniency(tested: Sequence[_Tested]) -> str:
    """Return what to do where no setting is proven to be faster: stay lossless, or not speculate where that ran slower."""
    known = [(each.sweep.title, over) for each in tested if (over := each.lossless) is not None]
    slow = {title: over for title, over in known if over.value < 1}
    if not slow:
        return "stay lossless"
    is_proven = all(over.high < 1 for over in slow.values())
    speeds = ", ".join(f"{sentences.ratio_text(over)} on {title}" for title, over in slow.items())
    slower = f"lossless is {'slower' if is_proven else 'not shown to be faster'} than the target alone ({speeds})"
    return (
        f"do not speculate: {slower}"
        if len(slow) == len(tested)
        else f"stay lossless, but {slower}: do not speculate there"
    )


def _gain_text(each: _Tested, name: str) -> str:
    gain = each.gain(name)
    return "not timed" if gain is None else sentences.gain_text(each.sweep, gain, each.tests[name].cell)


def _warnings(name: str, tested: Sequence[_Tested]) -> list[str]:
    """Return a warning for each sweep on which the answers are much longer than those of lossless."""
    return [
        f"{each.sweep.title}: {warning}"
        for each in tested
        for warning in sentences.length_warning(each.sweep, each.tests[name].cell)
    ]


def _remarks(tested: Sequence[_Tested]) -> list[str]:
    """Return the remarks on each sweep that do not depend on the decision."""
    return [f"{each.sweep.title}: {remark}" for each in tested for remark in sentences.remarks(each.sweep)]
