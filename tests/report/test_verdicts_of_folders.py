"""The page's verdicts where a folder has several sweeps, and its ranges of losses."""

from dataclasses import replace
from pathlib import Path

import lxml.html
import numpy as np
import pytest

from sdbench.metrics.divergence import share
from sdbench.metrics.recommend import recommend
from sdbench.metrics.summary import summarise
from sdbench.metrics.theory import laws
from sdbench.records import GenerationRecord, Store, read
from sdbench.report.build import worked_out, write
from sdbench.report.page import write_page
from sdbench.report.page.verdicts import losses_of, match_advice
from sdbench.report.sweep import Sweep, sweeps_of
from sdbench.types import Metric
from tests.records.synthetic import Shape, cell, sweep, write_synthetic

N = 60


def cut(record: GenerationRecord) -> GenerationRecord:
    return replace(record, flags={**record.flags, "is_truncated": True})


def as_is(record: GenerationRecord) -> GenerationRecord:
    return replace(record, flags={**record.flags, "is_truncated": False})


@pytest.mark.parametrize("unreadable", [128, 512])
def test_a_verdict_stands_under_its_sweep_if_another_length_cannot_be_decided(tmp_path: Path, unreadable: int):
    """It stood under the shortest length: the sweep that it is about had no verdict, the shortest had two."""
    with Store.open(tmp_path / "home", config={}, provenance={}) as store:
        for length in (128, 512):
            cells = sweep("a", "gsm8k-tiny", ws=(0.3, 0.7), num_drafts=(5,), temperature=1.0)
            asked = {"name": "gsm8k-tiny", "padding": {"to": length, "with": "x"}}
            cells = [replace(each, content={**each.content, "task": asked}) for each in cells]
            store.add_cells(cells)
            change = cut if length == unreadable else as_is
            store.append_generations([change(Shape(16).decode(each, f"{i}")) for each in cells for i in range(N)])
    results = read(tmp_path / "home")
    sweeps = sweeps_of([results], [summarise(results, resamples=50)])
    matched = match_advice(sweeps, [results], [recommend(results, margin=40, resamples=200)])
    assert {each.sweep.padded_to: "cannot tell" in each.advice.text for each in matched} == {
        length: length == unreadable for length in (128, 512)
    }


def test_at_a_fixed_speed_no_error_of_a_loss_is_stated(tmp_path: Path):
    """The page said that a loss beyond the margin is rare, and recommended joint=true, which refuses speed=."""
    home = write_synthetic(tmp_path / "two", models=("a", "b"), n=55, ws=(0.5,), repeats=1)
    work = worked_out([home], speed=1.2)
    tree = lxml.html.parse(write_page(home, work.results, work.sweeps, work.advice)).getroot()
    assert not tree.xpath("//*[@id='errors']")
    assert "joint=true" not in tree.xpath("string(//section[@id='recommendation'])")
    assert "No loss is tested against a margin" in tree.xpath("normalize-space(//*[@id='fixed-speed'])")
    sentences = tree.xpath("//p[@data-part='sentence']")
    assert len(sentences) == 2
    assert all("limits at 97.5 % each, since 2 settings were timed" in each.text_content() for each in sentences)


def test_the_chance_of_an_error_includes_the_decision_on_pooled_seeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    homes = [write_synthetic(tmp_path / f"s{seed}", n=55, ws=(0.9,), timing_examples=0, seed=seed) for seed in (0, 1)]
    work = worked_out(homes)
    assert (len(work.together), work.num_pooled, worked_out(homes[:1]).num_pooled) == (1, 1, 0)
    for name in ("write_tables", "write_figures"):
        monkeypatch.setitem(write.__globals__, name, lambda *_: ())
    tree = lxml.html.parse(write(work, tmp_path / "page").page).getroot()
    text = tree.xpath("normalize-space(//*[@id='errors'])")
    assert "With 3 of them on this page, pooled seeds included, the chance" in text
    assert "is up to 7.5\xa0%" in text
    assert worked_out(homes, speed=1.2).num_pooled == 0, "of a loss nothing is tested"


def scored(home: Path, metric: Metric, values: dict[str, list[float]]) -> tuple[Sweep, str]:
    """A sweep of lossless and w = 0.3 with these scores of each example's texts, and the key of w = 0.3."""
    cells = {
        name: replace(
            cell("a", "gsm8k-tiny", name, w=0.3 if name == "ensemble" else None),
            metric=metric.name,
            metrics=[metric.to_json()],
        )
        for name in ("lossless", "ensemble")
    }
    with Store.open(home, config={}, provenance={}) as store:
        store.add_cells(list(cells.values()))
        for name, point in cells.items():
            for sample, score in enumerate(values[name]):
                record = Shape(16).decode(point, "0", sample)
                store.append_generations([replace(record, scores={metric.name: score}, stats={})])
    results = read(home)
    (only,) = sweeps_of([results], [summarise(results, resamples=50)])
    return only, cells["ensemble"].key


def test_an_example_that_loses_half_of_its_texts_lost_50_points(tmp_path: Path):
    only, key = scored(tmp_path / "home", Metric("strict", "share"), {"lossless": [1, 1], "ensemble": [1, 0]})
    detail = losses_of(only, key)
    assert detail is not None
    assert [name for name, count, _ in detail.bars if count] == ["lost 50 or more"]


def test_losses_of_a_bounded_raw_score_are_points_of_its_range(tmp_path: Path):
    rating = Metric("rating", "raw", bounds=(1.0, 5.0))
    only, key = scored(tmp_path / "home", rating, {"lossless": [5], "ensemble": [1]})
    detail = losses_of(only, key)
    assert detail is not None
    assert [name for name, count, _ in detail.bars if count] == ["lost 50 or more"]
    assert detail.worst[0].change.endswith("100.0")


def test_the_ensembles_theory_is_not_stated_for_the_greedy_blend(tmp_path: Path):
    for temperature in (0.0, 1.0):
        home = write_synthetic(tmp_path / f"T{temperature:g}", n=4, temperature=temperature, timing_examples=0)
        frame = laws(summarise(read(home), resamples=50))
        assert len(frame)
        assert frame["acceptance_law"].notna().all() == (temperature > 0)
        assert frame["acceptance_law"].isna().all() == (temperature == 0)


def test_lengths_and_shares_have_no_interval_beyond_what_is_possible(tmp_path: Path):
    """One answer at the limit among short ones: the conservative lower limit of the mean was below zero tokens."""
    point = cell("a", "gsm8k-tiny", "lossless")
    with Store.open(tmp_path / "home", config={}, provenance={}) as store:
        store.add_cells([point])
        shapes = {**{f"{i}": Shape(8) for i in range(1, 40)}, "0": Shape(1024)}
        store.append_generations([shape.decode(point, example) for example, shape in shapes.items()])
    row = summarise(read(tmp_path / "home"), resamples=200).iloc[0]
    assert 0 <= row["mean_tokens_low"] < row["mean_tokens"]
    estimate = share(np.array([0.5] + 39 * [0.0]), resamples=200)
    assert 0 <= estimate.low < estimate.value < estimate.high <= 1
    assert share(np.full(10, 0.5), resamples=200).low >= 0
