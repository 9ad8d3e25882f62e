"""Speeds of a few examples: repeats are no examples, few examples are covered, one slow answer moves no median."""

import math

import numpy as np
import pandas as pd
import pytest

from sdbench.metrics import pareto, speed, stats
from sdbench.metrics.gain import Passes

SPEEDUP = 1.5


def pairs(rng, n, repeats):
    """Examples differ in speed-up by a fifth, repeats of one by a twentieth."""
    example = np.repeat(np.arange(n), repeats)
    own = np.exp(np.repeat(rng.normal(0, 0.2, n), repeats) + rng.normal(0, 0.05, n * repeats))
    base = np.exp(rng.normal(0, 0.05, n * repeats))
    # Σ/Σ estimates a ratio of means: exp(0.2²/2) more seconds than the middle example takes.
    own_s = own / math.exp(0.02) / SPEEDUP
    times = {"tokens": 60.0, "decoded_tokens": 60.0, "prefill_s": 0.1, "decode_s": own_s}
    base_times = {f"{name}_base": value for name, value in times.items()} | {"decode_s_base": base}
    return pd.DataFrame(
        {"pass_id": "a", "example": example, "repeat": np.tile(np.arange(repeats), n), **times, **base_times}
    )


def coverage(n, repeats, runs):
    speeds = (speed._against(pairs(np.random.default_rng((run, n)), n, repeats), resamples=200) for run in range(runs))
    return float(np.mean([one["speedup"].low <= SPEEDUP <= one["speedup"].high for one in speeds]))


@pytest.mark.slow
@pytest.mark.parametrize(("n", "repeats"), [(8, 1), (12, 2)])
def test_a_speed_up_of_a_few_examples_covers_in_a_short_simulation(n, repeats):
    """As examples, repeats covered 83 % (12 × 2), and eight examples by BCa 88 %; 400 runs have a standard error of 1.1 %."""
    assert coverage(n, repeats, 400) >= 0.93


@pytest.mark.long
@pytest.mark.parametrize(("n", "repeats"), [(8, 1), (8, 3), (12, 2), (30, 2)])
def test_a_speed_up_of_a_few_examples_covers_93_percent(n, repeats):
    covered = coverage(n, repeats, 3000)
    print(f"coverage, speed-up, {n} × {repeats}: {covered:.4f}")
    assert covered >= 0.93


def test_timing_the_same_texts_again_is_no_new_evidence():
    once = pairs(np.random.default_rng(0), 10, 1)
    thrice = pd.concat([once.assign(repeat=repeat) for repeat in range(3)])
    first, second = (speed._against(pair, resamples=200) for pair in (once, thrice))
    for name in ("tokens_per_s", "speedup", "speedup_end_to_end", "speedup_median"):
        assert second[name].n == 10
        assert (second[name].low, second[name].high) == pytest.approx((first[name].low, first[name].high))


def test_one_slow_answer_moves_the_ratio_of_sums_and_not_the_median():
    usual = pairs(np.random.default_rng(0), 15, 2)
    slow = usual.copy()
    slow.loc[0, "decode_s"] *= 100
    before, after = (speed._against(pair, resamples=200) for pair in (usual, slow))
    assert after["speedup"].value < before["speedup"].value / 2
    assert after["speedup_median"].value == pytest.approx(before["speedup_median"].value, rel=0.1)


def test_a_product_of_sums_is_exact_where_it_must_be():
    rows = np.array([[60.0, 1.0], [80.0, 2.0], [40.0, 1.0]])
    assert stats.rates_interval(rows, (1, -1)).value == pytest.approx(45)
    assert stats.rates_interval(np.tile([0.0, 5.0], (3, 1)), (1, -1)) == stats.Estimate(0.0, 0.0, 0.0, 3)
    pieces = np.tile(
        [60.0, 1.0, 60.0, 0.0], (3, 1)
    )  # each answer of the base came in one piece: its speed is not known
    assert math.isnan(stats.rates_interval(pieces, (1, -1, -1, 1)).value), "it is not infinite"
    assert math.isnan(stats.rates_interval(rows[:1], (1, -1)).low)
    assert math.isnan(stats.rates_interval(rows[:0], (1, -1)).value)


def equal_cells(rng, n, cells, resamples=300):
    """Cells of one true point (1, 0.5), measured on the same examples."""
    shared = rng.normal(size=(n, 1))
    y = 0.5 + 0.35 * (shared + rng.normal(size=(n, cells)))
    ys = stats.bootstrap_sums(y, resamples=resamples, seed=0) / n
    ones = np.ones((resamples, cells))
    return pareto.Resampled(tuple(map(str, range(cells))), ones[0], y.mean(0), ones, ys, (n,) * cells)


def test_the_hypervolume_of_equal_cells_is_covered_and_less_biased_in_a_short_simulation():
    """By percentiles of the plug-in it was never covered."""
    joints = [equal_cells(np.random.default_rng(run), 100, 11) for run in range(60)]
    volumes = [pareto.volume_of(one) for one in joints]
    plain = np.mean([pareto.hypervolume(one.x, one.y) for one in joints]) - 0.5
    assert np.mean([one.low <= 0.5 <= one.high for one in volumes]) >= 0.93 - 3 * math.sqrt(0.05 / 60)
    assert 0 <= np.mean([one.value for one in volumes]) - 0.5 < 0.75 * plain
    assert np.mean([pareto.bias_of_volume(one) for one in joints]) > 0


def test_an_answer_in_one_piece_has_no_speed_of_decoding_and_stops_no_table():
    """A server may send a whole answer at once, and plain generate may write one token: both take no time to decode."""
    usual = pairs(np.random.default_rng(0), 10, 1)
    once = usual.copy()
    once.loc[0, ["decode_s", "decode_s_base"]] = 0.0
    before, after = (speed._against(pair, resamples=200) for pair in (usual.iloc[1:], once))
    for name in ("speedup_median", "time_ratio"):
        assert (after[name].value, after[name].n) == (pytest.approx(before[name].value), 9)
    assert after["speedup"].n == 10


def test_times_of_a_round_are_those_of_the_newest_pass():
    rows = [
        (pass_id, example, at, seconds)
        for pass_id, at, seconds in (("a", 1.0, 9.0), ("b", 2.0, 1.0))
        for example in "xyz"
    ]
    timings = pd.DataFrame(rows, columns=["pass_id", "example", "started_at", "first_token_s"])
    timings = timings.assign(cell="c", is_split=False, is_cached=False, verifier="ensemble")
    timings = timings.assign(**dict.fromkeys(("round_p50_s", "round_p90_s", "round_p99_s"), timings["first_token_s"]))
    medians = speed.percentiles(timings)["c"]
    assert {name: medians[name].value for name in ("first_token_s", "round_p50_s")} == {
        "first_token_s": 1.0,
        "round_p50_s": 1.0,
    }


def test_a_text_whose_rounds_are_not_known_has_no_modelled_speed():
    calls = pd.DataFrame({"kind": ["target", "draft", "verify"], "tokens": [1.0, 1.0, 6.0], "seconds": [1.0, 0.1, 1.1]})
    text = {"verifier": "ensemble", "example": ["x", "y"], "tokens": [10, 10]}
    unknown = pd.DataFrame({**text, "rounds": [None, None], "drafted": [None, None]})
    assert math.isnan(speed.modelled_speedup(unknown, calls).value)
    known = pd.DataFrame({**text, "rounds": [None, 4], "drafted": [None, 20]})
    assert speed.modelled_speedup(known, calls).value == pytest.approx(10 / (20 * 0.1 + 4 * 1.1))


def test_repeats_that_one_setting_lacks_make_no_answer_come_sooner():
    rows = [("lossless", example, repeat) for example in "xyz" for repeat in range(3)]
    rows += [("ensemble", example, 0) for example in "xyz"]
    timings = pd.DataFrame(rows, columns=["cell", "example", "repeat"]).assign(
        pass_id="a", is_split=False, started_at=1.0, tokens=10, first_tokens=0, prefill_s=1.0, decode_s=2.0
    )
    empty = timings.iloc[:1].assign(example="without a token", decode_s=math.nan, tokens=0)
    for passes in (Passes.of(timings), Passes.of(pd.concat([timings, empty, empty.assign(cell="ensemble")]))):
        assert passes.sooner("ensemble", "lossless").value == pytest.approx(1.0)
        assert passes.ratio("ensemble", "lossless").value == pytest.approx(1.0)
