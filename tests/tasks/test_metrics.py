"""What a task declares of its metrics, and what becomes of a score that breaks it."""

import math
from typing import ClassVar

import pytest
from own import load

import sdbench.tasks
from sdbench.tasks.base import DataTask
from sdbench.tasks.protocol import Protocol
from sdbench.types import Example, Metric, Prompt, Score


class Echo(DataTask):
    """The completion is the number that it scores."""

    PROTOCOLS: ClassVar = {"own": Protocol(source="these tests", ask="{text}", max_new_tokens=8)}
    FIELDS = ("text",)
    metric = "exact_match"
    cut_field = "text"

    def fields(self, row):
        return row

    def reference_row(self, reference):
        return {"text": reference}

    def measure(self, example, text):
        return Score({} if text == "nothing" else {"exact_match": float(text), "beside": math.nan})


class Share(Echo):
    metrics = (Metric("exact_match", "share"),)


class Ratio(Echo):
    metrics = (Metric("exact_match", stats="ratio"),)


def score(kind, text):
    task = kind(name="echo", dataset="none", protocol="own")
    return task, task.score(Example("row 7", {"text": "x"}, Prompt()), text)


def test_a_task_that_names_a_headline_alone_has_one_raw_metric():
    task, scored = score(Echo, "-1e9")
    assert task.metrics == (Metric("exact_match"),)
    assert scored.values["exact_match"] == -1e9


def test_what_is_not_declared_is_raw_and_unchecked():
    assert math.isnan(score(Echo, "1")[1].values["beside"])


@pytest.mark.parametrize("value", ["0", "1", "1.0000000000000002"])
def test_bounds_hold_to_rounding(value):
    assert score(Share, value)[1].values["exact_match"] == float(value)


@pytest.mark.parametrize(
    ("kind", "value", "says"),
    [
        (Share, "77", "exact_match must be between 0 and 1, got 77.0"),
        (Share, "-0.01", "exact_match must be between 0 and 1, got -0.01"),
        (Share, "nan", "exact_match must be a finite number, got nan"),
        (Echo, "inf", "exact_match must be a finite number, got inf"),
        (Echo, "nothing", "exact_match is declared but was not scored"),
        (Ratio, "1", "exact_match is made from statistics, and this score has none"),
    ],
)
def test_a_score_that_breaks_its_declaration_is_an_error_with_task_example_and_value(kind, value, says):
    with pytest.raises(ValueError, match=f"task echo, example row 7: {says}"):
        score(kind, value)


def test_metrics_are_no_option():
    with pytest.raises(ValueError, match="metrics is not an option of task gsm8k"):
        load("gsm8k", metrics=())


@pytest.mark.parametrize("name", sdbench.tasks.names())
def test_the_headline_stands_among_the_declared_metrics(name):
    task = sdbench.tasks.load(name)
    assert task.metric in [metric.name for metric in task.metrics]
    assert all(metric.is_bounded for metric in task.metrics)
