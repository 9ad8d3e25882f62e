"""Tables that were committed with the scores of single texts: their intervals are those of these scores."""

from pathlib import Path

import pandas as pd
import pytest

from sdbench.metrics import quality
from sdbench.metrics.stats import Estimate, affordable, ratio_interval
from sdbench.types import Metric

ROOT = Path(__file__).parents[2]
SCORES = sorted((ROOT / "results").rglob("scores.parquet"))
NOT_COMPARED = ("generate", "assisted")  # other engines


def metric_of(scores: pd.DataFrame) -> Metric:
    """The headline score of a table: BLEU where it holds statistics of a corpus, otherwise a mean of shares or points."""
    if scores["stats"].notna().any():
        return Metric("bleu", "points", stats="bleu")
    return Metric("score", "share" if scores["score"].max() <= 1 else "points")


def is_in(row: pd.Series, name: str, estimate: Estimate) -> bool:
    """Whether a row of summary.csv holds this estimate under that name."""
    expected = [row[f"{name}{end}"] for end in ("", "_low", "_high")]
    return [estimate.value, estimate.low, estimate.high] == pytest.approx(expected, rel=1e-4, abs=1e-9, nan_ok=True)


@pytest.mark.results
@pytest.mark.parametrize("path", SCORES, ids=lambda path: path.parent.name)
def test_committed_intervals_are_those_of_the_committed_scores(path):
    scores, summary = pd.read_parquet(path), pd.read_csv(path.with_name("summary.csv")).set_index("cell")
    assert not {"text", "prompt", "reference"} & set(scores)
    metric, options = metric_of(scores), {"resamples": affordable(scores["example"].nunique(), 10_000)}
    named = scores.rename(columns={"score": metric.name, "stats": f"stats_{metric.name}"})
    rows = {key: quality.rows_of(part, metric) for key, part in named.groupby("cell")}
    (lossless,) = set(summary.index[summary["verifier"] == "lossless"])
    for key, part in scores.groupby("cell"):
        row = summary.loc[key]
        assert is_in(row, "quality", quality.quality(rows[key], metric, **options)), key
        if key != lossless and row["verifier"] not in NOT_COMPARED:
            assert is_in(row, "difference", quality.difference(rows[key], rows[lossless], metric, **options)), key
        if row["acceptance"] == row["acceptance"] and part["accepted"].notna().all():
            sums = part.groupby("example")[["accepted", "examined"]].sum().to_numpy(float)
            rate = ratio_interval(sums[:, 0], sums[:, 1], bounds=(0, 1), **options)
            assert is_in(row, "acceptance", rate), key
