"""Where few examples differ, limits know the bounds of the score: honest at the margin, and no jump on the way to many."""

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats as scipy_stats

from scripts.interval_laws import BOUNDS, laws, losing
from sdbench.metrics import quality, safety, stats
from sdbench.metrics.stats.conservative import conservative_limits, density
from sdbench.types import Metric

ALPHA = 0.025
# n, share of examples that lose, points lost, samples; then the error of the studentised bootstrap that was used before
MARGINS = [
    pytest.param(100, 0.02, 25, 1, id="2 % lose 25, n=100: was .40"),
    pytest.param(200, 0.01, 50, 1, id="1 % lose 50, n=200: was .41"),
    pytest.param(100, 0.05, 100, 2, id="5 % of 2 samples lose 100, n=100: was .12"),
    pytest.param(100, 0.05, 100, 1, id="5 % lose 100, n=100"),
    pytest.param(60, 0.1, 50, 1, id="10 % lose 50, n=60"),
]
UNLIKE = [
    pytest.param(0.5, 1.0, (0, 1), id="one of 60 at .5 beside 1: lower limit was -52.5"),
    pytest.param(-50.0, 0.0, (-100, 100), id="one of 60 at -50 beside 0: lower limit was -3239"),
    pytest.param(4.0, 5.0, (0, 5), id="one of 60 at 4 of 5 beside 5: lower limit of the ratio was 2e-9"),
]


@pytest.mark.parametrize(("value", "rest", "bounds"), UNLIKE)
def test_one_example_unlike_the_others_gives_limits_within_the_bounds_and_around_the_mean(value, rest, bounds):
    for order in ([value] + [rest] * 59, [rest] * 59 + [value]):
        mean = stats.mean_interval(order, bounds=bounds)
        assert bounds[0] < mean.low < mean.value < mean.high <= bounds[1]
        assert mean.high - mean.low < 0.15 * (bounds[1] - bounds[0])
        share = stats.ratio_interval(np.array(order) - bounds[0], [bounds[1] - bounds[0]] * 60, bounds=(0, 1))
        assert share.low == pytest.approx((mean.low - bounds[0]) / (bounds[1] - bounds[0]))


def test_without_bounds_one_example_unlike_the_others_still_gives_a_sane_width():
    """They gave -52.5, -3239 and 2e-9 as lower limits."""
    share, mean = stats.mean_interval([0.5] + [1] * 59), stats.mean_interval([-50] + [0] * 59)
    ratio = stats.ratio_interval([5] * 59 + [4], [5] * 60)
    assert 0.9 < share.low < share.value < share.high < 1.1
    assert -10 < mean.low < mean.value < mean.high < 10
    assert 0.9 < ratio.low < ratio.value < ratio.high < 1.1


def test_one_of_a_hundred_that_loses_50_points_leaves_room_for_more_of_them():
    """It gave [-0.50, +0.26], and no difference at all gave [0, 0]."""
    one = stats.mean_interval([-50.0] + [0.0] * 99, bounds=BOUNDS)
    none = stats.mean_interval([0.0] * 100, bounds=BOUNDS)
    assert one.low < none.low < -3.5
    assert none.high > 3.5


@pytest.mark.parametrize(("n", "k"), [(60, 1), (100, 2), (100, 50), (1000, 3), (10, 5), (60, 0), (60, 60)])
def test_conservative_limits_of_pass_and_fail_are_those_of_clopper_and_pearson(n, k):
    column = np.r_[np.ones(k), np.zeros(n - k)][:, None]
    low, high = conservative_limits(column, (0, 1), level=0.95)
    exact = stats.proportion_interval(k, n) if k < 10 else None
    beta = (
        scipy_stats.beta.ppf(0.025, k, n - k + 1) if k else 0.0,
        scipy_stats.beta.ppf(0.975, k + 1, n - k) if k < n else 1.0,
    )
    assert (low[0], high[0]) == pytest.approx(beta, rel=0.003, abs=1e-5)
    if exact is not None:
        assert (exact.low, exact.high) == pytest.approx(beta)


def test_conservative_limits_are_the_quantiles_of_a_dirichlet_mean_with_one_example_at_the_bound():
    """60,000 draws know a 2.5 % quantile to about 0.7 % of its distance from the mean."""
    rng = np.random.default_rng(0)
    for values in (np.r_[-50, np.zeros(59)], rng.normal(0, 5, 100), -rng.exponential(5, 40)):
        low, high = (end[0] for end in conservative_limits(values[:, None], BOUNDS, level=0.95))
        weights = rng.exponential(size=(60_000, len(values) + 1))
        weights /= weights.sum(1, keepdims=True)
        for end, bound, share in ((low, -100, 0.025), (high, 100, 0.975)):
            drawn = np.quantile(weights @ np.r_[values, bound], share)
            assert end == pytest.approx(drawn, abs=0.03 * abs(drawn - values.mean()))


def test_no_difference_says_what_can_still_hide():
    assert 100 * stats.hidden_share(100) == pytest.approx(3.62, abs=0.01)
    assert stats.hidden_share(1000) == pytest.approx(3.7 / 1000, rel=0.01)
    assert (1 - stats.hidden_share(100)) ** 100 == pytest.approx(ALPHA)
    same = np.full(100, 31.0)
    gap = stats.paired_interval(same, same, bounds=(0, 100))
    assert gap.value == 0
    assert (-gap.low, gap.high) == pytest.approx((100 * stats.hidden_share(100),) * 2)


def test_equal_values_without_bounds_say_nothing_of_other_examples():
    constant = stats.mean_interval([2.0] * 60)
    assert constant.value == 2
    assert math.isnan(constant.low)
    assert math.isnan(constant.high)
    half = stats.mean_interval([2.0] * 60, bounds=(0, None))
    assert half.low == pytest.approx(2 - 2 * stats.hidden_share(60))
    assert math.isnan(half.high)


def called_safe(values, margin, alpha=ALPHA):
    """[R] whether a test of each column of differences [n,R] says that it loses less than the margin."""
    low, _ = stats.conservative_limits(values, BOUNDS, level=1 - 2 * alpha)
    return low > -margin + 1e-9


def errors(n, share, size, samples, runs):
    """Share of runs in which the interval clears the margin, and in which the test does, where the true loss is the margin."""
    law = losing(share, size, samples)
    values = law.draw(np.random.default_rng((n, samples, runs)), n, runs)
    low, _ = stats.mean_limits(values, level=1 - 2 * ALPHA, resamples=1000, bounds=BOUNDS)
    return float((low > law.mean + 1e-9).mean()), float(called_safe(values, -law.mean).mean())


@pytest.mark.parametrize(("n", "share", "size", "samples"), MARGINS)
def test_rare_losses_at_the_margin_are_rarely_called_safe_in_a_short_simulation(n, share, size, samples):
    runs = 400
    assert max(errors(n, share, size, samples, runs)) <= ALPHA + 3 * math.sqrt(ALPHA / runs)


@pytest.mark.parametrize("law", [law for law in laws() if law.kind == "mixed"], ids=lambda law: law.name)
def test_rare_large_losses_among_small_differences_are_rarely_called_safe(law):
    """At n = 60 no example shows the losses of the first in 55 % of all samples: intervals clear the margin in most of those."""
    runs = 400
    values = law.draw(np.random.default_rng(7), 60, runs)
    assert called_safe(values, -law.mean).mean() <= ALPHA + 3 * math.sqrt(ALPHA / runs)


def test_a_recommendation_counts_losses_that_no_example_showed():
    """The limit that is compared with the margin is the honest one, though every example differs a little."""
    rng = np.random.default_rng(0)
    base = pd.Series(rng.uniform(20, 60, 100))
    rows = {"lossless": base, "lenient": base + rng.normal(0, 1, 100)}
    shared = {
        "model": "m",
        "task": "t",
        "temperature": 0.0,
        "protocol": "p",
        "num_draft": 5,
        "asked": "a",
        "content": {},
    }
    shared |= {"metric": "rougeL", "metrics": [Metric("rougeL", "points").to_json()], "knobs": "", "drafter": "model"}
    cells = pd.DataFrame(
        [
            {**shared, "cell": "lossless", "verifier": "lossless", "is_lossless": True, "knob": ""},
            {
                **shared,
                "cell": "lenient",
                "verifier": "rule",
                "is_lossless": False,
                "knob": "w",
                "value": 0.5,
                "rank": 1,
            },
        ]
    ).set_index("cell")
    (one,) = safety.compare_settings(["lenient"], cells, rows, ALPHA, {"resamples": 1000, "seed": 0})
    assert one.difference.low > -0.5
    assert one.worst == pytest.approx(one.change - 100 * stats.hidden_share(100), abs=0.3)
    assert one.num_differing == 100
    assert one.error == pytest.approx(0.1, abs=0.02)


@pytest.mark.parametrize("differing", [8, 10, 12, 25, 40, 45])
def test_limits_do_not_jump_where_the_method_passes_from_few_to_many(differing):
    """One more differing example of 300 moves a limit by little more than its share of the mean."""
    limits = []
    for count in (differing, differing + 1):
        mean = stats.mean_interval(np.r_[np.full(count, -50.0), np.zeros(300 - count)], bounds=BOUNDS)
        limits.append((mean.low, mean.high))
    assert np.abs(np.diff(limits, axis=0)).max() < 3 * 50 / 300


def test_few_large_differences_are_sparse_whatever_small_ones_surround_them():
    rng = np.random.default_rng(0)
    columns = [
        rng.normal(size=100),
        np.r_[np.full(3, -50.0), np.zeros(97)],
        rng.normal(0, 0.5, 100) - 50 * (np.arange(100) < 3),
    ]
    assert density(np.stack(columns, 1)).tolist() == [1, 0, 0]


def test_half_of_the_examples_are_many_where_no_bounds_are_known():
    column = np.random.default_rng(0).normal(size=(12, 1))
    assert density(column, is_bounded=False)[0] == 1
    assert density(column)[0] < 0.1


def test_bounds_are_checked_in_one_sentence():
    with pytest.raises(ValueError, match="within bounds"):
        stats.mean_interval([0.0, 2.0], bounds=(0, 1))
    with pytest.raises(ValueError, match="must be a range"):
        stats.mean_interval([0.0, 1.0], bounds=(1, 1))
    with pytest.raises(ValueError, match="within bounds"):
        stats.paired_interval([0.0, 0.5], [1.0, 3.0], bounds=(0, 1))


def coverage(kind, n, runs):
    """Of the limits of one kind on mostly equal, greedy-like records; truths by construction."""
    hits = 0
    for run in range(runs):
        estimate, truth = KINDS[kind](np.random.default_rng((run, n)), n)
        hits += estimate.low - 1e-9 <= truth <= estimate.high + 1e-9
    return hits / runs


def two_samples(rng, n):
    return stats.mean_interval(rng.binomial(2, 0.98, n) / 2, bounds=(0, 1), resamples=500), 0.98


def two_samples_rarely_right(rng, n):
    return stats.mean_interval(rng.binomial(2, 0.01, n) / 2, bounds=(0, 1), resamples=500), 0.01


def pass_at_2(rng, n):
    passed = rng.binomial(4, 0.97, n)
    truth = 1 - 0.03**2
    return stats.mean_interval(quality.pass_at_k(np.full(n, 4), passed, 2), bounds=(0, 1), resamples=500), truth


def ratio_near_one(rng, n):
    examined = rng.integers(20, 120, n)
    return stats.ratio_interval(rng.binomial(examined, 0.9995), examined, bounds=(0, 1), resamples=500), 0.9995


def pairs_of_pass_fail(rng, n):
    lossless = (rng.uniform(size=n) < 0.7).astype(float)
    return stats.paired_interval(lossless * (rng.uniform(size=n) > 0.02), lossless, bounds=(0, 1)), -0.014


def bleu_difference(rng, n):
    """Corpus precision of one order: the lenient one garbles 2 % of the sentences."""
    length = rng.integers(10, 40, n).astype(float)
    good = rng.binomial(length.astype(int), 0.6).astype(float)
    garbled = np.where(rng.uniform(size=n) < 0.02, 0.0, good)

    def gap(sums):
        return 100 * (sums[:, 0] - sums[:, 1]) / sums[:, 2]

    rows = np.stack([garbled, good, length], 1)
    return stats.statistic_interval(rows, gap, bounds=BOUNDS, resamples=500), -1.2


KINDS = {
    "two samples, right at .98: was 69 %": two_samples,
    "two samples, right at .01: was 50 %": two_samples_rarely_right,
    "pass@2 of four": pass_at_2,
    "acceptance near one": ratio_near_one,
    "pairs of pass/fail": pairs_of_pass_fail,
    "corpus difference": bleu_difference,
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_covers_where_few_differ_in_a_short_simulation(kind):
    runs = 150
    assert coverage(kind, 100, runs) >= 0.93 - 3 * math.sqrt(0.05 / runs)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_covers_93_percent_where_few_differ(kind):
    """The long form, with more n, is scripts/simulate_intervals.py; here three standard errors are left for chance."""
    runs = 600
    covered = coverage(kind, 100, runs)
    assert covered >= 0.93 - 3 * math.sqrt(0.07 * 0.93 / runs)


@pytest.mark.slow
@pytest.mark.parametrize("law", list(laws()), ids=lambda law: law.name)
def test_every_law_is_covered_and_rarely_called_safe_at_its_margin(law):
    """The long form, with more n, is scripts/simulate_intervals.py; here three standard errors are left for chance.

    An interval speaks of losses like those seen: in the mixed laws it may miss where no example showed a large one.
    """
    n, runs = 100, 600
    values = law.draw(np.random.default_rng((3, n)), n, runs)
    parts = [
        stats.mean_limits(values[:, i : i + 100], resamples=2000, seed=i, bounds=BOUNDS) for i in range(0, runs, 100)
    ]
    low, high = (np.concatenate(ends) for ends in zip(*parts, strict=True))
    is_seen = (values.min(0) < -15) if law.kind == "mixed" else np.ones(runs, dtype=bool)
    is_missed = ~((low <= law.mean + 1e-9) & (law.mean - 1e-9 <= high))
    covered = 1 - float((is_missed & is_seen).mean())
    assert covered >= 0.93 - 3 * math.sqrt(0.07 * 0.93 / runs)
    assert called_safe(values, -law.mean).mean() <= ALPHA + 3 * math.sqrt(ALPHA / runs)
    if law.kind == "dense":
        usual = 2 * scipy_stats.t.ppf(0.975, n - 1) * values.std(0, ddof=1) / math.sqrt(n)
        assert covered <= 0.975 + 3 * math.sqrt(0.025 / runs)
        assert np.median((high - low) / usual) <= 1.3


@pytest.mark.parametrize("law", [law for law in laws() if law.kind == "dense"], ids=lambda law: law.name)
def test_dense_data_cost_at_most_a_third_more_than_student(law):
    values = law.draw(np.random.default_rng(5), 60, 40)
    low, high = stats.mean_limits(values, resamples=1000, bounds=BOUNDS)
    usual = 2 * scipy_stats.t.ppf(0.975, 59) * values.std(0, ddof=1) / math.sqrt(60)
    assert np.median((high - low) / usual) <= 1.3


@pytest.mark.results
def test_the_committed_simulations_keep_the_promise_at_every_n():
    """results/statistics/means.json: what is called safe at its margin, and intervals of all but the mixed laws."""
    rows = pd.DataFrame(json.loads((Path(__file__).parents[2] / "results/statistics/means.json").read_text()))
    assert set(rows["n"]) == {60, 100, 200, 500, 1000}
    own, safe = rows[(rows["method"] == "sdbench") & (rows["kind"] != "mixed")], rows[rows["method"] == "Gaffke"]
    assert set(safe["law"]) == {law.name for law in laws()}
    assert safe["below_low"].max() <= ALPHA
    assert (1 - own["below_low"] - own["above_high"]).min() >= 0.93
    dense = own[own["kind"] == "dense"]
    assert dense["width"].max() <= 1.3
    assert (1 - dense["below_low"] - dense["above_high"]).max() <= 0.975
