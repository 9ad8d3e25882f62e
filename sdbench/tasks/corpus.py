"""Scores of a whole set from the scores of its rows: means, and corpus metrics from summed statistics."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

from sdbench.types import Score


def corpus_bleu(stats: Sequence[float]) -> float:
    """sacrebleu's corpus BLEU of 4 correct + 4 total + [sys_len, ref_len], summed over sentences."""
    from sacrebleu.metrics.bleu import BLEU

    counts = [round(count) for count in stats]
    if not counts[8]:  # sacrebleu divides by the length of what was written
        return 0.0
    return BLEU.compute_bleu(counts[:4], counts[4:8], counts[8], counts[9], smooth_method="exp").score


def corpus_chrf2(stats: Sequence[float]) -> float:
    """sacrebleu's chrF2 of [hyp, ref, match] x 6 orders, summed over sentences."""
    from sacrebleu.metrics.chrf import CHRF

    return CHRF()._compute_score_from_stats([round(count) for count in stats]).score


CORPUS: Mapping[str, Callable[[Sequence[float]], float]] = {"bleu": corpus_bleu, "chrf2": corpus_chrf2}


def summarize(scores: Sequence[Score]) -> dict[str, float]:
    """Every metric of a set of answers: corpus metrics from their statistics, the others as means."""
    values = {name: fmean(score.values[name] for score in scores) for name in scores[0].values}
    for name in scores[0].stats:
        totals = [sum(column) for column in zip(*(score.stats[name] for score in scores), strict=True)]
        values[name] = CORPUS[name](totals)
    return values
