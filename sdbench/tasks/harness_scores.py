"""Scores of lm-evaluation-harness: apply its filters and metrics to answers, and choose how each metric is stored.

A metric that is a mean over answers is stored as a number per answer. A whole-sample metric is stored as statistics whose sums
over answers give the sample's score, so that a bootstrap resamples it without the harness. Not covered: other
aggregations, such as a median.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

from sdbench.config import ConfigError, nearest, show
from sdbench.imports import import_object
from sdbench.types import HARNESS_SHARES, Metric

UNREAD = "[invalid]"  # the output of the harness's filters for an answer in which they find nothing

Statistics = Callable[[Any], tuple[str, tuple[float, ...]]]  # of an item: `Metric.stats`, and the numbers to be summed


@dataclass(frozen=True)
class HarnessReading:
    """The results of one answer by metric, and the output of each filter."""

    items: Mapping[str, Any]
    texts: Mapping[str, Any]

    def is_unread(self, filter_name: str) -> bool:
        """Whether the filter, or the only filter, found nothing."""
        text = self.texts.get(filter_name, next(iter(self.texts.values())))
        return isinstance(text, str) and text == UNREAD


def _reading(task: Any, instance: Any) -> HarnessReading:
    texts = instance.filtered_resps
    several = len(texts) > 1
    items = {
        f"{metric},{name}" if several else metric: item
        for name, text in texts.items()
        for metric, item in task.process_results(instance.doc, [text]).items()
    }
    return HarnessReading(items, texts)


def read_answers(task: Any, answers: Sequence[tuple[Any, str]]) -> list[HarnessReading]:
    """Apply the filters and `process_results` of the harness's task to the answer to each row."""
    instance_of = import_object("lm_eval.api.instance.Instance")
    instances = [
        instance_of("generate_until", dict(row), ("",), 0, (task.task_name, 0, 1), [text]) for row, text in answers
    ]
    task._instances = instances
    task.apply_filters()
    return [_reading(task, instance) for instance in instances]


@dataclass(frozen=True)
class MetricKind:
    """How a metric is stored: a number per answer, or statistics whose sum over answers gives the whole sample's score."""

    metric: Metric
    aggregate: Callable[[Sequence[Any]], float] | None = None
    statistics: Statistics | None = None

    def value(self, item: Any) -> float:
        """Return the number of one answer; for a whole-sample metric, the score of a sample with only this answer, 0 for NaN."""
        value = float(item if self.aggregate is None else self.aggregate([item]))
        return 0.0 if self.statistics is not None and math.isnan(value) else value


def check_bounds(bounds: object, metrics: Iterable[str], task: str) -> None:
    """Raise ConfigError unless `bounds` is null, or has two ends or null for some of the metrics, with or without their filters."""
    if bounds is None:
        return
    if not isinstance(bounds, Mapping):
        raise ConfigError(f"task.bounds must be {{METRIC: [LOW, HIGH]}}, got {show(bounds)}")
    known = dict.fromkeys(name for metric in metrics for name in (metric, metric.partition(",")[0]))
    for name, pair in bounds.items():
        if name not in known:
            raise ConfigError(f"task.bounds: {show(name)} is not a metric of {task} {nearest(name, known)}")
        ends = pair if isinstance(pair, list | tuple) else ()
        if pair is not None and [type(end) in (int, float, type(None)) for end in ends] != [True, True]:
            raise ConfigError(f"task.bounds.{name} must be [LOW, HIGH], got {show(pair)}")


def kind_of(task: Any, name: str, item: Any, bounds: Mapping[str, Sequence[float] | None]) -> MetricKind | None:
    """Return how a metric of the harness's task is stored, judged by one of its items; None where it cannot be."""
    metric = name.partition(",")[0]
    mean = import_object("lm_eval.api.metrics.mean")
    aggregate = task.aggregation().get(metric, mean)  # as the harness does
    best = "high" if task.higher_is_better().get(metric, True) else "low"
    if aggregate is mean and hasattr(item, "__float__"):
        usual = (0, 1) if HARNESS_SHARES.search(metric) else None
        low, high = bounds.get(name, bounds.get(metric, usual)) or (None, None)  # null: it has none
        return MetricKind(Metric(name, "share" if (low, high) == (0, 1) else "raw", best, (low, high)))
    if (statistics := statistics_of(aggregate, item)) is None:
        return None
    return MetricKind(Metric(name, "raw", best, stats=statistics(item)[0]), aggregate, statistics)


def statistics_of(aggregate: Callable[[Sequence[Any]], float], item: Any) -> Statistics | None:
    """Return the statistics of an aggregation of the harness over items such as this; None where it has none."""
    name = getattr(aggregate, "__name__", "")
    is_harness = aggregate is getattr(import_module("lm_eval.api.metrics"), name, None)
    return (STATISTICS.get(name) if is_harness else None) or (
        _sum_and_count if _is_sum_and_count(aggregate, item) else None
    )


def _texts(item: Any) -> tuple[list[str], list[list[str]]]:
    """Return the answer and the references of an item (references, answer) in sacrebleu's form."""
    references, answer = item
    references = [references] if isinstance(references, str) else list(references)
    return [answer if isinstance(answer, str) else answer[0]], [[text] for text in references]


def _bleu(item: Any) -> tuple[str, tuple[float, ...]]:
    system, reference, *counts = import_object("sacrebleu.metrics.bleu.BLEU")()._extract_corpus_statistics(
        *_texts(item)
    )[0]
    return "bleu", tuple(map(float, [*counts, system, reference]))


def _chrf(item: Any, *, word_order: int = 0) -> tuple[str, tuple[float, ...]]:
    scorer = import_object("sacrebleu.metrics.chrf.CHRF")(word_order=word_order)
    return "chrf2", tuple(map(float, scorer._extract_corpus_statistics(*_texts(item))[0]))


def _ter(item: Any) -> tuple[str, tuple[float, ...]]:
    edits, words = import_object("sacrebleu.metrics.ter.TER")()._extract_corpus_statistics(*_texts(item))[0]
    return "ratio", (100.0 * edits, float(words))


def _sum_and_count(item: Sequence[float]) -> tuple[str, tuple[float, ...]]:
    return "ratio", (float(sum(item)), float(len(item)))


def _unless_nan(item: float) -> tuple[str, tuple[float, ...]]:
    return "ratio", (0.0, 0.0) if math.isnan(item) else (float(item), 1.0)


def _is_sum_and_count(aggregate: Callable[[Sequence[Any]], float], item: Any) -> bool:
    """Return whether a whole-sample metric is the mean over the judgements of all answers."""
    if not isinstance(item, list) or not all(hasattr(judgement, "__float__") for judgement in item):
        return False
    try:
        return math.isclose(aggregate([[True, False], [True, True, True]]), 0.8)
    except (ArithmeticError, LookupError, TypeError, ValueError):  # it expects items of another form
        return False


# By the name of the harness's aggregation, in lm_eval.api.metrics.
STATISTICS: Mapping[str, Statistics] = {
    "bleu": _bleu,
    "chrf": _chrf,
    "chrfpp": partial(_chrf, word_order=2),
    "ter": _ter,
    "nanmean": _unless_nan,
}
