"""Task quality from stored values and sufficient statistics: means, corpus BLEU and chrF exactly, unbiased pass@k.

Corpus metrics are functions of summed statistics, so that a bootstrap recomputes them for every resample at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from sdbench.metrics.stats import (
    Estimate,
    is_binary,
    mean_interval,
    paired_interval,
    paired_p_value,
    proportion_interval,
    statistic_interval,
)

Array = NDArray[np.float64]
ACCURACIES = frozenset(("strict", "flexible", "numeric"))


MEANS = frozenset(("rouge1", "rouge2", "rougeL", "rougeLsum", "diversed_sbleu"))


def is_metric(name: str) -> bool:
    """Whether a column of `.generations` is a score rather than a count, a label or a flag."""
    plain = name.removesuffix("_nostem")
    return plain in ACCURACIES | MEANS | set(CORPUS) or name.startswith("pass@")


def points_of(metric: str) -> float:
    """One point of 100 in the metric's own scale: accuracies and pass@k are stored on 0–1, the others on 0–100."""
    return 0.01 if metric in ACCURACIES or metric.startswith("pass@") else 1.0


def corpus_bleu(stats: ArrayLike) -> Array:
    """sacrebleu's corpus BLEU (exp smoothing) of summed [..., 10]: 4 correct, 4 total, system and reference length."""
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
    """sacrebleu's chrF2 of summed [..., 18]: hypothesis, reference, match for 6 orders."""
    s = np.asarray(stats, dtype=np.float64).reshape(*np.shape(stats)[:-1], 6, 3)
    hypothesis, reference, match = s[..., 0], s[..., 1], s[..., 2]
    counts = (hypothesis > 0) & (reference > 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        precision = np.where(counts, match / hypothesis, 0).sum(-1) / counts.sum(-1)
        recall = np.where(counts, match / reference, 0).sum(-1) / counts.sum(-1)
        score = 100 * 5 * precision * recall / (4 * precision + recall)
    return np.where(np.isfinite(score), score, 0.0)


CORPUS: Mapping[str, Callable[[ArrayLike], Array]] = {"bleu": corpus_bleu, "chrf2": corpus_chrf2}


def pass_at_k(num_samples: ArrayLike, num_passed: ArrayLike, k: int) -> Array:
    """Unbiased pass@k: 1 − C(n − c, k) / C(n, k) (Chen et al. 2021, arXiv:2107.03374)."""
    n, c = np.asarray(num_samples, dtype=np.int64), np.asarray(num_passed, dtype=np.int64)
    if (n < k).any():
        raise ValueError(f"pass@{k} needs at least {k} samples of every example, got {int(n.min())}")
    factors = [np.clip((n - c - i) / (n - i), 0, None) for i in range(k)]
    return 1 - np.prod(factors, axis=0)


def rows_of(generations: pd.DataFrame, metric: str) -> pd.DataFrame | pd.Series:
    """One row an example: the mean over its samples of the value, or of the statistics of a corpus metric [n,S]."""
    column = f"stats_{metric}"
    if metric in CORPUS and column in generations:
        rows = np.stack(generations[column].to_list()).astype(np.float64)
        return pd.DataFrame(rows, index=generations["example"]).groupby(level=0, sort=True).mean()
    return generations.groupby("example", sort=True)[metric].mean()


def quality(rows: pd.DataFrame | pd.Series, metric: str, **options: float) -> Estimate:
    """The metric of a set of examples: Wilson for pass/fail, bootstrap by example for the others."""
    values = rows.to_numpy(dtype=np.float64)
    if values.ndim == 2:
        return statistic_interval(values, CORPUS[metric], **options)  # type: ignore[arg-type]
    if len(values) and is_binary(values):
        return proportion_interval(int(values.sum()), len(values), level=options.get("level", 0.95))
    return within(mean_interval(values, **options), metric)  # type: ignore[arg-type]


def within(estimate: Estimate, metric: str) -> Estimate:
    """Limits beyond the range of a known metric are cut: no score lies there."""
    if not is_metric(metric):
        return estimate
    low, high = np.clip((estimate.low, estimate.high), 0, 100 * points_of(metric))  # NaN stays NaN
    return replace(estimate, low=float(low), high=float(high))


def difference(a: pd.DataFrame | pd.Series, b: pd.DataFrame | pd.Series, metric: str, **options: float) -> Estimate:
    """a − b over the examples both have."""
    first, second = shared(a, b)
    if first.ndim == 1:
        return paired_interval(first, second, **options)  # type: ignore[arg-type]
    size = first.shape[1]

    def gap(sums: Array) -> Array:
        return CORPUS[metric](sums[:, :size]) - CORPUS[metric](sums[:, size:])

    return statistic_interval(np.concatenate([first, second], 1), gap, **options)  # type: ignore[arg-type]


def shared(a: pd.DataFrame | pd.Series, b: pd.DataFrame | pd.Series) -> tuple[Array, Array]:
    """Values of the examples both have, in the same order."""
    both = a.index.intersection(b.index)
    return a.loc[both].to_numpy(dtype=np.float64), b.loc[both].to_numpy(dtype=np.float64)


def p_value(a: pd.DataFrame | pd.Series, b: pd.DataFrame | pd.Series, metric: str) -> float:
    """Two-sided p of no difference: McNemar, paired t, or for a corpus metric t over its linear influence values."""
    first, second = shared(a, b)
    return paired_p_value(influence(first, metric), influence(second, metric))


def influence(rows: Array, metric: str) -> Array:
    """A value per example whose mean varies as the metric does: the values themselves, or jackknife pseudo-values."""
    if rows.ndim == 1 or len(rows) < 2:
        return rows if rows.ndim == 1 else CORPUS[metric](rows)
    total = rows.sum(0, keepdims=True)
    n = len(rows)
    return n * CORPUS[metric](total) - (n - 1) * CORPUS[metric](total - rows)


def all_metrics(generations: pd.DataFrame, names: list[str], **options: float) -> dict[str, Estimate]:
    """Every metric of one cell; pass@k for each k up to the number of samples."""
    found = {name: quality(rows_of(generations, name), name, **options) for name in names}
    if "pass@1" in names:
        counts = generations.groupby("example", sort=True)["pass@1"].agg(["count", "sum"])
        for k in range(2, int(counts["count"].min()) + 1):
            estimate = mean_interval(pass_at_k(counts["count"], counts["sum"], k), **options)  # type: ignore[arg-type]
            found[f"pass@{k}"] = within(estimate, f"pass@{k}")
    return found
