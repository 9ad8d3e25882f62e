"""Each rule's knob is found in its cells, whatever its name and end; what else varies makes curves."""

from dataclasses import replace
from itertools import combinations, product

import pandas as pd
import pytest

import sdbench
from sdbench.metrics.cells import metric_of, scores_of, settings_of
from sdbench.metrics.knobs import main_knob, strict_value
from sdbench.metrics.summary import summarise
from sdbench.metrics.titles import suffixes
from sdbench.records import Store
from sdbench.report.sweep import sweeps_of
from sdbench.types import Axis, Metric
from tests.records.synthetic import Shape, cell, write_synthetic


def axes(**knobs):
    """name=(value, rank)"""
    return [Axis(name, value, rank) for name, (value, rank) in knobs.items()]


def test_the_axis_is_the_first_ordered_knob_that_varies():
    assert (
        main_knob([axes(mix=("prob", None), a=(1, 0), b=(0.1, 0.1)), axes(mix=("x", None), a=(1, 0), b=(0.2, 0.2))])
        == "b"
    )
    assert main_knob([axes(a=(1, 0), b=(0.1, 0.1)), axes(a=(2, 1), b=(0.2, 0.2))]) == "a"
    assert main_knob([axes(mix=("prob", None), a=(1, 0))]) == "a", "of knobs that do not vary the first ordered one"
    assert main_knob([axes(mix=("prob", None)), []]) is None


@pytest.mark.parametrize(
    ("values", "ranks", "strict"),
    [
        ([0.3, 0.5], [0.7, 0.5], 1.0),
        ([0.3, 0.5], [0.3, 0.5], 0.0),
        ([4, 6], [2, 4], 2),
        ([0.3, 1.0], [0.7, 0.0], 1.0),
        ([0.3], [0.7], None),
        ([1, 10, 100], [0.5, 1.5, 2.5], None),
    ],
)
def test_the_strict_value_follows_from_values_and_ranks(values, ranks, strict):
    assert strict_value(pd.Series(values), pd.Series(ranks)) == strict


def folder_of(home, cells, n=8):
    """Records of these cells beside the baselines."""
    base = [cell("m", "gsm8k-tiny", name) for name in ("target", "lossless")]
    with Store.open(home, config={}, provenance={}) as store:
        store.add_cells([*base, *cells])
        store.append_generations([Shape().decode(c, str(i)) for c in [*base, *cells] for i in range(n)])
    return sdbench.read(home)


def made_cell(value, *more, name="eps"):
    own = [Axis(name, value, value, "lossless"), *more]
    knobs = {axis.knob: axis.value for axis in own}
    return cell("m", "gsm8k-tiny", "typical", axes=[axis.to_json() for axis in own], knobs=knobs)


def test_a_grid_of_two_knobs_is_a_curve_for_each_value_of_the_second(tmp_path):
    grid = [made_cell(eps, Axis("delta", delta, delta)) for eps in (0.1, 0.2, 0.4) for delta in (1, 2)]
    results = folder_of(tmp_path / "grid", grid)
    summary = summarise(results, resamples=100)
    own = summary[summary["verifier"] == "typical"]
    assert set(own["knob"]) == {"eps"}
    assert sorted(own["value"].unique()) == [0.1, 0.2, 0.4]
    assert own["w"].isna().all()
    (sweep,) = sweeps_of([results], [summary])
    assert {name: len(cells) for name, cells in sweep.curves.items()} == {"delta=1": 3, "delta=2": 3}
    assert set(sweep.swept["label"]) == {f"typical eps={e:g} delta={d} K=5" for e in (0.1, 0.2, 0.4) for d in (1, 2)}
    assert sweep.strict_end("delta=1")["x"].tolist() == [0.0], "joined to lossless where eps would be 0"


def test_values_without_an_order_are_curves_of_their_own(tmp_path):
    grid = [made_cell(eps, Axis("form", form)) for eps in (0.1, 0.2) for form in ("a", "b")]
    summary = summarise(results := folder_of(tmp_path / "forms", grid), resamples=100)
    (sweep,) = sweeps_of([results], [summary])
    assert set(sweep.curves) == {"form=a", "form=b"}


def test_two_rules_have_each_its_own_knob_in_one_summary(tmp_path):
    home = write_synthetic(tmp_path / "rules", n=6, ws=(0.3, 0.9), epsilons=(0.1, 0.2), timing_examples=0)
    summary = summarise(results := sdbench.read(home), resamples=100)
    pairs = set(zip(summary["verifier"], summary["knob"].fillna(""), strict=True))
    assert {("ensemble", "w"), ("typical", "eps"), ("lossless", "")} <= pairs
    assert list(summary.columns[3:6]) == ["w", "knob", "value"]
    (sweep,) = sweeps_of([results], [summary])
    assert list(sweep.curves) == ["ensemble", "typical"]
    assert [name for name in sweep.cells["label"] if "eps" in name] == ["typical eps=0.1 K=5", "typical eps=0.2 K=5"]


def test_words_and_numbers_share_a_column(tmp_path):
    words = [made_cell(value, name="form") for value in (1, 2)]
    spelled = [
        cell("m", "gsm8k-tiny", "named", axes=[Axis("form", word, rank).to_json()], knobs={"form": word})
        for rank, word in enumerate(("tight", "loose"))
    ]
    summary = summarise(results := folder_of(tmp_path / "words", words + spelled), resamples=100)
    assert set(summary["value"].dropna()) == {"1", "2", "tight", "loose"}
    summary.to_parquet(tmp_path / "summary.parquet")
    (sweep,) = sweeps_of([results], [summary])
    assert sweep.curves["named"]["x"].tolist() == [0, 1]


def test_what_a_metric_means_stands_in_the_cell():
    declared = Metric("exact", "share", "low")
    cells = pd.DataFrame({"cell": ["a"], "metric": ["exact"], "metrics": [[declared.to_json()]]}).set_index("cell")
    assert metric_of(cells, "a") == declared
    bare = cells.assign(metric="other")
    assert not metric_of(bare, "a").is_bounded
    assert scores_of(cells.loc["a"].to_dict(), ["exact", "strict"]) == [declared, Metric("strict")], "no name is known"


OPTIONS = {
    "seed": (0, 1),
    "max_new_tokens": (64, 128),
    "top_k": (None, 20),
    "top_p": (None, 0.9),
    "dtype": ("torch.float32", "torch.float64"),
    "weights": (None, "packed"),
}


@pytest.mark.parametrize(
    ("checkpoints", "content", "weights"),
    [
        (("target",), {}, None),
        (("target", "draft"), {"target_quantization": None, "draft_quantization": "int8"}, "plain and int8"),
        (("target", "draft"), {"target_quantization": "int8", "draft_quantization": "int8"}, "int8"),
        (("target (Q4_K_M GGUF)", "draft (Q8_0 GGUF)"), {}, "Q4_K_M dequantised and Q8_0 dequantised"),
        (("target (Q4_K_M GGUF)",), {"engine": {"speculative": {}}}, "Q4_K_M"),
        (("target",), {"target_quantization": "int8", "target_packed": True}, "int8, repacked"),
        (
            ("target (Q4_K_M GGUF)", "draft (Q4_K_M GGUF)"),
            {"target_packed": True, "draft_packed": True},
            "Q4_K_M dequantised, repacked",
        ),
    ],
)
def test_how_weights_are_stored_is_named(checkpoints, content, weights):
    named = dict(zip(("checkpoint_target", "checkpoint_draft"), checkpoints, strict=False))
    assert settings_of({**named, "content": content})["weights"] == weights


def test_transformers_multiplies_by_weights_as_they_are():
    content = {"target_packed": True, "draft_packed": True}
    cell = {"checkpoint_target": "t (Q4_K_M GGUF)", "checkpoint_draft": "d (Q4_K_M GGUF)", "content": content}
    shown = {rule: settings_of({**cell, "verifier": rule})["weights"] for rule in ("lossless", "generate", "assisted")}
    others = dict.fromkeys(("generate", "assisted"), "Q4_K_M dequantised")
    assert shown == {"lossless": "Q4_K_M dequantised, repacked", **others}


def test_names_of_files_hold_no_comma():
    labels = {"model": "m", "task": "t", "temperature": 0, "checkpoint_target": "t (Q4_K_M GGUF)"}
    sweeps = [pd.DataFrame([{**labels, "content": {"target_packed": packed}}]) for packed in (True, False)]
    assert suffixes([("", sweep) for sweep in sweeps]) == [
        "m-t-weights-Q4_K_M-dequantised-repacked",
        "m-t-weights-Q4_K_M-dequantised",
    ]


@pytest.mark.parametrize("names", [*combinations(OPTIONS, 1), *combinations(OPTIONS, 2)], ids="+".join)
def test_sweeps_of_one_folder_have_names_columns_and_numbers_of_their_own(tmp_path, names):
    """Cells with equal labels, such as the two of a command and of the same command with dtype=float64."""
    cells = []
    for values in product(*(OPTIONS[name] for name in names)):
        content = {"seed": 0, "max_new_tokens": 64, "target_dtype": "torch.float32", "draft_dtype": "torch.float32"}
        given = dict(zip(names, values, strict=True))
        if dtype := given.pop("dtype", None):
            given |= {"target_dtype": dtype, "draft_dtype": dtype}
        if given.pop("weights", None):
            given |= {"target_packed": True, "draft_packed": True}
        for rule, w in (("target", None), ("draft", None), ("lossless", None), ("ensemble", 0.5)):
            roles = {rule} & {"target", "draft"} or {"target", "draft"}
            others = {"target", "draft"} - roles
            kept = {key: v for key, v in (content | given).items() if key.partition("_")[0] not in others}
            checkpoints = {role: f"m/{role}@0" for role in roles}
            cells.append(replace(cell("m", "gsm8k-tiny", rule, w=w), content=kept, checkpoints=checkpoints))
    with Store.open(tmp_path, config={}, provenance={}) as store:
        store.add_cells(cells)
        store.append_generations([Shape().decode(c, str(i)) for c in cells for i in range(8)])
    summary = summarise(results := sdbench.read(tmp_path), resamples=100)
    sweeps = sweeps_of([results], [summary])
    num_sweeps = 2 ** len(names)
    assert [len(sweep.cells) for sweep in sweeps] == [4] * num_sweeps
    assert len({sweep.title for sweep in sweeps}) == num_sweeps
    assert not any("sweep 2" in sweep.title for sweep in sweeps), "a title says what differs"
    assert not any("None" in name for sweep in sweeps for name in (sweep.title, sweep.suffix))
    assert len({sweep.suffix for sweep in sweeps}) == num_sweeps
    assert all(summary[name].nunique(dropna=False) == 2 for name in names)
    assert summary.groupby("verifier")["difference"].count()["ensemble"] == num_sweeps
