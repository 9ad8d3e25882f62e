"""The recommendation on the page: headline, cost and gain, the plane, every test in order, and the examples that lose.

The page changes the recommendation as the margin is moved: `decisions` holds what `recommend.decide` returns between any two
margins at which it changes, so the page itself decides nothing.
"""

import json
import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from sdbench.metrics.cells import reference
from sdbench.metrics.degenerate import degenerate
from sdbench.metrics.needed import examples_needed
from sdbench.metrics.quality import points as points_of
from sdbench.metrics.quality import sign_of
from sdbench.metrics.recommend import Advice, Recommendation, breakpoints, decide
from sdbench.metrics.safety import Comparison, run_in_sequence
from sdbench.metrics.sentences import batches_text, is_wider, limit_text, signed_text, worst_text
from sdbench.metrics.text import format_interval
from sdbench.metrics.weigh import Weighed
from sdbench.records import Results
from sdbench.report.captions import FAILURE_KINDS, LOSSES
from sdbench.report.page.browser import by_example
from sdbench.report.page.plane import depth_of, plane_of
from sdbench.report.page.tables import MINUS, format_signed
from sdbench.report.sweep import Sweep

SLOT = "{margin}"
MOST = 10  # losing examples that are listed


class Advised(NamedTuple):
    """A sweep, what is known of it, and the advice."""

    sweep: Sweep
    advice: Advice
    weighed: Weighed

    @property
    def tests(self) -> list[Comparison]:
        """Every comparison in order."""
        return [test for curve in self.weighed.curves for test in curve]

    def label(self, key: str) -> str:
        """Return the name of a setting."""
        return str(self.sweep.cells.at[key, "label"])


class Fact(NamedTuple):
    """A number of the answer: its title, its value, and its limits."""

    title: str
    value: str
    limits: str


def match_advice(
    sweeps: Sequence[Sweep], results: Sequence[Results], advice: Sequence[Recommendation]
) -> list[Advised]:
    """Return each advice with its sweep, for those that the report shows."""
    shown = {(id(sweep.results), sweep.cells["sweep"].iloc[0]): sweep for sweep in sweeps}
    return [
        Advised(shown[id(folder), weighed.sweep], each, weighed)
        for folder, given in zip(results, advice, strict=True)
        for each, weighed in zip(given.advices, given.weighed, strict=True)
        if (id(folder), weighed.sweep) in shown
    ]


def card_of(advised: Advised, index: int, sweeps: Sequence[Sweep]) -> dict[str, Any]:
    """Return what the page shows of an advice; `group` is the index of its sweep among those of the page.

    `setting` is the key of the recommended one; `losses` are its, or those of the nearest to it; `is_wider`: whether the limit of
    any test lies outside the interval of its difference; `most` is the slider's end; `margin_at`, `zero_at` and `per_cent` (of a
    point) are positions on a line of the `ladder`, in per cent.
    """
    sweep, advice, weighed = advised
    margin, tests = advice.margin, advised.tests
    has_margin = not math.isnan(margin)  # with a fixed speed nothing is tested against a margin
    plane = plane_of(sweep, weighed, margin) if tests else None
    depth = plane["depth"] if plane else depth_of(tests, margin)
    span = (-depth, 0.35 * depth)
    done = [test for curve in weighed.curves for test in run_in_sequence(curve, margin)] if has_margin else []
    nearest = advice.cell or next((test.cell for test in sorted(done, key=lambda test: -test.worst)), None)
    is_live = bool(tests) and has_margin
    ladder = ladder_of(advised, span) if has_margin else []
    return {
        "name": f"answer-{index}",
        "title": sweep.title,
        "kind": advice.kind,
        **words_of(advised, advice),
        "ladder": ladder,
        "rejected": {row["key"] for row in ladder if row["state"] == "n"},  # where testing stopped
        "plane": plane,
        "losses": None if nearest is None else losses_of(sweep, nearest),
        "group": [each is sweep for each in sweeps].index(True),
        "metric": weighed.metric.name,
        "is_less_better": weighed.metric.best == "low",  # every difference is negative where quality is lost
        "is_wider": any(is_wider(weighed, test) for test in tests),
        "margin": margin,
        "has_margin": has_margin,
        "most": round(max(depth, 1.5 * margin), 1) if is_live else 0.0,
        "margin_at": _percent(-margin, span) if is_live else 0.0,
        "zero_at": _percent(0.0, span),
        "per_cent": 100 / (span[1] - span[0]),
        "decisions": json.dumps(decisions_of(advised)) if is_live else "[]",
        "failing": list(dict.fromkeys(words for test in tests for words, more in test.excesses.items() if more > 0)),
    }


def ladder_of(advised: Advised, span: tuple[float, float]) -> list[dict[str, Any]]:
    """Return every test in order; for a setting that is not safe also how many examples would show it safe.

    `bar`: the tested limit and the change, in per cent of the row's line; `worst`: the limit, which the page rounds again when
    the margin is moved.
    """
    weighed, margin = advised.weighed, advised.advice.margin
    return [
        {
            "key": test.cell,
            "label": advised.label(test.cell),
            "change": format_signed(test.change),
            "limit": with_minus(limit_text(test.worst, margin)) if test.worst == test.worst else "",
            "worst": f"{test.worst:.4f}",
            "excess": format_signed(test.excess[0]) if test.excesses else "",
            "excess_kind": test.excess[1],
            "needed": examples_needed(test, margin, weighed.alpha),
            "state": state,
            "bar": (_percent(test.worst, span), _percent(test.change, span)),
        }
        for test, state in zip(advised.tests, states_of(weighed, margin), strict=True)
    ]


def words_of(advised: Advised, advice: Advice) -> dict[str, Any]:
    """Return the texts of a decision: headline, sentence, the setting's key, the facts."""
    setting = advice.cell or (advice.rival if advice.kind == "stay" else None)
    label = "" if setting is None else advised.label(setting)
    headlines = {"ship": f"Ship {label}", "stay": f"Stay {label}", "alone": "Do not speculate"}
    headline = headlines.get(advice.kind, "No recommendation")
    _, _, text = advice.text.partition(": ")  # it begins with the pair and the task, which are shown above it
    text = with_minus(text[:1].upper() + text[1:])
    return {"headline": headline, "text": text, "setting": setting or "", "facts": facts_of(advised, advice)}


def with_minus(text: str) -> str:
    """Return a sentence with true minus signs before its numbers."""
    return re.sub(r"(?<![\w.=-])-(?=\d)", MINUS, text)


def facts_of(advised: Advised, advice: Advice) -> list[Fact]:
    """Return cost, gain over lossless and speed over the target alone of the recommended setting."""
    chosen = next((test for test in advised.tests if test.cell == advice.cell), None)
    size = advised.sweep.batch_size
    facts = []
    if chosen is not None:
        metric = advised.weighed.metric
        worst = f"at worst {with_minus(worst_text(chosen.worst, advice.margin, metric))} {metric.name}"
        facts.append(Fact("Cost", with_minus(signed_text(chosen.change, 1, metric, " points")), worst))
    elif advice.kind in ("stay", "alone"):
        facts.append(Fact("Cost", "none", "the target’s own distribution"))
    lossless = advised.weighed.lossless.get(advice.rival or "")
    gains = {
        "Gain over lossless": advice.gain if chosen else None,
        "Over the target alone": advice.speedup,
        "Lossless over the target alone": lossless if advice.kind == "alone" else None,
    }
    for title, gain in gains.items():
        if gain is not None:
            value, _, limits = format_interval(gain, 2, unit="×").partition(" ")
            timed = batches_text(gain.n, size) if size and size > 1 else f"{gain.n} texts{', batch 1' if size else ''}"
            facts.append(Fact(title, value, f"{limits} on {timed}" if limits else ""))
    return facts


def states_of(weighed: Weighed, margin: float) -> str:
    """Return a letter per comparison: y safe, n not safe, - not reached."""
    letters = []
    for curve in weighed.curves:
        done = [] if math.isnan(margin) else run_in_sequence(curve, margin)
        letters += ["y" if test.is_safe(margin) else "n" for test in done] + ["-"] * (len(curve) - len(done))
    return "".join(letters)


def decisions_of(advised: Advised) -> list[dict[str, Any]]:
    """Return the decision for each range of margins by its lower end, `from`; the first begins at 0. `has_from`: whether the lower
    end belongs to the range, as a margin equal to an excess does but one equal to a possible loss does not.
    """
    ends = [0.0, *breakpoints(advised.weighed)]
    decisions: list[dict[str, Any]] = []
    for start, end in zip(ends, [*ends[1:], 2 * ends[-1] + 1], strict=True):
        for margin in (start, (start + end) / 2) if start else (end / 2,):
            advice = decide(advised.weighed, margin, written=SLOT)
            decision = {"kind": advice.kind, "states": states_of(advised.weighed, margin), **words_of(advised, advice)}
            if not decisions or any(decisions[-1][name] != value for name, value in decision.items()):
                decisions.append(decision | {"from": start, "has_from": margin == start})
    return decisions


class Loss(NamedTuple):
    """An example that loses: how much, and its kind of failure."""

    example: str
    change: str
    kind: str


class LossDetail(NamedTuple):
    """The paired differences of a setting: a bar (name, count, per cent of the longest) for each range, the worst, the kinds."""

    label: str
    bars: list[tuple[str, int, float]]
    worst: list[Loss]
    kinds: str


def losses_of(sweep: Sweep, key: str) -> LossDetail | None:
    """Return how a setting's examples differ from lossless; None without a lossless run or scores by example."""
    base = reference(sweep.cells, key, "lossless")
    if base is None or base == key:
        return None
    generations = sweep.results.generations
    scores = by_example(generations[generations["cell"].isin([key, base])], sweep)
    changes = (scores[key] - scores[base]).dropna()
    points = changes * (points_of(1.0, sweep.metric) if sweep.metric.is_bounded else sign_of(sweep.metric))
    if points.empty:
        return None
    counts, _ = np.histogram(points, [-np.inf, *LOSSES.values()])
    bars = [
        (text, int(count), round(100 * count / counts.max(), 1)) for text, count in zip(LOSSES, counts, strict=True)
    ]
    lost = points[points < 0].sort_values(kind="stable")
    kinds = kinds_of(sweep, key, lost)
    listed = zip(lost.index, lost, kinds, strict=True)
    worst = [Loss(str(example), format_signed(change), kind) for example, change, kind in list(listed)[:MOST]]
    summary = ", ".join(f"{count} {kind}" for kind, count in kinds.value_counts(sort=True).items())
    return LossDetail(str(sweep.cells.at[key, "label"]), bars, worst, summary)


def kinds_of(sweep: Sweep, key: str, lost: pd.Series) -> pd.Series:
    """Return the kind of failure of each example that loses, from the flags of any of its texts."""
    rows = sweep.results.generations
    rows = rows[(rows["cell"] == key) & rows["example"].isin(lost.index)]
    loops = degenerate(sweep.results)[["cell", "example", "sample", "is_loop"]]
    rows = rows.merge(loops, on=["cell", "example", "sample"], how="left")
    raised = rows.groupby("example")[[name for name in FAILURE_KINDS if name in rows]].any().reindex(lost.index)
    other = "wrong result" if sweep.metric.unit == "share" else "worse score"
    kinds = [
        next((FAILURE_KINDS[name] for name in raised if flags[name]), other) for flags in raised.to_dict("records")
    ]
    return pd.Series(kinds, index=lost.index, dtype=object)


def _percent(value: float, span: tuple[float, float]) -> float:
    return round(min(max(100 * (value - span[0]) / (span[1] - span[0]), 0.0), 100.0), 2)
