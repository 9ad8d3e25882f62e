"""Whole-sample metrics of lm-evaluation-harness as statistics whose sums over answers give the sample's score.

So a bootstrap resamples them without the harness. Not covered: any other aggregation over all answers, such as a median.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from sdbench.imports import import_object

Statistics = Callable[[Any], tuple[str, tuple[float, ...]]]  # of an item: `Metric.stats`, and the numbers to be summed


def statistics_of(aggregate: Callable[[Sequence[Any]], float], item: Any) -> Statistics | None:
    """Return the statistics of an aggregation of the harness over items such as this; None where it has none."""
    known = STATISTICS.get(getattr(aggregate, "__name__", ""))
    return known or (_pooled if _is_pooled(aggregate, item) else None)


def _texts(item: Any) -> tuple[list[str], list[list[str]]]:
    """The answer and the references of an item (references, answer) in sacrebleu's form."""
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


def _pooled(item: Sequence[float]) -> tuple[str, tuple[float, ...]]:
    return "ratio", (float(sum(item)), float(len(item)))


def _is_pooled(aggregate: Callable[[Sequence[Any]], float], item: Any) -> bool:
    """Whether a whole-sample metric is the mean over the judgements of all answers."""
    if not isinstance(item, list) or not all(hasattr(judgement, "__float__") for judgement in item):
        return False
    try:
        return math.isclose(aggregate([[True, False], [True, True, True]]), 0.8)
    except (ArithmeticError, LookupError, TypeError, ValueError):  # it expects items of another form
        return False


# By the name of the harness's aggregation.
STATISTICS: Mapping[str, Statistics] = {
    "bleu": _bleu,
    "chrf": _chrf,
    "chrfpp": partial(_chrf, word_order=2),
    "ter": _ter,
}
