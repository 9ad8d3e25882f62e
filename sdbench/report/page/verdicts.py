"""The answer as the page shows it: a headline, what it costs and gains, the plane beside it, and every test in its order.

The page decides live as the margin is moved: `decisions` holds what `recommend.decide` says between any two margins at which
something changes, so that the page itself decides nothing.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sdbench.metrics.recommend import Advice, Recommendation, breakpoints, decide
from sdbench.metrics.safety import Comparison, tested
from sdbench.metrics.stats import Estimate
from sdbench.metrics.weigh import Weighed
from sdbench.records import Results
from sdbench.report.page.plane import Plane, depth_of, plane_of
from sdbench.report.page.tables import MINUS
from sdbench.report.sweep import Sweep

MOST = 60  # decisions a slider goes through
SLOT = "{margin}"
HEADS = {"ship": "Ship", "stay": "Stay lossless", "none": "No recommendation"}


@dataclass(frozen=True, slots=True)
class Advised:
    """A sweep, what is known of it, and what is advised."""

    sweep: Sweep
    advice: Advice
    weighed: Weighed


@dataclass(frozen=True, slots=True)
class Step:
    """One test: the setting, its change, the limit that was tested; `bar` in per cent of the step's line."""

    key: str
    label: str
    change: str
    limit: str
    loops: str
    state: str  # y within the margin, n not, - not reached
    bar: tuple[float, float]  # limit, change


@dataclass(frozen=True, slots=True)
class Fact:
    """A number behind the answer: what it is, itself, and how sure."""

    title: str
    value: str
    limits: str


@dataclass(frozen=True, slots=True)
class Card:
    """What to ship for one sweep, or why nothing."""

    place: str
    title: str
    kind: str
    headline: str
    text: str
    setting: str
    facts: tuple[Fact, ...]
    steps: tuple[Step, ...]
    plane: Plane | None
    metric: str
    margin: float
    most: float  # the slider's end
    margin_at: float
    zero_at: float
    per_cent: float  # of a step's line that one point is
    decisions: str  # JSON
    has_loops: bool

    @property
    def rejected(self) -> set[str]:
        """The settings at which testing stopped."""
        return {step.key for step in self.steps if step.state == "n"}


def advices_of(sweeps: Sequence[Sweep], results: Sequence[Results], advice: Sequence[Recommendation]) -> list[Advised]:
    """Each advice with its sweep: that whose cells were tested, or where none was the next of its folder, pair and task."""
    advised: list[Advised] = []
    for one, recommendation in zip(results, advice, strict=True):
        for each, weighed in zip(recommendation.advices, recommendation.weighed, strict=True):
            keys = {test.cell for curve in weighed.curves for test in curve}
            same = [s for s in sweeps if s.results is one and (s.model, s.task) == (each.model, each.task)]
            free = [sweep for sweep in same if not any(sweep is taken.sweep for taken in advised)]
            held = [sweep for sweep in same if keys & set(sweep.cells.index)]
            advised += [Advised(sweep, each, weighed) for sweep in (held or free)[:1]]
    return advised


def advised_of(sweep: Sweep, advised: Sequence[Advised]) -> str | None:
    """The cell of this sweep that is recommended."""
    return next((one.advice.cell for one in advised if one.sweep is sweep), None)


def answer_of(advised: Advised, place: int) -> Card:
    """What the page shows of it."""
    sweep, advice, weighed = advised.sweep, advised.advice, advised.weighed
    margin = advice.margin
    compared = [one for curve in weighed.curves for one in curve]
    plane = plane_of(sweep, weighed, margin) if compared else None
    deep = plane.depth if plane else depth_of(compared, margin)
    span = (-deep, 0.35 * deep)
    shown = advised_shown(advised, advice)
    states = states_of(weighed, margin)
    steps = tuple(
        Step(
            one.cell,
            str(sweep.cells.at[one.cell, "label"]),
            signed(one.change),
            signed(one.worst),
            signed(one.loops) if one.loops == one.loops else "",
            state,
            (_at(one.worst, span), _at(one.change, span)),
        )
        for one, state in zip(compared, states, strict=True)
        if margin == margin  # where speed is fixed nothing is tested against a margin
    )
    is_live = bool(compared) and margin == margin
    return Card(
        f"answer-{place}",
        sweep.title,
        advice.kind,
        shown["headline"],
        shown["text"],
        shown["setting"],
        tuple(Fact(*fact) for fact in shown["facts"]),
        steps,
        plane,
        weighed.metric.name,
        margin,
        round(max(deep, 1.5 * margin), 1) if is_live else 0.0,
        _at(-margin, span) if is_live else 0.0,
        _at(0.0, span),
        100 / (span[1] - span[0]),
        json.dumps(decisions_of(advised)) if is_live else "[]",
        any(one.loops > 0 for one in compared),
    )


def advised_shown(advised: Advised, advice: Advice) -> dict[str, Any]:
    """The words of one decision: headline, sentence, the setting's key, the facts."""
    sweep, weighed = advised.sweep, advised.weighed
    chosen = next((one for curve in weighed.curves for one in curve if one.cell == advice.cell), None)
    setting = advice.cell or (advice.rival if advice.kind == "stay" else None)
    label = "" if setting is None else str(sweep.cells.at[setting, "label"])
    headline = f"Ship {label}" if advice.kind == "ship" else HEADS[advice.kind]
    if advice.kind == "stay" and ", " in label:
        headline += label[label.index(", ") :]
    _, _, text = advice.text.partition(": ")  # it begins with the pair and the task, which stand above it
    text = re.sub(r"(?<![\w.=-])-(?=\d)", MINUS, text[:1].upper() + text[1:])
    return {"headline": headline, "text": text, "setting": setting or "", "facts": facts(advice, chosen, weighed)}


def facts(advice: Advice, chosen: Comparison | None, weighed: Weighed) -> list[tuple[str, str, str]]:
    """Cost, gain over lossless, speed over the target alone: of what is advised."""
    shown = []
    if chosen is not None:
        shown.append(
            ("Cost", f"{signed(chosen.change)} points", f"at worst {signed(chosen.worst)} {weighed.metric.name}")
        )
        if advice.gain is not None:
            shown.append(("Gain over lossless", *times(advice.gain)))
    if advice.kind == "stay":
        shown.append(("Cost", "none", "the target’s own law"))
    if advice.speedup is not None:
        shown.append(("Over the target alone", *times(advice.speedup)))
    return shown


def times(estimate: Estimate) -> tuple[str, str]:
    """1.24× and its limits."""
    limits = "" if math.isnan(estimate.low) else f"[{estimate.low:.2f}, {estimate.high:.2f}]"
    return f"{estimate.value:.2f}×", limits


def states_of(weighed: Weighed, margin: float) -> str:
    """A letter a comparison: y within the margin, n not, - not reached."""
    letters = []
    for curve in weighed.curves:
        done = tested(curve, margin) if margin == margin else []
        letters += ["y" if one.is_safe(margin) else "n" for one in done] + ["-"] * (len(curve) - len(done))
    return "".join(letters)


def decisions_of(advised: Advised) -> list[dict[str, Any]]:
    """The decision from each margin at which it changes on; the first holds from 0."""
    ends = [0.0, *breakpoints(advised.weighed)]
    decisions: list[dict[str, Any]] = []
    for start, end in zip(ends[:MOST], [*ends[1:], 2 * ends[-1] + 1][:MOST], strict=True):
        middle = (start + end) / 2
        advice = decide(advised.weighed, middle, written=SLOT)
        states = states_of(advised.weighed, middle)
        decisions.append({"from": start, "kind": advice.kind, "states": states, **advised_shown(advised, advice)})
    return decisions


def signed(points: float) -> str:
    """Points with a sign and a true minus."""
    return "" if points != points else f"{points:+.1f}".replace("-", MINUS)


def _at(value: float, span: tuple[float, float]) -> float:
    return round(min(max(100 * (value - span[0]) / (span[1] - span[0]), 0.0), 100.0), 2)
