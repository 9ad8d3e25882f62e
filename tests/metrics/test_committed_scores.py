"""Tables that were committed with the scores of single texts: their intervals are those of these scores."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from scripts.learned_tables import Arm, compare_settings
from sdbench.metrics import quality
from sdbench.metrics.pareto import joint
from sdbench.metrics.stats import Estimate, affordable, ratio_interval
from sdbench.types import Metric

ROOT = Path(__file__).parents[2]
SCORES = sorted((ROOT / "results").rglob("*scores.parquet"))
LEARNED = sorted((ROOT / "results" / "learned").glob("*-scores.parquet"))
NOT_COMPARED = ("generate", "assisted")  # other engines
COLUMNS = ["cell", "example", "sample", "score", "stats", "tokens", "rounds", "drafted", "examined", "accepted"]


def table_of(path: Path) -> pd.DataFrame:
    """The table beside committed scores: NAME.csv for NAME-scores.parquet, summary.csv for scores.parquet."""
    return pd.read_csv(path.with_name(f"{path.stem.removesuffix('scores').removesuffix('-') or 'summary'}.csv"))


def groups_of(table: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """The rows that share a lossless cell: those of one task and draft."""
    keys = [name for name in ("draft", "task") if name in table and table[name].notna().any()]
    yield from (group for _, group in table.groupby(keys, sort=False)) if keys else [table]


def metric_of(scores: pd.DataFrame) -> Metric:
    """The headline score of a table: BLEU where it holds statistics of a corpus, otherwise a mean of shares or points."""
    if scores["stats"].notna().any():
        return Metric("bleu", "points", stats="bleu")
    return Metric("score", "share" if scores["score"].max() <= 1 else "points")


def lossless_of(row: pd.Series, table: pd.DataFrame) -> str:
    """The lossless cell that a row is compared to: the one of its own drafter and the nearest draft length, of several."""
    candidates = table[table["verifier"] == "lossless"]
    if "drafter" in table:
        same = candidates[candidates["drafter"] == row["drafter"]]
        candidates = candidates if same.empty else same
    if "num_draft" in table:
        candidates = candidates.sort_values(
            "num_draft", key=lambda lengths: (lengths - row["num_draft"]).abs(), kind="stable"
        )
    return str(candidates.index[0])


def is_in(row: pd.Series, name: str, estimate: Estimate) -> bool:
    """Whether a row of the table holds this estimate under that name."""
    expected = [row[f"{name}{end}"] for end in ("", "_low", "_high")]
    return [estimate.value, estimate.low, estimate.high] == pytest.approx(expected, rel=1e-5, abs=1e-9, nan_ok=True)


@pytest.mark.results
@pytest.mark.parametrize("path", SCORES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_committed_scores_hold_no_text(path):
    """Besides numbers only keys of cells and names of examples, which have no spaces."""
    schema, every = pq.read_schema(path), pd.read_parquet(path, columns=["cell", "example"])
    assert schema.names == COLUMNS
    assert [field.name for field in schema if "string" in str(field.type) or "binary" in str(field.type)] == list(every)
    assert every["cell"].str.fullmatch(r"[0-9a-f]{20}").all()
    assert every["example"].str.fullmatch(r"[\w/.-]{1,40}").all()


@pytest.mark.results
@pytest.mark.parametrize("path", SCORES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_committed_intervals_are_those_of_the_committed_scores(path):
    every, table = pd.read_parquet(path), table_of(path)
    assert not every.duplicated(["cell", "example", "sample"]).any()
    assert set(every["cell"]) <= set(table["cell"])
    for group in groups_of(table):
        summary = group.set_index("cell")
        scores = every[every["cell"].isin(summary.index)]
        metric, options = metric_of(scores), {"resamples": affordable(scores["example"].nunique(), 10_000)}
        named = scores.rename(columns={"score": metric.name, "stats": f"stats_{metric.name}"})
        rows = {key: quality.rows_of(part, metric) for key, part in named.groupby("cell")}
        for key, part in scores.groupby("cell"):
            row = summary.loc[key]
            assert is_in(row, "quality", quality.quality(rows[key], metric, **options)), key
            if row["verifier"] not in ("lossless", *NOT_COMPARED):
                difference = quality.difference(rows[key], rows[lossless_of(row, summary)], metric, **options)
                assert is_in(row, "difference", difference), key
            if row["acceptance"] == row["acceptance"] and part["accepted"].notna().all():
                sums = part.groupby("example")[["accepted", "examined"]].sum().to_numpy(float)
                rate = ratio_interval(sums[:, 0], sums[:, 1], bounds=(0, 1), **options)
                assert is_in(row, "acceptance", rate), key


def results_of(table: pd.DataFrame, scores: pd.DataFrame) -> Any:
    """What the comparisons of curves read of records, from a committed table and its scores."""
    metric = metric_of(scores)
    head = table["knobs"].str.extract(r"head=([^,]+)", expand=False)
    cells = table.copy().assign(knob_head=head, metric=metric.name, metrics=[[asdict(metric)]] * len(table))
    cells = cells.assign(also=[[] for _ in range(len(cells))])  # there w = 1 has a row of its own
    return SimpleNamespace(cells=cells, generations=scores.rename(columns={"score": metric.name}))


def heads_of(compared: dict[str, Any], static: str, results: Any) -> dict[str, str | None]:
    """The label of each curve's head, or None for a rule that has no head."""
    labels = results.cells.dropna(subset="knob_head").groupby("verifier")["knob_head"].agg(lambda label: label.iloc[0])
    return {name: labels.get(name) for name, figures in compared.items() if name != static and "gain" in figures}


def comparisons_of(figures: dict[str, Any], table: pd.DataFrame) -> Iterator[tuple[dict[str, Any], pd.DataFrame]]:
    """Each set of compared curves of a .json file, with the rows of its table."""
    if "against" in figures:
        yield figures, table
        return
    for label, compared in figures.items():
        yield compared, table[(table["task"] == label) | (table["draft"] == f"step {label}")]


@pytest.mark.results
@pytest.mark.parametrize("path", [p for p in LEARNED if "distil" not in p.stem], ids=lambda path: path.stem)
def test_gains_of_trained_rules_are_those_of_the_committed_scores(path):
    name = path.name.removesuffix("-scores.parquet")
    figures, scores = json.loads(path.with_name(f"{name}.json").read_text()), pd.read_parquet(path)
    for compared, rows in comparisons_of(figures, table_of(path)):
        static = figures.get("against", "ensemble")
        results = results_of(rows, scores[scores["cell"].isin(rows["cell"])])
        again = compare_settings(results, heads_of(compared, static, results), static)
        for curve, expected in again.items():
            for key, value in expected.items():
                committed = np.asarray(compared[curve][key], dtype=float)  # null where there is no overlap
                np.testing.assert_allclose(committed, value, rtol=1e-5, atol=1e-6, err_msg=f"{curve} {key}")


@pytest.mark.results
@pytest.mark.parametrize("path", [p for p in LEARNED if "distil" in p.stem], ids=lambda path: path.stem)
def test_prices_of_distilled_drafts_are_those_of_the_committed_scores(path):
    name = path.name.removesuffix("-scores.parquet")
    figures, table = json.loads(path.with_name(f"{name}.json").read_text()), table_of(path)
    ensemble = table[table["verifier"] == "ensemble"]
    arms = []
    for label, rows in ensemble.groupby("draft"):
        by_w = dict(zip(rows["w"], rows["cell"], strict=True))
        arms.append(Arm(str(label), 0, list(rows["cell"]), by_w[1], by_w))
    lossless = next(arm.lossless for arm in arms if arm.label == "own")
    learned = [*table["cell"][table["verifier"] == "learned"], lossless]
    arms.append(Arm("learned", 0, learned, lossless, None))
    plane = joint(results_of(table, pd.read_parquet(path)), [cell for arm in arms for cell in arm.cells])
    for arm in arms:
        again = arm.measure(plane)
        assert figures[arm.label]["within"] == pytest.approx(again["within"], rel=1e-5, abs=1e-6), arm.label
        for w, prices in again.get("prices", {}).items():
            for key, value in prices.items():
                assert figures[arm.label]["prices"][w][key] == pytest.approx(value, rel=1e-5, abs=1e-6), (arm.label, w)
