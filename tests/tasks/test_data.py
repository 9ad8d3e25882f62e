"""Rows: shipped grammars, local files, and files that are not what they should be. The hub's are in tests/lm/test_load.py."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import sdbench.tasks
from sdbench.config import ConfigError
from sdbench.tasks.data import load, read_rows


def test_a_local_file_wins_over_the_id_and_keeps_its_order(tmp_path):
    rows = [{"question": f"q{i}", "answer": "\u2028ä"} for i in range(3)]
    path = tmp_path / "rows.jsonl"
    path.write_text(
        "\ufeff" + "\n\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n", encoding="utf-8"
    )
    assert load("openai/gsm8k", "main", "test", data=str(path)).rows == rows


def test_the_rows_of_the_real_pair_are_as_its_page_lists_them(real_data):
    page = (Path(__file__).parents[2] / "results/real/README.md").read_text()
    table = [line.strip("| ").split(" | ") for line in page.splitlines() if re.match(r"\| `\w+\.jsonl` \|", line)]
    assert len(table) == 8
    columns: list[str] = []
    for name, _, _, count, listed in table:
        rows = [json.loads(line) for line in (real_data / name.strip("`")).read_text(encoding="utf-8").splitlines()]
        assert len(rows) == int(re.split("[:,]", count)[0])
        columns = columns if listed == "the same" else re.split(", |: ", listed)
        assert {key for row in rows for key in row} | set(rows[0].get("translation", {})) == set(columns)
        if "task_id" in count:
            first, *_, last = re.split(r", | and | to ", count.partition("task_id ")[2])
            assert [str(rows[0]["task_id"]), str(rows[-1]["task_id"])] == [first, last]


def test_a_parquet_file_is_read_too(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [{"translation": {"de": "ja", "en": "yes"}}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    assert load("wmt/wmt16", "de-en", "test", data=str(tmp_path / "rows.parquet")).rows == rows


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has no rows"),
        ('{"a": 1}\n{"b"', "line 2 is not JSON"),
        ('{"a": 1}\n\n[1]', "line 3 must be a JSON object"),
    ],
)
def test_a_bad_file_is_named_with_its_line(tmp_path, text, words):
    path = tmp_path / "rows.jsonl"
    path.write_text(text)
    with pytest.raises(ConfigError, match=words):
        load("x/y", None, "test", data=str(path))


def test_a_missing_file_is_named():
    with pytest.raises(ConfigError, match=r"task.data=nowhere.jsonl is not a file"):
        load("x/y", None, "test", data="nowhere.jsonl")


def test_shipped_rows_have_a_scheme_of_their_own():
    rows = load("embedded:gsm8k-tiny", None, "test").rows
    assert len(rows) == 500
    assert set(rows[0]) == {"question", "answer"}


def test_the_package_has_its_tasks_at_hand():
    code = "import sdbench, sys\nprint(len(list(sdbench.tasks.load('gsm8k-tiny', n=2).examples())), 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["2", "False"]


def test_a_parquet_file_without_rows_is_named(tmp_path):
    pq.write_table(pa.table({"question": pa.array([], pa.string())}), tmp_path / "none.parquet")
    with pytest.raises(ConfigError, match=r"none\.parquet has no rows$"):
        read_rows(tmp_path / "none.parquet")


def test_a_row_without_its_languages_is_named(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(
        json.dumps({"translation": {"de": "Hallo", "en": "Hello"}}) + "\n" + json.dumps({"translation": "x"}) + "\n"
    )
    with pytest.raises(ValueError, match=r"^row 1 of \S+ has no translation with de and en$"):
        list(sdbench.tasks.load("wmt16", data=str(path)).examples())


def test_whole_floats_are_whole_numbers(tmp_path):
    """A YAML file or another program may write 2.0."""
    task = sdbench.tasks.load("gsm8k-tiny", n=2.0, max_new_tokens=9.0)
    assert (len(task.ids), task.max_new_tokens) == (2, 9)
    assert all(isinstance(value, int) for value in (task.n, task.max_new_tokens))


@pytest.mark.parametrize(
    ("text", "words"), [(None, r"\S+ is not a file$"), ("", r"\S+ has no rows$"), ("{", r"\S+ line 1 is not JSON")]
)
def test_a_bad_file_of_shots_is_named_by_its_option(tmp_path, text, words):
    path = tmp_path / "shots.jsonl"
    if text is not None:
        path.write_text(text)
    task = sdbench.tasks.load("gsm8k-tiny", n=1, shots=1, shots_data=str(path))
    with pytest.raises(ConfigError, match=f"^task.shots_data={words}"):
        list(task.examples())


def test_the_package_has_its_metrics_of_evaluate_at_hand():
    code = "import sdbench, sys\nprint(callable(sdbench.evaluate_adapter.metric), 'evaluate' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False"]
