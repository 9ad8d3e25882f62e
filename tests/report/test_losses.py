"""Which examples lose, how, and whether lossless scores as the target does: recomputed from the records."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import lxml.html
import numpy as np
import pandas as pd
import pytest

from sdbench.metrics.divergence import EqualTexts
from sdbench.metrics.recommend import recommend
from sdbench.metrics.summary import summarise
from sdbench.passes.finish import print_equal_texts
from sdbench.records import Store, read
from sdbench.report.page.facts import check_lossless, facts_of, warnings_of
from sdbench.report.page.verdicts import losses_of
from sdbench.report.sweep import sweeps_of
from tests.records.synthetic import Shape, write_synthetic
from tests.records.synthetic import sweep as sweep_cells
from tests.report.pages import MODEL, TASK, write


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return write_synthetic(tmp_path_factory.mktemp("losses") / "home", n=60, ws=(0.1, 0.7), timing_examples=6)


@pytest.fixture(scope="module")
def sweep(home):
    return only_sweep(home)


def only_sweep(home):
    results = read(home)
    (sweep,) = sweeps_of([results], [summarise(results, resamples=50)])
    return sweep


def test_the_bars_count_every_example_and_the_worst_are_those_that_lose(sweep):
    keys = sweep.cells.set_index("label").assign(key=list(sweep.cells.index))["key"]
    key, base = keys["ensemble w=0.1 K=5"], keys["lossless K=5"]
    detail = losses_of(sweep, key)
    scores = sweep.results.generations.set_index(["cell", "example"])[sweep.metric.name]
    change = scores[key] - scores[base]
    counts = {text: count for text, count, _ in detail.bars}
    assert sum(counts.values()) == len(change) == 60
    assert counts["unchanged"] == (change == 0).sum()
    assert counts["lost 50 or more"] == (change < 0).sum() > 0
    assert len(detail.worst) == min(10, (change < 0).sum())
    assert all(change[loss.example] < 0 for loss in detail.worst)
    assert all(loss.kind and loss.change == "−100.0" for loss in detail.worst)
    assert losses_of(sweep, base) is None, "lossless loses nothing against itself"


def test_the_kinds_are_the_flags_of_the_texts(sweep):
    key = sweep.cells.index[sweep.cells["label"] == "ensemble w=0.1 K=5"][0]
    rows = sweep.results.generations[sweep.results.generations["cell"] == key].set_index("example")
    for loss in losses_of(sweep, key).worst:
        if loss.kind == "truncated":
            assert rows.at[loss.example, "is_truncated"]
        if loss.kind == "wrong result":
            assert not rows.at[loss.example, "is_truncated"]


def test_lossless_is_checked_against_the_target_alone(sweep):
    text, is_odd = check_lossless(sweep)
    row = sweep.points[sweep.points["verifier"] == "lossless"].iloc[0]
    assert is_odd == (not row["difference_from_target_low"] <= 0 <= row["difference_from_target_high"])
    assert text.startswith("a difference beyond noise" if is_odd else "no difference is shown")
    assert "lossless K=5: " in text


@pytest.mark.parametrize(
    ("cut", "sentence"),
    [
        (
            ["ensemble w=0.1 K=5"],
            "ensemble w=0.1 K=5 (n=40). A cell with fewer than 50 examples is left out of the recom",
        ),
        (["draft alone"], "draft alone (n=40). A cell with fewer than 50 examples is left out of the recommendation."),
        (["lossless K=5"], "40 examples in the smallest cell. Below 50 nothing is recommended."),
        (["ensemble w=0.1 K=5", "ensemble w=0.7 K=5"], "40 examples in the smallest cell. Below 50 nothing is recomm"),
        ([], ""),
    ],
)
def test_a_warning_of_few_examples_does_not_contradict_the_recommendation(home, cut, sentence):
    """With one unfinished setting it said that nothing is recommended, beside a recommendation of another."""
    keys = only_sweep(home).cells.reset_index().set_index("label")["cell"]
    results = read(home)
    frame = results.generations
    first = sorted(set(frame["example"]))[:40]
    results.__dict__["generations"] = frame[~frame["cell"].isin(keys[cut]) | frame["example"].isin(first)]
    (sweep,) = sweeps_of([results], [summarise(results, resamples=50)])
    (advice,) = recommend(results, 20.0, resamples=50).advices
    small = [text for text in warnings_of(sweep) if text.startswith("n is small")]
    assert len(small) == bool(cut)
    assert all(text.startswith(f"n is small: {sentence}") for text in small)
    assert bool(advice.tests) == all("nothing is recommended" not in text for text in small)


def test_the_page_shows_losses_times_of_answers_and_examples_needed(home):
    tree = lxml.html.document_fromstring(write(home, margin=5.0).read_text(encoding="utf-8"))
    bars = tree.xpath("//table[@class='histogram']//td[1]/text()")
    assert sum(map(int, bars)) == 60
    assert tree.xpath("//ol[@class='worst']/li/a/@data-example")
    table = tree.xpath("//table[caption='How long an answer takes']")[0]
    heads = [" ".join(head.text_content().split()) for head in table.xpath(".//th[@scope='col']")]
    assert {"Answer, p50 ms", "Answer, p95 ms"} <= set(heads)
    steps = tree.xpath("//table[@class='ladder']//tbody/tr")
    assert "Examples needed at margin 5" in tree.xpath("//table[@class='ladder']//th/text()")
    assert {row.get("class") for row in steps} >= {"failed"}
    needed = {row.get("class"): row.xpath("string(td[@class='needed'])") for row in steps}
    assert needed["failed"], "of every refused setting"
    assert not needed.get("passed")
    assert "Lossless against the target alone" in tree.xpath("string(//section[@id='run'])")


def test_times_of_answers_are_those_of_the_latency_pass(sweep):
    timings = sweep.results.timings[~sweep.results.timings["is_split"].astype(bool)]
    key = sweep.answer_times.index[0]
    rows = timings[timings["cell"] == key]
    seconds = (rows["prefill_s"] + rows["decode_s"]).groupby(rows["example"]).mean()
    assert sweep.answer_times.at[key, "answer_p50_s"] == pytest.approx(np.median(seconds))
    assert sweep.answer_times.at[key, "answer_p95_s"] == pytest.approx(np.quantile(seconds, 0.95))


@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_texts_that_differ_from_the_target_s_own_are_rounding_in_half_precision_and_a_fault_elsewhere(
    dtype, tmp_path, capsys
):
    """One of twelve lossless texts parts at its third token: a warning in bfloat16, among the failures in float64."""
    home, cells = tmp_path / "home", sweep_cells(MODEL, TASK, ws=(0.5,), num_drafts=(5,), temperature=0.0)
    cells = [replace(cell, content={**cell.content, "dtype": dtype}) for cell in cells]
    with Store.open(home, config={"model": MODEL}, provenance={}) as store:
        store.add_cells(cells)
        for example in map(str, range(12)):
            rows = {cell.verifier: Shape(48).decode(cell, example) for cell in cells}
            ids = np.asarray(rows["target"].ids).copy()
            ids[2] += example == "7"
            rows["lossless"] = replace(rows["lossless"], ids=ids)
            store.append_generations(list(rows.values()))
    (compared,) = only_sweep(home).equal_texts
    count = f"lossless K=5 equals the target alone in 11 of 12 texts ({dtype})"
    assert compared.text.startswith(f"{count}; the earliest difference is at token 3, in example 7: ")
    assert compared.is_fault == (dtype == "float64")
    tree = lxml.html.document_fromstring(write(home).read_text(encoding="utf-8"))
    notices = tree.xpath("//div[@id='warnings']")[0]
    failures, warnings = (
        "".join(notices.xpath("./ul[@class='failures']//text()")),
        notices.xpath("string(./ul[not(@class)])"),
    )
    assert (compared.text in failures, compared.text in warnings) == (compared.is_fault, not compared.is_fault)
    assert count in tree.xpath("string(//section[@id='run'])")
    print_equal_texts([only_sweep(home)])
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == (
        ("", f"sdbench: FAULT: {compared.text}\n") if compared.is_fault else (f"{compared.text}\n", "")
    )


@pytest.mark.parametrize(
    ("num_measured", "num_beyond", "begin"),
    [
        (0, 0, "possibly rounding of near-ties, "),
        (64, 0, "rounding in 64 of 76 texts: the logits of the two tokens are up to 0.1 apart where texts part, "),
        (64, 2, "a fault in 2 of 76 texts: "),
        (76, 0, "rounding: the logits of the two tokens are up to 0.1 apart where texts part, "),
    ],
)
def test_texts_whose_margin_was_not_measured_are_counted(num_measured, num_beyond, begin):
    compared = EqualTexts("lossless K=5", "bfloat16", 88, 164, 3, "7", num_measured, num_beyond, 0.1, 0.5)
    assert f"in example 7: {begin}" in compared.text
    rest = (
        f"the difference of logits was not measured for {76 - num_measured} of 76 texts "
        "(with engine=native, repeating the command measures the next ones)"
    )
    assert (rest in compared.text) == (num_measured < 76)
    assert ("not measured" in compared.text) == (num_measured < 76)


def test_the_quantisation_of_a_gguf_file_stands_among_the_facts(tmp_path):
    (cell,) = (cell for cell in sweep_cells(MODEL, TASK, ws=(0.5,), num_drafts=(5,), temperature=1.0) if cell.w)
    files = {
        role: f"sha256:0123456789abcdef0123 ({kind} GGUF)" for role, kind in (("target", "Q4_K_M"), ("draft", "Q8_0"))
    }
    with Store.open(tmp_path / "home", config={"model": {"name": MODEL, "target": "x.gguf"}}, provenance={}) as store:
        store.add_cells([replace(cell, checkpoints=files)])
        store.append_generations([Shape(16).decode(replace(cell, checkpoints=files), "0")])
    facts = dict(facts_of(only_sweep(tmp_path / "home")))
    assert facts["Target"] == f"x.gguf, {files['target']}"
    assert "(Q8_0 GGUF)" in facts["Draft"]


def test_settings_whose_texts_all_equal_the_targets_stand_in_one_line(capsys):
    names = ["lossless K=3", "lossless K=5"]
    sweep: Any = SimpleNamespace(
        cells=pd.DataFrame(index=["a"]), equal_texts=[EqualTexts(name, "float32", 12, 12, 0, "") for name in names]
    )
    print_equal_texts([sweep])
    assert capsys.readouterr().out == (
        "lossless K=3, lossless K=5: each equals the target alone in 12 of 12 texts (float32)\n"
    )


def test_one_example_shows_no_difference_beyond_noise(tmp_path):
    """A difference of one example has no interval, and nothing is said of it."""
    home = write_synthetic(tmp_path / "one", n=1, ws=(0.5,), timing_examples=0)
    results = read(home)
    (sweep,) = sweeps_of([results], [summarise(results, resamples=200)])
    assert check_lossless(sweep) == ("", False)
    assert not [warning for warning in warnings_of(sweep) if "beyond noise" in warning]
