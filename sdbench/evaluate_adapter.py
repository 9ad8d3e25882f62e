"""A task's scores as an `evaluate.Metric` that needs no network.

`evaluate` is imported only when a metric is requested, because the import takes seconds and loads torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from sdbench.metrics.quality import corpus_of
from sdbench.types import Example, Metric, Prompt, Score

if TYPE_CHECKING:
    import evaluate

    from sdbench.tasks.base import DataTask


def metric(task: DataTask) -> evaluate.Metric:
    """Return a task's scorer as an `evaluate.Metric`: predictions are answers, references are reference texts.

    For tasks that score whole rows (`scores_rows`: programs, tiny summaries, long documents) references are row ids.
    """
    import datasets
    import evaluate

    class TaskMetric(evaluate.Metric):
        def _info(self) -> evaluate.MetricInfo:
            features = {"predictions": datasets.Value("string"), "references": datasets.Value("string")}
            return evaluate.MetricInfo(
                description=f"sdbench {task.name}, {task.protocol}, version {task.version}: {task.rules.source}",
                citation="",
                inputs_description="predictions: list of answers; references: list of texts, or of row ids",
                features=datasets.Features(features),
            )

        def _compute(self, *, predictions: Any = None, references: Any = None, **_: Any) -> dict[str, float]:
            rows = [task.reference_row(reference) for reference in references]
            examples = [Example(str(number), row, Prompt()) for number, row in enumerate(rows)]
            scores = task.score_all(zip(examples, predictions, strict=True))
            return {name: of_all(scores, task.metric_of(name)) for name in scores[0].values}

    return TaskMetric(config_name=f"{task.name}-{task.protocol}")


def of_all(scores: Sequence[Score], metric: Metric) -> float:
    """Return a metric over a set of answers: from summed statistics if it has them, otherwise the mean."""
    if metric.stats is None:
        return fmean(score.values[metric.name] for score in scores)
    return float(corpus_of(metric)(np.sum([score.stats[metric.name] for score in scores], axis=0)))
