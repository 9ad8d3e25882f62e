"""Every task keeps its contract: declared metrics and bounds, a gold answer scores best, any answer scores within bounds."""

import json
from pathlib import Path

import pytest
import strangers_task
import yaml
from strangers_task import Reverse

import sdbench.tasks
from sdbench.tasks import build
from sdbench.types import Example, Prompt

NAMES = sdbench.tasks.names()
ANSWERS = ["", " ", "no", "...", "\x00", "0", "-", "é" * 50, "def f(:", "```", "#### ", "1 " * 300]


def rows_of(name):
    """Where the rows of a task are at hand: the tests' own for the hub's data sets."""
    from own import FILES, path

    return {"data": path(name)} if name in FILES else {"n": 3}


def gold_of(task, example):
    """The reference in the form that the task's default protocol reads."""
    if "canonical_solution" in example.row:
        return example.row["canonical_solution"]
    return task.fields(example.row)["answer"]


@pytest.fixture(scope="module", params=NAMES)
def task(request):
    return sdbench.tasks.load(request.param, **rows_of(request.param))


def test_the_headline_is_declared_and_every_declared_metric_is_bounded(task):
    names = [metric.name for metric in task.metrics]
    assert task.metric in names
    assert len(set(names)) == len(names)
    assert all(metric.is_bounded for metric in task.metrics)


def test_a_gold_answer_scores_best(task):
    for example in list(task.examples())[:3]:
        values = task.score(example, gold_of(task, example)).values
        for metric in task.metrics:
            best = metric.bounds[metric.best == "high"]
            assert values[metric.name] == pytest.approx(best), (example.id, metric.name)


def test_any_answer_gives_every_declared_metric_within_its_bounds(task):
    example = next(iter(task.examples()))
    for score in task.score_all([(example, answer) for answer in ANSWERS]):
        assert set(score.values) == {metric.name for metric in task.metrics}
        for metric in task.metrics:
            assert metric.bounds[0] <= score.values[metric.name] <= metric.bounds[1] + 1e-7
            assert metric.stats is None or metric.name in score.stats


def test_an_empty_answer_is_flagged_and_scores_worst(task):
    example = next(iter(task.examples()))
    score = task.score(example, "")
    assert score.flags["is_empty"]
    assert set(score.values.values()) == {0.0}


def test_a_task_says_its_version_and_everything_that_decides_a_score(task):
    described = task.describe()
    assert described["version"] == str(task.version)
    json.dumps(described)


def test_a_strangers_task_takes_35_lines_and_one_yaml(tmp_path):
    """The class in `strangers_task.py`, and these three lines of YAML: everything else is derived from the prompt's words."""
    assert len(Path(strangers_task.__file__).read_text().splitlines()) <= 35
    (tmp_path / "rows.jsonl").write_text('{"word": "tool", "answer": "loot"}\n{"word": "stop", "answer": "pots"}\n')
    text = f"_target_: strangers_task.Reverse\nname: reverse\ndata: {tmp_path}/rows.jsonl\n"
    task = build(**yaml.safe_load(text))
    assert isinstance(task, Reverse)
    first, second = task.examples()
    assert (first.id, first.prompt.text) == ("0", "Backwards, tool is")
    assert task.score(first, " loot\nmore").values == {"exact_match": 1.0}
    assert task.score(second, "").values == {"exact_match": 0.0}
    assert (task.protocol, task.version, task.dataset_commit) == ("own", "1", None)
    assert task.fit(first, lambda prompt: len(prompt.text), 15).is_prompt_cut
    assert task.score(Example("", task.reference_row("pots"), Prompt()), "pots").values == {"exact_match": 1.0}


def test_a_strangers_row_without_a_field_of_the_prompt_is_named(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"answer": "loot"}\n')
    task = build("strangers_task.Reverse", name="reverse", data=str(tmp_path / "rows.jsonl"))
    with pytest.raises(ValueError, match="has no field 'word': reverse needs word, answer"):
        _ = task.rows


def test_a_task_without_rows_says_what_it_needs():
    with pytest.raises(ValueError, match=r"reverse needs data=rows.jsonl, or dataset="):
        build("strangers_task.Reverse", name="reverse")


class Second(Reverse):
    version = "2"


def test_a_version_stands_on_the_class():
    assert Second(name="x", data="rows.jsonl").version == "2"
    with pytest.raises(ValueError, match="x version 1 is not the version of this sdbench, 2"):
        Second(name="x", data="rows.jsonl", version=1)
