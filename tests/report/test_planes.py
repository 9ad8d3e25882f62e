"""A figure says what it leaves open: settings with too few shared examples, n that differs, which of several curves it draws."""

from dataclasses import replace

import numpy as np
import pytest
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_hex

import sdbench
from sdbench.metrics.summary import summarise
from sdbench.records import Store
from sdbench.report import frames
from sdbench.report.figures import decode, planes, theory
from sdbench.report.figures.style import FAINT, house_style
from sdbench.report.sweep import MOST_NAMED, sweeps_of
from tests.records.synthetic import Shape, write_synthetic
from tests.records.synthetic import sweep as sweep_cells

GRID = {"num_drafts": (3,), "temperature": 1.0}


def sweep_in(home):
    results = sdbench.read(home)
    (sweep,) = sweeps_of([results], [summarise(results, resamples=50)])
    return sweep


@pytest.fixture(scope="module")
def extended(tmp_path_factory):
    """Three weights on 10 examples, of which lossless and w=0.5 were then continued to 60."""
    home = tmp_path_factory.mktemp("extended") / "home"
    write_synthetic(home, n=10, ws=(0.3, 0.5, 0.7), timing_examples=0, max_new_tokens=16, **GRID)
    cells = sweep_cells("llama-tiny", "gsm8k-tiny", ws=(0.5,), **GRID)
    with Store.open(home, config={}, provenance={}) as store:
        stored = {cell.key for cell in cells} & set(sdbench.read(home).cells["cell"])
        more = [cell for cell in cells if cell.num_draft and cell.key in stored]
        store.append_generations([Shape(16).decode(cell, str(i)) for cell in more for i in range(10, 60)])
    return sweep_in(home)


def test_a_setting_with_too_few_shared_examples_is_pale_and_in_the_table_without_a_verdict(extended):
    left_out = set(extended.unjudged_of("acceptance"))
    assert set(extended.rows.loc[list(left_out), "value"]) == {0.3, 0.7}
    table = frames.front(extended).set_index("cell")
    assert set(table.index) == set(extended.placed["acceptance"])
    assert set(table.index[table["probability"].isna()]) == left_out == set(table.index[table["is_on_front"].isna()])
    assert table.loc[list(left_out), ["x", "y"]].notna().all(axis=None)
    with house_style():
        figure = planes.plane_figure(extended, "acceptance")
    (axis,) = figure.axes
    assert "pale: too few shared examples" in axis.get_title(loc="left")
    assert axis.get_title(loc="right") == "n = 10–60 is small"
    pale = [line for line in axis.lines if to_hex(line.get_color()) == FAINT]
    assert sorted(np.concatenate([line.get_xdata() for line in pale])) == sorted(table.loc[list(left_out), "x"])


def test_a_retention_is_over_lossless_on_the_examples_that_both_have(extended):
    """A difference over 10 examples was divided by the score of lossless on 60."""
    scores = extended.results.generations.pivot(index="example", columns="cell", values=extended.metric.name)
    (lossless,) = extended.cells.index[extended.cells["verifier"] == "lossless"]
    table = frames.retention(extended).set_index("cell")
    for key, row in table.iterrows():
        pair = scores[[key, lossless]].dropna().mean()
        assert row["retention"] == pytest.approx(pair[key] / pair[lossless])
    assert set(scores[table.index].count()) == {10, 60}


def test_where_less_is_better_there_is_no_retention(extended, monkeypatch):
    """A fifth more errors was a retention of 1.2."""
    assert len(frames.retention(extended)) == 3
    monkeypatch.setattr(type(extended), "metric", replace(extended.metric, best="low"))
    assert frames.retention(extended).empty


@pytest.fixture(scope="module")
def drafters(tmp_path_factory):
    home = tmp_path_factory.mktemp("drafters") / "home"
    write_synthetic(
        home, n=4, ws=(0.3, 0.7), drafters=("model", "lookup"), timing_examples=0, max_new_tokens=16, **GRID
    )
    return sweep_in(home)


def test_a_figure_of_one_of_several_curves_names_it(drafters, extended):
    assert len(drafters.curves) == 2
    with house_style():
        named, alone = decode.positions(drafters), decode.positions(extended)
    assert named.get_suptitle() in drafters.curves
    assert alone.get_suptitle() == ""


def test_the_line_of_the_bound_holds_for_a_single_lossless_run(drafters, extended):
    with house_style():
        several, alone = theory.bound(drafters).axes[0], theory.bound(extended).axes[0]
    assert [
        len([part for part in axis.collections if isinstance(part, PolyCollection)]) for axis in (several, alone)
    ] == [0, 1]
    labels = [
        [text.get_text() for legend in axis.figure.legends for text in legend.get_texts()] for axis in (several, alone)
    ]
    assert [any(label.startswith("bound, contexts") for label in each) for each in labels] == [False, True]


def test_without_a_plane_the_first_curves_are_named(extended):
    """Of a server that pools its counts, with timing=off, seven curves ended the report with an error."""
    sweep = replace(extended, rows=extended.rows.assign(acceptance=np.nan))
    sweep.__dict__["curves"] = dict.fromkeys("abcdefg", sweep.swept)
    assert sweep.leading == tuple("abcdefg")[:MOST_NAMED]
