"""scripts/real_runs.py: a killed run's records are those of an undisturbed one, and the committed figures keep their bounds."""

import json
from pathlib import Path

import pandas as pd
import pytest

from scripts import real_runs

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("n=x", "got x"),
        ("rows=1,a", "got 1,a"),
        ("tokens=0", "got 0"),
        ("runs=.", "is not empty"),
        ("temperatures=0,2", "must be among 0, 1, got 2"),
        ("dtype=int8", "must be bfloat16 or float32, got int8"),
    ],
)
def test_a_bad_option_is_one_sentence(word, reason, capsys):
    with pytest.raises(SystemExit) as end:
        real_runs.main(["target", "draft", "data=rows.jsonl", word])
    assert end.value.code == 2
    assert reason in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_killed_run_of_a_toy_pair_has_the_records_of_an_undisturbed_one(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    rows = [json.loads(line) for line in (ROOT / "tests/tasks/rows/humaneval.jsonl").read_text().splitlines()]
    many = [row | {"task_id": f"Own/{copy}/{i}"} for copy in range(12) for i, row in enumerate(rows)]
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in many))
    pair = ["embedded:llama-tiny/target", "embedded:llama-tiny/draft", f"data={data}", f"n={len(many)}", "tokens=24"]
    assert real_runs.main([*pair, "parts=kill", f"out={tmp_path}"]) == 0
    table = pd.read_csv(tmp_path / "runs.csv")
    assert table["is_met"].tolist() == [True, True, True]
    assert all(f"{4 * len(many) * count} texts" in row for count, row in enumerate(table["measured"][:2], 1))


@pytest.mark.results
def test_the_command_did_on_the_real_pair_what_it_promises():
    table = pd.read_csv(ROOT / "results/real/runs.csv")
    assert table["is_met"].all()
    assert {"memory of 1 rows", "memory of 32 rows, packed weights"} <= set(table["what"])
    assert table["what"].str.startswith("kill -9").sum() == 2
    numbers = table[table["what"].str.startswith("memory")]
    shares = [float(row.measured.split()[0]) / float(row.wanted.split()[0]) for row in numbers.itertuples()]
    assert (round(min(shares), 2), round(max(shares), 2)) == (0.86, 0.91), "what results/README.md says"
