"""scripts/drafter_positions.py: the committed tables show what the documentation says of trained heads."""

from pathlib import Path

import pandas as pd
import pytest

DRAFTERS = Path(__file__).parents[2] / "results" / "drafters"


@pytest.mark.results
def test_a_head_drafts_for_the_task_of_its_training_alone():
    table = pd.read_csv(DRAFTERS / "domains.csv")
    is_trained = table["trained_for"] == table["task"]
    assert len(table) == 36
    assert table.loc[is_trained, "acceptance_low"].min() > 0.5
    assert table.loc[~is_trained, "acceptance_high"].max() < 0.11
    assert table["acceptance"].round(2).groupby(is_trained).agg(["min", "max"]).values.tolist() == [
        [0.01, 0.1],
        [0.51, 0.92],
    ]


@pytest.mark.results
def test_acceptance_differs_more_between_tasks_than_between_drafters():
    table = pd.read_csv(DRAFTERS / "domains.csv")
    shares = table[table["trained_for"] == table["task"]].pivot(index="drafter", columns="task", values="acceptance")
    between_tasks = (shares.max(axis=1) - shares.min(axis=1)).min()
    between_drafters = (shares.max() - shares.min()).max()
    assert between_tasks > between_drafters
