"""Sweeps that differ in the length of their prompts alone: one table and one figure of them."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pandas as pd
import pytest

from sdbench.metrics.summary import summarise
from sdbench.records import Results, Store, read
from sdbench.report.figures.inputs import _curves as curves_of
from sdbench.report.figures.inputs import against_input
from sdbench.report.figures.style import house_style
from sdbench.report.inputs import RATES, input_lengths
from sdbench.report.sweep import Sweep, sweeps_of
from tests.records.synthetic import Shape, timings
from tests.records.synthetic import sweep as sweep_cells

WS = (0.3, 0.7)
LENGTHS = (128, 512, 4096)


def write(
    home: Path,
    lengths=LENGTHS,
    is_timed: bool = True,
    engine: object = None,
    draft: str = "",
    drafter: str = "model",
    num_drafts: Sequence[int] = (5,),
    n: int = 6,
    **options: object,
) -> Path:
    """A folder with the same settings at several lengths; prompts have about as many tokens."""
    server = {"engine": engine} if engine else {}
    with Store.open(home, config={}, provenance={}) as store:
        for length in lengths:
            cells = sweep_cells("a", "gsm8k-tiny", ws=WS, num_drafts=num_drafts, temperature=1.0, drafters=(drafter,))
            if draft:
                target = {"target": cells[0].checkpoints["target"]}
                cells = [
                    replace(cell, checkpoints=target | ({} if cell.verifier == "target" else {"draft": draft}))
                    for cell in cells
                ]
            asked = {"name": "gsm8k-tiny", **options, "padding": {"to": length, "with": "x"}}
            cells = [replace(cell, content={**cell.content, **server, "task": asked}) for cell in cells]
            store.add_cells(cells)
            for cell in cells:
                for example in map(str, range(n)):
                    shape = Shape(16)
                    record = replace(shape.decode(cell, example), prompt_tokens=length - int(example))
                    store.append_generations([record])
                    if is_timed and cell.verifier != "draft":
                        store.append(timings(cell, record, pass_id=f"{length}", repeats=1, shape=shape))
    return home


def sweeps(*homes: Path) -> list[Sweep]:
    results: list[Results] = [read(home) for home in homes]
    return sweeps_of(results, [summarise(each, resamples=50) for each in results])


@pytest.fixture(scope="module")
def one_folder(tmp_path_factory):
    return write(tmp_path_factory.mktemp("inputs") / "home")


def test_a_table_has_every_setting_at_every_length(one_folder):
    (group,) = input_lengths(sweeps(one_folder))
    assert group.table.groupby("padded_to")["verifier"].count().to_dict() == dict.fromkeys(LENGTHS, 5)
    mean = group.table.groupby("padded_to")["input_tokens"].mean()
    assert mean.tolist() == pytest.approx([length - 2.5 for length in LENGTHS])
    timed = group.table[group.table["ms_per_token"].notna()]
    assert set(timed["verifier"]) == {"target", "lossless", "ensemble"}
    assert (timed["ms_per_token_low"] <= timed["ms_per_token"]).all()
    assert (timed["ms_per_token"] <= timed["ms_per_token_high"]).all()


def test_the_table_has_the_quality_as_it_is_stored(one_folder):
    """It had per cent, unlike summary.csv."""
    (group,) = input_lengths(sweeps(one_folder))
    table = group.table.set_index("cell")
    for sweep in group.sweeps:
        for name in ("quality", "quality_low", "quality_high"):
            assert table.loc[sweep.rows.index, name].tolist() == sweep.rows[name].tolist()


def test_values_of_a_knob_that_is_not_w_are_curves_of_their_own(tmp_path):
    with Store.open(tmp_path / "home", config={}, provenance={}) as store:
        for length in LENGTHS[:2]:
            cells = sweep_cells("a", "gsm8k-tiny", ws=(), num_drafts=(5,), temperature=1.0, epsilons=(0.1, 0.4))
            asked = {"name": "gsm8k-tiny", "padding": {"to": length, "with": "x"}}
            cells = [replace(cell, content={**cell.content, "task": asked}) for cell in cells]
            store.add_cells(cells)
            store.append_generations([Shape(16).decode(cell, f"{i}") for cell in cells for i in range(3)])
    (group,) = input_lengths(sweeps(tmp_path / "home"))
    curves, _ = curves_of(group.table)
    labels = {curve.name: len(curve.cells) for curve in curves}
    assert {name for name in labels if "typical" in name} == {"typical eps=0.1 K=5", "typical eps=0.4 K=5"}
    assert set(labels.values()) == {2}


@pytest.mark.slow
def test_times_are_those_of_the_records(one_folder):
    (group,) = input_lengths(sweeps(one_folder))
    whole = read(one_folder).timings.query("not is_split")
    sums = whole.groupby("cell")[["decode_s", "tokens"]].sum()
    known = group.table.set_index("cell")["ms_per_token"].dropna()
    expected = 1000 * sums["decode_s"] / sums["tokens"]
    pd.testing.assert_series_equal(known.sort_index(), expected[known.index].sort_index(), check_names=False)


@pytest.mark.slow
def test_several_folders_make_the_same_curves_as_one(one_folder, tmp_path):
    homes = [write(tmp_path / f"home{length}", (length,)) for length in LENGTHS]
    (one,), (several,) = input_lengths(sweeps(one_folder)), input_lengths(sweeps(*homes))
    assert one.table[["cell", *RATES]].equals(several.table[["cell", *RATES]])


@pytest.mark.slow
def test_other_differences_than_length_are_other_curves(tmp_path):
    homes = [write(tmp_path / entropy, LENGTHS[:2], is_timed=False, entropy=entropy) for entropy in ("low", "high")]
    groups = input_lengths(sweeps(*homes))
    assert [len(group.sweeps) for group in groups] == [2, 2]
    with house_style():
        assert list(against_input(sweeps(*homes))) == ["inputs-a-gsm8k-tiny-T1", "inputs-a-gsm8k-tiny-T1-2"]


def test_servers_of_other_options_are_other_curves(tmp_path):
    """In one folder: before, lengths of the second server were left out, or joined to the curve of the first."""
    for args in ({}, {"quantization": "fp8"}):
        write(tmp_path / "home", LENGTHS[:2], is_timed=False, engine={"name": "vllm", "args": args})
    groups = input_lengths(sweeps(tmp_path / "home"))
    assert [len(group.sweeps) for group in groups] == [2, 2]


def test_one_length_has_no_figure(tmp_path):
    assert input_lengths(sweeps(write(tmp_path / "home", LENGTHS[:1], is_timed=False))) == []


@pytest.mark.slow
def test_a_figure_has_a_panel_for_each_measure_and_a_curve_for_each_setting(one_folder, tmp_path):
    with house_style():
        figures = against_input(sweeps(one_folder))
        untimed = against_input(sweeps(write(tmp_path / "home", is_timed=False)))
    (figure,) = figures.values()
    assert list(figures) == ["inputs"]
    assert [axis.get_ylabel() for axis in figure.axes] == ["acceptance", "strict (%)", "ms a token"]
    assert len(figure.legends[0].get_texts()) == 5
    assert [len(axis.lines) for axis in figure.axes] == [3, 5, 4]
    assert max(line.get_ydata().max() for line in figure.axes[1].lines) > 1, "in per cent"
    ticks = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    assert ticks == [f"{length - 2.5:,.0f}" for length in LENGTHS]
    assert [axis.get_ylabel() for axis in untimed["inputs"].axes] == ["acceptance", "strict (%)"]


@pytest.mark.slow
def test_names_of_lengths_do_not_lie_on_each_other(tmp_path):
    lengths = (100, 110, 120, 1000, 1900, 2000)
    with house_style():
        figure = against_input(sweeps(write(tmp_path / "home", lengths, is_timed=False)))["inputs"]
        boxes = [label.get_window_extent() for label in figure.axes[0].get_xticklabels()]
    assert len(boxes) >= 3
    assert all(left.x1 < right.x0 for left, right in pairwise(boxes))


def test_titles_and_files_name_the_lengths(one_folder):
    named = sweeps(one_folder)
    assert [sweep.title for sweep in named] == [f"a on gsm8k-tiny, padded to {length}" for length in LENGTHS]
    assert [sweep.suffix for sweep in named] == [f"a-gsm8k-tiny-{length}" for length in LENGTHS]


@pytest.mark.results
def test_the_committed_lengths_say_what_the_results_page_says():
    folder = Path(__file__).parents[2] / "results/inputs"
    table = pd.read_csv(folder / "inputs.csv").query("verifier in ['target', 'lossless', 'ensemble']")
    table = table.merge(pd.read_csv(folder / "summary.csv")[["cell", "difference"]], on="cell", validate="1:1")
    table["setting"] = table["w"].map("w={}".format).where(table["w"].notna(), table["verifier"])
    by = {name: rows.sort_values("padded_to") for name, rows in table.groupby("setting")}
    assert all((rows["n"] == 200).all() for rows in by.values())
    assert by["target"]["input_tokens"].round().tolist() == [114, 193, 293, 392]
    ends = {name: rows["acceptance"].iloc[[0, -1]].round(2).tolist() for name, rows in by.items() if name != "target"}
    assert ends == {"lossless": [0.49, 0.29], "w=0.7": [0.58, 0.42], "w=0.5": [0.78, 0.73]}
    losses = {name: (-100 * by[name]["difference"]).round(1) for name in ("w=0.5", "w=0.7")}
    assert [losses["w=0.5"].min(), losses["w=0.5"].max(), losses["w=0.7"].max()] == [9.3, 13.5, 0.9]
    assert by["lossless"]["speedup"].round(2).iloc[[0, -1]].tolist() == [0.98, 0.77]
    assert [round(by["w=0.5"]["speedup"].agg(end), 2) for end in ("min", "max")] == [1.49, 1.6]
    assert by["target"]["quality"].round(2).iloc[[0, -1]].tolist() == [0.86, 0.45]


@pytest.mark.results
def test_the_committed_lengths_of_the_real_pair_say_what_the_results_page_says():
    root = Path(__file__).parents[2] / "results"
    table, page = pd.read_csv(root / "inputs/qwen-coder-small-wmt.csv"), (root / "README.md").read_text()
    assert (table["n"] == 20).all()
    assert "Only 20 sentences a length" in page
    target = table[table["verifier"] == "target"]
    assert "502, 1,015 and 2,034 tokens" in page
    assert target["input_tokens"].round().tolist() == [502, 1015, 2034]
    assert target["quality"].round().between(29, 30).all()
    lossless = table[table["verifier"] == "lossless"].filter(regex="^acceptance").round(2).to_numpy().tolist()
    shown = [f"{value:.2f} [{low:.2f}, {high:.2f}]".replace("0.", ".") for value, low, high in lossless]
    assert f"lossless acceptance {shown[0]}, {shown[1]} and {shown[2]}" in page
    scores = {}
    for w in (0.7, 0.5):
        a, b, c = (f"{rate:.2f}"[1:] for rate in table.loc[table["w"] == w, "acceptance"])
        assert f"w = {w} {a}, {b} and {c}" in page
        scores[w] = table.loc[table["w"] == w, "quality"].to_numpy()
    scores["lossless"] = table.loc[table["verifier"] == "lossless", "quality"].to_numpy()
    of = {name: "{:.1f}, {:.1f} and {:.1f}".format(*values) for name, values in scores.items()}
    assert f"Lossless decoding scores {of['lossless']}, w = 0.7 {of[0.7]}, and w = 0.5 {of[0.5]}." in page
    losses = scores["lossless"] - scores[0.5]
    assert f"w = 0.5 scores {losses.min():.0f} to {losses.max():.0f} points lower" in page


@pytest.mark.results
def test_the_entropy_of_the_filler_changes_as_little_as_the_results_page_says():
    root = Path(__file__).parents[2] / "results"
    page, ends = (root / "README.md").read_text(), {}
    for entropy in ("low", "mixed"):
        table = pd.read_csv(root / f"inputs/entropy-{entropy}.csv").sort_values("padded_to")
        assert (table["n"] == 200).all()
        for name, rows in (("lossless", table[table["verifier"] == "lossless"]), ("w = 0.5", table[table["w"] == 0.5])):
            assert rows["padded_to"].tolist() == [120, 200, 300, 400]
            first, last = (f"{rate:.2f}"[1:] for rate in rows["acceptance"].iloc[[0, -1]])
            ends[entropy, name] = f"from {first} to {last}"
    assert f"(`low`) lossless acceptance falls {ends['low', 'lossless']} over" in page
    assert f"(`mixed`) {ends['mixed', 'lossless']}, with new" in page
    assert f"that of w = 0.5 {ends['low', 'w = 0.5']} and {ends['mixed', 'w = 0.5']}" in page


def test_another_draft_is_another_curve(tmp_path):
    """One curve went from the draft of the first length to that of the second, as if the length made the difference."""
    homes = [
        write(tmp_path / draft, (length,), False, draft=draft) for draft, length in zip("xy", LENGTHS, strict=False)
    ]
    (group,) = input_lengths(sweeps(*homes))
    lossless = group.table[group.table["verifier"] == "lossless"]
    assert lossless["draft_variant"].tolist() == ["draft=x", "draft=y"]
    assert lossless["label"].tolist() == ["lossless K=5 draft=x", "lossless K=5 draft=y"]
    assert [curve.name for curve in curves_of(group.table)[0]] == ["target alone"]


def test_options_of_a_server_that_drafts_are_other_curves(tmp_path):
    for p_min, length in ((0, 128), (0.75, 512)):
        engine = {"name": "llamacpp", "speculative": {"spec_draft_p_min": p_min}}
        write(tmp_path / "home", (length,), False, engine=engine)
    (group,) = input_lengths(sweeps(tmp_path / "home"))
    assert not any("lossless" in curve.name for curve in curves_of(group.table)[0])


def test_folders_of_two_drafters_at_the_same_lengths_are_all_in_the_table(tmp_path):
    """Of two folders of a length the second was left out, without a word."""
    homes = [write(tmp_path / name, LENGTHS[:2], False, drafter=name) for name in ("model", "lookup")]
    (group,) = input_lengths(sweeps(*homes))
    counts = group.table[group.table["verifier"] == "lossless"].groupby("drafter")["padded_to"].count()
    assert counts.to_dict() == {"model": 2, "lookup": 2}
    labels = {curve.name for curve in curves_of(group.table)[0]}
    assert labels >= {"lossless K=5 model", "lossless K=5 lookup", "target alone"}, "curves have distinct names"
    assert len(group.table[group.table["verifier"] == "target"]) == 2, "the target alone is the same setting in both"


def test_of_a_setting_that_was_measured_twice_the_one_with_more_texts_counts(tmp_path):
    """The first counted: a trial of few texts hid the measurement."""
    homes = [write(tmp_path / f"n{n}", LENGTHS[:2], False, n=n) for n in (2, 6)]
    (group,) = input_lengths(sweeps(*homes))
    assert set(group.table["n"]) == {6}


def test_curves_of_several_draft_lengths_look_different(tmp_path):
    """Both had the mark and the colour of lossless."""
    (group,) = input_lengths(sweeps(write(tmp_path / "home", LENGTHS[:2], False, num_drafts=(2, 5))))
    looks = [(curve.mark, curve.colour) for curve in curves_of(group.table)[0]]
    assert len(set(looks)) == len(looks)
