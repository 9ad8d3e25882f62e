"""`evaluate` at arm's length: our metrics as its metrics, its metrics beside ours, and not imported until asked for."""

import subprocess
import sys

import pytest
from own import load

import sdbench.tasks
from sdbench.evaluate_adapter import metric

LOCAL_METRIC = """
import datasets
import evaluate


class Shout(evaluate.Metric):
    def _info(self):
        features = {"predictions": datasets.Value("string"), "references": datasets.Value("string")}
        return evaluate.MetricInfo(
            description="", citation="", inputs_description="", features=datasets.Features(features)
        )

    def _compute(self, predictions, references):
        return {"shout": sum(p.isupper() for p in predictions) / len(predictions), "words": "no number"}
"""


@pytest.fixture
def offline(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_EVALUATE_OFFLINE", "1")
    monkeypatch.setattr("evaluate.config.HF_METRICS_CACHE", str(tmp_path), raising=False)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "answers", "references", "expected"),
    [
        ("cnndm", ["a cat ran", "x"], ["a cat ran", "y"], {"rouge1": 50, "rougeLsum_nostem": 50}),
        ("wmt", ["The cat is sleeping on it."], ["The cat is sleeping on it."], {"bleu": 100, "chrf2": 100}),
        ("gsm8k", ["#### 7", "#### 8", "7"], ["#### 7"] * 3, {"strict": 1 / 3, "numeric": 2 / 3}),
    ],
)
def test_our_scores_are_evaluate_metrics_that_load_offline(offline, name, answers, references, expected):
    values = metric(load(name)).compute(predictions=answers, references=references)
    assert values is not None
    for key, value in expected.items():
        assert values[key] == pytest.approx(value)


def test_code_is_referred_to_by_its_row(offline):
    task = load("humaneval")
    answer = task.rows["Own/0"]["canonical_solution"]
    values = metric(task).compute(predictions=[answer, ""], references=["Own/0", "Own/1"])
    assert values == {"pass@1": 0.5, "pass@1_repaired": 0.5}


@pytest.mark.parametrize(
    ("name", "options", "perfect"),
    [
        ("cnndm-tiny", {}, {"facts": 1, "rougeL": 100}),
        ("xsum-tiny", {}, {"facts": 1, "rougeL": 100}),
        ("long-tiny", {"protocol": "questions"}, {"score": 1}),
    ],
)
def test_a_task_that_scores_its_whole_row_is_referred_to_by_row_ids(offline, name, options, perfect):
    """`facts` was 0 for every answer, and questions could not be scored."""
    task = sdbench.tasks.load(name, n=2, **options)
    examples = list(task.examples())
    answers, ids = [task.fields(each.row)["answer"] for each in examples], [each.id for each in examples]
    values = metric(task).compute(predictions=answers, references=ids)
    assert {key: values[key] for key in perfect} == pytest.approx(perfect)
    with pytest.raises(
        ValueError, match=f"{name} is scored with its rows, so references are their ids, and A fire is not one"
    ):
        metric(task).compute(predictions=answers, references=["A fire", ids[0]])


def test_any_evaluate_metric_stands_beside_our_own(offline):
    folder = offline / "shout"
    folder.mkdir()
    (folder / "shout.py").write_text(LOCAL_METRIC)
    task = load("xsum", extra_metrics=[str(folder)])
    example = next(iter(task.examples()))
    assert task.score(example, "A CAT!").values["shout"] == 1
    assert task.score(example, "a cat").values["shout"] == 0
    assert "rougeL" in task.score(example, "a cat").values
    assert not any(key.endswith("words") for key in task.score(example, "a cat").values)


def local_metric(folder, name, result):
    (folder / name).mkdir()
    code = LOCAL_METRIC.replace(
        '{"shout": sum(p.isupper() for p in predictions) / len(predictions), "words": "no number"}', result
    )
    (folder / name / f"{name}.py").write_text(f"import numpy\n{code}")
    return str(folder / name)


def test_a_list_with_one_number_and_numbers_of_numpy_are_scores(offline):
    """As of bertscore, whose lists have an item for each answer: its scores were left out without a word."""
    result = '{"f1": [0.5], "share": numpy.float32(0.25), "count": numpy.int64(3), "array": numpy.array([2.0]), "two": [1, 2]}'
    task = load("xsum", extra_metrics=[local_metric(offline, "single", result)])
    values = task.score(next(iter(task.examples())), "a cat").values
    scored = {name: value for name, value in values.items() if name.startswith("single.")}
    assert scored == {"single.f1": 0.5, "single.share": 0.25, "single.count": 3.0, "single.array": 2.0}


def test_an_extra_metric_reads_the_words_that_the_protocol_scores(offline):
    name = local_metric(offline, "length", '{"length": len(predictions[0].split())}')
    for protocol, count in {"diversed": 32, "lighteval": 40}.items():
        task = load("xsum", protocol=protocol, extra_metrics=[name])
        assert task.score(next(iter(task.examples())), "word " * 40).values["length"] == count


def test_a_metric_without_any_number_is_an_error(offline):
    task = load("xsum", extra_metrics=[local_metric(offline, "wordy", '{"words": "no number", "two": [1, 2]}')])
    with pytest.raises(
        ValueError, match=r"^extra_metrics: \S+wordy returned no number for an answer, but .'words': 'no"
    ):
        task.score(next(iter(task.examples())), "a cat")


def test_a_metric_that_cannot_be_loaded_is_named_before_anything_is_scored(offline):
    with pytest.raises(ValueError, match=r"extra_metrics: evaluate cannot load no_such_metric_here"):
        load("xsum", extra_metrics=["no_such_metric_here"]).environment()


@pytest.mark.slow
def test_scoring_imports_neither_torch_nor_evaluate():
    code = (
        "import sys, sdbench.tasks\n"
        "for name in ('cnndm-tiny', 'gsm8k-tiny', 'wmt-tiny'):\n"
        "    task = sdbench.tasks.load(name, n=2)\n"
        "    [task.score(example, 'an answer') for example in task.examples()]\n"
        "sys.exit(str({'torch', 'evaluate', 'transformers', 'datasets'} & set(sys.modules) or ''))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) in ((0, ""), (1, "\n"))
    assert sdbench.tasks.names()
