"""scripts/real_runs.py: a killed run's records are those of an undisturbed one, and the committed figures keep their bounds."""

import json
from pathlib import Path

import pandas as pd
import pytest

from scripts import real_pair, real_runs

ROOT = Path(__file__).parents[2]
LAYOUTS = ("", ", packed weights", ", T = 1", ", T = 1, packed weights")


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


def test_rows_of_another_pair_are_refused_before_anything_runs(tmp_path, capsys, monkeypatch):
    """Before, a second pair replaced the rows of the first one by one. A dequantised copy of a file is the same pair."""
    row = real_runs.Row("a", "1", "1", True)
    monkeypatch.setattr(real_runs, "PARTS", dict.fromkeys(real_runs.PARTS, lambda *_: [row]))
    words = ["data=d", f"runs={tmp_path}/new", f"out={tmp_path}"]
    assert real_runs.main(["x/big-1.5b.gguf", "y/small-0.5b.gguf", *words]) == 0
    assert real_runs.main(["other/big-1.5b", "small-0.5b/", *words]) == 0
    assert len(pd.read_csv(tmp_path / "runs.csv")) == 1
    with pytest.raises(SystemExit) as end:
        real_runs.main(["big-1.gguf", "small-0.5b.gguf", *words])
    assert end.value.code == 2
    sentence = "has rows of big-1.5b and small-0.5b, not of big-1 and small-0.5b: give another out="
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize("table", ["runs.csv", "engines.csv"])
def test_the_committed_rows_are_recognised_as_those_of_their_pair(table):
    pair = real_pair.pair_of("/models/qwen-coder-1.5b.gguf", "copies/qwen-coder-0.5b")
    assert len(real_pair.rows_of(ROOT / "results/real" / table, pair))
    with pytest.raises(ValueError, match="not of a and b"):
        real_pair.rows_of(ROOT / "results/real" / table, "a and b")


def test_rows_without_a_pair_are_those_of_an_unknown_one(tmp_path):
    (tmp_path / "runs.csv").write_text("what,wanted,measured,is_met\na,1,1,True\n")
    with pytest.raises(ValueError, match="has rows of an unknown pair, not of a and b"):
        real_pair.rows_of(tmp_path / "runs.csv", "a and b")


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
    assert "at most 1.83" in table["measured"].iloc[-1]
    assert "within a factor of 1.83" in (ROOT / "results/README.md").read_text()
    assert "first line of a run" in set(table["what"])
    names = {f"memory of {rows} rows{more}" for rows in (1, 8, 32) for more in ("", ", T = 1")}
    assert names | {f"{name}, packed weights" for name in names} <= set(table["what"])
    assert table["what"].str.startswith("kill -9").sum() == 2


def memory_of(more: str) -> tuple[list[float], list[float]]:
    """What --plan says for 1, 8 and 32 rows, and what the runs took, in GiB."""
    table = pd.read_csv(ROOT / "results/real/runs.csv").set_index("what")
    rows = table.loc[[f"memory of {rows} rows{more}" for rows in (1, 8, 32)]]
    return [float(x.split()[0]) for x in rows["wanted"]], [float(x.split()[0]) for x in rows["measured"]]


def shares_of(*more: str) -> str:
    """The smallest and the largest share of the planned memory that runs took, as prose has them."""
    pairs = [pair for each in more for pair in zip(*memory_of(each), strict=True)]
    shares = [measured / planned for planned, measured in pairs]
    return f"{min(shares):.2f} to {max(shares):.2f}".replace("0.", ".")


def listed(numbers: list[float]) -> str:
    return "{:.2f}, {:.2f} and {:.2f}".format(*numbers)


@pytest.mark.results
def test_the_pages_name_the_memory_of_the_committed_runs():
    (planned, taken), (sampled, _) = memory_of(""), memory_of(", T = 1")
    sentence = (
        f"`--plan` says {listed(planned)} GiB for 1, 8 and 32 rows, and the runs take {listed(taken)}, {shares_of('')} of it; "
        f"with packed weights {shares_of(', packed weights')}. At T = 1 with top_p = 0.95 it says {listed(sampled)}, and the "
        f"runs take {shares_of(', T = 1')}; with packed weights {shares_of(', T = 1, packed weights')}. They take less"
    )
    assert sentence in " ".join((ROOT / "results/real/README.md").read_text().split())
    whole = f"It takes {shares_of(*LAYOUTS)} of that memory"
    assert whole in (ROOT / "results/README.md").read_text()


@pytest.mark.results
@pytest.mark.parametrize("more", LAYOUTS)
def test_runs_take_at_most_their_weights_and_caches_and_15_per_cent(more):
    """What --plan says grows with the rows; the rest, that of no row, is weights and the keys and values of a prompt."""
    (first, eighth, _), taken = memory_of(more)
    fixed = first - (eighth - first) / 7
    assert max(taken) <= 1.15 * fixed


@pytest.mark.results
def test_packed_weights_are_planned_as_the_weights_are_and_take_what_the_guide_says():
    (planned, taken), (planned_packed, packed) = memory_of(""), memory_of(", packed weights")
    assert planned_packed == planned
    sentence = f"a run of the pair below peaks at {packed[0]:.2f} GiB at one row, and at {taken[0]:.2f} without packing"
    assert sentence in (ROOT / "docs/guide.md").read_text()


def test_estimates_are_judged_from_the_tenth_text_to_ten_seconds_before_the_end():
    text = """decoding: 0/64 in 5.0 s, 64 under way
decoding: 9/64 in 10.0 s, 55 under way, 25 tokens/s, acceptance 0.8, 900 s left
decoding: 10/64 in 20.0 s, 54 under way, 25 tokens/s, acceptance 0.8, 40 s left
decoding: 40/64 in 50.0 s, 24 under way, 25 tokens/s, acceptance 0.8, 75 s left
decoding: 63/64 in 95.0 s, 1 under way, 25 tokens/s, acceptance 0.8, 30 s left
decoding: 64/64 in 100.0 s, 25 tokens/s, acceptance 0.8
"""
    assert real_runs.factors_of(text) == [2.0, 1.5]
    with pytest.raises(RuntimeError, match="ended before an estimate"):
        real_runs.factors_of(text.replace("100.0 s", "55.0 s").replace("10/64 in 20", "9/64 in 20"))
