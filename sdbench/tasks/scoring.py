"""The scores of a task: completions cut at their stop strings, measured, flagged, and checked against what is declared."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, ClassVar

from sdbench.tasks.data import Row, from_protocol
from sdbench.tasks.prompting import Prompting
from sdbench.types import Example, Metric, Score

ROUNDING = 1e-9  # of a bound: sacrebleu gives a perfect sentence 100.00000000000004


@dataclass(kw_only=True)
class Scorer(Prompting):
    """Completions as scores, each as its metrics declare."""

    max_new_tokens: int = from_protocol()
    stop: Sequence[str] = from_protocol()
    extra_metrics: Sequence[str] = ()
    metrics: tuple[Metric, ...] = field(init=False, default=())  # all that a task declares; the headline is among them

    metric: ClassVar[str]  # the headline

    @abstractmethod
    def measure(self, example: Example, text: str) -> Score:
        """The score of an answer that is already cut and stripped."""

    def measure_all(self, pairs: Sequence[tuple[Example, str]]) -> list[Score]:
        return [self.measure(example, self.until_stop(completion).strip()) for example, completion in pairs]

    def reference_row(self, reference: str) -> Row:
        """A row that holds a reference alone: enough to be scored against."""
        return {**dict.fromkeys((*self.FIELDS, self._cut_field), ""), self.reference: reference}

    def until_stop(self, completion: str) -> str:
        """The completion up to the earliest stop string."""
        return completion[: min((at for stop in self.stop if (at := completion.find(stop)) >= 0), default=None)]

    def score(self, example: Example, completion: str, *, is_truncated: bool = False) -> Score:
        """Score a completion; `is_truncated`: the length limit ended it. Pure in its arguments."""
        return self.score_all([(example, completion)], [is_truncated])[0]

    def score_all(self, pairs: Iterable[tuple[Example, str]], truncated: Iterable[bool] | None = None) -> list[Score]:
        """Scores in the order of the pairs; code tasks run their programs side by side."""
        pairs = list(pairs)
        flags = [False] * len(pairs) if truncated is None else list(truncated)
        scores = self.measure_all(pairs)
        for (example, _), score in zip(pairs, scores, strict=True):
            check_score(f"task {self.name}, example {example.id}", self.metrics, score)
        return [self._with_flags(*pair, score, cut) for pair, score, cut in zip(pairs, scores, flags, strict=True)]

    def _with_flags(self, example: Example, completion: str, score: Score, is_truncated: bool) -> Score:
        """The score with the values of the extra metrics and the flags that every task has."""
        text = self.until_stop(completion)
        values = dict(score.values)
        for name in self.extra_metrics:
            values |= load_metric(name)(text.strip(), self.fields(example.row)["answer"])
        general = {"is_truncated": is_truncated and text == completion, "is_empty": not text.strip()}
        return replace(score, values=values, flags={**general, "is_extraction_failed": False, **score.flags})

    def metric_of(self, name: str) -> Metric:
        """The declared metric of this name; for any other, such as an extra one, a raw number without bounds."""
        return next((metric for metric in self.metrics if metric.name == name), Metric(name))

    @property
    def signatures(self) -> dict[str, str]:
        """How the metrics were computed: library, version, options."""
        return {}


def check_score(where: str, metrics: Sequence[Metric], score: Score) -> None:
    """Raise ValueError unless each declared metric is there, finite and within its bounds; any other score passes."""
    for metric in metrics:
        name = f"{where}: {metric.name}"
        if metric.name not in score.values:
            raise ValueError(f"{name} is declared and was not scored; there are {', '.join(score.values) or 'none'}")
        value = score.values[metric.name]
        if not math.isfinite(value):
            raise ValueError(f"{name} must be a finite number, got {value}")
        low, high = metric.bounds or (None, None)
        is_at_bound = any(
            math.isclose(value, end, rel_tol=ROUNDING, abs_tol=ROUNDING) for end in (low, high) if end is not None
        )
        if not metric.holds(value) and not is_at_bound:
            limit = f"at most {high:g}" if low is None else f"at least {low:g}"
            limit = limit if None in (low, high) else f"between {low:g} and {high:g}"
            raise ValueError(f"{name} must be {limit}, got {value}")
        if metric.stats is not None and metric.name not in score.stats:
            raise ValueError(f"{name} is made from statistics, and this score has none")


@cache
def load_metric(name: str) -> Callable[[str, str], dict[str, float]]:
    """Load a metric of `evaluate`, by its name or its folder, as a function of one answer and its reference."""
    import evaluate  # takes seconds and brings torch

    try:
        loaded = evaluate.load(name)
    except Exception as error:  # a hub that fails has the exceptions of its HTTP library
        words = " ".join(str(error).split())
        raise ValueError(f"extra_metrics: evaluate cannot load {name} ({type(error).__name__}: {words})") from error
    short = name.rstrip("/").rsplit("/", 1)[-1].removesuffix(".py")

    def measure(answer: str, reference: str) -> dict[str, float]:
        results: dict[str, Any] = loaded.compute(predictions=[answer], references=[reference]) or {}
        numbers = {key: float(value) for key, value in results.items() if isinstance(value, int | float)}
        return {key if key == short else f"{short}.{key}": value for key, value in numbers.items()}

    return measure
