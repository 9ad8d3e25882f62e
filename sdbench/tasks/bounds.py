"""A score is what its task declared: every metric is there, finite, and between its bounds."""

from __future__ import annotations

import math
from collections.abc import Sequence

from sdbench.types import Metric, Score

ROUNDING = 1e-9  # of a bound: sacrebleu gives a perfect sentence 100.00000000000004


def check(task: str, metrics: Sequence[Metric], example: str, score: Score) -> None:
    """Raises ValueError naming task, example and value; scores that no metric declares pass as they are."""
    for metric in metrics:
        where = f"task {task}, example {example}: {metric.name}"
        if metric.name not in score.values:
            raise ValueError(f"{where} is declared and was not scored; there are {', '.join(score.values) or 'none'}")
        value = score.values[metric.name]
        if not math.isfinite(value):
            raise ValueError(f"{where} must be a finite number, got {value}")
        low, high = metric.bounds or (None, None)
        if (low is not None and value < low - ROUNDING * max(1, abs(low))) or (
            high is not None and value > high + ROUNDING * max(1, abs(high))
        ):
            raise ValueError(f"{where} must be {_between(low, high)}, got {value}")
        if metric.stats is not None and metric.name not in score.stats:
            raise ValueError(f"{where} is made from statistics, and this score has none")


def _between(low: float | None, high: float | None) -> str:
    if low is None or high is None:
        return f"at least {low:g}" if high is None else f"at most {high:g}"
    return f"between {low:g} and {high:g}"
