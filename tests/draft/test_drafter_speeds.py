"""scripts/drafter_speeds.py: the page and the figure come from a table, and the committed one shows what the documentation says."""

from pathlib import Path

import pandas as pd
import pytest

from scripts.drafter_speeds import COLUMNS, draw, order_of, text_of

DRAFTERS = Path(__file__).parents[2] / "results" / "drafters"


def table_of(speeds: dict[tuple[str, str, int], float]) -> pd.DataFrame:
    """{(drafter, rule, batch size): speed-up}, each with an interval of ± 0.1"""
    fixed = {"task": "gsm8k-tiny", "temperature": 0.0, "num_timed": 8, "tokens_per_round": 2.5, "draft_price": 0.1}
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


@pytest.mark.results
def test_leniency_reverses_the_order_of_heads_and_draft_model_in_speed():
    table = pd.read_csv(DRAFTERS / "speeds.csv")
    at = table[table["batch_size"] == 1].set_index(["drafter", "verifier"])
    assert at.loc[("medusa", "lossless"), "speedup_low"] > at.loc[("model", "lossless"), "speedup_high"]
    assert at.loc[("model", "typical"), "speedup_low"] > at.loc[("medusa", "typical"), "speedup_high"]
    assert (at.loc["pruned", "speedup_high"] < 1).all()


@pytest.mark.results
def test_at_batch_8_no_drafter_is_shown_to_be_faster_losslessly():
    table = pd.read_csv(DRAFTERS / "speeds.csv")
    at = table[(table["batch_size"] == 8) & (table["verifier"] == "lossless")]
    assert len(at) > 10
    assert (at["speedup_low"] < 1).all()
    assert at.loc[at["speedup"].idxmax(), "drafter"] == "medusa"
