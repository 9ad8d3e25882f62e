"""The seam: real fields, fixed test rows, training rows that never ask a test question."""

import hashlib
import json
import os
import subprocess
import sys
from itertools import islice

import pytest

from sdbench import embedded

TASKS = ("cnndm-tiny", "xsum-tiny", "gsm8k-tiny", "wmt-tiny", "humaneval-tiny", "mbpp-tiny")
TEXT = ("article", "document", "question", "translation", "prompt", "text")

# The fields and types of abisee/cnn_dailymail, EdinburghNLP/xsum, openai/gsm8k, wmt/wmt16, openai/openai_humaneval and
# google-research-datasets/mbpp (config full).
FIELDS = {
    "cnndm-tiny": {"article": str, "highlights": str, "id": str},
    "xsum-tiny": {"document": str, "summary": str, "id": str},
    "gsm8k-tiny": {"question": str, "answer": str},
    "wmt-tiny": {"translation": dict},
    "humaneval-tiny": {"task_id": str, "prompt": str, "canonical_solution": str, "test": str, "entry_point": str},
    "mbpp-tiny": {
        "task_id": int,
        "text": str,
        "code": str,
        "test_list": list,
        "test_setup_code": str,
        "challenge_test_list": list,
    },
}
# A changed digest means changed test rows: every published number and every trained pair would be about other rows.
PLAIN = {
    "cnndm-tiny": "417aa05ff2cd80f4",
    "xsum-tiny": "16d59992340f4e89",
    "gsm8k-tiny": "3d3c36478cd4829e",
    "wmt-tiny": "a9df1ce5eee96de8",
    "humaneval-tiny": "364ac7254bac548a",
    "mbpp-tiny": "a3132647ed4e2c5d",
}

GOLDEN = {
    "cnndm-tiny": "014e6bdd61319f2f",
    "xsum-tiny": "ea2526360e90e733",
    "gsm8k-tiny": "4d6d1500c5be90d7",
    "wmt-tiny": "1e5e3edcb7fe8bb7",
    "humaneval-tiny": "327b46cf71460888",
    "mbpp-tiny": "876ae1f1be917680",
}


def digest(rows: list[dict]) -> str:
    return hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()[:16]


def question(row: dict) -> str:
    """All that a prompt can be made of, without the package's own idea of it."""
    asked = [row[field] for field in TEXT if field in row]
    texts = [part["de"] if isinstance(part, dict) else part for part in asked]
    return "\n".join([*texts, *row.get("test_list", [])])


@pytest.mark.parametrize("task", TASKS)
def test_fields_and_types_are_those_of_the_real_data_set(task):
    for row in embedded.rows(task, "test") + embedded.rows(task, "validation") + embedded.rows(task, "train", 50):
        assert {field: type(value) for field, value in row.items()} == FIELDS[task]
    if task == "wmt-tiny":
        assert all(list(row["translation"]) == ["de", "en"] for row in embedded.rows(task, "test"))
    if task == "mbpp-tiny":
        assert [row["task_id"] for row in embedded.rows(task, "test")] == list(range(11, 511))
        assert all([type(line) for line in row["test_list"]] == [str] * 3 for row in embedded.rows(task, "test"))


@pytest.mark.parametrize(
    ("task", "file"), [("humaneval-tiny", "humaneval.jsonl"), ("gsm8k-tiny", "gsm8k_test_first100.jsonl")]
)
def test_fields_equal_those_of_a_real_row(task, file, real_data):
    real = json.loads((real_data / file).read_text().splitlines()[0])
    ours = embedded.rows(task, "test", 1)[0]
    assert {k: type(v) for k, v in real.items()} == {k: type(v) for k, v in ours.items()}


@pytest.mark.parametrize("task", TASKS)
def test_the_test_split_is_the_published_one(task):
    assert digest(embedded.rows(task, "test", voice="neutral")) == GOLDEN[task]
    assert digest(embedded.rows(task, "test", voice="plain")) == PLAIN[task]


def test_another_process_with_another_hash_seed_makes_the_same_rows():
    program = (
        "import json, sys; from sdbench import embedded; "
        "json.dump({t: embedded.rows(t, 'train', 40, 7) for t in embedded.GRAMMARS}, sys.stdout)"
    )
    env = os.environ | {"PYTHONHASHSEED": "12345"}
    out = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True).stdout
    assert json.loads(out) == {task: embedded.rows(task, "train", 40, 7) for task in TASKS}


@pytest.mark.parametrize("task", TASKS)
def test_no_two_test_rows_ask_the_same(task):
    rows = embedded.rows(task, "test")
    assert len(rows) == 500
    assert len({question(row) for row in rows}) == 500
    assert len(embedded.test_hashes(task)) == 500


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_no_test_question_is_among_20_000_training_or_the_validation_rows(task):
    asked = {question(row) for row in embedded.rows(task, "test")}
    trained = {question(row) for row in islice(embedded.stream(task, "train", seed=3), 20_000)}
    assert len(trained) == 20_000, "training rows repeat"
    assert not asked & trained
    assert not asked & {question(row) for row in embedded.rows(task, "validation")}


@pytest.mark.parametrize("task", TASKS)
def test_variety_two_seeds_of_training_rows_hardly_meet(task):
    """With N equally likely questions 5,000 x 5,000 pairs meet 25e6/N times: fewer than 25 says N > 1e6."""
    first, second = ({question(row) for row in embedded.rows(task, "train", 5_000, seed)} for seed in (1, 2))
    assert len(first & second) < 25


@pytest.mark.parametrize("task", TASKS)
def test_fewer_rows_are_the_first_of_more_rows(task):
    assert embedded.rows(task, "train", 30, 5)[:10] == embedded.rows(task, "train", 10, 5)
    assert embedded.rows(task, "train", 10, 5) != embedded.rows(task, "train", 10, 6)
    assert embedded.rows(task, "test", 10) == embedded.rows(task, "test")[:10]


def test_a_mistaken_call_says_what_is_wrong():
    with pytest.raises(ValueError, match=r"task must be one of cnndm-tiny.*'cnndm'"):
        embedded.rows("cnndm", "test")
    with pytest.raises(ValueError, match=r"split must be one of test.*'dev'"):
        embedded.rows("cnndm-tiny", "dev")
    with pytest.raises(ValueError, match="500 rows, got n=501"):
        embedded.rows("cnndm-tiny", "test", 501)
    with pytest.raises(ValueError, match="seed must be 0, got 1"):
        embedded.rows("cnndm-tiny", "test", seed=1)
