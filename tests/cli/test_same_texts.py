"""A setting with the texts of lossless is the lossless cell: it is shown as both, and records that hold both keys answer both."""

import math

import pandas as pd
import pytest
import yaml

from sdbench import runs
from sdbench.cli import main
from sdbench.config import config_dir
from sdbench.metrics.summary import summarise
from sdbench.metrics.text import also_of
from sdbench.prepare.rules import rule_of
from sdbench.records import Store, read
from sdbench.report.page.tables import tables_of
from sdbench.report.sweep import sweeps_of
from sdbench.verify import Ensemble

NAME = "micro-gsm8k-tiny"
BOTH = {"w": "[0.3,1]"}
LABELS = ["cell", "model", "verifier", "w", "num_draft", "temperature"]


def content_of(results, key):
    """Texts, ids and rounds of a cell."""
    generations = results.generations
    frames = [generations[generations["cell"] == key].drop(columns=[*LABELS, "verifier"], errors="ignore")]
    frames += [frame[frame["cell"] == key].drop(columns="cell") for frame in (results.ids, results.rounds)]
    return [frame.to_dict("list") | {"ids": [list(ids) for ids in frame.get("ids", ())]} for frame in frames]


def cells_of(results):
    cells = results.cells.set_index("cell")
    return cells.index[cells["verifier"] == "lossless"][0], cells.index[cells["w"] == 1][0]


@pytest.mark.slow
def test_w_1_is_the_lossless_cell_and_shown_as_both(words, tmp_path, no_figures, capsys):
    assert main([*words(tmp_path, **BOTH), "--plan"]) == 0
    plan = capsys.readouterr().out
    assert "4 cells x 4 examples" in plan
    assert "  lossless K=5, ensemble w=1 " in plan
    assert main(words(tmp_path, **BOTH)) == 0
    assert "  lossless K=5, ensemble w=1 " in capsys.readouterr().out
    results = read(tmp_path / NAME)
    assert sorted(results.cells["verifier"]) == ["draft", "ensemble", "lossless", "target"]
    with Store.open(tmp_path / NAME) as store:
        assert {cell for cell, _, _ in store.held()} == set(results.cells["cell"])
    summary = pd.read_csv(tmp_path / NAME / "summary.csv").set_index("verifier")
    assert summary["also"].dropna().to_dict() == {"lossless": "ensemble w=1"}
    assert [(state.missing, state.held) for state in runs.states_of(tmp_path)] == [(0, 16)]
    assert main(words(tmp_path, w=0.3)) == 0
    assert "nothing to decode" in capsys.readouterr().err
    (sweep,) = sweeps_of([results := read(tmp_path / NAME)], [summarise(results, resamples=50)])
    (table, *_) = tables_of(sweep, None)
    assert [name for name, _ in table.rows][:2] == ["target alone", "lossless K=5, ensemble w=1"], "it stays both"
    (curve,) = sweep.curves
    end = sweep.strict_end(curve)
    assert (end["cell"].tolist(), end["x"].tolist()) == ([summary.at["lossless", "cell"]], [1.0])


def test_settings_that_differ_in_an_option_are_named_with_it():
    def repeated(**values):
        axes = [{"knob": knob, "value": value, "rank": 0 if knob == "w" else None} for knob, value in values.items()]
        return {"verifier": "ensemble", "axes": axes}

    assert also_of([]) == ""
    assert also_of([repeated(w=1, greedy="blend")]) == "ensemble w=1"
    both = [repeated(w=1, greedy=greedy) for greedy in ("blend", "mixture")]
    assert also_of(both) == "ensemble w=1 greedy=blend, ensemble w=1 greedy=mixture"


@pytest.mark.slow
def test_records_that_hold_both_keys_answer_both(words, tmp_path, no_figures, monkeypatch, capsys):
    with monkeypatch.context() as before:
        before.setattr(Ensemble, "repeats_lossless", False)
        assert main(words(tmp_path, n=3, **BOTH)) == 0
    old = read(tmp_path / NAME)
    lossless, w_1 = cells_of(old)
    assert {lossless, w_1} <= {cell for cell, _, _ in old.held()}
    capsys.readouterr()
    assert main(words(tmp_path, n=3, **BOTH)) == 0
    output = capsys.readouterr()
    assert "nothing to decode" in output.err
    assert "  ensemble w=1 K=5 " in output.out
    assert content_of(read(tmp_path / NAME), w_1) == content_of(old, w_1), "what was decoded stays"
    assert main(words(tmp_path, n=5, **BOTH)) == 0
    new = read(tmp_path / NAME)
    assert set(new.generations["cell"].value_counts()) == {5}
    assert content_of(new, lossless) == content_of(new, w_1)
    assert main(words(tmp_path, n=5, **BOTH, force="true")) == 0
    assert not read(tmp_path / NAME).problems


@pytest.mark.slow
def test_a_folder_in_which_w_1_names_the_lossless_cell_gives_both_rows(
    words, tmp_path, no_figures, monkeypatch, capsys
):
    """As it was written for a while: two cells, and the records of one."""
    with monkeypatch.context() as before:
        before.setattr("sdbench.engines.job.join_repeated", tuple)
        before.setattr("sdbench.passes.quality.QualityPass.__call__", lambda _: {})
        assert main(words(tmp_path, n=3, **BOTH)) == 0
    lossless, w_1 = cells_of(read(tmp_path / NAME))
    capsys.readouterr()
    assert main(words(tmp_path, n=3, **BOTH)) == 0
    assert "  ensemble w=1 K=5 " in capsys.readouterr().out
    results = read(tmp_path / NAME)
    assert w_1 not in {cell for cell, _, _ in results.held()}
    assert content_of(results, lossless) == content_of(results, w_1)
    summary = pd.read_csv(tmp_path / NAME / "summary.csv").set_index("cell")
    assert summary.loc[w_1, "n"] == summary.loc[lossless, "n"] == 3
    assert summary["also"].isna().all(), "it has a row of its own"


def strict_rules():
    """{name: (words, rule)} of the rules that are lossless where each of their knobs stands at its strict end."""
    rules = {}
    for path in sorted((config_dir() / "verifier").glob("*.yaml")):
        tree = yaml.safe_load(path.read_text())
        knobs = (tree.get("knobs") or {}).items()
        ends = {name: tree.get(name) if knob.get("strict") is None else knob["strict"] for name, knob in knobs}
        setting = {name: end for name, end in ends.items() if end is not None}
        is_plain = all(isinstance(end, int | float | str) and end != math.inf for end in setting.values())
        if is_plain and not any("." in name for name in setting) and path.stem not in ("exact", "asd", "sure"):
            rule = rule_of(tree["_target_"], setting)
            keys = {name: "w" if name == "w" else f"verifier.{path.stem}.{name}" for name in setting}
            if rule.is_lossless().all():
                rules[path.stem] = ([f"{keys[name]}={end}" for name, end in setting.items()], rule)
    return rules


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0, 1])
def test_a_rule_that_repeats_lossless_writes_its_texts_on_a_tiny_pair(tmp_path, monkeypatch, no_figures, temperature):
    rules = strict_rules()
    if temperature == 0:
        del rules["mentored"]  # needs a temperature above 0
    assert {"ensemble", "lenience", "lossy", "ears", "sglang"} <= set(rules)
    declared = {name for name, (_, rule) in rules.items() if getattr(rule, "repeats_lossless", False)}
    assert declared == {"ensemble"}
    monkeypatch.setattr(Ensemble, "repeats_lossless", False)
    options = [word for words, _ in rules.values() for word in words if "greedy" not in word]
    given = ["model=llama-tiny", "task=gsm8k-tiny", "n=4", "max_new_tokens=48", "timing=off", "report=off"]
    given += [f"temperature={temperature}", f"results={tmp_path}", "verifier.ensemble.greedy=[blend,mixture]"]
    assert main([f"verifier=[{','.join(rules)}]", *options, *given]) == 0
    results = read(tmp_path / "llama-tiny-gsm8k-tiny")
    verifiers = results.cells.set_index("cell")["verifier"]
    lossless = content_of(results, verifiers.index[verifiers == "lossless"][0])[1:]
    others = {name for key, name in verifiers.items() if content_of(results, key)[1:] != lossless}
    assert declared.isdisjoint(others)
    assert temperature == 0 or "block" in others, "lossless too, from other uniforms"
