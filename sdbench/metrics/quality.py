"""Task quality from stored values and sufficient statistics: means, exact corpus BLEU and chrF, unbiased pass@k.

The meaning of a score (unit, bounds, direction, statistics) is in the `types.Metric` that its task declares. Corpus metrics are
functions of summed statistics, so a bootstrap can recompute them for all resamples at once.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from sdbench.imports import import_object
from sdbench.metrics.stats import (
    Array,
    Estimate,
    is_binary,
    mean_interval,
    paired_interval,
    paired_p_value,
    proportion_interval,
    statistic_interval,
)
from sdbench.types import Metric

Corpus = Callable[[ArrayLike], Array]
Rows: TypeAlias = "pd.DataFrame | pd.Series"  # one row per example: statistics [n,S], or a value


def corpus_bleu(stats: ArrayLike) -> Array:
    """sacrebleu's corpus BLEU (exp smoothing) of sums [..., 10]: 4 correct, 4 total, system and reference length."""
    s = np.asarray(stats, dtype=np.float64)
    correct, total, system, reference = s[..., :4], s[..., 4:8], s[..., 8], s[..., 9]
    zeros = np.cumsum((correct == 0) & (total > 0), axis=-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        smoothed = np.where(correct > 0, correct, 2.0**-zeros) / total
        logs = np.where(total > 0, np.log(smoothed), -np.inf)
        brevity = np.where(system < reference, np.exp(1 - reference / system), 1.0)
        score = 100 * brevity * np.exp(logs.mean(-1))
    return np.where((system > 0) & (correct > 0).any(-1), score, 0.0)


def corpus_chrf2(stats: ArrayLike) -> Array:
    """sacrebleu's chrF2 of sums [..., 18]: hypothesis, reference, match for 6 orders; chrF++ adds 2 orders of words."""
    s = np.asarray(stats, dtype=np.float64).reshape(*np.shape(stats)[:-1], -1, 3)
    hypothesis, reference, match = s[..., 0], s[..., 1], s[..., 2]
    counts = (hypothesis > 0) & (reference > 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        precision = np.where(counts, match / hypothesis, 0).sum(-1) / counts.sum(-1)
        recall = np.where(counts, match / reference, 0).sum(-1) / counts.sum(-1)
        score = 100 * 5 * precision * recall / (4 * precision + recall)
    return np.where(np.isfinite(score), score, 0.0)


def corpus_ratio(stats: ArrayLike) -> Array:
    """Return the first sum divided by the second, of sums [..., 2]; 0 / 0 is 0."""
    s = np.asarray(stats, dtype=np.float64)
    return np.divide(s[..., 0], s[..., 1], out=np.zeros(s.shape[:-1]), where=s[..., 1] != 0)


CORPUS: Mapping[str, Corpus] = {"bleu": corpus_bleu, "chrf2": corpus_chrf2, "ratio": corpus_ratio}


def corpus_of(metric: Metric) -> Corpus:
    """Return the function [..., S] → [...] that computes a corpus metric from its summed statistics."""
    assert metric.stats is not None, "only a corpus metric has statistics"
    try:
        return import_object(metric.stats) if ":" in metric.stats else CORPUS[metric.stats]
    except (ImportError, AttributeError, KeyError):
        raise ValueError(
            f"stats of metric {metric.name} must be {', '.join(CORPUS)} or module:function that can be imported here, "
            f"got {metric.stats!r}"
        ) from None


def sign_of(metric: Metric) -> int:
    """Return 1 if larger scores are better, −1 if smaller ones are."""
    return 1 if metric.best == "high" else -1


def points(value: float, metric: Metric) -> float:
    """Convert a difference of scores to points of 100 of the metric's range, positive for a gain."""
    assert metric.point is not None, "a metric without bounds has no points"
    return sign_of(metric) * value / metric.point


def pass_at_k(num_samples: ArrayLike, num_passed: ArrayLike, k: int) -> Array:
    """Unbiased pass@k: 1 − C(n − c, k) / C(n, k) (Chen et al. 2021, arXiv:2107.03374)."""
    n, c = np.asarray(num_samples, dtype=np.int64), np.asarray(num_passed, dtype=np.int64)
    if (n < k).any():
        raise ValueError(f"pass@{k} needs at least {k} samples of every example, got {int(n.min())}")
    factors = [np.clip((n - c - i) / (n - i), 0, None) for i in range(k)]
    return 1 - np.prod(factors, axis=0)


def is_held(generations: pd.DataFrame, metric: Metric) -> bool:
    """Return whether every one of these generations has this score."""
    return metric.name in generations and bool(generations[metric.name].notna().all())


def rows_of(generations: pd.DataFrame, metric: Metric) -> Rows:
    """Return one row per example: the mean over its samples of the value, or of the statistics of a corpus metric [n,S]."""
    column = f"stats_{metric.name}"
    if metric.stats is not None and column in generations:
        rows = np.stack(generations[column].to_list()).astype(np.float64)
        return pd.DataFrame(rows, index=generations["example"]).groupby(level=0, sort=True).mean()
    return generations.groupby("example", sort=True)[metric.name].mean()


def quality(rows: Rows, metric: Metric, **options: float) -> Estimate:
    """Return the metric of a set of examples: Wilson for pass/fail, the bootstrap over examples for the others."""
    values = rows.to_numpy(dtype=np.float64)
    if values.ndim == 2:
        estimate = statistic_interval(values, corpus_of(metric), bounds=metric.bounds, **options)  # type: ignore[arg-type]
        return within(estimate, metric)
    if metric.bounds == (0, 1) and len(values) and is_binary(values):
        return proportion_interval(int(values.sum()), len(values), level=options.get("level", 0.95))
    return within(mean_interval(values, bounds=metric.bounds, **options), metric)  # type: ignore[arg-type]


def score_of(rows: "Rows | Array", metric: Metric) -> float:
    """Return the metric of a set of examples without an interval."""
    values = np.asarray(rows, dtype=np.float64)
    return float(values.mean() if values.ndim == 1 else corpus_of(metric)(values.sum(0)))


def within(estimate: Estimate, metric: Metric) -> Estimate:
    """Cut limits at the bounds of the metric."""
    low, high = metric.bounds or (None, None)
    ends = np.clip((estimate.low, estimate.high), -np.inf if low is None else low, np.inf if high is None else high)
    return replace(estimate, low=float(ends[0]), high=float(ends[1]))  # NaN stays NaN


def difference(a: Rows, b: Rows, metric: Metric, **options: float) -> Estimate:
    """Return a − b over the examples that both have, in the unit of the stored scores."""
    first, second = shared_rows(a, b)
    if first.ndim == 1:
        return paired_interval(first, second, bounds=metric.bounds, **options)  # type: ignore[arg-type]
    size, corpus = first.shape[1], corpus_of(metric)

    def gap(sums: Array) -> Array:
        return corpus(sums[:, :size]) - corpus(sums[:, size:])

    low, high = metric.bounds or (None, None)
    bounds = None if low is None or high is None else (low - high, high - low)
    return statistic_interval(np.concatenate([first, second], 1), gap, bounds=bounds, **options)  # type: ignore[arg-type]


def shared_rows(a: Rows, b: Rows) -> tuple[Array, Array]:
    """Return the values of the examples that both have, in the same order; without those whose statistics are all 0, such as those
    of another kind of question.
    """
    both = a.index.intersection(b.index)
    first, second = a.loc[both].to_numpy(dtype=np.float64), b.loc[both].to_numpy(dtype=np.float64)
    is_counted = np.ones(len(both), dtype=bool) if first.ndim == 1 else first.any(1) | second.any(1)
    return first[is_counted], second[is_counted]


def is_pass_fail(first: Array, second: Array, metric: Metric) -> bool:
    """Return whether a difference of these values is one of paired proportions."""
    return first.ndim == 1 and metric.bounds == (0, 1) and is_binary(first) and is_binary(second)


def p_value(a: Rows, b: Rows, metric: Metric) -> float:
    """Return the two-sided p-value of no difference: McNemar, paired t, or for a corpus metric t over its influence values."""
    first, second = shared_rows(a, b)
    return paired_p_value(influence(first, metric), influence(second, metric))


def influence(rows: Array, metric: Metric) -> Array:
    """Return a value per example whose mean varies like the metric: the values themselves, or jackknife pseudo-values."""
    if rows.ndim == 1:
        return rows
    corpus = corpus_of(metric)
    if len(rows) < 2:
        return corpus(rows)
    total = rows.sum(0, keepdims=True)
    n = len(rows)
    return n * corpus(total) - (n - 1) * corpus(total - rows)


def all_metrics(generations: pd.DataFrame, metrics: Sequence[Metric], **options: float) -> dict[str, Estimate]:
    """Return every metric of one cell; for a share NAME@1 also NAME@k for each k up to the number of samples."""
    estimates = {metric.name: quality(rows_of(generations, metric), metric, **options) for metric in metrics}
    for metric in metrics:
        name, at, first = metric.name.rpartition("@")
        if not at or first != "1" or metric.unit != "share":
            continue
        counts = generations.groupby("example", sort=True)[metric.name].agg(["count", "sum"])
        for k in range(2, int(counts["count"].min()) + 1):
            values = pass_at_k(counts["count"], counts["sum"], k)
            estimates[f"{name}@{k}"] = within(mean_interval(values, bounds=metric.bounds, **options), metric)  # type: ignore[arg-type]
    return estimates
