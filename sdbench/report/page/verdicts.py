"""The answer as the page shows it: a headline, what it costs and gains, the plane beside it, and every test in its order.

The page decides live as the margin is moved: `decisions` holds what `recommend.decide` returns between any two margins at
which something changes, so that the page itself decides nothing.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sdbench.metrics.recommend import Advice, Recommendation, breakpoints, decide
from sdbench.metrics.safety import ALPHA, Comparison, run_in_sequence
from sdbench.metrics.sentences import needed
from sdbench.metrics.text import format_interval, format_number
from sdbench.metrics.weigh import Weighed
from sdbench.records import Results
from sdbench.report.page.losses import LossDetail, losses_of
from sdbench.report.page.plane import Plane, depth_of, plane_of
from sdbench.report.page.tables import MINUS
from sdbench.report.sweep import Sweep

SLOT = "{margin}"


@dataclass(frozen=True, slots=True)
class Advised:
    """A sweep, what is known of it, and what is advised."""

    sweep: Sweep
    advice: Advice
    weighed: Weighed


@dataclass(frozen=True, slots=True, kw_only=True)
class LadderRow:
    """A test: the setting, its change, the limit that was tested; `bar` in percent of the row's line."""

    key: str
    label: str
    change: str
    limit: str
    loops: str
    needed: str  # examples that would show it safe, of a setting that is not
    state: str  # y within the margin, n not, - not reached
    bar: tuple[float, float]  # limit, change


@dataclass(frozen=True, slots=True)
class Fact:
    """A number behind the answer: what it is, itself, and how sure."""

    title: str
    value: str
    limits: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """What to ship for a sweep, or why nothing."""

    name: str
    title: str
    kind: str
    headline: str
    text: str
    setting: str
    facts: tuple[Fact, ...]
    ladder: tuple[LadderRow, ...]
    plane: Plane | None
    losses: LossDetail | None  # of the recommended setting, else of the one nearest to it
    group: int  # its sweep's place among the examples
    metric: str
    margin: float
    most: float  # the slider's end
    margin_at: float
    zero_at: float
    per_cent: float  # of a ladder's line that a point is
    decisions: str  # JSON
    has_loops: bool

    @property
    def rejected(self) -> set[str]:
        """The settings at which testing stopped."""
        return {row.key for row in self.ladder if row.state == "n"}


def match_advice(
    sweeps: Sequence[Sweep], results: Sequence[Results], advice: Sequence[Recommendation]
) -> list[Advised]:
    """Return each advice with its sweep: that whose cells were tested, or where none was the next of its folder, pair and task."""
    advised: list[Advised] = []
    for folder, recommendation in zip(results, advice, strict=True):
        for each, weighed in zip(recommendation.advices, recommendation.weighed, strict=True):
            keys = {test.cell for curve in weighed.curves for test in curve}
            same = [s for s in sweeps if s.results is folder and (s.model, s.task) == (each.model, each.task)]
            free = [sweep for sweep in same if not any(sweep is taken.sweep for taken in advised)]
            tested_here = [sweep for sweep in same if keys & set(sweep.cells.index)]
            advised += [Advised(sweep, each, weighed) for sweep in (tested_here or free)[:1]]
    return advised


def advised_cell(sweep: Sweep, advised: Sequence[Advised]) -> str | None:
    """Return the cell of this sweep that is recommended."""
    return next((each.advice.cell for each in advised if each.sweep is sweep), None)


def card_of(advised: Advised, index: int, group: int) -> Card:
    """Return what the page shows of an advice; `group` is the index of its sweep."""
    sweep, advice, weighed = advised.sweep, advised.advice, advised.weighed
    margin = advice.margin
    has_margin = not math.isnan(margin)  # where speed is fixed nothing is tested against a margin
    tests = [test for curve in weighed.curves for test in curve]
    plane = plane_of(sweep, weighed, margin) if tests else None
    depth = plane.depth if plane else depth_of(tests, margin)
    span = (-depth, 0.35 * depth)
    done = [] if not has_margin else [test for curve in weighed.curves for test in run_in_sequence(curve, margin)]
    nearest = advice.cell or next((test.cell for test in sorted(done, key=lambda test: -test.worst)), None)
    is_live = bool(tests) and has_margin
    return Card(
        name=f"answer-{index}",
        title=sweep.title,
        kind=advice.kind,
        **words_of(advised, advice),
        ladder=ladder_of(advised, span) if has_margin else (),
        plane=plane,
        losses=None if nearest is None else losses_of(sweep, nearest),
        group=group,
        metric=weighed.metric.name,
        margin=margin,
        most=round(max(depth, 1.5 * margin), 1) if is_live else 0.0,
        margin_at=_percent(-margin, span) if is_live else 0.0,
        zero_at=_percent(0.0, span),
        per_cent=100 / (span[1] - span[0]),
        decisions=json.dumps(decisions_of(advised)) if is_live else "[]",
        has_loops=any(test.loops > 0 for test in tests),
    )


def ladder_of(advised: Advised, span: tuple[float, float]) -> tuple[LadderRow, ...]:
    """Return every test in its order, for a setting that is not safe with the number of examples that would show it safe."""
    weighed, margin = advised.weighed, advised.advice.margin
    tests = [test for curve in weighed.curves for test in curve]
    return tuple(
        LadderRow(
            key=test.cell,
            label=str(advised.sweep.cells.at[test.cell, "label"]),
            change=format_signed(test.change),
            limit=format_signed(test.worst),
            loops=format_signed(test.loops),
            needed=examples_needed(test, margin, len(weighed.curves)) if state == "n" else "",
            state=state,
            bar=(_percent(test.worst, span), _percent(test.change, span)),
        )
        for test, state in zip(tests, states_of(weighed, margin), strict=True)
    )


def examples_needed(test: Comparison, margin: float, num_curves: int) -> str:
    """Return how many examples would show a setting safe, such as 61 to 1,200; "" for one that loses more than the margin."""
    text = needed(test, margin, ALPHA / num_curves) if test.change > -margin else ""
    return text.partition(" examples")[0]


def words_of(advised: Advised, advice: Advice) -> dict[str, Any]:
    """Return the words of a decision: headline, sentence, the setting's key, the facts."""
    setting = advice.cell or (advice.rival if advice.kind == "stay" else None)
    label = "" if setting is None else str(advised.sweep.cells.at[setting, "label"])
    headline = {"ship": f"Ship {label}", "stay": f"Stay {label}", "none": "No recommendation"}[advice.kind]
    _, _, text = advice.text.partition(": ")  # it begins with the pair and the task, which stand above it
    text = with_minus(text[:1].upper() + text[1:])
    return {"headline": headline, "text": text, "setting": setting or "", "facts": facts_of(advised, advice)}


def with_minus(text: str) -> str:
    """Return a sentence with true minus signs before its numbers."""
    return re.sub(r"(?<![\w.=-])-(?=\d)", MINUS, text)


def facts_of(advised: Advised, advice: Advice) -> tuple[Fact, ...]:
    """Return cost, gain over lossless and speed over the target alone of what is advised."""
    weighed = advised.weighed
    chosen = next((test for curve in weighed.curves for test in curve if test.cell == advice.cell), None)
    batch = f", batch {advised.sweep.batch_size}" if advised.sweep.batch_size else ""
    facts = []
    if chosen is not None:
        worst = f"at worst {format_signed(chosen.worst)} {weighed.metric.name}"
        facts.append(Fact("Cost", f"{format_signed(chosen.change)} points", worst))
    elif advice.kind == "stay":
        facts.append(Fact("Cost", "none", "the target’s own distribution"))
    gains = {"Gain over lossless": advice.gain if chosen else None, "Over the target alone": advice.speedup}
    for title, gain in gains.items():
        if gain is not None:
            value, _, limits = format_interval(gain, 2, unit="×").partition(" ")
            facts.append(Fact(title, value, f"{limits} on {gain.n} texts{batch}" if limits else ""))
    return tuple(facts)


def states_of(weighed: Weighed, margin: float) -> str:
    """Return a letter a comparison: y within the margin, n not, - not reached."""
    letters = []
    for curve in weighed.curves:
        done = [] if math.isnan(margin) else run_in_sequence(curve, margin)
        letters += ["y" if test.is_safe(margin) else "n" for test in done] + ["-"] * (len(curve) - len(done))
    return "".join(letters)


def decisions_of(advised: Advised) -> list[dict[str, Any]]:
    """Return the decision from each margin at which it changes on; the first holds from 0."""
    ends = [0.0, *breakpoints(advised.weighed)]
    decisions: list[dict[str, Any]] = []
    for start, end in zip(ends, [*ends[1:], 2 * ends[-1] + 1], strict=True):
        margin = (start + end) / 2
        advice = decide(advised.weighed, margin, written=SLOT)
        words = words_of(advised, advice)
        words["facts"] = [(fact.title, fact.value, fact.limits) for fact in words["facts"]]
        decision = {"from": start, "kind": advice.kind, "states": states_of(advised.weighed, margin), **words}
        if not decisions or decision | {"from": 0} != decisions[-1] | {"from": 0}:
            decisions.append(decision)
    return decisions


def format_signed(points: float) -> str:
    """Return points with a sign and a true minus; "" where they are not known."""
    return "" if math.isnan(points) else format_number(points, 1, is_signed=True).replace("-", MINUS)


def _percent(value: float, span: tuple[float, float]) -> float:
    return round(min(max(100 * (value - span[0]) / (span[1] - span[0]), 0.0), 100.0), 2)
