"""The recommendation is wrong at most as often as it says, finds planted faults, and says why there is none."""

import math

import numpy as np
import pandas as pd
import pytest

import sdbench
from sdbench.metrics import recommend, stats
from sdbench.metrics.recommend import ALPHA
from tests.records.synthetic import write_synthetic

WS = (0.9, 0.7, 0.5, 0.3, 0.0)
BASE = {"model": "m", "task": "t", "temperature": 1.0, "protocol": "p", "num_draft": 5}
BASE |= {"asked": "a", "content": {}, "knobs": ""}


def frames(metric, rules=("ensemble",)):
    rows = [{**BASE, "cell": "lossless", "verifier": "lossless", "w": math.nan, "is_lossless": True, "metric": metric}]
    for rule in rules:
        rows += [
            {**BASE, "cell": f"{rule}{w}", "verifier": rule, "w": w, "is_lossless": False, "metric": metric} for w in WS
        ]
    return pd.DataFrame(rows).set_index("cell")


def scores(rng, n, cells, metric, loss):
    """Paired scores; a lenient cell loses `loss` points on average, cells apart from lossless independent."""
    if metric == "strict":
        base = (rng.uniform(size=n) < 0.7).astype(float)
        win = 0.05  # of the failed
        lose = (0.01 * loss + 0.3 * win) / 0.7
        rows = {"lossless": base}
        for key in cells.index[1:]:
            coin = rng.uniform(size=n)
            rows[key] = np.where(base == 1, coin >= lose, coin < win).astype(float)
    else:
        base = rng.gamma(4, 7, n)
        rows = {"lossless": base}
        rows |= {key: base - rng.exponential(loss, n) + rng.normal(0, 4, n) for key in cells.index[1:]}
    return {key: pd.Series(values) for key, values in rows.items()}


def passed(rng, n, metric, loss, margin, rules=("ensemble",), resamples=1000):
    """Whether any setting is found safe, over all rules."""
    cells = frames(metric, rules)
    rows = scores(rng, n, cells, metric, loss)
    orders = recommend.sequences(cells)
    options = {"resamples": resamples, "seed": 0}
    return any(
        test.is_passed
        for order in orders
        for test in recommend.test_sequence(order, cells, rows, margin, ALPHA / len(orders), options)
    )


def share(runs, *args, **options):
    return sum(passed(np.random.default_rng((11, run)), *args, **options) for run in range(runs)) / runs


@pytest.mark.parametrize("metric", ["rougeL", "strict"])
def test_settings_at_the_margin_are_rarely_recommended_in_a_short_simulation(metric):
    runs = 300
    assert share(runs, 150, metric, 5.0, 5.0) <= ALPHA + 3 * math.sqrt(ALPHA / runs)


@pytest.mark.slow
@pytest.mark.parametrize("metric", ["rougeL", "strict"])
def test_with_every_setting_at_the_margin_false_recommendations_stay_below_alpha(metric):
    """The whole path, three rules; 1,000 runs see an error of twice alpha. The limits themselves are simulated below."""
    runs = 1000
    found = share(runs, 100, metric, 5.0, 5.0, rules=("ensemble", "lenience", "typical"), resamples=4000)
    print(f"false recommendations, {metric}, 3 rules, n=100: {found:.4f}")
    assert found <= ALPHA + 2 * math.sqrt(ALPHA * (1 - ALPHA) / runs)


def errors_at_the_margin(n, rules, runs, resamples, seed):
    """Share of sweeps in which the first setting of any rule passes, with a mean loss of exactly the margin of 5."""
    rng = np.random.default_rng((17, n, rules, seed))
    level = 1 - 2 * recommend.shrunk(ALPHA / rules, n)
    passes = []
    for _ in range(runs // 100):
        gaps = rng.normal(0, 4, (n, 100 * rules)) - rng.exponential(5, (n, 100 * rules))
        low, _ = stats.mean_limits(gaps, level=level, resamples=resamples, seed=seed)
        passes.append((low > -5).reshape(100, rules).any(1).mean())
    return float(np.mean(passes))


def test_limits_at_the_margin_err_rarely_in_a_short_simulation():
    runs = 2000
    assert errors_at_the_margin(100, 3, runs, 2000, seed=0) <= ALPHA + 2 * math.sqrt(ALPHA / runs)


@pytest.mark.slow
@pytest.mark.parametrize("rules", [1, 3])
@pytest.mark.parametrize("n", [100, 500])
def test_limits_at_the_margin_err_at_most_alpha(n, rules):
    """20,000 sweeps, standard error 0.1 %, as many resamples as in use; the first test of a rule alone can err first."""
    found = errors_at_the_margin(n, rules, 20_000, 10_000, seed=0)
    print(f"false recommendations, ROUGE, {rules} rules, n={n}: {found:.4f}")
    assert found <= ALPHA


def test_a_planted_loss_of_twice_the_margin_is_never_recommended():
    assert share(100, 200, "rougeL", 4.0, 2.0) == 0


def test_a_harmless_setting_is_found_with_enough_examples():
    assert share(50, 500, "strict", 0.0, 5.0) > 0.9


def test_testing_goes_from_lossless_outwards_and_stops_at_the_first_failure():
    cells = frames("rougeL")
    base = np.random.default_rng(0).gamma(4, 7, 300)
    losses = {0.9: 0.1, 0.7: 0.2, 0.5: 9.0, 0.3: 0.0, 0.0: 0.0}
    rows = {"lossless": pd.Series(base)} | {f"ensemble{w}": pd.Series(base - loss) for w, loss in losses.items()}
    (order,) = recommend.sequences(cells)
    tests = recommend.test_sequence(order, cells, rows, 1.0, ALPHA, {"resamples": 1000, "seed": 0})
    assert [(test.w, test.is_passed) for test in tests] == [(0.9, True), (0.7, True), (0.5, False)]


def test_each_rule_and_draft_length_is_a_sequence_of_its_own():
    cells = pd.concat([frames("strict", ("ensemble", "lenience")), frames("strict").iloc[1:].assign(num_draft=3)])
    cells.index = [f"{key}{i}" for i, key in enumerate(cells.index)]
    assert [len(order) for order in recommend.sequences(cells)] == [5, 5, 5]


def test_the_lower_limit_is_one_sided_at_alpha():
    """The level is 1 − 2·α: 95 % for one rule, wider for more."""
    cells = frames("rougeL")
    rows = scores(np.random.default_rng(1), 100, cells, "rougeL", 1.0)
    (order,) = recommend.sequences(cells)
    one, three = (
        recommend.test_sequence(order, cells, rows, 50.0, a, {"resamples": 2000, "seed": 0}) for a in (ALPHA, ALPHA / 3)
    )
    assert all(a.difference.low > b.difference.low for a, b in zip(one, three, strict=True))


def test_below_fifty_examples_there_is_no_recommendation(tmp_path):
    (advice,) = recommend.recommend(
        sdbench.read(write_synthetic(tmp_path / "r", n=49, timing_examples=2)), 90.0
    ).advices
    assert advice.cell is None
    assert "n is small (n=49" in advice.text


def test_a_narrow_margin_says_how_many_more_examples_would_do(results):
    (advice,) = recommend.recommend(results, 5.0).advices
    assert advice.cell is None
    assert "n is too small to tell" in advice.text
    assert "more examples would do" in advice.text


def test_a_wide_margin_ships_the_fastest_setting_with_its_measured_speed(results):
    (advice,) = recommend.recommend(results, 90.0).advices
    assert "ship ensemble w=0 with num_draft=5" in advice.text
    assert advice.speedup is not None
    assert advice.speedup.value > 1.5


def test_the_choice_does_not_look_at_the_times_it_reports(results):
    """Timings turned upside down change the reported speed-up, never the setting."""
    (before,) = recommend.recommend(results, 90.0).advices
    turned = results.timings.copy()
    turned["decode_s"] = 1 / turned["decode_s"]
    swapped = sdbench.read(results.path)
    swapped.__dict__["timings"] = turned
    (after,) = recommend.recommend(swapped, 90.0).advices
    assert after.cell == before.cell
    assert after.speedup != before.speedup


def test_a_loss_beyond_the_margin_says_none_within_it():
    cells = frames("rougeL")
    rows = scores(np.random.default_rng(1), 300, cells, "rougeL", 9.0)
    (order,) = recommend.sequences(cells)
    tests = recommend.test_sequence(order, cells, rows, 1.0, ALPHA, {"resamples": 1000, "seed": 0})
    assert "none within the margin" in recommend._none(tests, 1.0, "rougeL", ALPHA)


def test_the_number_of_more_examples_gives_80_percent_power():
    """If the loss and the spread are as they were seen, a run with that n passes four times in five."""
    draw = np.random.default_rng(4).normal(-0.5, 4, 100)
    gap = recommend.quality.difference(pd.Series(draw), pd.Series(np.zeros(100)), "rougeL", resamples=4000)
    test = recommend.Test("c", "ensemble", 0.9, 5, gap, False)
    more = int(recommend._none([test], 1.0, "rougeL", ALPHA).split("about ")[1].split()[0].replace(",", ""))
    error = draw.std(ddof=1) / math.sqrt(100 + more)
    again = np.random.default_rng(5).normal(draw.mean(), error, 4000)
    assert np.mean(again - 1.96 * error > -1.0) == pytest.approx(0.8, abs=0.06)


def test_a_margin_must_be_positive(results):
    with pytest.raises(ValueError, match="above 0"):
        recommend.recommend(results, 0)
