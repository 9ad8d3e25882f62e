"""Records of an engine that does not tell everything: what is read, summarised, drawn and put on the page without it. No torch."""

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from sdbench.metrics.load import load_table
from sdbench.metrics.summary import summarise
from sdbench.records import GenerationRecord, LoadRecord, PooledRecord, Store, read
from sdbench.report.build import worked_out, write
from tests.records.synthetic import WORDS as PIECES
from tests.records.synthetic import Shape, sweep, texts_of

N = 6
UNTOLD = {
    "steps": dict.fromkeys(("draft_ids", "p", "q", "tv", "expected", "bias")),
    "counts": dict.fromkeys(("draft_ids", "p", "q", "tv", "expected", "bias", "origin")),
    "pooled": dict.fromkeys(("draft_ids", "p", "q", "tv", "expected", "bias", "origin", "rounds")),
}


def without(record: GenerationRecord, kind: str, *, is_pair: bool) -> GenerationRecord:
    return replace(record, **UNTOLD[kind]) if is_pair else record


@pytest.fixture(scope="module", params=list(UNTOLD))
def served(request, tmp_path_factory) -> tuple[str, Path]:
    """A sweep over two w on a server: cells, texts, loads at three levels; pooled counts where no rounds are told."""
    folder, shape = tmp_path_factory.mktemp("served") / request.param, Shape(24, 0)
    cells = sweep("llama-tiny", "gsm8k-tiny", ws=(0.5, 0.9), num_drafts=(3,), temperature=1.0)
    records = [
        without(shape.decode(cell, str(example)), request.param, is_pair=cell.num_draft > 0)
        for example in range(N)
        for cell in cells
    ]
    with Store.open(folder, config={"margin": 5}, provenance={"w": "…"}) as store:
        store.add_cells(cells)
        store.add_vocabulary("llama-tiny", "words", lambda: [f" {word}" for word in PIECES])
        store.add_examples(cells[0].asked, map(str, range(N)), texts_of)
        store.append_generations(records)
        store.add_server({"url": "http://h:1", "version": "0.32.0"})
        for place, cell in enumerate(cells):
            store.append(
                [
                    LoadRecord(
                        "p",
                        "m",
                        cell.key,
                        str(e),
                        0,
                        level,
                        20,
                        0.1,
                        (1 + place) / 10 * level,
                        2.0 * level,
                        0.09,
                        0.1 * level,
                        held_s=2.0 * level,
                        held_tokens=20,
                    )
                    for e in range(N)
                    for level in (1, 8, 32)
                ]
            )
            if request.param == "pooled" and cell.num_draft:
                for block in "ab":
                    store.append([PooledRecord(cell.key, "server", 3, 60, 20, 60, 40, block)])
        store.compact()
    return request.param, folder


def test_they_are_read_back_as_nulls(served):
    kind, folder = served
    results = read(folder)
    pairs = results.generations[results.generations["num_draft"] > 0]
    assert pairs[["tv_sum", "expected_sum", "bias_sum"]].isna().all().all()
    counts = pairs[["rounds", "drafted", "examined", "accepted", "replaced", "bonus"]]
    assert counts.isna().all().all() == (kind == "pooled")
    if kind != "pooled":
        assert (pairs["accepted"] + pairs["replaced"] + pairs["bonus"] == pairs["tokens"]).all()
    keys = set(pairs["cell"])
    assert results.rounds["cell"].isin(keys).any() == (kind != "pooled")
    assert results.tokens.loc[results.tokens["cell"].isin(keys), "draft_ids"].isna().all()
    assert next(iter(results.provenance.values()))["servers"] == [{"url": "http://h:1", "version": "0.32.0"}]
    assert not results.problems


def test_a_summary_has_what_is_known(served):
    kind, folder = served
    frame = summarise(read(folder))
    pairs = frame[frame["num_draft"] > 0]
    assert pairs[["acceptance_expected", "bias", "tv"]].isna().all().all()
    assert pairs["quality"].notna().all()
    assert pairs.loc[pairs["verifier"] == "ensemble", "difference"].notna().all()
    assert pairs["acceptance"].isna().all() == (kind == "pooled")
    pooled = pairs[["pooled_block_acceptance", "pooled_tokens_per_step"]].dropna()
    assert len(pooled) == (len(pairs) if kind == "pooled" else 0)
    if kind == "pooled":
        assert pooled.to_numpy().tolist() == [[pytest.approx(2 / 3), pytest.approx(3)]] * len(pairs)
        assert set(pairs["pooled_from"]) == {"server"}


def test_speed_under_load_is_over_the_target_at_the_same_level(served):
    _, folder = served
    table = load_table(read(folder).loads)
    assert set(table["concurrency"]) == {1, 8, 32}
    verifier = read(folder).cells.set_index("cell")["verifier"]
    alone = table[table["cell"].map(verifier) == "target"]
    assert alone["speedup_user"].tolist() == pytest.approx([1, 1, 1])
    first = table[table["concurrency"] == 1].set_index("cell")
    assert first["tokens_per_s_user"].max() == pytest.approx(200)
    assert (table["tokens_per_s_all"] * table["concurrency"]).tolist() == pytest.approx([60] * len(table))
    assert first["overhead"].between(-1, 1).all()


@pytest.mark.slow
def test_the_whole_report_is_made_of_them(served):
    kind, folder = served
    report = write(worked_out([folder]))
    names = {path.name for path in (*report.figures, *report.tables)}
    assert "load.svg" in names
    assert "load.csv" in names
    page = report.page.read_text()
    assert "lossless" in page
    assert pd.read_csv(folder / "tables" / "load.csv")["speedup_user"].notna().all()
    assert ("acceptance.svg" in names or "pareto.svg" in names) == (kind != "pooled")
