"""scripts/drafter_positions.py: the committed tables show what the documentation says of trained heads."""

from pathlib import Path

import pandas as pd
import pytest

from scripts import drafter_positions

DRAFTERS = Path(__file__).parents[2] / "results" / "drafters"


def domains() -> pd.DataFrame:
    table = pd.read_csv(DRAFTERS / "domains.csv")
    return table.assign(is_trained=table["trained_for"] == table["task"])


def greedy() -> pd.DataFrame:
    return domains().query("temperature == 0 and verifier == 'lossless'")


def test_a_part_that_does_not_exist_ends_before_anything_is_written(tmp_path, capsys):
    with pytest.raises(SystemExit) as ending:
        drafter_positions.main(["parts=length", f"out={tmp_path / 'out'}"])
    assert ending.value.code == 2
    assert "parts must be among lengths, domains, got length" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.results
def test_a_head_drafts_for_the_task_of_its_training_alone():
    table = greedy()
    assert len(table) == 45
    assert table.loc[table["is_trained"], "acceptance_low"].min() > 0.5
    assert table.loc[~table["is_trained"], "acceptance_high"].max() < 0.11
    assert table["acceptance"].round(2).groupby(table["is_trained"]).agg(["min", "max"]).values.tolist() == [
        [0.01, 0.1],
        [0.51, 0.92],
    ]


@pytest.mark.results
def test_acceptance_differs_more_between_tasks_than_between_drafters():
    table = greedy().query("is_trained")
    shares = table.pivot(index="drafter", columns="task", values="acceptance")
    between_tasks = (shares.max(axis=1) - shares.min(axis=1)).min()
    between_drafters = (shares.max() - shares.min()).max()
    assert between_tasks > between_drafters


@pytest.mark.results
def test_with_a_head_the_ensemble_costs_little_at_temperature_0_and_most_of_the_quality_at_1():
    table = domains().query("is_trained and verifier == 'ensemble'")
    assert len(table) == 30
    greedy, sampled = (table.query(f"temperature == {temperature}") for temperature in (0, 1))
    points = greedy["difference"] * (greedy["task"] != "cnndm-tiny").map({True: 100, False: 1})
    assert points.round(1).agg(["min", "max"]).tolist() == [-1.0, 1.0]
    solved = sampled[sampled["task"] != "cnndm-tiny"]
    assert (100 * solved["difference"]).round().agg(["min", "max"]).tolist() == [-95, -74]
    summaries = sampled[sampled["task"] == "cnndm-tiny"]
    assert summaries["difference"].round(1).agg(["min", "max"]).tolist() == [-31.4, -17.8]
    assert sampled["difference_high"].max() < 0
