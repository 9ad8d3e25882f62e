"""Cells of one sweep whose drafts, versions or laws differ: their names, curves, baselines and prices are apart."""

from dataclasses import replace

import pandas as pd
import pytest

import sdbench
from sdbench.metrics import recommend, speed
from sdbench.metrics.cells import can_share_command, drafts_of, reference, table_of
from sdbench.metrics.safety import sequences
from sdbench.metrics.summary import summarise
from sdbench.metrics.text import curve_names, full_setting_of, names_of
from sdbench.records.keys import frame_of_cells
from sdbench.report.sweep import sweeps_of
from tests.records.synthetic import Shape, sweep, write_synthetic

INT8 = "draft_quantization=int8"
DRAFTERS = ("model", {"name": "retrieval", "longest": 8})


def cells_of(
    *,
    draft=None,
    target=None,
    drafters=("model",),
    law="1",
    checkpoint="draft@89abcde",
    rule="1",
    drafter="1",
    temperature=1.0,
    texts=None,
):
    """The cells of one command: checkpoints, quantisations and versions where they are read, as the planner writes them."""
    cells = []
    for cell in sweep("m", "gsm8k-tiny", ws=(0.3, 0.7), num_drafts=(5,), temperature=temperature, drafters=drafters):
        reads = {"target": cell.verifier != "draft", "draft": cell.verifier == "draft" or cell.drafter == "model"}
        names = {"target": "m/target@0123456", "draft": f"m/{checkpoint}"}
        numerics = {
            f"{role}_quantization": name for role, name in (("target", target), ("draft", draft)) if reads[role]
        }
        versions = {
            "verifier": rule if cell.verifier == "ensemble" else "1",
            "drafter": drafter if cell.drafter else None,
            **({} if texts is None else {"text": texts}),
        }
        checkpoints = {role: names[role] for role in names if reads[role]}
        content = {**cell.content, **numerics, "versions": versions}
        cells.append(replace(cell, checkpoints=checkpoints, content=content, law=f"sampled/{law}"))
    return cells


def frame(*commands):
    return frame_of_cells({cell.key: cell for cells in commands for cell in cells}.values())


def table(*commands):
    return table_of(frame(*commands))


VARIANTS = {
    "quantisation": [cells_of(), cells_of(draft="int8")],
    "checkpoint": [cells_of(), cells_of(checkpoint="draft@trained")],
    "version of the drafter": [cells_of(drafters=DRAFTERS[1:], drafter=version) for version in ("1", "2")],
    "version of the rule": [cells_of(), cells_of(rule="2")],
    "law": [cells_of(law="1"), cells_of(law="2")],
    "texts": [cells_of(), cells_of(texts="2")],
}


@pytest.mark.parametrize("commands", VARIANTS.values(), ids=VARIANTS)
def test_no_two_cells_of_a_sweep_have_equal_names_or_settings(commands):
    known = table(*commands)
    assert known.loc[known["verifier"] != "draft", "sweep"].nunique() == 1
    drafting = known[known["num_draft"] > 0]
    for is_short in (False, True):
        names = names_of(known, is_short=is_short)
        assert len({names[key] for key in drafting.index}) == len(drafting), names
    names = names_of(known)
    alone = known.index[known["verifier"] == "draft"]
    assert len({names[key] for key in alone}) == len(alone)
    assert drafting.apply(full_setting_of, axis=1).is_unique
    swept = known[known["verifier"] == "ensemble"]
    assert [len(order) for order in sequences(swept)] == [2, 2]
    assert len(set(curve_names(swept))) == 2


def test_the_plain_draft_keeps_its_name_beside_a_quantised_one():
    names = set(names_of(table(cells_of(), cells_of(draft="int8"))).values())
    assert {"lossless model K=5", f"lossless model {INT8} K=5", "draft alone", f"draft alone {INT8}"} < names
    assert set(names_of(table(cells_of(draft="int8"))).values()) == {
        *("target alone", "draft alone", "lossless K=5", "ensemble w=0.3 K=5", "ensemble w=0.7 K=5")
    }


@pytest.mark.parametrize("name", ["law", "texts"])
@pytest.mark.parametrize("verifier", ["target", "draft"])
def test_the_target_and_the_draft_alone_are_those_of_the_same_version(name, verifier):
    known = table(*VARIANTS[name])
    home = {cell.key: number for number, cells in enumerate(VARIANTS[name]) for cell in cells}
    for ordered in (known, known[::-1]):
        for key in known.index:
            base = reference(ordered, key, verifier)
            assert home[str(base)] == home[key], names_of(known)[key]


@pytest.mark.parametrize("name", [name for name in VARIANTS if name != "version of the rule"])
def test_the_baseline_of_a_setting_has_its_draft(name):
    known = table(*VARIANTS[name])
    home = {cell.key: number for number, cells in enumerate(VARIANTS[name]) for cell in cells}
    for ordered in (known, known[::-1]):
        for key in known.index[known["verifier"].isin(["ensemble", "draft"])]:
            base = reference(ordered, key, "lossless")
            assert base is None or home[base] == home[key], names_of(known)[key]


def test_the_draft_alone_belongs_to_every_target_that_uses_it():
    commands = [cells_of(draft=draft, target=target) for target in (None, "int8") for draft in (None, "int8")]
    known = table(*commands)
    assert known["sweep"].nunique() == 2
    for key, cell in known[known["verifier"] == "lossless"].iterrows():
        draft = reference(known, str(key), "draft")
        assert draft is not None
        assert known.at[draft, "draft_variant"] == cell["draft_variant"]
    for _, group in known.groupby("sweep"):
        assert len(drafts_of(known, group)) == 2


def test_the_draft_alone_is_in_no_sweep_of_another_temperature_s_target():
    commands = [cells_of(temperature=0.0), cells_of(), cells_of(target="int8")]
    for ordered in (commands, commands[::-1]):
        known = table(*ordered)
        assert known["sweep"].nunique() == 3
        greedy = known[known["temperature"] == 0]
        assert greedy["sweep"].nunique() == 1


def test_the_sweep_of_each_target_shows_the_draft_alone_and_compares_it_with_its_own_lossless(tmp_path):
    commands, shape = [cells_of(), cells_of(target="int8")], Shape(16)
    cells = list({cell.key: cell for cells in commands for cell in cells}.values())
    with sdbench.records.Store.open(tmp_path / "two", config={}, provenance={}) as store:
        store.add_cells(cells)
        store.append_generations([shape.decode(cell, str(i)) for cell in cells for i in range(4)])
    results = sdbench.read(tmp_path / "two")
    sweeps = sweeps_of([results], [summarise(results, resamples=50)])
    assert [each.baseline("draft")["quality"].notna().sum() for each in sweeps] == [1, 1]
    assert sorted(each.baseline("draft")["difference"].notna().sum() for each in sweeps) == [0, 1]


def test_one_command_cannot_time_two_drafts():
    known = table(cells_of(drafters=DRAFTERS), cells_of(draft="int8", drafters=DRAFTERS))
    lossless = known[known["verifier"] == "lossless"]
    keys = {str(cell["drafter"]): str(key) for key, cell in lossless.iterrows()}
    assert set(keys) == {"model", f"model {INT8}", "retrieval"}
    assert not can_share_command(known, keys["model"], keys[f"model {INT8}"])
    assert can_share_command(known, keys["model"], keys["retrieval"])


def test_a_lossless_cell_of_another_draft_in_another_pass_does_not_stop_a_recommendation(results):
    """Both drafts cannot be timed in one command, so that nothing could ever be recommended."""
    (before,) = recommend.recommend(results, 45.0).advices
    alone = results.timings[results.timings["verifier"] == "lossless"]
    base = alone["cell"].iloc[0]
    (row,) = results.cells.index[results.cells["cell"] == base]
    content = {**results.cells.at[row, "content"], "draft_quantization": "int8"}
    other = results.cells.loc[[row]].assign(cell="other", content=[content])
    more = sdbench.read(results.path)
    texts = results.generations
    more.__dict__["cells"] = pd.concat([results.cells, other], ignore_index=True)
    more.__dict__["timings"] = pd.concat(
        [results.timings, alone[alone["cell"] == base].assign(cell="other", pass_id="later")], ignore_index=True
    )
    more.__dict__["generations"] = pd.concat([texts, texts[texts["cell"] == base].assign(cell="other")])
    (advice,) = recommend.recommend(more, 45.0).advices
    assert (before.kind, advice.kind, advice.cell) == ("ship", "ship", before.cell)


def test_a_modelled_speed_takes_the_prices_of_a_pass_that_timed_the_same_options_and_draft(tmp_path):
    """early-exit at layer 2, timed, and at layer 12, timed later: each cell has the price of its layer."""
    exits = [{"name": "early-exit", "exit_layer": layer} for layer in (2, 12)]
    results = sdbench.read(write_synthetic(tmp_path / "r", n=2, ws=(0.5,), timing_examples=2, drafters=exits[:1]))
    first = results.cells["cell"][results.cells["verifier"] == "ensemble"].iloc[0]
    (row,) = results.cells.index[results.cells["cell"] == first]
    more = sdbench.read(results.path)
    contents = {
        "layer": {**results.cells.at[row, "content"], "drafter": exits[1]},
        "int8": {**results.cells.at[row, "content"], "draft_quantization": "int8"},
        "same": {**results.cells.at[row, "content"], "max_new_tokens": 7},
    }
    others = [results.cells.loc[[row]].assign(cell=name, content=[content]) for name, content in contents.items()]
    more.__dict__["cells"] = pd.concat([results.cells, *others], ignore_index=True)
    part = results.generations[results.generations["cell"] == first]
    assert len(speed.prices_of(more, part))
    assert len(speed.prices_of(more, part.assign(cell="same")))
    assert speed.prices_of(more, part.assign(cell="layer")).empty
    assert speed.prices_of(more, part.assign(cell="int8")).empty
    later = results.timings.assign(pass_id="later", started_at=results.timings["started_at"] + 1e6)
    later = later.assign(cell=later["cell"].where(later["cell"] != first, "layer"))
    later = later[later["cell"].isin(["layer"]) | later["verifier"].isin(["target"])]
    more.__dict__["timings"] = pd.concat([results.timings, later], ignore_index=True)
    more.__dict__["calls"] = pd.concat([results.calls, results.calls.assign(pass_id="later")], ignore_index=True)
    newest = {name: set(speed.prices_of(more, part.assign(cell=name))["pass_id"]) for name in (first, "layer")}
    assert newest["layer"] == {"later"}
    assert newest[first] == set(results.timings["pass_id"])


def test_a_modelled_speed_takes_the_prices_of_a_pass_that_timed_its_draft_length(tmp_path):
    """A later pass of short blocks made all long ones look as cheap."""
    home = write_synthetic(tmp_path / "r", n=4, ws=(), num_drafts=(3, 8), timing_examples=2)
    results, more = sdbench.read(home), sdbench.read(home)
    timings = results.timings[results.timings["num_draft"] != 8]
    later = timings.assign(pass_id="later", started_at=timings["started_at"] + 1e6)
    calls = results.calls[results.calls["tokens"] != 9].assign(pass_id="later")
    more.__dict__["timings"] = pd.concat([results.timings, later], ignore_index=True)
    more.__dict__["calls"] = pd.concat([results.calls, calls], ignore_index=True)
    texts = results.generations[results.generations["verifier"] == "lossless"]
    short, long = (texts[texts["num_draft"] == k] for k in (3, 8))
    assert set(speed.prices_of(more, short)["pass_id"]) == {"later"}
    prices = speed.prices_of(more, long)
    assert set(prices["pass_id"]) == set(results.timings["pass_id"])
    assert 9 in set(prices.loc[prices["kind"] == "verify", "tokens"])
    assert speed.modelled_speedup(long, prices).value > 0
    more.__dict__["calls"] = calls
    values = [speed.modelled_speedup(part, speed.prices_of(more, part)).value for part in (short, long)]
    assert [value == value for value in values] == [True, False], (
        "nine tokens cost more than the four that were measured"
    )


def test_options_of_a_drafter_that_have_a_version_of_their_own_are_named_once():
    adaptive = {"name": "model", "length": "adaptive"}
    known = table(cells_of(), cells_of(drafters=(adaptive,), drafter="1 length:2"))
    assert set(known["drafter"].dropna()) == {"model", "model length=adaptive"}
