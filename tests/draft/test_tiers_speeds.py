"""scripts/tiers_speeds.py and exit_tables.py: which two tiers three are compared with, the ratio of their speeds, and the pages."""

from pathlib import Path

import pandas as pd
import pytest

from scripts import exit_tables
from scripts.tiers_speeds import COLUMNS, Settings, speed_over, text_of
from sdbench.types.metric import Metric

DRAFTERS = Path(__file__).parents[2] / "results" / "drafters"


def times(seconds: float, base_s: float = 2.0) -> pd.DataFrame:
    """Eight texts of ten tokens, each a little slower than the one before."""
    slower = [1 + number / 100 for number in range(8)]
    rows = [{"tokens": 10, "decode_s": seconds * x, "tokens_base": 10, "decode_s_base": base_s * x} for x in slower]
    return pd.DataFrame(rows)


def table_of(rows: dict[str, tuple[int, float, float]]) -> pd.DataFrame:
    """{setting: (tiers, share of eight problems solved, speed-up)}"""
    settings, about = Settings(), {"n": 8, "num_timed": 8, "tokens_per_round": 2.0, "spared": 0.25}
    settings.metric = Metric("exact", "share")
    given = [
        {"setting": name, "num_tiers": tiers, "quality": share, "speedup": speed, **about}
        for name, (tiers, share, speed) in rows.items()
    ]
    settings.rows.append(pd.DataFrame(given).reindex(columns=COLUMNS))
    for name, (_, share, speed) in rows.items():
        settings.times[name] = times(2.0 / speed)
        settings.scores[name] = pd.Series([float(number < 8 * share) for number in range(8)])
    return settings.table()


def test_speeds_of_two_passes_are_compared_over_the_target_alone_of_each():
    ratio = speed_over(times(1.0), times(1.0, base_s=4.0))
    assert ratio.value == pytest.approx(0.5)
    assert ratio.low <= 0.5 <= ratio.high


def test_three_tiers_are_compared_with_the_fastest_two_that_solve_as_many():
    rows = {
        "lossless": (2, 1.0, 1.0),
        "ensemble w=0.7": (2, 0.75, 1.5),
        "ensemble w=0.3": (2, 0.25, 3.0),
        "tiers 0.3/0.9": (3, 0.625, 1.2),
    }
    table = table_of(rows).set_index("setting")
    assert table.loc["tiers 0.3/0.9", "rival"] == "ensemble w=0.7"
    assert table.loc["tiers 0.3/0.9", "ratio"] == pytest.approx(1.2 / 1.5)
    assert table.loc["tiers 0.3/0.9", "gap"] == pytest.approx(-0.125)
    assert table["rival"].notna().sum() == 1
    page = text_of(table_of(rows))
    assert "| tiers 0.3/0.9 | ensemble w=0.7 | 0.80 [0.80, 0.80] | -12.5 [" in page
    assert "| lossless | 100.0 | 2.00 | – | 1.00 |" in page


def test_where_no_two_tiers_solve_as_many_there_is_no_ratio():
    table = table_of({"ensemble w=0.3": (2, 0.25, 3.0), "tiers 0.3/0.9": (3, 0.625, 1.2)})
    assert table["rival"].isna().all()
    assert "| tiers 0.3/0.9 | 62.5 | 2.00 | 25.0 | 1.20 |" in text_of(table)


def test_the_page_of_early_exits_names_the_training():
    row = {"is_trained": True, "layers": "4", "temperature": 0.0, "verifier": "lossless", "n": 8}
    measures = {"acceptance": 0.5, "tokens_per_round": 2.5, "quality": 0.25}
    table = pd.DataFrame([row | measures]).reindex(columns=exit_tables.COLUMNS)
    page = exit_tables.text_of(table, 600, 1500)
    assert "600 steps with losses at every second layer (25 minutes" in page
    assert "| trained | 4 | 0 | lossless | 0.500 | 2.50 | 25.0 |" in page


def test_records_of_another_training_are_another_folder():
    assert exit_tables.records_name("0", "4", None) == "exits-T0-4"
    names = {exit_tables.records_name("0", "4", steps) for steps in (None, "600", "1200")}
    assert len(names) == 3


@pytest.mark.results
def test_a_target_trained_for_early_exits_keeps_twice_as_many_of_its_drafts():
    table = pd.read_csv(DRAFTERS / "exits.csv").set_index(["temperature", "layers", "verifier", "is_trained"])
    for temperature, layers in ((0, 2), (0, 4), (0, 6), (1, 2), (1, 4), (1, 6)):
        shipped, trained = (table.loc[(temperature, layers, "lossless", is_trained)] for is_trained in (False, True))
        assert trained["acceptance_low"] > 2 * shipped["acceptance_high"]
        assert trained["quality"] >= shipped["quality"]


@pytest.mark.results
def test_three_tiers_are_slower_than_two_that_solve_as_many():
    table = pd.read_csv(DRAFTERS / "tiers.csv").set_index("setting")
    three = table[table["num_tiers"] == 3]
    assert len(three) == 4
    assert three["ratio_high"].max() < 0.45
    assert table.loc["typical", "quality_low"] > three["quality_high"].max()
