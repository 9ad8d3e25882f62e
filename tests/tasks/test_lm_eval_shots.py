"""Shots of tasks of lm-evaluation-harness over local rows: no evaluated question is among its own shots.

Needs the extra `lm-eval`, which is part of `dev`.
"""

import json

import pytest
from own import path
from test_lm_eval import FILTERED, load, needs_lm_eval

import sdbench.tasks
from sdbench.config import ConfigError

pytestmark = needs_lm_eval
WITHOUT_TEST = FILTERED.replace("test_split: test", "validation_split: validation")
CODE = """
import random
from lm_eval.api.samplers import ContextSampler

class Last(ContextSampler):
    def sample(self, n, eval_doc=None, df=None, **kwargs):
        return self.df[-n:]

def shuffle(docs):
    return docs.map(lambda row: {"question": row["question"], "answer": row["answer"], "order": random.random()})
"""


def rows_of(name="gsm8k"):
    return [json.loads(line) for line in path(name).read_text(encoding="utf-8").splitlines()]


def check_prompts(task, num_shots, questions):
    """Each prompt has the question of its row once, at its end, and others of `questions` before it."""
    examples = list(task.examples())
    assert len(examples) == len(rows_of())
    for example in examples:
        shown = [question for question in questions if question in example.prompt.text]
        assert len(set(shown) - {example.row["question"]}) == num_shots
        assert example.prompt.text.count(example.row["question"]) == 1
        assert example.prompt.text.endswith(example.row["question"])
        assert example.row["answer"] not in example.prompt.text


@pytest.mark.parametrize(
    "text",
    [
        f"{FILTERED}training_split: train\nfewshot_split: train\n",
        f"{FILTERED}training_split: train\nfewshot_config: {{sampler: first_n}}\n",
        f"{FILTERED}fewshot_config: {{sampler: first_n, split: dev}}\n",
        FILTERED,
        f"{WITHOUT_TEST}training_split: train\n",
        f"{WITHOUT_TEST}fewshot_split: validation\n",
    ],
)
@pytest.mark.parametrize("has_shots_data", [False, True])
def test_no_prompt_has_the_answer_to_its_question(text, has_shots_data, tmp_path):
    """Without rows for shots, all splits were the same rows under several names, and the harness compares names."""
    (tmp_path / "ours.yaml").write_text(text)
    questions, options = [row["question"] for row in rows_of()], {}
    if has_shots_data:
        questions = [f"What is {number}?" for number in range(5)]
        options["shots_data"] = tmp_path / "shots.jsonl"
        shots = [{"question": question, "answer": "It is."} for question in questions]
        options["shots_data"].write_text("".join(json.dumps(shot) + "\n" for shot in shots))
    check_prompts(load("ours", include_path=str(tmp_path), shots=4, **options), 4, questions)


def test_shots_among_copies_are_those_of_the_harness(tmp_path):
    """It draws one more than it needs, leaves copies of the question out, and draws again where that leaves too few."""
    rows = rows_of()
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in [*rows, *rows[:1] * 3, rows[2]]))
    ours = sdbench.tasks.load("gsm8k", data=data, shots=5)
    theirs = load(data=data, shots=5)
    assert [each.prompt.text for each in ours.examples()] == [each.prompt.text for each in theirs.examples()]


def test_rows_that_a_task_shuffles_are_left_out_of_their_own_shots(tmp_path):
    (tmp_path / "ours.yaml").write_text(f"{FILTERED}training_split: train\nprocess_docs: !function code.shuffle\n")
    (tmp_path / "code.py").write_text(CODE)
    questions = [row["question"] for row in rows_of()]
    check_prompts(load("ours", include_path=str(tmp_path), shots=4), 4, questions)


def test_shots_that_may_be_the_evaluated_row_are_refused(tmp_path):
    line = "fewshot_config: {sampler: !function code.Last}"
    (tmp_path / "ours.yaml").write_text(f"{FILTERED}training_split: train\n{line}\n")
    (tmp_path / "code.py").write_text(CODE)
    options = {"include_path": str(tmp_path)}
    with pytest.raises(
        ConfigError, match=r"cannot leave out the evaluated row itself.*: give other rows as task.shots_data="
    ):
        load("ours", **options)
    assert load("ours", **options, shots=0).shots == 0
    assert load("ours", **options, shots_data=path("gsm8k")).shots == 2


def test_an_old_copy_of_the_file_of_a_task_is_not_read(tmp_path):
    """Jupyter keeps one, which came first in the order of names. The harness does not read it either."""
    samples = json.dumps([{"question": f"What is QUESTION {number}?", "answer": "It is."} for number in range(2)])
    text = f"{FILTERED}fewshot_config: {{sampler: first_n, samples: {samples}}}\n"
    (tmp_path / ".ipynb_checkpoints").mkdir()
    (tmp_path / ".ipynb_checkpoints/ours-checkpoint.yaml").write_text(text.replace("QUESTION", "old"))
    (tmp_path / "ours.yaml").write_text(text.replace("QUESTION", "new"))
    check_prompts(load("ours", include_path=str(tmp_path)), 2, ["What is new 0?", "What is new 1?"])


def test_shots_in_the_file_of_a_task_stay_as_they_are(tmp_path):
    samples = json.dumps([{"question": f"What is {number}?", "answer": "It is."} for number in range(3)])
    (tmp_path / "ours.yaml").write_text(f"{FILTERED}fewshot_config: {{sampler: first_n, samples: {samples}}}\n")
    check_prompts(load("ours", include_path=str(tmp_path)), 2, ["What is 0?", "What is 1?", "What is 2?"])
