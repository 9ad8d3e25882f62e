"""Rows and shots of the harness's tasks: shuffled once, as the harness does, and shots from where the task's file says."""

import json
import random
from importlib.util import find_spec

import numpy
import pytest
from own import path

import sdbench.tasks
from sdbench.config import ConfigError
from sdbench.tasks.data import rows_hash
from sdbench.tasks.harness_rows import SEED, ShotSource, fix_seeds

pytestmark = pytest.mark.skipif(find_spec("lm_eval") is None, reason="the extra lm-eval is not installed")

OURS = """
task: ours
dataset_path: org/none
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{answer}}"
"""
SHUFFLED = """
task: ours
dataset_path: org/none
test_split: test
output_type: generate_until
process_docs: !function orders.process
doc_to_text: "{{question}} {{order}}"
doc_to_target: "{{order}}"
"""
ORDERS = """
import random
import numpy
def process(split):
    def shuffle(row):
        letters = list("ABCDEFGH")
        random.shuffle(letters)
        return {"order": "".join(letters), "number": int(numpy.random.randint(10**9))}
    return split.map(shuffle)
"""
CODE = """
import evaluate
code_eval = evaluate.load("code_eval")
def judge(doc, results):
    return {"passed": code_eval.compute(references=["pass"], predictions=[results], k=[1])[0]["pass@1"]}
"""


@pytest.fixture
def load(tmp_path):
    """The text of a task's file -> the task over our rows of gsm8k."""
    folder = tmp_path / "tasks"
    folder.mkdir()
    (folder / "orders.py").write_text(ORDERS)

    def load(text, **options):
        (folder / "ours.yaml").write_text(text)
        return sdbench.tasks.load("lm-eval:ours", **{"include_path": str(folder), "data": path("gsm8k"), **options})

    return load


def test_a_row_whose_choices_are_shuffled_is_asked_and_scored_in_one_order(load):
    """As in gpqa: the prompt showed one order and the row that scores another, so that right answers were chance."""
    task = load(SHUFFLED)
    for example in task.examples():
        assert example.prompt.text == f"{example.row['question']} {example.row['order']}"
        assert task.score(example, example.row["order"]).values == {"exact_match": 1.0}


def test_rows_are_shuffled_with_the_harnesss_seeds_in_every_process(load):
    """Nothing that was decoded would be known to the next run otherwise."""
    random.seed(7)
    first, second = load(SHUFFLED), load(SHUFFLED)
    assert rows_hash(first.rows) == rows_hash(second.rows)
    assert list(first.examples()) == list(second.examples())
    rng, orders = random.Random(SEED), []
    for _ in first.rows:
        letters = list("ABCDEFGH")
        rng.shuffle(letters)
        orders.append("".join(letters))
    assert [row["order"] for row in first.rows.values()] == orders


def test_seeding_leaves_no_trace():
    before = random.getstate(), numpy.random.get_state()[1].tolist()
    with fix_seeds():
        drawn = random.random(), numpy.random.random()
    assert (random.getstate(), numpy.random.get_state()[1].tolist()) == before
    assert drawn == (random.Random(0).random(), numpy.random.RandomState(1234).random())


SAMPLES = "fewshot_config: {sampler: first_n, samples: [{question: 'Two?', answer: '2'}]}"


@pytest.mark.parametrize(
    ("lines", "options", "why"),
    [
        (f"test_split: test\n{SAMPLES}", {}, "the shots of ours are samples in its file"),
        ("test_split: test\ntraining_split: train\nnum_fewshot: 0", {}, "the file of ours sets num_fewshot: 0"),
        ("test_split: test\ntraining_split: train", {"data": None}, "it goes with task.data="),
    ],
)
def test_a_file_from_which_no_shot_would_come_is_refused(load, lines, options, why):
    with pytest.raises(ConfigError, match=rf"^task.shots_data=\S+gsm8k.jsonl has no effect: {why}.*; leave it out$"):
        load(f"{OURS}\n{lines}\n", shots_data=str(path("gsm8k")), **options)


def test_shots_come_from_the_file_where_the_harness_takes_them_from_another_split(load, tmp_path):
    (tmp_path / "shots.jsonl").write_text(json.dumps({"question": "How many?", "answer": "#### 3"}))
    lines = f"{OURS}\ntest_split: test\ntraining_split: train\n"
    task = load(lines, shots=1, shots_data=str(tmp_path / "shots.jsonl"))
    for example in task.examples():
        assert example.prompt.text == f"How many? #### 3\n\n{example.row['question']}"
    assert task.describe()["shots_from"] == "drawn rows of train"
    with pytest.raises(ConfigError, match=r"^task.shots_data=nowhere.jsonl is not a file$"):
        load(lines, shots_data="nowhere.jsonl")


@pytest.mark.parametrize(
    ("tree", "source"),
    [
        ({"test_split": "test"}, "drawn rows of test"),
        (
            {"test_split": "test", "validation_split": "dev", "fewshot_config": {"sampler": "first_n"}},
            "first rows of dev",
        ),
        ({"training_split": "train", "fewshot_split": "dev", "fewshot_config": {"samples": []}}, "drawn rows of dev"),
        (
            {"training_split": "train", "fewshot_config": {"samples": "/a/b.list_samples"}},
            "drawn samples in the task's file",
        ),
        ({"training_split": "train", "fewshot_config": {"sampler": "/a/b.Mine"}}, "b.Mine rows of train"),
    ],
)
def test_records_say_where_the_harness_takes_shots_from(tree, source):
    assert str(ShotSource.of_file(tree)) == source


@pytest.mark.parametrize(
    ("bounds", "words"),
    [
        ({"exact_mach": [0, 1]}, r"^task.bounds: exact_mach is not a metric of ours \(did you mean exact_match\? "),
        ({"exact_match": 1}, r"^task.bounds.exact_match must be \[LOW, HIGH\], got 1$"),
        ({"exact_match": [0, "one"]}, r"^task.bounds.exact_match must be \[LOW, HIGH\], got "),
        ([0, 1], r"^task.bounds must be \{METRIC: \[LOW, HIGH\]\}, got "),
    ],
)
def test_bounds_of_no_metric_are_refused_before_anything_is_decoded(load, bounds, words):
    with pytest.raises(ConfigError, match=words):
        load(f"{OURS}\ntest_split: test\n", bounds=bounds)


def test_bounds_may_be_null_or_name_a_metric(load):
    text = f"{OURS}\ntest_split: test\n"
    given = (None, {}, {"exact_match": [0, 2]}, {"exact_match": None})
    bounds = [load(text, bounds=each).metrics[0].bounds for each in given]
    assert bounds == [(0, 1), (0, 1), (0, 2), (None, None)]


def test_the_reference_of_a_row_with_choices_is_the_chosen_text(load):
    """It was the number of the choice."""
    choices = OURS.replace('"{{answer}}"', "1") + 'test_split: test\ndoc_to_choice: "{{[question, answer]}}"\n'
    task, plain = load(choices), load(f"{OURS}\ntest_split: test\n")
    row = next(iter(task.rows.values()))
    assert task.fields(row) == plain.fields(row) == {"answer": row["answer"]}


def test_the_time_of_a_program_is_in_the_key_of_a_code_task(load, tmp_path):
    """Texts that had timed out kept their scores under a longer limit."""
    (tmp_path / "tasks" / "code.py").write_text(CODE)
    text = f"{OURS}\ntest_split: test\n"
    runs_code = "unsafe_code: true\nprocess_results: !function code.judge\n"
    runs_code += "metric_list: [{metric: passed, aggregation: mean, higher_is_better: true}]\n"
    plain, code = ([load(each, timeout_s=t).describe() for t in (3, 30)] for each in (text, text + runs_code))
    assert plain[0] == plain[1]
    assert code[0] != code[1]
    assert code[1]["signatures"] == {"passed": "30 s a program, sandbox auto"}


@pytest.mark.parametrize(
    ("lines", "shots", "is_drawn"),
    [
        ("", 1, True),
        ("", 0, False),
        ("fewshot_config: {sampler: first_n}", 1, False),
        ("fewshot_config: {sampler: default}", 1, True),
    ],
)
def test_whether_each_prompt_has_shots_of_its_row(load, lines, shots, is_drawn):
    task = load(
        f"{OURS}\ntest_split: test\ntraining_split: train\n{lines}\n",
        shots=shots,
        **({"shots_data": path("gsm8k")} if shots else {}),
    )
    assert task.draws_shots == is_drawn
