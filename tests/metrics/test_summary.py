"""The summary is the records' sums and nothing else; empty is not measured."""

import math
from copy import copy
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import sdbench
from sdbench.metrics import acceptance, speed, theory
from sdbench.metrics.columns import estimate_of
from sdbench.metrics.divergence import against_greedy, greedy_reference
from sdbench.metrics.summary import summarise
from sdbench.metrics.theory import has_law
from tests.records.synthetic import Shape, sweep

CONTRACT = [
    "model",
    "task",
    "verifier",
    "w",
    "num_draft",
    "temperature",
    "n",
    "acceptance",
    "acceptance_low",
    "acceptance_high",
    "acceptance_expected",
    "block_acceptance",
    "tokens_per_round",
    "bias",
    "metric",
    "quality",
    "quality_low",
    "quality_high",
    "tokens_per_s",
    "speedup",
    "speedup_low",
    "speedup_high",
]


@pytest.fixture(scope="module")
def summary(results):
    return summarise(results, resamples=1000)


def test_the_columns_of_the_contract_are_there(summary):
    assert set(CONTRACT) <= set(summary.columns)
    assert {"target", "draft", "lossless"} <= set(summary["verifier"])
    assert summary.loc[summary["verifier"].isin(["target", "draft", "lossless"]), "w"].isna().all()


def test_rates_are_ratios_of_sums(results, summary):
    for _, row in summary[summary["n"].notna()].iterrows():
        sums = results.generations[results.generations["cell"] == row["cell"]].sum(numeric_only=True)
        assert row["tokens_per_round"] == pytest.approx(sums["tokens"] / sums["rounds"])
        if sums["examined"]:
            assert row["acceptance"] == pytest.approx(sums["accepted"] / sums["examined"])
            assert row["block_acceptance"] == pytest.approx(sums["accepted"] / sums["drafted"])
            assert row["acceptance_low"] <= row["acceptance"] <= row["acceptance_high"] <= 1
        else:
            assert math.isnan(row["acceptance"])


def test_what_does_not_hold_is_empty(summary):
    block = summary[summary["verifier"] == "block"]
    assert block[["bias", "acceptance_expected", "bias_per_token"]].isna().all(axis=None)
    assert block["acceptance"].notna().all()


def test_measured_acceptance_agrees_with_the_exact_one(summary):
    own = summary[summary["verifier"] == "ensemble"]
    error = (own["acceptance_high"] - own["acceptance_low"]) / 3.92
    assert ((own["acceptance"] - own["acceptance_expected"]).abs() <= 4 * error + 1e-9).all()


def test_holm_never_makes_a_p_value_smaller(summary):
    for end in ("", "_from_target"):
        tested = summary[summary[f"p_value{end}"].notna() & ~summary["is_lossless"]]
        assert len(tested) == 10
        assert (tested[f"p_holm{end}"] >= tested[f"p_value{end}"]).all()
        assert (tested[f"detectable{end}"] > 0).all()
        assert summary.loc[summary["is_lossless"], f"p_holm{end}"].isna().all()
    assert not tested["verifier"].isin(["target", "draft", "lossless", "generate"]).any()


def test_a_difference_has_the_number_of_examples_that_both_settings_have(results):
    fewer = copy(results)
    frame = results.generations
    numbers = frame["example"].astype(int)
    is_left_out = ((frame["verifier"] == "lossless") & (numbers >= 20)) | (
        (frame["verifier"] == "target") & (numbers >= 30)
    )
    fewer.__dict__["generations"] = frame[~is_left_out]
    table = summarise(fewer, resamples=100)
    lenient = table[table["verifier"] == "ensemble"]
    assert set(lenient["n"]) == {60}
    assert set(lenient["difference_n"]) == {20}
    assert set(lenient["difference_from_target_n"]) == {30}
    assert estimate_of(lenient.iloc[0].to_dict(), "difference").n == 20
    lossless = table[table["verifier"] == "lossless"]
    assert lossless["difference_n"].isna().all()
    assert set(lossless["difference_from_target_n"]) == {20}


@pytest.mark.slow
def test_the_same_records_give_the_same_summary(results, summary):
    again = summarise(results, resamples=1000)
    pd.testing.assert_frame_equal(summary, again)


def test_speed_ups_divide_by_the_fastest_baseline_of_the_same_pass(results, summary):
    whole = results.timings[~results.timings["is_split"]]
    sums = whole.groupby(["cell", "verifier"])[["tokens", "decode_s"]].sum().reset_index()
    rate = sums["tokens"] / sums["decode_s"]
    base = rate[sums["verifier"].isin(["target", "generate"])].max()
    for cell, value in zip(sums["cell"], rate, strict=True):
        row = summary[summary["cell"] == cell].iloc[0]
        assert row["tokens_per_s"] == pytest.approx(value)
        assert row["speedup"] == pytest.approx(value / base)
        assert row["speedup_low"] <= row["speedup"] <= row["speedup_high"]
    fastest = summary.loc[summary["verifier"].isin(["target", "generate"]), "speedup"].max()
    assert fastest == pytest.approx(1.0)


def test_modelled_speed_ups_agree_with_measured_ones(summary):
    own = summary[summary["verifier"].isin(["ensemble", "lossless"])]
    assert own["speedup_modelled"].notna().all()
    # Six examples were timed, all sixty modelled: the tolerance is what acceptance varies between such sets.
    assert (own["speedup_modelled"] / own["speedup"]).to_numpy() == pytest.approx(1, abs=0.15)


def test_without_a_baseline_of_the_same_pass_there_is_no_speed_up(results):
    alone = results.timings[~results.timings["verifier"].isin(speed.ALONE)]
    assert speed.speeds(alone) == {}


def test_a_pass_never_lends_its_baseline_to_another(results):
    """A second pass on a machine ten times as slow, without a baseline of its own, is not used."""
    slow = results.timings[results.timings["verifier"] == "ensemble"].copy()
    slow["pass_id"], slow["started_at"] = "other", slow["started_at"] + 1e6
    slow["decode_s"] *= 10
    both = pd.concat([results.timings, slow], ignore_index=True)
    first, second = (speed.speeds(frame, resamples=500) for frame in (results.timings, both))
    assert {cell: one["speedup"].value for cell, one in first.items()} == pytest.approx(
        {cell: one["speedup"].value for cell, one in second.items()}
    )


@pytest.mark.parametrize("renamed", [speed.ALONE, ("target",)])
def test_a_target_with_another_name_of_the_pair_is_the_baseline_of_its_pass(results, renamed):
    """As in folders of two pairs with one target: one lacked any baseline, the other had the slower one of two."""

    def speedups(timings):
        return {cell: each["speedup"].value for cell, each in speed.speeds(timings, resamples=50).items()}

    timings = results.timings
    of_two_names = timings.assign(model=timings["model"].mask(timings["verifier"].isin(renamed), "older"))
    assert speedups(of_two_names) == speedups(timings)


def test_speeds_of_several_passes_are_named_with_their_machines(results):
    """The second pass timed the target and one rule; lossless has the speed of the first."""
    timings = results.timings
    newer = timings[timings["verifier"].isin([*speed.ALONE, "ensemble"])]
    newer = newer.assign(pass_id="other", started_at=newer["started_at"] + 1e6)
    assert speed.mixed_sentence(timings) is None
    here = speed.mixed_sentence(pd.concat([timings, newer]))
    assert here.startswith("The speeds are those of 2 latency passes. ")
    there = speed.mixed_sentence(pd.concat([timings.assign(machine="A"), newer.assign(machine="B")]))
    assert there.startswith("The speeds are those of 2 latency passes on 2 machines (A; B). ")
    everything = pd.concat(
        [timings, timings.assign(pass_id="other", started_at=timings["started_at"] + 1e6, machine="B")]
    )
    assert speed.mixed_sentence(everything) is None, "the older pass is not shown"


def test_modelled_speed_ups_take_the_prices_of_their_own_pair(results):
    """Another pair's pass in the same folder, with a target ten times as dear, changes nothing."""
    others = results.calls.assign(
        pass_id="zzz", seconds=results.calls["seconds"] * [1 + 9 * (k == "target") for k in results.calls["kind"]]
    )
    foreign = results.timings.assign(model="other", pass_id="zzz", started_at=results.timings["started_at"] + 1e6)
    calls, timings = pd.concat([results.calls, others]), pd.concat([results.timings, foreign])
    prices = speed.prices(calls, timings, "llama-tiny", "gsm8k-tiny")
    pd.testing.assert_frame_equal(prices, speed.prices(results.calls, results.timings, "llama-tiny", "gsm8k-tiny"))
    assert speed.prices(calls, timings, "llama-tiny", "xsum-tiny").empty


def test_prices_are_those_of_the_pass_not_of_its_slower_split_repeat(results):
    """The split repeat twice as slow as it was: draft and verify cost what they cost before."""
    slow = results.timings.copy()
    is_split = slow["is_split"].astype(bool)
    for name in ("decode_s", *speed.PARTS):
        slow.loc[is_split, name] *= 2
    split_kinds = results.calls["kind"].isin(speed.SPLIT_KINDS)
    calls = results.calls.assign(seconds=results.calls["seconds"] * (1 + split_kinds))
    once, twice = (
        speed.prices(frame, timings, "llama-tiny", "gsm8k-tiny")["seconds"].to_numpy()
        for frame, timings in ((results.calls, results.timings), (calls, slow))
    )
    assert twice == pytest.approx(once)
    assert split_kinds.any()
    assert is_split.any()


def test_drift_is_seen():
    steady = pd.DataFrame(
        {
            "pass_id": "a",
            "cell": ["x", "y"] * 30,
            "is_split": False,
            "started_at": np.arange(60.0),
            "decode_s": [1.0, 3.0] * 30,
            "rounds": 10,
        }
    )
    assert speed.drift(steady) == pytest.approx(1.0)
    slower = steady.assign(decode_s=steady["decode_s"] * np.linspace(1, 1.6, 60))
    assert speed.drift(slower) > 1.3


def test_corpus_metrics_and_samples_are_summarised(translations):
    summary = summarise(translations, resamples=500)
    assert set(summary["metric"]) == {"bleu", "rougeL"}
    assert (summary["n"] == 55).all()
    assert (summary["num_generations"] == 110).all()
    assert summary["quality"].notna().all()
    assert summary[["tokens_per_s", "speedup", "speedup_modelled"]].isna().all(axis=None)


def test_positions_count_what_was_kept_and_looked_at():
    rounds = pd.DataFrame(
        {
            "cell": "a",
            "example": list("xyyz"),
            "drafted": [3, 3, 2, 0],
            "examined": [3, 2, 1, 0],
            "accepted": [3, 1, 0, 0],
        },
    )
    slots = acceptance.by_position(rounds).set_index("slot")
    assert slots["num_drafted"].to_list() == [3, 3, 2]
    assert slots["marginal"].to_list() == pytest.approx([2 / 3, 1 / 3, 1 / 2])
    assert slots["conditional"].to_list() == pytest.approx([2 / 3, 1 / 2, 1])


def test_positions_add_up_to_the_accepted(results):
    kept = acceptance.by_position(results.rounds).groupby("cell")["num_accepted"].sum()
    sums = results.generations.groupby("cell")["accepted"].sum()
    assert kept.to_dict() == sums[sums.index.isin(kept.index)].to_dict()


def test_the_ensemble_lies_on_its_laws_and_on_the_bound(summary):
    own = theory.laws(summary)
    own = own[own["verifier"] == "ensemble"]
    assert own["acceptance_expected"].to_numpy() == pytest.approx(own["acceptance_law"].to_numpy())
    assert own["bias"].to_numpy() == pytest.approx(own["bias_law"].to_numpy())
    assert own["acceptance_expected"].to_numpy() == pytest.approx(own["acceptance_bound"].to_numpy())


def test_the_predicted_curve_meets_the_measured_ends(results, summary):
    curve = theory.predict(results, [0.0, 0.5, 1.0])
    assert set(curve["label"]) == {"contexts of the lossless run"}
    for num_draft, part in curve.groupby("num_draft"):
        values = part.set_index("w")
        row = summary[(summary["verifier"] == "lossless") & (summary["num_draft"] == num_draft)].iloc[0]
        for name in ("accepted_per_round", "acceptance"):
            assert values.at[0.0, name] >= values.at[0.5, name] >= values.at[1.0, name]
            assert values.at[1.0, name] == pytest.approx(row[name], rel=0.08)
            assert (values[f"{name}_low"] <= values[name]).all()
            assert (values[name] <= values[f"{name}_high"]).all()
        assert values.at[0.0, "acceptance"] == pytest.approx(1)


def test_expected_counts_are_sums_over_products():
    p, q = np.array([0.2, 0.9, 0.3, 0.1]), np.array([0.4, 0.6, 0.3, 0.4])
    accepted, examined = theory.expected_counts(p, q, np.array([2, 0, 2]), 0.5)
    kept = [1 - 0.5 + 0.5 * 0.5, 1.0, 1.0, 0.5 + 0.5 * 0.25]
    assert accepted == pytest.approx([kept[0] + kept[0] * kept[1], 0, kept[2] + kept[2] * kept[3]])
    assert examined == pytest.approx([1 + kept[0], 0, 1 + kept[2]])


def test_the_greedy_text_is_that_of_the_same_prompts_and_the_same_target():
    rows = [("long", "b", "bfloat16"), ("short", "b", "bfloat16"), ("short", "f", "float32")]
    cells = pd.DataFrame(
        {
            "cell": [f"{asked}-{dtype}" for asked, _, dtype in rows],
            "asked": [asked for asked, *_ in rows],
            "content": [{"target_dtype": dtype} for *_, dtype in rows],
            "temperature": 0.0,
            "model": "m",
            "verifier": "target",
            "is_lossless": True,
        }
    )
    lenient = cells.iloc[2].copy()
    lenient["verifier"] = "ensemble"
    assert greedy_reference(cells, lenient) == "short-float32"
    assert greedy_reference(cells.iloc[:2], lenient) == "short-bfloat16", "another dtype is better than none"
    assert greedy_reference(cells.iloc[:1], lenient) is None, "another prompt is not"


def greedy_folder(folder, dtype, verifiers=("target", "ensemble")):
    """Texts at T = 0 of a sweep with the target in this dtype, which differ between dtypes."""
    cells = sweep("m", "gsm8k-tiny", ws=(0.5,), num_drafts=(5,), temperature=0.0)
    cells = [cell for cell in cells if cell.verifier in verifiers]
    cells = [replace(cell, content=cell.content | {"target_dtype": dtype}) for cell in cells]
    with sdbench.records.Store.open(folder, config={}, provenance={}) as store:
        store.add_cells(cells)
        store.append_generations([Shape(16).decode(cell, str(i)) for cell in cells for i in range(4)])
    return sdbench.read(folder)


def test_texts_are_compared_with_the_target_of_their_folder_before_that_of_another(tmp_path):
    """In a report of two folders, texts of the second were compared with the first's target, of another dtype."""
    folders = single, half = [greedy_folder(tmp_path / dtype, dtype) for dtype in ("float32", "bfloat16")]
    for folder in folders:
        alone = against_greedy(folder)
        assert len(alone) == 4, "the ensemble"
        for order in (folders, folders[::-1]):
            pd.testing.assert_frame_equal(against_greedy(folder, order), alone)
    lenient = greedy_folder(tmp_path / "lenient", "bfloat16", ("ensemble",))
    pd.testing.assert_frame_equal(
        against_greedy(lenient, [lenient, single, half]), against_greedy(lenient, [half]), obj="the same dtype first"
    )
    assert len(against_greedy(lenient, [single])) == 4, "another dtype is better than none"


def test_the_greedy_text_of_another_server_or_of_other_weights_is_not_the_targets():
    rows = [("float32", "weights"), ("bfloat16", "weights"), ("bfloat16", "others"), (None, "weights")]
    cells = pd.DataFrame(
        {
            "cell": [f"{dtype}-{weights}" for dtype, weights in rows],
            "asked": "a",
            "content": [
                {"engine": {"name": "vllm", "rule": "", "args": {"dtype": dtype}}} if dtype else {} for dtype, _ in rows
            ],
            "checkpoint_target": [weights for _, weights in rows],
            "temperature": 0.0,
            "model": "m",
            "verifier": "target",
            "is_lossless": True,
        }
    )

    def reference(index, **more):
        lenient = cells.iloc[index].copy()
        lenient["verifier"] = "fly"
        for name, value in more.items():
            lenient[name] = value
        return [greedy_reference(part, lenient) for part in (cells, cells.drop(index))]

    assert [reference(index) for index in range(4)] == [[f"{dtype}-{weights}", None] for dtype, weights in rows]
    rule = {
        "engine": {"name": "vllm", "rule": "fly", "args": {"dtype": "bfloat16"}, "speculative": {"method": "eagle"}}
    }
    assert reference(1, content=rule) == ["bfloat16-weights", None], "rule and drafting are the setting's"
    assert reference(1, checkpoint_target=None) == ["bfloat16-weights", "bfloat16-others"], (
        "the draft alone reads no target"
    )


def test_the_law_of_the_ensemble_is_not_claimed_for_a_mixture_of_logits():
    cells = pd.DataFrame(
        {"verifier": ["ensemble", "ensemble", "lossless", "mine"], "knobs": ["", "mix=logit", None, ""]}
    )
    assert has_law(cells).tolist() == [True, False, True, False]
