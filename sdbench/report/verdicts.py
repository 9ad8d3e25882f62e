"""The recommendation as the page shows it: a headline, the sentence, the numbers behind it, and every test in its order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from sdbench.metrics import quality
from sdbench.metrics.recommend import Advice, Recommendation
from sdbench.report.measures import MEASURES
from sdbench.report.sweeps import Sweep
from sdbench.report.tables import Value, value_of, written

SHOWN = ("speedup", "speedup_modelled", "acceptance", "tokens_per_round", "difference")


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


def verdicts_of(sweeps: Sequence[Sweep], summary: pd.DataFrame, advice: Sequence[Recommendation]) -> list[Verdict]:
    """One a sweep that has an advice, in the order of the advice."""
    found = []
    for recommendation in advice:
        for one in recommendation.advices:
            sweep = sweep_of(one, sweeps)
            if sweep is not None:
                found.append(_verdict(one, recommendation.margin, sweep, summary))
    return found


def sweep_of(advice: Advice, sweeps: Sequence[Sweep]) -> Sweep | None:
    """The sweep whose cells were tested; where none was, that of the pair and task."""
    keys = {test.cell for test in advice.tests} | ({advice.cell} if advice.cell else set())
    own = [sweep for sweep in sweeps if keys & set(sweep.cells.index)]
    same = [s for s in sweeps if (s.cells["model"] == advice.model).all() and (s.cells["task"] == advice.task).all()]
    return next(iter(own or same), None)


def advised_of(sweep: Sweep, advice: Sequence[Recommendation]) -> str | None:
    """The cell of this sweep that is recommended."""
    keys = [one.cell for recommendation in advice for one in recommendation.advices]
    return next((key for key in keys if key in sweep.cells.index), None)


def _verdict(advice: Advice, margin: float, sweep: Sweep, summary: pd.DataFrame) -> Verdict:
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
    rows = summary[summary["cell"] == advice.cell].to_dict("records")
    numbers = [(MEASURES[n].title, value_of(rows[0], n, sweep.metric), _unit(n)) for n in SHOWN if rows]
    numbers = [(title, value, shown) for title, value, shown in numbers if value.text]
    is_measured = any(title == MEASURES["speedup"].title for title, _, _ in numbers)
    numbers = [item for item in numbers if not (is_measured and item[0] == MEASURES["speedup_modelled"].title)]
    label = "" if advice.cell is None else str(sweep.cells.at[advice.cell, "label"])
    headline = f"Ship {label}" if label else "Stay lossless"
    margin_text = f"{margin:g} point{'s' * (margin != 1)} of {sweep.metric}"
    _, _, text = advice.text.partition(": ")  # it begins with the pair and the task, which stand above it
    text = text[:1].upper() + text[1:]
    return Verdict(
        sweep.title, headline, text, bool(label), tuple(numbers), steps, margin_text, _at(-margin, span), _at(0.0, span)
    )


def _unit(name: str) -> str:
    return {"ratio": "×" if name.startswith("speedup") else "", "points": " points"}.get(MEASURES[name].kind, "")


def _at(value: float, span: tuple[float, float]) -> float:
    return round(100 * (value - span[0]) / (span[1] - span[0]), 2)
