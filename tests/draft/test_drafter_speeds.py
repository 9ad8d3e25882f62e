"""scripts/drafter_speeds.py: the page and the figure come from a table, and the committed one shows what the documentation says."""

from pathlib import Path

import pandas as pd
import pytest

from scripts import drafter_speeds
from scripts.drafter_speeds import COLUMNS, draw, merge, order_of, text_of

DRAFTERS = Path(__file__).parents[2] / "results" / "drafters"


def table_of(speeds: dict[tuple[str, str, int], float], task: str = "gsm8k-tiny") -> pd.DataFrame:
    """{(drafter, rule, batch size): speed-up}, each with an interval of ± 0.1"""
    fixed = {"task": task, "temperature": 0.0, "num_timed": 8, "tokens_per_round": 2.5, "draft_price": 0.1}
    table = pd.DataFrame(speeds.keys(), columns=["drafter", "verifier", "batch_size"]).assign(**fixed)
    speed = pd.Series(list(speeds.values()))
    return table.assign(speedup=speed, speedup_low=speed - 0.1, speedup_high=speed + 0.1).reindex(columns=COLUMNS)


TABLE = table_of(
    {
        ("model", "lossless", 1): 1.2,
        ("lookup", "lossless", 1): 0.8,
        ("model", "typical", 1): 2.0,
        ("model", "lossless", 8): 1.05,
    }
)


def test_a_drafter_is_called_faster_or_slower_only_if_its_interval_says_so():
    assert order_of(TABLE) == [
        ["lossless", "1", "model", "lookup"],
        ["typical", "1", "model", "none"],
        ["lossless", "8", "none", "none"],
    ]


def test_what_was_not_timed_at_a_batch_size_has_a_dash():
    (line,) = [line for line in text_of(TABLE).splitlines() if line.startswith("| model | typical")]
    assert line == "| model | typical | 2.50 | 10% | – | 2.00 [1.90, 2.10] | – |"
    assert "T = 0, 8 texts, 8 batches of 8. The price" in text_of(TABLE)
    assert len(draw(TABLE).axes) == 2
    assert len(draw(TABLE[TABLE["batch_size"] == 1]).axes) == 1


OTHERS = [
    table_of({("model", "lossless", 1): 1.5, ("pruned", "lossless", 1): 0.7}, task)
    for task in ("humaneval-tiny", "cnndm-tiny")
]


def test_a_pass_replaces_only_rows_of_its_task_temperature_and_batch_size(tmp_path):
    path = tmp_path / "speeds.csv"
    table = TABLE
    for rows in (*OTHERS, table_of({("suffix", "lossless", 1): 1.3}), OTHERS[0].assign(temperature=1.0)):
        table.to_csv(path, index=False)
        table = merge(path, rows)
    assert [tuple(row) for row in table[["task", "temperature", "batch_size", "drafter"]].to_numpy()] == [
        ("gsm8k-tiny", 0, 1, "suffix"),
        ("gsm8k-tiny", 0, 8, "model"),
        ("cnndm-tiny", 0, 1, "model"),
        ("cnndm-tiny", 0, 1, "pruned"),
        ("humaneval-tiny", 0, 1, "model"),
        ("humaneval-tiny", 0, 1, "pruned"),
        ("humaneval-tiny", 1, 1, "model"),
        ("humaneval-tiny", 1, 1, "pruned"),
    ]
    assert merge(tmp_path / "none.csv", OTHERS[0]).equals(OTHERS[0])


def test_each_task_has_its_tables_and_panels():
    table = pd.concat([TABLE, *OTHERS])
    text = text_of(table)
    assert [line for line in text.splitlines() if line.startswith("## ")] == [
        "## gsm8k-tiny, T = 0",
        "## humaneval-tiny, T = 0",
        "## cnndm-tiny, T = 0",
    ]
    assert text.count("| pruned | lossless | 2.50 | 10% | 0.70 [0.60, 0.80] |") == 2
    assert (
        "gsm8k-tiny, T = 0, 8 texts, 8 batches of 8; humaneval-tiny, T = 0, 8 texts; cnndm-tiny, T = 0, 8 texts. The"
        in text
    )
    assert [axis.get_title() for axis in draw(table).axes] == [
        "gsm8k-tiny, T = 0\nbatch size 1",
        "humaneval-tiny, T = 0\nbatch size 1",
        "cnndm-tiny, T = 0\nbatch size 1",
        "gsm8k-tiny, T = 0\nlossless, by batch size",
    ]


def test_passes_of_several_tasks_and_sizes_are_written_one_by_one(tmp_path, monkeypatch):
    passes = []

    def time_pass(task, batch_size, options):
        passes.append((task, batch_size))
        return table_of({("model", "lossless", batch_size): 1.2}, task)

    monkeypatch.setattr(drafter_speeds, "time_pass", time_pass)
    for words in (["task=gsm8k-tiny", "batches=1,8"], ["task=cnndm-tiny,humaneval-tiny", "batches=1"]):
        assert drafter_speeds.main([*words, f"out={tmp_path}"]) == 0
    wanted = [("gsm8k-tiny", 1), ("gsm8k-tiny", 8), ("cnndm-tiny", 1), ("humaneval-tiny", 1)]
    assert passes == wanted
    assert (
        list(pd.read_csv(tmp_path / "speeds.csv")[["task", "batch_size"]].itertuples(index=False, name=None)) == wanted
    )
    assert {path.name for path in tmp_path.iterdir()} == {"speeds.csv", "speeds.md", "speeds.svg"}


def of_word_problems() -> pd.DataFrame:
    table = pd.read_csv(DRAFTERS / "speeds.csv")
    return table[(table["task"] == "gsm8k-tiny") & (table["temperature"] == 0)]


@pytest.mark.results
def test_leniency_reverses_the_order_of_heads_and_draft_model_in_speed():
    table = of_word_problems()
    at = table[table["batch_size"] == 1].set_index(["drafter", "verifier"])
    assert at.loc[("medusa", "lossless"), "speedup_low"] > at.loc[("model", "lossless"), "speedup_high"]
    assert at.loc[("model", "typical"), "speedup_low"] > at.loc[("medusa", "typical"), "speedup_high"]
    assert (at.loc["pruned", "speedup_high"] < 1).all()


@pytest.mark.results
def test_the_price_of_a_trained_layer_is_what_the_documentation_says():
    table = of_word_problems()
    price = table[table["batch_size"] == 1].groupby("drafter")["draft_price"].first()
    shown = [f"{price[name]:.3f}".lstrip("0") for name in ("eagle", "mtp", "eagle3")]
    layers = [18 * price[name] for name in ("eagle", "mtp", "eagle3")]
    text = (DRAFTERS.parents[1] / "docs/drafters.md").read_text()
    assert f"costs {shown[0]}, {shown[1]} and {shown[2]} of a target call" in text
    assert f"{min(layers):.1f} to {max(layers):.1f} times an 18th" in text


@pytest.mark.results
@pytest.mark.parametrize("size", [8, 32])
def test_at_larger_batches_no_drafter_is_shown_to_be_faster_losslessly(size):
    table = of_word_problems()
    at = table[(table["batch_size"] == size) & (table["verifier"] == "lossless")]
    assert len(at) > 10
    assert (at["speedup_low"] < 1).all()
    assert at.loc[at["speedup"].idxmax(), "drafter"] == "medusa"
    if size == 32:
        assert set(at.loc[at["speedup_high"] >= 1, "drafter"]) == {"medusa", "mtp", "eagle3"}


@pytest.mark.results
def test_on_programs_retrieval_is_the_fastest_losslessly_and_the_draft_model_with_typical_acceptance():
    table = pd.read_csv(DRAFTERS / "speeds.csv")
    table = table[table["task"] == "humaneval-tiny"]
    for rule, best in (("lossless", "retrieval"), ("typical", "model")):
        at = table[table["verifier"] == rule].set_index("drafter")
        assert at.loc[best, "speedup_low"] > at.drop(best)["speedup_high"].max()


@pytest.mark.results
def test_on_summaries_copying_is_the_fastest_losslessly_and_look_up_is_faster_than_the_draft_model():
    table = pd.read_csv(DRAFTERS / "speeds.csv").query("task == 'cnndm-tiny'")
    at = table[table["verifier"] == "lossless"].set_index("drafter")
    assert at.loc["suffix", "speedup_low"] > at.drop("suffix")["speedup_high"].max()
    assert at.loc["lookup", "speedup_low"] > at.loc["model", "speedup_high"]
    assert table.loc[table["speedup"].idxmax(), ["drafter", "verifier"]].tolist() == ["model", "typical"]
