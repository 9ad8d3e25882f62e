"""The recommendation as the page shows it: a headline, the sentence, the numbers behind it, and every test in its order."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from sdbench.metrics import quality
from sdbench.metrics.recommend import Advice, Recommendation
from sdbench.records import Results
from sdbench.report.measures import MEASURES
from sdbench.report.sweeps import Sweep
from sdbench.report.tables import MINUS, Value, value_of, written

SHOWN = ("speedup", "speedup_modelled", "acceptance", "tokens_per_round", "difference")


@dataclass(frozen=True, slots=True)
class Advised:
    """A sweep and what is advised for it at this margin, in points."""

    sweep: Sweep
    advice: Advice
    margin: float


@dataclass(frozen=True, slots=True)
class Step:
    """One test: the setting, its difference, the limit that was tested; `bar` and `margin` in per cent of the step's line."""

    label: str
    difference: str
    limit: str
    is_passed: bool
    bar: tuple[float, float]  # limit, difference


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to ship for one sweep, or why nothing."""

    title: str
    headline: str
    text: str
    is_found: bool
    numbers: tuple[tuple[str, Value, str], ...]  # title, value, unit
    steps: tuple[Step, ...]
    margin: str
    margin_at: float
    zero_at: float


def advices_of(sweeps: Sequence[Sweep], results: Sequence[Results], advice: Sequence[Recommendation]) -> list[Advised]:
    """Each advice with its sweep: that whose cells were tested, or where none was the next of its folder, pair and task."""
    found: list[Advised] = []
    for one, recommendation in zip(results, advice, strict=True):
        for each in recommendation.advices:
            keys = {test.cell for test in each.tests}
            same = [sweep for sweep in sweeps if sweep.results is one and _is_about(each, sweep)]
            free = [sweep for sweep in same if not any(sweep is taken.sweep for taken in found)]
            tested = [sweep for sweep in same if keys & set(sweep.cells.index)]
            for sweep in (tested or free)[:1]:
                found.append(Advised(sweep, each, recommendation.margin))
    return found


def _is_about(advice: Advice, sweep: Sweep) -> bool:
    return (sweep.cells["model"].iloc[0], sweep.cells["task"].iloc[0]) == (advice.model, advice.task)


def advised_of(sweep: Sweep, advised: Sequence[Advised]) -> str | None:
    """The cell of this sweep that is recommended."""
    return next((one.advice.cell for one in advised if one.sweep is sweep), None)


def verdict_of(advised: Advised) -> Verdict:
    """What the page shows of it."""
    sweep, advice, margin = advised.sweep, advised.advice, advised.margin
    unit = quality.points_of(sweep.metric)
    ends = [end / unit for test in advice.tests for end in (test.difference.low, test.difference.value) if end == end]
    low, high = min([*ends, -margin]), max([*ends, 0.0])
    pad = 0.06 * (high - low)
    span = (low - pad, high + pad)
    steps = tuple(
        Step(
            str(sweep.cells.at[test.cell, "label"]),
            written(test.difference.value, MEASURES["difference"], sweep.metric, is_signed=True),
            written(test.difference.low, MEASURES["difference"], sweep.metric, is_signed=True),
            test.is_passed,
            (_at(test.difference.low / unit, span), _at(test.difference.value / unit, span)),
        )
        for test in advice.tests
    )
    row = {} if advice.cell is None else sweep.rows.loc[advice.cell].to_dict()
    numbers = [(MEASURES[name].title, value_of(row, name, sweep.metric), _unit(name)) for name in SHOWN]
    numbers = [(title, value, shown) for title, value, shown in numbers if value.text]
    is_measured = any(title == MEASURES["speedup"].title for title, _, _ in numbers)
    numbers = [item for item in numbers if not (is_measured and item[0] == MEASURES["speedup_modelled"].title)]
    label = "" if advice.cell is None else str(sweep.cells.at[advice.cell, "label"])
    headline = f"Ship {label}" if label else "Stay lossless"
    margin_text = f"{margin:g} point{'s' * (margin != 1)} of {sweep.metric}"
    _, _, text = advice.text.partition(": ")  # it begins with the pair and the task, which stand above it
    text = re.sub(r"(?<![\w.])-(?=\d)", MINUS, text[:1].upper() + text[1:])
    return Verdict(
        sweep.title, headline, text, bool(label), tuple(numbers), steps, margin_text, _at(-margin, span), _at(0.0, span)
    )


def _unit(name: str) -> str:
    return {"ratio": "×" if name.startswith("speedup") else "", "points": " points"}.get(MEASURES[name].kind, "")


def _at(value: float, span: tuple[float, float]) -> float:
    return round(100 * (value - span[0]) / (span[1] - span[0]), 2)
