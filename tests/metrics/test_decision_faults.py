"""A decision is not misled by long answers, failures, unfinished cells, a lucky first choice, or a task that shows nothing."""

import copy
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import sdbench
from scripts.simulate_shipping import shipped_by_mistake
from sdbench import report
from sdbench.metrics import gain, stats
from sdbench.metrics.needed import examples_needed
from sdbench.metrics.recommend import at_speed, breakpoints, decide, recommend
from sdbench.metrics.safety import ALPHA, Comparison
from sdbench.metrics.speed import ALONE
from sdbench.metrics.stats import Estimate
from sdbench.metrics.weigh import Gain, Weighed, weigh_sweeps
from sdbench.types import Metric
from tests.records.synthetic import write_synthetic

ROUGE = Metric("rougeL", "points")


def estimate(low, high, n=8):
    return Estimate(math.sqrt(low * high), low, high, n)


def comparison(cell, change, worst, **more):
    return Comparison(
        cell, "ensemble", f"w={cell}", 5, Estimate(change, worst, -worst, 150), change, worst, 0.0, **more
    )


def weighed(gains, *, sooner=None, modelled=(1.2, 1.5, 2.0), worst=(-0.4, -0.9, -3.0), **more):
    """Three settings from strict to lenient; `gains` {place: limits of tokens/s over lossless}, `sooner` of the answer's time."""
    times = {i: {"exact": estimate(*limits)} for i, limits in (sooner or {}).items()}
    over = {
        str(i): Gain({"exact": estimate(*limits)}, "exact", estimate(1.9, 2.1), times.get(i, {}))
        for i, limits in gains.items()
    }
    return Weighed(
        *("m", "t", "m on t", ROUGE),
        curves=(tuple(comparison(str(i), limit / 2, limit) for i, limit in enumerate(worst)),),
        gains=over,
        modelled=dict(zip("012", modelled, strict=True)),
        names={str(i): f"ensemble w={i} K=5" for i in range(3)} | {"exact": "lossless K=7"},
        lossless={"exact": estimate(1.6, 1.7)},
        **more,
    )


# The target alone is a rival


def against_target(over, lossless=(0.6, 0.77), **more):
    """One safe setting that is proven faster than lossless, at this speed over the target alone."""
    sweep = weighed({1: (1.1, 1.2)}, **more)
    gain = replace(sweep.gains["1"], over_target=estimate(*over))
    return replace(sweep, gains={"1": gain}, lossless={"exact": estimate(*lossless)})


def test_a_setting_that_is_slower_than_the_target_alone_is_not_shipped():
    advice = decide(against_target((0.69, 0.9)), 4.0)
    assert (advice.kind, advice.cell) == ("alone", None)
    assert "do not speculate: lossless K=7 runs at 0.68× [0.60, 0.77] the speed of the target alone" in advice.text
    assert "over lossless 1.15× [1.10, 1.20]; over the target alone 0.79× [0.69, 0.90]" in advice.text


def test_a_setting_must_be_proven_faster_than_the_target_alone():
    assert decide(against_target((0.95, 1.21)), 4.0).kind == "alone"
    assert decide(against_target((1.01, 1.21)), 4.0).kind == "ship", "though lossless is slower than no speculation"
    assert decide(against_target((0.95, 1.21), lossless=(0.9, 1.2)), 4.0).kind == "stay", "lossless is no slower"


def test_an_answer_must_come_sooner_than_from_the_target_alone():
    sweep = against_target((1.1, 1.3))
    longer = replace(sweep.gains["1"], sooner_target=estimate(0.8, 0.95))
    assert decide(sweep, 4.0).kind == "ship"
    assert decide(replace(sweep, gains={"1": longer}), 4.0).kind == "alone", "three times the tokens"


def timed_in_two_passes(k5, k1):
    """One safe setting that was timed beside lossless K=5; K=1 was timed in another pass. Limits over the target alone."""
    sweep = weighed({})
    gain = Gain({"k5": estimate(1.1, 1.2)}, "k5", estimate(0.7, 0.9), apart=("k1",))
    names = sweep.names | {"k5": "lossless K=5", "k1": "lossless K=1"}
    return replace(sweep, gains={"1": gain}, names=names, lossless={"k5": estimate(*k5), "k1": estimate(*k1)})


@pytest.mark.parametrize("k5", [(0.7, 0.85), (1.05, 1.1)])
def test_the_best_lossless_setting_of_another_pass_is_advised(k5):
    """The advice was not to speculate, or to stay with the slower K=5, since only the pass of the safe setting counted."""
    advice = decide(timed_in_two_passes(k5, (1.14, 1.24)), 1.0)
    assert (advice.kind, advice.rival, round(advice.speedup.value, 2)) == ("stay", "k1", 1.19)
    assert "stay lossless K=1: 1.19× [1.14, 1.24] the target alone; ensemble w=1 K=5 is safe" in advice.text
    assert (
        "is not proven (over lossless K=5 1.15× [1.10, 1.20]), and lossless K=1 and this setting were timed in different"
        in advice.text
    )


def test_where_every_lossless_setting_is_slower_the_best_and_the_other_pass_are_named():
    advice = decide(timed_in_two_passes((0.7, 0.8), (0.85, 0.95)), 1.0)
    assert (advice.kind, advice.rival) == ("alone", "k1")
    assert "do not speculate: lossless K=1 runs at 0.90× [0.85, 0.95] the speed of the target alone" in advice.text
    assert "(over lossless K=5 1.15× [1.10, 1.20]; over the target alone 0.79× [0.70, 0.90]), and" in advice.text
    assert (
        "and lossless K=1 and this setting were timed in different passes: time all of them in one command"
        in advice.text
    )


def test_lossless_that_is_not_proven_to_be_slower_is_not_called_slower():
    advice = decide(against_target((0.95, 1.21), lossless=(0.9, 1.09)), 4.0)
    assert advice.kind == "alone"
    words = (
        "do not speculate: lossless K=7 is not shown to be faster than the target alone (0.99× [0.90, 1.09]); ensemble"
    )
    assert words in advice.text
    assert "slower" not in advice.text


@pytest.mark.parametrize(("shortest", "lengths"), [(5, "1,2,5"), (2, "1,2"), (1, None), (0, None)])
def test_the_advice_not_to_speculate_says_which_shorter_drafts_to_time(shortest, lengths):
    text = decide(against_target((0.69, 0.9), shortest=shortest), 4.0).text
    tip = f"No draft of fewer than {shortest} tokens was timed: try 'num_draft=[{lengths}]'."
    assert (tip in text) == (lengths is not None)
    assert ("No draft" in text) == (lengths is not None)


def test_the_shortest_drafts_are_those_that_were_timed(tmp_path):
    results = folder(tmp_path, num_drafts=(3, 5))
    assert [sweep.shortest for sweep in weigh_sweeps(results, resamples=50)] == [3]
    results.__dict__["timings"] = results.timings[results.timings["num_draft"] != 3]
    assert [sweep.shortest for sweep in weigh_sweeps(results, resamples=50)] == [5]


def test_where_nothing_is_safe_a_slow_lossless_is_named():
    text = decide(against_target((0.69, 0.9)), 0.1).text
    assert "Lossless speculation is slower than no speculation: lossless K=7 runs at 0.68× [0.60, 0.77]" in text


def rename(results, verifiers):
    """The same records with these cells under another name of the pair, as in a folder of two pairs with one target."""
    other = copy.copy(results)
    for name in ("cells", "timings", "generations"):
        frame = getattr(results, name)
        model = frame["model"].mask(frame["verifier"].isin(verifiers), "older")
        other.__dict__[name] = frame.assign(model=model)
    return other


@pytest.mark.parametrize("verifiers", [ALONE, ("target",)])
def test_a_target_with_another_name_of_the_pair_is_a_rival(results, verifiers):
    """It was none, so that a setting slower than the target alone could be shipped."""

    def speeds_of(sweep):
        return sweep.lossless, {key: (gain.over_target, gain.sooner_target) for key, gain in sweep.gains.items()}

    (sweep,), (other,) = (weigh_sweeps(each, resamples=200) for each in (results, rename(results, verifiers)))
    assert decide(sweep, 45.0).kind == "ship"
    assert decide(other, 45.0) == decide(sweep, 45.0)
    assert speeds_of(other) == speeds_of(sweep)
    assert at_speed(other, 1.01, 45.0) == at_speed(sweep, 1.01, 45.0)
    fast, is_alone = rename(results, verifiers), results.timings["verifier"].isin(verifiers)
    fast.__dict__["timings"] = fast.timings.assign(decode_s=fast.timings["decode_s"].mask(is_alone, 1e-3))
    (sweep,) = weigh_sweeps(fast, resamples=200)
    assert decide(sweep, 45.0).kind == "alone"


# Several settings are tested for speed


def test_a_safe_and_faster_setting_is_shipped_though_the_modelled_fastest_is_not_proven():
    advice = decide(weighed({0: (1.06, 1.27), 1: (1.15, 1.3), 2: (0.96, 1.4)}), 4.0)
    assert (advice.kind, advice.cell) == ("ship", "1"), "w=2 is modelled to be the fastest, and not proven"


def test_a_setting_that_would_pass_alone_does_not_pass_among_many():
    sweep = weighed({0: (1.001, 1.4), 1: (1.001, 1.4), 2: (1.001, 1.4)})
    assert decide(weighed({2: (1.001, 1.4)}), 4.0).kind == "ship"
    assert decide(sweep, 4.0).kind == "stay"


def test_the_p_value_agrees_with_the_limit():
    rng = np.random.default_rng(0)
    for n in (3, 8, 30):
        rows = rng.lognormal(0, 0.3, (n, 2))
        ratio = stats.rates_interval(rows, (1, -1))
        at_p = stats.rates_interval(rows, (1, -1), level=1 - 2 * gain.p_value_of(ratio)) if ratio.value > 1 else None
        assert at_p is None or at_p.low == pytest.approx(1.0)
        assert (gain.p_value_of(ratio) < ALPHA) == (ratio.low > 1)
    assert gain.p_value_of(Estimate(2.0, math.nan, math.nan, 1)) == 1.0


def test_no_faster_setting_is_shipped_more_than_once_in_forty_runs():
    assert shipped_by_mistake(runs=400, settings=4) <= ALPHA + 3 * math.sqrt(ALPHA * (1 - ALPHA) / 400)


# Student's limits of a ratio of sums err up to 1.25 times their level where eight texts differ in length.
UNEVEN = {8: 1.25, 30: 1.0}
SHIPPING = json.loads((Path(__file__).parents[2] / "results/statistics/shipping.json").read_text())


def most_by_mistake(texts, runs):
    return UNEVEN[texts] * ALPHA + 3 * math.sqrt(ALPHA * (1 - ALPHA) / runs)


@pytest.mark.slow
@pytest.mark.parametrize("texts", UNEVEN)
@pytest.mark.parametrize("settings", [1, 3, 9])
def test_the_error_of_shipping_is_held_and_as_committed(settings, texts):
    share = shipped_by_mistake(runs=SHIPPING["runs"], settings=settings, n=texts)
    assert share <= most_by_mistake(texts, SHIPPING["runs"])
    assert share == pytest.approx(SHIPPING["shipped"][str(texts)][str(settings)], abs=2 / SHIPPING["runs"])


@pytest.mark.results
def test_the_committed_error_of_shipping_is_the_one_stated():
    shares = {int(texts): by_count.values() for texts, by_count in SHIPPING["shipped"].items()}
    assert all(max(shares[texts]) <= most_by_mistake(texts, SHIPPING["runs"]) for texts in UNEVEN)
    method = (Path(__file__).parents[2] / "docs" / "method.md").read_text()
    words = {n: f"{100 * min(values):.1f} to {100 * max(values):.1f} %" for n, values in shares.items()}
    assert f"eight texts of uneven length: {words[8]}; with thirty {words[30]}" in method
    page = (Path(report.__file__).parent / "page" / "templates" / "parts.html.j2").read_text()
    assert f"in simulations 1 in {1 / max(shares[8]):.0f} with 8 timed texts" in page


# Length


def test_a_faster_setting_whose_answers_take_longer_is_not_shipped():
    gains = dict.fromkeys(range(3), (1.35, 1.93))
    assert decide(weighed(gains), 4.0).kind == "ship"
    advice = decide(weighed(gains, sooner=dict.fromkeys(range(3), (0.4, 0.7))), 4.0)
    assert advice.kind == "stay"
    assert "0.53× [0.40, 0.70] per answer" in advice.text


def test_the_sentence_says_how_much_sooner_and_longer_an_answer_is():
    more = {"sooner": {2: (1.4, 1.65)}, "lengths": {"2": Estimate(1.03, 1.01, 1.05, 150)}}
    advice = decide(weighed({2: (1.5, 1.7)}, **more), 4.0)
    assert (
        "1.60× [1.50, 1.70] over lossless K=7, 1.52× [1.40, 1.65] per answer, answers 3 % longer (8 texts at batch 1)"
        in advice.text
    )
    assert "Warning" not in advice.text
    longer = replace(weighed({2: (1.5, 1.7)}, **more), lengths={"2": Estimate(1.12, 1.01, 1.2, 150)})
    assert "Warning: its answers are 12 % longer than those of lossless." in decide(longer, 4.0).text


def test_what_was_timed_in_batches_is_not_called_texts():
    at_four = replace(weighed({2: (1.5, 1.7)}, sooner={2: (1.4, 1.65)}), batch_size=4)
    assert "1.52× [1.40, 1.65] per batch of answers (8 batches of 4)" in decide(at_four, 4.0).text
    slow = replace(at_twice(sooner=(0.4, 0.7)), batch_size=4)
    assert "but it is not proven to be faster per batch of answers (" in at_speed(slow, 2.0, 5.0).text


def test_the_time_of_an_answer_comes_from_the_records(results):
    passes = gain.Passes.of(results.timings)
    cells = results.cells.set_index("cell")
    lossless = cells.index[cells["verifier"] == "lossless"][0]
    lenient = cells.index[(cells["w"] == 0) & (cells["num_draft"] == cells.at[lossless, "num_draft"])][0]
    whole = results.timings[~results.timings["is_split"]]
    sums = (whole["prefill_s"] + whole["decode_s"]).groupby(whole["cell"]).sum()
    assert passes.sooner(lenient, lossless).value == pytest.approx(sums[lossless] / sums[lenient])


# Failures


def test_at_a_fixed_speed_texts_that_loop_are_not_shipped():
    sweep = weighed(dict.fromkeys(range(3), (1.1, 1.2)))
    over = {str(i): replace(sweep.gains[str(i)], over_target=estimate(2.2, 2.3, 12)) for i in range(3)}
    looping = tuple(replace(test, loops=100.0) for test in sweep.curves[0])
    sweep = replace(sweep, gains=over, curves=(looping,))
    assert at_speed(sweep, 2.0, 200.0).cell == "0"
    advice = at_speed(sweep, 2.0, 5.0)
    assert (advice.kind, advice.cell) == ("none", None)
    assert "100.0 points more of its texts end in a loop than with lossless" in advice.text


# A fixed speed is decided as carefully as a margin


def at_twice(*, sooner=(1.5, 1.6), sooner_target=(1.9, 2.1), **more):
    """Three settings at 2.25 times the target alone and 1.15 times lossless; `sooner` is the time of an answer over theirs."""
    sweep = weighed(dict.fromkeys(range(3), (1.1, 1.2)), sooner=dict.fromkeys(range(3), sooner), **more)
    faster = {"over_target": estimate(2.2, 2.3), "sooner_target": estimate(*sooner_target)}
    return replace(sweep, gains={key: replace(gain, **faster) for key, gain in sweep.gains.items()})


def test_at_a_fixed_speed_an_answer_must_come_sooner_than_from_lossless_and_from_the_target_alone():
    advice = at_speed(at_twice(), 2.0, 5.0)
    assert (advice.kind, advice.cell) == ("ship", "0")
    assert "1.55× [1.50, 1.60] per answer (8 texts at batch 1)" in advice.text
    for later in ({"sooner": (0.4, 0.7)}, {"sooner_target": (0.8, 1.1)}):
        advice = at_speed(at_twice(**later), 2.0, 5.0)
        assert (advice.kind, advice.cell) == ("none", None)
        assert "w=0 K=5 does in tokens a second, but it is not proven to be faster per answer (" in advice.text
    assert "0.53× [0.40, 0.70] over lossless" in at_speed(at_twice(sooner=(0.4, 0.7)), 2.0, 5.0).text


def test_at_a_fixed_speed_longer_answers_are_warned_of_and_a_draft_that_loses_nothing_is_named():
    longer = {"lengths": {"0": Estimate(1.12, 1.1, 1.2, 150)}, "draft": Estimate(-1.2, -5.0, 2.6, 150)}
    text = at_speed(at_twice(**longer), 2.0, 5.0).text
    assert "12 % longer (8 texts" in text
    assert "Warning: its answers are 12 % longer than those of lossless." in text
    assert "On this task no loss of the draft alone is proven (-1.2 [-5.0, 2.6])" in text
    assert "no loss of the draft alone is proven" in at_speed(at_twice(**longer), 3.0, 5.0).text
    assert "Warning" not in at_speed(at_twice(lengths={"0": Estimate(1.03, 1.0, 1.1, 150)}), 2.0, 5.0).text


def test_at_a_fixed_speed_a_run_without_quality_cannot_tell_unless_lossless_is_fast_enough():
    sweep = at_twice(quality=Estimate(2.0, 0.5, 4.0, 150))
    advice = at_speed(sweep, 2.0, 5.0)
    assert (advice.kind, advice.cell) == ("none", None)
    assert "this run cannot tell: lossless is only 2.0 [0.5, 4.0] points of rougeL above the worst score" in advice.text
    assert at_speed(sweep, 1.2, 5.0).kind == "stay", "lossless costs nothing, whatever the metric shows"
    assert at_speed(sweep, 2.0, 0.4).kind == "ship"


@pytest.mark.parametrize("way", ["are cut off at the length limit", "are empty", "crash"])
def test_a_setting_that_fails_more_often_by_the_margin_is_not_safe(way):
    test = comparison("0", 0.0, -0.5, failures={way: 6.0})
    assert not test.is_safe(5.0)
    assert test.is_safe(7.0)
    sweep = replace(weighed({0: (1.2, 1.3)}), curves=((test,),))
    assert way in decide(sweep, 5.0).text
    assert 6.0 in breakpoints(sweep)


# A run that cannot tell


def folder(tmp_path, **more):
    return sdbench.read(write_synthetic(tmp_path / "r", n=60, ws=(0.3, 0.9), timing_examples=4, **more))


def with_scores(results, score):
    """The same records with a score for each row, given its cell's rule."""
    rule = results.generations["verifier"]
    results.generations["strict"] = [float(score(name, i)) for i, name in enumerate(rule)]
    return results


def test_where_lossless_scores_nothing_the_run_cannot_tell(tmp_path):
    (advice,) = recommend(with_scores(folder(tmp_path), lambda name, i: 0.0), 5.0).advices
    assert advice.kind == "none"
    assert "this run cannot tell: lossless is only 0.0 [0.0, 6.0] points of strict above the worst score" in advice.text
    assert "raise max_new_tokens" in advice.text


def test_where_lossless_is_cut_off_the_run_cannot_tell(tmp_path):
    results = folder(tmp_path)
    results.generations["is_truncated"] = results.generations["verifier"].eq("lossless")
    (advice,) = recommend(results, 20.0).advices
    assert (
        "this run cannot tell: 100% of the lossless answers are cut off at the length limit; raise max_new"
        in advice.text
    )


def test_at_the_ceiling_the_verdict_stands_and_the_draft_is_named(tmp_path):
    (advice,) = recommend(with_scores(folder(tmp_path), lambda name, i: 1.0), 20.0).advices
    assert advice.kind in ("ship", "stay")
    assert "On this task no loss of the draft alone is proven (0.0 [" in advice.text


def test_a_draft_that_loses_is_not_remarked_on(tmp_path):
    (advice,) = recommend(with_scores(folder(tmp_path), lambda name, i: name != "draft"), 20.0).advices
    assert advice.kind in ("ship", "stay")
    assert "the draft alone" not in advice.text


# Unfinished cells, untimed settings, numbers near the margin


def test_an_unfinished_cell_is_left_out_and_named(tmp_path):
    results = folder(tmp_path)
    cells = results.cells.set_index("cell")
    late = cells.index[cells["w"] == 0.3][0]
    frame = results.generations
    first = sorted(set(frame["example"]))[:40]
    results.__dict__["generations"] = frame[(frame["cell"] != late) | frame["example"].isin(first)]
    (advice,) = recommend(results, 45.0).advices
    assert advice.tests
    assert "Left out, with too few examples: ensemble w=0.3 K=5 (n=40)." in advice.text


def test_n_is_that_of_the_examples_shared_with_lossless(tmp_path):
    results = folder(tmp_path)
    frame = results.generations
    first = sorted(set(frame["example"]))[:40]
    results.__dict__["generations"] = frame[(frame["verifier"] != "lossless") | frame["example"].isin(first)]
    (advice,) = recommend(results, 45.0).advices
    assert "n is too small (n=40" in advice.text


def test_a_safe_setting_that_is_modelled_faster_but_was_not_timed_is_named_with_its_command():
    sweep = weighed({0: (1.2, 1.3)}, modelled=(2.05, 2.5, 2.8), command="python -m sdbench model=m")
    advice = decide(sweep, 9.0)
    assert (advice.cell, advice.untimed) == ("0", "2")
    assert "ensemble w=2 K=5 is safe too and modelled at 2.80× the target alone, but was not timed" in advice.text
    assert "python -m sdbench model=m margin=9" in advice.text
    assert decide(weighed({2: (1.2, 1.3)}), 9.0).untimed is None


def test_the_command_that_times_a_setting_does_not_decode_everything_once_more(tmp_path):
    results = folder(tmp_path)
    command = "python -m sdbench n=60 force=true w=0.3"
    results.__dict__["configs"] = {run: {**config, "command": command} for run, config in results.configs.items()}
    (sweep,) = weigh_sweeps(results, resamples=50)
    assert sweep.command == "python -m sdbench n=60 w=0.3"


def test_near_the_margin_a_limit_has_two_decimals():
    sweep = replace(weighed({0: (1.2, 1.3)}), curves=((comparison("0", -1.9, -4.98),),))
    assert "at worst -4.98 (margin 5, n=150)" in decide(sweep, 5.0).text
    assert "at worst -5.0 (margin 6, n=150)" in decide(sweep, 6.0).text
    assert "its loss may be as large as 4.98 points (margin 4.95)" in decide(sweep, 4.95).text
    assert "its loss may be as large as 5.0 points (margin 4)" in decide(sweep, 4.0).text
    fast = at_twice(worst=(-4.98,) * 3)
    assert "at worst -4.98 (n=150)" in at_speed(fast, 2.0, 5.0).text
    assert "at worst -5.0 (n=150)" in at_speed(fast, 2.0, 7.0).text
    looping = replace(sweep, curves=((comparison("0", -1.0, -2.0, failures={"are empty": 5.02}),),))
    assert "5.02 points more texts are empty" in decide(looping, 5.0).text


def test_the_page_decides_again_where_a_limit_gains_a_decimal():
    sweep = replace(weighed({0: (1.2, 1.3)}), curves=((comparison("0", -1.9, -4.98),),))
    assert {4.93, 4.98, 5.03} <= set(breakpoints(sweep))


def test_every_refused_setting_says_how_many_examples_it_needs_or_why_none_would_do():
    def needed(test):
        return examples_needed(test, 5.0, ALPHA)

    assert needed(comparison("0", -1.0, -4.0, error=1.0)) == "", "it is safe"
    assert needed(comparison("0", -1.0, -6.0, error=1.0)) == "160 to 460"
    assert needed(comparison("0", -9.0, -11.0, error=0.5)) == "no number is enough: it loses more than the margin"
    assert needed(comparison("0", -5.5, -8.0, error=1.0)).startswith("at least ")
    looping = comparison("0", -1.0, -6.0, error=1.0, failures={"are empty": 7.0})
    assert needed(looping) == "no number is enough: more texts are empty"
    assert needed(comparison("0", -1.0, -6.0)) == "not known"


def test_why_the_limit_is_wider_than_the_interval_is_explained_once(tmp_path):
    home = write_synthetic(tmp_path / "r", tasks=("xsum-tiny",), n=60, ws=(0.3, 0.9), timing_examples=3)
    text = recommend(sdbench.read(home), 8.0).text
    assert text.count("wider than the intervals of the tables") == 1


def test_frames_of_pandas_are_not_changed_by_weighing(results):
    before = results.generations.copy()
    recommend(results, 5.0)
    pd.testing.assert_frame_equal(before, results.generations)
