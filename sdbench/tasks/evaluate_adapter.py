"""A task's scores as an `evaluate.Metric` that needs no network.

`evaluate` is imported when a metric is asked for: its import takes seconds and brings torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sdbench.tasks.corpus import summarize
from sdbench.types import Example, Prompt

if TYPE_CHECKING:
    from evaluate import Metric

    from sdbench.tasks.base import DataTask


def metric(task: DataTask) -> Metric:
    """A task's scorer as an `evaluate.Metric`: predictions are answers, references their texts (code: ids)."""
    import datasets
    import evaluate

    class TaskMetric(evaluate.Metric):
        def _info(self) -> evaluate.MetricInfo:
            features = {"predictions": datasets.Value("string"), "references": datasets.Value("string")}
            return evaluate.MetricInfo(
                description=f"sdbench {task.name}, {task.protocol}, version {task.version}: {task.rules.source}",
                citation="",
                inputs_description="predictions: list of answers; references: list of texts, or of row ids for code",
                features=datasets.Features(features),
            )

        def _compute(self, *, predictions: Any = None, references: Any = None, **_: Any) -> dict[str, float]:
            rows = [task.reference_row(reference) for reference in references]
            examples = [Example(str(number), row, Prompt()) for number, row in enumerate(rows)]
            return summarize(task.score_all(zip(examples, predictions, strict=True)))

    return TaskMetric(config_name=f"{task.name}-{task.protocol}")
