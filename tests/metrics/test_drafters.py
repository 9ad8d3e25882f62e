"""Several drafters in one folder: their names, curves, baselines and prices."""

import numpy as np
import pandas as pd
import pytest

import sdbench
from sdbench.metrics import acceptance, speed
from sdbench.metrics.cells import reference, table_of
from sdbench.metrics.safety import sequences
from sdbench.metrics.summary import summarise
from sdbench.metrics.text import names_of
from sdbench.report.build import worked_out, write
from tests.records.synthetic import DRAFT_S, LOOKUP_S, TARGET_S, write_synthetic

LOOKUP, LONGER = ({"name": "lookup", "shortest": 2, "longest": longest} for longest in (8, 12))
LABELS = ["model", "lookup longest=8", "lookup longest=12"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    home = tmp_path_factory.mktemp("drafters") / "home"
    return write_synthetic(
        home, n=8, ws=(0.3, 0.7), num_drafts=(3, 5), timing_examples=4, drafters=("model", LOOKUP, LONGER)
    )


@pytest.fixture(scope="module")
def results(folder):
    return sdbench.read(folder)


def test_no_two_cells_have_equal_names(results):
    table = table_of(results.cells)
    for is_short in (False, True):
        names = names_of(table, is_short=is_short)
        assert len(set(names.values())) == len(names), names
    assert {f"lossless {drafter} K=5" for drafter in LABELS} < set(names_of(table).values())


def test_one_drafter_is_not_named(tmp_path):
    for number, drafter in enumerate(("model", LOOKUP)):
        home = write_synthetic(tmp_path / f"{number}", n=2, ws=(0.3,), timing_examples=0, drafters=(drafter,))
        names = set(names_of(table_of(sdbench.read(home).cells)).values())
        assert names == {"target alone", "draft alone", "lossless K=5", "ensemble w=0.3 K=5"}


@pytest.mark.slow
def test_records_and_summary_have_a_column(results):
    assert {"model", "lookup"} == set(results.generations["drafter"].dropna())
    summary = summarise(results, resamples=100)
    assert set(summary["drafter"].dropna()) == set(LABELS)
    assert summary.loc[summary["verifier"] == "target", "drafter"].isna().all()
    assert (summary["drafted_per_round"].dropna() <= 5).all()


@pytest.mark.parametrize("excess", [1.2e-7, 2.6e-5])
def test_probabilities_that_are_rounded_beyond_one_count_as_one(results, excess):
    """Distributions in float32 sum to 1 within 1e-7 over few ids, and within 3e-5 over 150,000."""
    part = results.generations[results.generations["drafter"] == "lookup"]
    part = part[part["cell"] == part["cell"].iloc[0]]
    rounded = part.assign(expected_sum=part["examined"] * (1 + excess))
    assert acceptance.rates(rounded)["acceptance_expected"].value == 1.0


@pytest.mark.parametrize(
    ("law", "is_exact"), [("exact/2", True), ("ensemble/2", True), ("sure/2", False), ("within/2", False), ("", False)]
)
def test_nothing_spared_is_an_exact_zero_under_a_rule_that_judges_every_draft(results, law, is_exact):
    part = results.generations[results.generations["verifier"] == "ensemble"]
    spared = acceptance.rates(part[part["cell"] == part["cell"].iloc[0]], law=law)["spared"]
    assert spared.value == spared.low == 0
    assert (spared.high == 0) == is_exact


def test_the_baseline_of_a_setting_is_lossless_with_its_drafter_and_length(results):
    table = table_of(results.cells)
    for key, cell in table[table["verifier"] == "ensemble"].iterrows():
        base = table.loc[reference(table, key, "lossless")]
        assert tuple(base[["verifier", "drafter", "num_draft"]]) == ("lossless", cell["drafter"], cell["num_draft"])
        assert reference(table, key, "target") == table.index[table["verifier"] == "target"][0]
    without = table[~((table["verifier"] == "lossless") & (table["drafter"] != "model"))]
    other = without.index[(without["drafter"] == LABELS[1]) & (without["num_draft"] == 3)][0]
    base = without.loc[reference(without, other, "lossless")]
    assert tuple(base[["drafter", "num_draft"]]) == ("model", 3), "the distribution is that of any other drafter"


def test_what_has_no_drafter_is_compared_with_the_shortest_lossless_drafts_of_the_pairs_own_draft(results):
    table = table_of(results.cells)
    for order in (table, table[::-1]):
        for key in table.index[table["verifier"].isin(["target", "draft"])]:
            base = order.loc[reference(order, key, "lossless")]
            assert tuple(base[["drafter", "num_draft"]]) == ("model", 3)


def test_of_other_draft_lengths_the_nearest_is_the_baseline(results):
    table = table_of(results.cells)
    table = table[table["drafter"] == "model"]
    strict = table["verifier"] == "lossless"
    table.loc[strict, "num_draft"] = [2, 9]
    for order in (table, table[::-1]):
        for key, length in table.loc[table["verifier"] == "ensemble", "num_draft"].items():
            assert order.at[reference(order, str(key), "lossless"), "num_draft"] == 2, length
    table.loc[strict, "num_draft"] = [2, 4]
    assert {
        length: table.at[reference(table, str(key), "lossless"), "num_draft"]
        for key, length in table.loc[table["verifier"] == "ensemble", "num_draft"].items()
    } == {3: 2, 5: 4}, "of two at one distance the shorter"


@pytest.mark.slow
def test_each_drafter_is_a_curve_and_a_sequence_of_tests(folder):
    work = worked_out([folder])
    (sweep,) = work.sweeps
    assert set(sweep.curves) == {f"{drafter} K={k}" for drafter in LABELS for k in (3, 5)}
    for name in sweep.curves:
        end = sweep.strict_end(name)
        assert f"{end['drafter'].iloc[0]} K={end['num_draft'].iloc[0]}" == name
    swept = sweep.cells[sweep.cells["verifier"] == "ensemble"]
    assert sorted(map(len, sequences(swept))) == [2] * 6


@pytest.mark.slow
def test_the_report_of_three_drafters_names_each(folder, tmp_path):
    report = write(worked_out([folder]), tmp_path)
    page = report.page.read_text(encoding="utf-8")
    for drafter in LABELS:
        assert f"ensemble w=0.7 {drafter} K=5" in page
    assert {"pareto", "pareto_speed", "predicted"} <= {path.stem for path in report.figures}
    predicted = pd.read_csv(tmp_path / "tables" / "predicted.csv")
    assert set(predicted["drafter"]) == set(LABELS)


def test_a_modelled_speed_takes_the_price_of_its_drafter_and_the_width_of_its_blocks(results):
    for name, price in (("model", DRAFT_S), ("lookup", LOOKUP_S)):
        part = results.generations[(results.generations["drafter"] == name) & (results.generations["num_draft"] == 5)]
        part = part[part["cell"] == part["cell"].iloc[0]]
        calls = speed.prices_of(results, part).assign(machine="any")
        assert set(calls.loc[calls["kind"] == "draft", "drafter"]) == {name}
        dear = calls.assign(seconds=np.where(calls["kind"] == "verify", 0.004 * calls["tokens"], calls["seconds"]))
        sums = part[["tokens", "rounds", "drafted"]].sum()
        width = min(max(1 + sums["drafted"] / sums["rounds"], 4.0), 6.0)  # between the sizes that were measured
        seconds = sums["drafted"] * price * 1.0 + sums["rounds"] * 0.004 * width
        pace = calls.loc[calls["kind"] == "draft", "seconds"].iloc[0] / price  # of the split repeat
        cheap = speed.modelled_speedup(part, dear.assign(seconds=dear["seconds"].where(dear["kind"] != "draft", price)))
        assert pace == pytest.approx(1, abs=0.1)
        assert cheap.value == pytest.approx(sums["tokens"] * TARGET_S / seconds, rel=0.01)


def test_a_pass_that_did_not_price_a_drafter_says_nothing_about_it(results):
    part = results.generations[results.generations["drafter"] == "lookup"]
    first = part.iloc[0]
    labels = results.calls, results.timings, first["model"], first["task"]
    assert speed.prices(*labels, "suffix").empty
    assert not speed.prices(*labels, "lookup").empty
    unnamed = results.calls[results.calls["drafter"].isin(["", "model"])].assign(drafter="")
    assert not speed.prices(unnamed, *labels[1:], "lookup").empty, "records of before: a pass had one drafter"
