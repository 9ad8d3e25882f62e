"""scripts/real_speed.py: every figure is measured on a pair and a file of problems, and bad words end it with one sentence."""

import json
import re
from pathlib import Path

import pandas as pd
import pytest

from scripts import real_speed
from scripts.bench_tools import Call

COMMITTED = Path(__file__).parents[2] / "results/real"
PAIR = ["embedded:llama-tiny/target", "embedded:llama-tiny/draft"]


@pytest.mark.slow
def test_every_figure_is_measured_and_written(tmp_path, capsys):
    code = "def total(values):\n    total = 0\n    for value in values:\n        total += value\n    return total\n"
    row = {
        "prompt": code * 3,
        "entry_point": "total",
        "canonical_solution": "    return 0\n",
        "test": "def check(f):\n    pass\n",
    }
    data = tmp_path / "problems.jsonl"
    data.write_text("".join(json.dumps({"task_id": f"X/{i}", **row}) + "\n" for i in range(40)))
    words = [*PAIR, f"data={data}", "dtype=float32", "repeats=1", "sweep=2", "new=6", "context=700", f"out={tmp_path}"]
    assert real_speed.main([*words, "parts=generate,forwards"]) == 0
    before = pd.read_csv(tmp_path / "speed.csv")
    assert len(before) == 5
    assert real_speed.main([*words, "parts=context"]) == 0
    figures = pd.read_csv(tmp_path / "speed.csv")
    assert len(figures) == 7
    assert real_speed.main([*words, "parts=packed"]) == 0
    assert len(pd.read_csv(tmp_path / "speed.csv")) == 13
    pd.testing.assert_frame_equal(figures[:5], before)
    assert real_speed.main([*words, "parts=recorded,tracing"]) == 0
    recorded = pd.read_csv(tmp_path / "speed.csv")[13:]
    assert list(recorded["name"]) == [
        *(
            f"batch {rows}, no measures, T = {temperature}: tokens/s with recorded steps over those without"
            for temperature in (0, 1)
            for rows in (1, 32)
        ),
        *(f"batch {rows}, no measures, T = 0: CPU-seconds of tracing the steps of a call" for rows in (1, 32)),
    ]
    assert (recorded["median"] > 0).all()
    assert real_speed.main([*words, "parts=rounds,nucleus"]) == 0
    rounds = pd.read_csv(tmp_path / "speed.csv")[19:]
    names = list(before["name"][1:].str.replace("over bare forwards", "a round over the forwards in it"))
    measured = [name.replace("no measures", "all measures") for name in names]
    nucleus = [name.replace("T = 1", "T = 1, top_p = 0.95") for name in measured[2:]]
    assert list(rounds["name"]) == [*names, *measured, *nucleus]
    assert (rounds["low"] > 1).all(), "the forwards are part of the rounds"
    for word, sentence in (
        ("new=7", "has figures of another pair, dtype or new=: give another out="),
        ("context=900000", "context must be above 500 and at most 1018,"),
        ("context=500", "context must be above 500 and at most 1018,"),
    ):
        changed = [word if word.partition("=")[0] == old.partition("=")[0] else old for old in words]
        with pytest.raises(SystemExit) as caught:
            real_speed.main([*changed, "parts=context"])
        assert caught.value.code == 2
        assert sentence in capsys.readouterr().err
    assert (figures["median"] > 0).all()
    assert figures["name"].is_unique
    assert (tmp_path / "speed.md").read_text().count("\n| ") == 30, "a row per figure, and the head"


def test_an_unknown_part_is_refused_before_anything_is_loaded(capsys):
    with pytest.raises(SystemExit) as caught:
        real_speed.main([*PAIR, "data=x.jsonl", "parts=contexts"])
    assert caught.value.code == 2
    assert (
        "parts must be among generate, forwards, rounds, nucleus, recorded, tracing, context, packed, got contexts"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize("words", [PAIR, [PAIR[0], "data=x.jsonl"]])
def test_without_a_pair_and_its_problems_it_says_what_is_needed(words, capsys):
    with pytest.raises(SystemExit) as caught:
        real_speed.main(words)
    assert caught.value.code == 2
    assert "give TARGET, DRAFT and data=humaneval.jsonl" in capsys.readouterr().err


@pytest.mark.results
def test_a_long_context_costs_a_real_pair_at_most_half_as_much_again():
    figures = pd.read_csv(COMMITTED / "speed.csv").set_index("name")
    rows = figures[figures.index.str.contains("at 4,000 tokens of context over 500")]
    assert list(rows["threads"]) == [1, 1]
    assert (rows["high"] <= 1.5).all()
    prose = " ".join((COMMITTED / "README.md").read_text().split())
    assert (
        "1.08 [1.07, 1.31] times as much after 4,000 tokens as after 500, and a lossless round 1.06 [0.98, 1.14]"
        in prose
    )
    expected = [1.08, 1.07, 1.31, 1.06, 0.98, 1.14]
    assert rows[["median", "low", "high"]].to_numpy().flatten() == pytest.approx(expected, abs=0.00501)


@pytest.mark.results
@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize("rows", [1, 32])
def test_a_call_of_a_real_pair_takes_at_most_1_10_of_its_bare_forwards(rows, temperature):
    figures = pd.read_csv(COMMITTED / "speed.csv").set_index("name")
    row = figures.loc[f"batch {rows}, no measures, T = {temperature}: over bare forwards"]
    assert row["n"] >= 3
    assert row["median"] <= 1.10


@pytest.mark.results
@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize("rows", [1, 32])
@pytest.mark.parametrize("kind", ["no measures", "all measures"])
def test_a_round_of_a_real_pair_takes_at_most_1_10_of_the_forwards_in_it(kind, rows, temperature):
    figures = pd.read_csv(COMMITTED / "speed.csv").set_index("name")
    row = figures.loc[f"batch {rows}, {kind}, T = {temperature}: a round over the forwards in it"]
    assert row["n"] >= 3
    assert row["median"] <= 1.10


@pytest.mark.results
def test_tracing_costs_what_the_readme_says():
    figures = pd.read_csv(COMMITTED / "speed.csv").set_index("name")
    single, many = (
        "{:.1f}{} [{:.1f}, {:.1f}]".format(row["median"], unit, row["low"], row["high"])
        for unit, row in (
            (unit, figures.loc[f"batch {n}, no measures, T = 0: CPU-seconds of tracing the steps of a call"])
            for n, unit in ((1, " CPU-seconds"), (32, ""))
        )
    )
    text = f"takes {single} with one row and {many} with 32"
    assert text in " ".join((COMMITTED / "README.md").read_text().split())


@pytest.mark.results
def test_a_round_with_top_p_takes_at_most_1_10_of_the_forwards_in_it_as_the_readme_says():
    figures = pd.read_csv(COMMITTED / "speed.csv").set_index("name")
    rows = [
        figures.loc[f"batch {n}, all measures, T = 1, top_p = 0.95: a round over the forwards in it"] for n in (1, 32)
    ]
    assert all(row["n"] == 3 for row in rows)
    single, many = (f"{row['median']:.2f} [{row['low']:.2f}, {row['high']:.2f}]" for row in rows)
    assert all(row["median"] <= 1.10 for row in rows)
    prose = " ".join((COMMITTED / "README.md").read_text().split())
    assert f"takes {single} of the forwards in it at batch 1, and {many} at batch 32" in prose


@pytest.mark.results
def test_the_readme_says_what_a_round_with_all_measures_takes():
    figures = pd.read_csv(COMMITTED / "speed.csv").set_index("name")
    prose = " ".join((COMMITTED / "README.md").read_text().split())
    shown = re.search(
        r"takes (\S+) of the forwards in it at batch 1, and at batch 32 (\S+) \[(\S+), (\S+)\] at T = 0 and (\S+) \[(\S+), (\S+)\] "
        r"at T = 1; without measures (\S+) \[(\S+), (\S+)\] and (\S+) \[(\S+), (\S+)\]",
        prose,
    )
    assert shown

    def row(rows: int, kind: str, temperature: int) -> pd.Series:
        return figures.loc[f"batch {rows}, {kind} measures, T = {temperature}: a round over the forwards in it"]

    expected = [row(1, "all", 0)["median"]]
    for kind in ("all", "no"):
        for temperature in (0, 1):
            expected += row(32, kind, temperature)[["median", "low", "high"]].tolist()
    assert [float(number) for number in shown.groups()] == pytest.approx(expected, abs=0.00501)


@pytest.mark.results
def test_a_sweep_of_a_real_pair_takes_at_most_a_quarter_of_the_assisted_loops_time():
    figures = pd.read_csv(COMMITTED / "speed.csv").set_index("name")
    (row,) = figures[figures.index.str.startswith("sweep, 10 w")].to_dict("records")
    assert row["low"] >= 4
    assert "at 10.5 [8.9, 11.8] times" in " ".join((COMMITTED / "README.md").read_text().split())
    assert [row[name] for name in ("median", "low", "high")] == pytest.approx([10.5, 8.9, 11.8], abs=0.0501)


@pytest.mark.results
@pytest.mark.parametrize(
    ("what", "rows", "shown"),
    [
        ("a lossless round of 5 drafts", 1, ".78 [.65, .91]"),
        ("a token of the target alone", 1, ".81 [.78, .82]"),
        ("the prompts of both models, 128 tokens each", 1, ".55 [.43, .85]"),
        ("a lossless round of 5 drafts", 16, ".79 [.77, .85]"),
        ("a token of the target alone", 16, ".73 [.58, 1.19]"),
        ("the prompts of both models, 128 tokens each", 16, ".77 [.75, .97]"),
    ],
)
def test_packed_weights_gain_what_the_pages_say(what, rows, shown):
    figures = pd.read_csv(COMMITTED / "speed.csv").set_index("name")
    row = figures.loc[f"{what}, batch {rows}, T = 0: time with packed weights over that without"]
    numbers = [float(number) for number in shown.replace("[", "").replace("]", "").replace(",", "").split()]
    assert numbers == pytest.approx(list(row[["median", "low", "high"]]), abs=0.00501)
    for page in (COMMITTED / "README.md", COMMITTED.parents[1] / "docs/guide.md"):
        assert shown in " ".join(page.read_text().split())


@pytest.mark.results
def test_traced_steps_are_not_shown_to_pay_and_the_readme_says_so():
    figures = pd.read_csv(COMMITTED / "speed.csv")
    rows = figures[figures["name"].str.contains("with recorded steps over those without")]
    prose = " ".join((COMMITTED / "README.md").read_text().split())
    assert len(rows) == 4
    assert (rows["n"] == 3).all()
    for row in rows.itertuples():
        assert row.low < 1 < row.high
        median, low, high = (f"{value:.2f}".removeprefix("0") for value in (row.median, row.low, row.high))
        assert f"{median} [{low}, {high}]" in prose


def test_a_round_holds_the_calls_of_models_before_its_end():
    """Those while prompts are read, in "admit", belong to no round."""
    names = (
        "target model",
        "admit",
        "draft model",
        "draft",
        "target model",
        "score",
        "round",
        "draft model",
        "round",
        "admit",
    )
    calls = [Call(name, 1, seconds, 0.0) for seconds, name in enumerate(names, 1)]
    assert real_speed.rounds_of(calls) == [(7, 3 + 5), (9, 8)]
