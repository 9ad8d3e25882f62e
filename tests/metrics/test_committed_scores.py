"""Tables that were committed with the scores of single texts: their intervals are those of these scores."""

from pathlib import Path

import pandas as pd
import pytest

from sdbench.metrics import quality
from sdbench.metrics.stats import affordable, ratio_interval
from sdbench.types import Metric

ROOT = Path(__file__).parents[2]
SCORES = sorted((ROOT / "results").rglob("scores.parquet"))


@pytest.mark.results
@pytest.mark.parametrize("path", SCORES, ids=lambda path: path.parent.name)
def test_committed_intervals_are_those_of_the_committed_scores(path):
    scores, summary = pd.read_parquet(path), pd.read_csv(path.with_name("summary.csv")).set_index("cell")
    assert not {"text", "prompt", "reference"} & set(scores)
    options = {"resamples": affordable(scores["example"].nunique(), 10_000)}
    for key, part in scores.groupby("cell"):
        row, rows = summary.loc[key], part.groupby("example")
        if part["stats"].isna().all():  # what a corpus score makes of its sums is the task's
            metric = Metric("score", "share" if part["score"].max() <= 1 else "points")
            estimate = quality.quality(rows["score"].mean().astype(float), metric, **options)
            expected = [row[f"quality{end}"] for end in ("", "_low", "_high")]
            assert [estimate.value, estimate.low, estimate.high] == pytest.approx(expected, rel=1e-4)
        if row["acceptance"] == row["acceptance"] and part["accepted"].notna().all():
            sums = rows[["accepted", "examined"]].sum().to_numpy(float)
            rate = ratio_interval(sums[:, 0], sums[:, 1], bounds=(0, 1), **options)
            assert rate.value == pytest.approx(row["acceptance"], rel=1e-5)
            assert rate.low == pytest.approx(row["acceptance_low"], rel=1e-4)
