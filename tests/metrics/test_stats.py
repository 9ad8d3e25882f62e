"""Intervals hold what they promise: coverage by simulation, defined degenerate inputs, speed."""

import math

import numpy as np
import pytest
from scipy import stats as scipy_stats

from sdbench.metrics import stats
from sdbench.metrics.stats import paired

NAN = math.nan


def skewed(rng, n):
    return rng.gamma(2.0, 10.0, n), 20.0


CASES = {
    "mean": lambda rng, n: (stats.mean_interval(skewed(rng, n)[0], resamples=1000), 20.0),
    "proportion near 0.9": lambda rng, n: proportion(rng, n, 0.9),
    "proportion near 0.99": lambda rng, n: proportion(rng, n, 0.99),
    "ratio": lambda rng, n: ratio(rng, n),
    "paired difference of means": lambda rng, n: paired_means(rng, n),
    "paired difference of pass/fail": lambda rng, n: paired_binary(rng, n),
}


def proportion(rng, n, near):
    """At 0.99 and n = 100 itself any interval covers 92.1 % or 98.2 %, for k is a whole number: so p is drawn nearby."""
    p = 1 - (1 - near) * rng.uniform(0.75, 1.25)
    return stats.proportion_interval(int(rng.binomial(n, p)), n), p


def ratio(rng, n):
    """Accepted of examined: lengths differ, and long examples accept less."""
    examined = rng.integers(20, 120, n)
    chance = np.clip(0.85 - 0.002 * examined + rng.normal(0, 0.08, n), 0.02, 0.98)
    lengths = np.arange(20, 120)
    grid = scipy_stats.norm.ppf((np.arange(400) + 0.5) / 400) * 0.08
    means = np.clip(0.85 - 0.002 * lengths[:, None] + grid, 0.02, 0.98).mean(1)
    truth = float((lengths * means).sum() / lengths.sum())
    return stats.ratio_interval(rng.binomial(examined, chance), examined, resamples=1000), truth


def paired_means(rng, n):
    shared = rng.gamma(2.0, 10.0, n)
    loss = rng.exponential(2.0, n) * (rng.uniform(size=n) < 0.5)
    return stats.paired_interval(shared - loss, shared, resamples=1000), -1.0


def paired_binary(rng, n):
    """0.65 of both pass, 0.10 lose, 0.05 win."""
    draw = rng.uniform(size=n)
    lossless = (draw < 0.75).astype(float)
    lenient = ((draw < 0.65) | (draw > 0.95)).astype(float)
    return stats.paired_interval(lenient, lossless), -0.05


def coverage(case, n, runs, seed=1):
    hits = 0
    for run in range(runs):
        estimate, truth = CASES[case](np.random.default_rng((seed, n, run)), n)
        hits += estimate.low <= truth <= estimate.high
    return hits / runs


@pytest.mark.parametrize("case", CASES)
def test_an_interval_covers_in_a_short_simulation(case):
    runs = 200
    error = math.sqrt(0.95 * 0.05 / runs)
    assert 0.93 - 3 * error <= coverage(case, 100, runs)


@pytest.mark.slow
@pytest.mark.parametrize("n", [100, 500])
@pytest.mark.parametrize("case", CASES)
def test_an_interval_covers_93_to_97_percent(case, n):
    covered = coverage(case, n, 2500)
    print(f"coverage, {case}, n={n}: {covered:.4f}")
    # 2,500 runs have a standard error of 0.0044. Where few fail, exact limits cover more than they promise.
    assert 0.93 <= covered <= (1 if case == "proportion near 0.99" else 0.97)


def exact_coverage(n, p):
    k = np.arange(n + 1)
    intervals = [stats.proportion_interval(int(i), n) for i in k]
    covers = np.array([i.low <= p <= i.high for i in intervals])
    return float((scipy_stats.binom.pmf(k, n, p) * covers).sum())


@pytest.mark.parametrize("n", [100, 500])
@pytest.mark.parametrize("p", [0.9, 0.99])
def test_a_proportion_covers_on_average_around_it(n, p):
    """Exact, averaged over near values: at one p the coverage of any discrete interval jumps with p."""
    width = (1 - p) / 4
    covered = np.mean([exact_coverage(n, x) for x in np.linspace(p - width, p + width, 21)])
    assert 0.93 <= covered <= (0.97 if n * (1 - p) >= 40 else 1)


@pytest.mark.parametrize("n", [60, 200])
def test_a_proportion_covers_at_every_share(n):
    """Exact; Wilson's alone covers 84 % where n·p is 0.17."""
    k = np.arange(n + 1)
    intervals = [stats.proportion_interval(int(i), n) for i in k]
    low, high = (np.array([getattr(i, end) for i in intervals]) for end in ("low", "high"))
    for p in np.linspace(0.0005, 0.5, 400):
        assert scipy_stats.binom.pmf(k, n, p)[(low <= p) & (p <= high)].sum() >= 0.93


def test_degenerate_inputs_are_defined():
    for estimate in (stats.mean_interval([]), stats.ratio_interval([], []), stats.proportion_interval(0, 0)):
        assert estimate.n == 0
        assert math.isnan(estimate.value)
        assert math.isnan(estimate.low)
        assert math.isnan(estimate.high)
    one = stats.mean_interval([3.0])
    assert (one.value, one.n) == (3.0, 1)
    assert math.isnan(one.low)
    assert math.isnan(stats.ratio_interval([0, 0], [0, 0]).value)
    assert stats.ratio_interval([0, 0, 0], [1, 2, 3]).value == 0.0
    assert stats.ratio_interval([1, 2, 3], [1, 2, 3], bounds=(0, 1)).high == 1
    assert stats.paired_interval([1.0, 0.0, 1.0], [1.0, 0.0, 1.0]).value == 0.0


@pytest.mark.parametrize("call", [stats.mean_interval, lambda x: stats.ratio_interval(x, [1.0, 1.0])])
def test_a_nan_is_refused_in_one_sentence(call):
    with pytest.raises(ValueError, match="NaN"):
        call([1.0, NAN])


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="level"):
        stats.mean_interval([1.0, 2.0], level=1.0)
    with pytest.raises(ValueError, match="paired"):
        stats.paired_interval([1.0], [1.0, 2.0])
    with pytest.raises(ValueError, match="between 0 and n"):
        stats.proportion_interval(3, 2)
    with pytest.raises(ValueError, match="negative"):
        stats.ratio_interval([-1.0, 2.0], [1.0, 2.0])


def test_a_seed_fixes_an_interval_and_scaling_moves_it_along():
    values = np.random.default_rng(0).normal(5, 2, 80)
    first = stats.mean_interval(values, seed=3)
    assert first == stats.mean_interval(values, seed=3)
    assert first != stats.mean_interval(values, seed=4)
    scaled = stats.mean_interval(values * 4, seed=3)
    assert scaled.low == pytest.approx(4 * first.low)
    assert scaled.high == pytest.approx(4 * first.high)


def test_a_mean_agrees_with_student_on_normal_data():
    values = np.random.default_rng(0).normal(5, 2, 200)
    estimate = stats.mean_interval(values)
    low, high = scipy_stats.t.interval(0.95, 199, values.mean(), scipy_stats.sem(values))
    assert estimate.low == pytest.approx(low, abs=0.03)
    assert estimate.high == pytest.approx(high, abs=0.03)


def test_a_wider_level_holds_a_narrower_one():
    values = np.random.default_rng(0).gamma(2, 1, 60)
    narrow, wide = stats.mean_interval(values, level=0.8), stats.mean_interval(values, level=0.99)
    assert wide.low < narrow.low < narrow.value < narrow.high < wide.high


def likelihood_score(wins, losses, n, delta):
    """Tango's z by brute force: the share of losses that maximises the likelihood, on a fine grid."""
    low = max(0.0, -delta)
    share = np.linspace(low, (1 - delta) / 2, 2_000_001)[1:-1]
    rest = n - wins - losses
    logs = losses * np.log(share) + wins * np.log(share + delta) + rest * np.log(1 - 2 * share - delta)
    best = share[np.argmax(logs)]
    return (wins - losses - n * delta) / math.sqrt(n * (2 * best + delta * (1 - delta)))


@pytest.mark.parametrize(("wins", "losses", "n"), [(12, 2, 50), (3, 9, 100), (40, 25, 300)])
def test_limits_of_a_paired_difference_solve_the_score_equation(wins, losses, n):
    x = np.array([1.0] * wins + [0.0] * losses + [1.0] * (n - wins - losses))
    y = np.array([0.0] * wins + [1.0] * losses + [1.0] * (n - wins - losses))
    estimate = stats.paired_interval(x, y)
    assert likelihood_score(wins, losses, n, estimate.low) == pytest.approx(1.959964, abs=1e-3)
    assert likelihood_score(wins, losses, n, estimate.high) == pytest.approx(-1.959964, abs=1e-3)
    mirrored = stats.paired_interval(y, x)
    assert (mirrored.low, mirrored.high) == pytest.approx((-estimate.high, -estimate.low))


def test_a_paired_difference_without_discordant_pairs_still_has_width():
    estimate = stats.paired_interval(np.ones(100), np.ones(100))
    assert estimate.value == 0
    assert estimate.low == pytest.approx(-3.8415 / 103.8415, abs=1e-4)
    assert estimate.high == pytest.approx(3.8415 / 103.8415, abs=1e-4)


@pytest.mark.parametrize("level", [0.95, 1 - 0.05 / 3])
@pytest.mark.parametrize("shares", [(0.015, 0.065), (0.0, 0.05), (0.1, 0.15), (0.05, 0.1)])
@pytest.mark.parametrize("n", [50, 100, 200])
def test_the_one_sided_error_at_the_margin_is_below_alpha_exactly(n, shares, level):
    """Summed over all tables: the limit clears −0.05 with the loss exactly there in at most (1 − level)/2 of cases."""
    z = scipy_stats.norm.ppf((1 + level) / 2)
    wins, losses = np.arange(n + 1)[:, None], np.arange(n + 1)[None, :]
    rest = n - wins - losses
    mass = scipy_stats.multinomial.pmf(
        np.stack(np.broadcast_arrays(wins, losses, np.maximum(rest, 0)), -1), n, [*shares, 1 - sum(shares)]
    )
    likely = np.argwhere((rest >= 0) & (mass > 1e-9))
    error = sum(mass[b, c] for b, c in likely if paired._tango_score(b, c, n, -0.05) > z)
    assert error <= (1 - level) / 2


def test_mcnemar_is_the_binomial_test_of_the_examples_that_differ():
    x, y = np.array([1.0] * 30 + [1.0] * 9 + [0.0] * 2), np.array([1.0] * 30 + [0.0] * 9 + [1.0] * 2)
    assert stats.mcnemar(x, y) == pytest.approx(scipy_stats.binomtest(2, 11).pvalue)
    assert stats.paired_p_value(x, x) == 1.0


def test_holm_steps_down_and_leaves_untested_cells_out():
    adjusted = stats.holm([0.01, NAN, 0.04, 0.03])
    assert adjusted[[0, 2, 3]] == pytest.approx([0.03, 0.06, 0.06])
    assert math.isnan(adjusted[1])


def test_the_detectable_effect_is_found_with_80_percent_power():
    effect, hits, runs = None, 0, 400
    rng = np.random.default_rng(5)
    spread = rng.normal(0, 3, 200)
    effect = stats.detectable(spread, np.zeros(200))
    for run in range(runs):
        sample = np.random.default_rng((9, run)).normal(effect, spread.std(ddof=1), 200)
        hits += stats.paired_p_value(sample, np.zeros(200)) < 0.05
    assert hits / runs == pytest.approx(0.8, abs=3 * math.sqrt(0.8 * 0.2 / runs))


def test_without_spread_no_effect_is_called_detectable():
    """Where no example differed, 0 points were the smallest difference that n detects."""
    x = np.random.default_rng(0).uniform(size=60)
    assert math.isnan(stats.detectable(x, x))
    assert math.isnan(stats.detectable(x, x + 0.1)), "all differ alike"
    assert stats.detectable(x, np.r_[x[:59], 0]) > 0


SHARES = (0.5, 0.9, 0.99)


def limits_of(estimates):
    return np.array([(each.low, each.high) for each in estimates])


def test_quantiles_of_groups_are_those_of_all_their_values():
    rng = np.random.default_rng(0)
    groups = [rng.gamma(2.0, 1.0, size) for size in rng.integers(0, 40, 60)]
    estimates = stats.pooled_quantiles(groups, SHARES)
    assert [each.value for each in estimates] == [np.quantile(np.concatenate(groups), share) for share in SHARES]
    assert {each.n for each in estimates} == {sum(len(group) > 0 for group in groups)}
    assert all(each.low < each.value < each.high for each in estimates)


@pytest.mark.parametrize("n", [100, 320, 420, 900])
def test_groups_of_one_value_have_the_limits_of_order_statistics(n):
    """Up to a rank or two, by the chance of the draws. Where n is too small for a limit there is none."""
    x = np.random.default_rng(n).gamma(2.0, 1.0, n)
    pooled = limits_of(stats.pooled_quantiles([[value] for value in x], SHARES))
    single = limits_of([stats.quantile_interval(x, share) for share in SHARES])
    assert (np.isnan(pooled) == np.isnan(single)).all()
    assert np.isnan(pooled[2, 1]) == (n < 368)
    ranks = [np.searchsorted(np.sort(x), np.nan_to_num(ends)) for ends in (pooled, single)]
    assert np.abs(ranks[0] - ranks[1]).max() <= 2


def test_values_that_agree_within_their_group_count_as_one():
    """Every value of a group is equal: the limits are nearly those of one value per group, where independent ones are narrower."""
    x = np.random.default_rng(1).gamma(2.0, 1.0, 200)
    single = stats.quantile_interval(x, 0.5)
    (pooled,) = stats.pooled_quantiles([np.full(50, value) for value in x], [0.5])
    independent = stats.quantile_interval(np.repeat(x, 50), 0.5)
    assert pooled.high - pooled.low == pytest.approx(single.high - single.low, rel=0.15)
    assert independent.high - independent.low < 0.5 * (pooled.high - pooled.low)


def test_a_tail_that_one_group_makes_has_no_upper_limit():
    """A hundred groups, one of them slow throughout: with 37 % chance such a sample has none."""
    groups = [np.linspace(0, 1, 100) for _ in range(99)] + [np.linspace(5, 6, 200)]
    assert math.isnan(stats.pooled_quantiles(groups, [0.99])[0].high)


def test_groups_that_are_alike_have_no_narrower_limits_than_independent_values():
    groups = [np.linspace(0, 1, 101)] * 20
    (pooled,) = stats.pooled_quantiles(groups, [0.5])
    independent = stats.quantile_interval(np.concatenate(groups), 0.5)
    assert (pooled.low, pooled.high) == (independent.low, independent.high)
    assert pooled.low < pooled.high


@pytest.mark.parametrize("groups", [[], [[], []], [[1.0, 2.0]], [[1.0, 2.0]] * 9])
def test_few_groups_give_no_limits(groups):
    (estimate,) = stats.pooled_quantiles(groups, [0.5])
    n = sum(len(group) > 0 for group in groups)
    assert (estimate.n, math.isnan(estimate.value)) == (n, not n)
    assert np.isnan([estimate.low, estimate.high]).all()


@pytest.mark.slow
@pytest.mark.parametrize("n", [64, 400])
def test_limits_of_quantiles_of_groups_cover(n):
    """Groups are slow or fast as a whole, and of different lengths."""
    runs = 200

    def draw(rng, count):
        scales = rng.lognormal(0, 0.3, count)
        return [
            scale * rng.gamma(4.0, 1.0, size) for scale, size in zip(scales, rng.integers(20, 80, count), strict=True)
        ]

    true = np.quantile(np.concatenate(draw(np.random.default_rng(99), 40_000)), SHARES)
    covered = np.zeros(len(SHARES))
    for run in range(runs):
        limits = limits_of(stats.pooled_quantiles(draw(np.random.default_rng((n, run)), n), SHARES, resamples=1000))
        covered += ~((limits[:, 0] > true) | (limits[:, 1] < true))  # no limit excludes nothing
    assert (covered / runs > 0.95 - 3 * math.sqrt(0.95 * 0.05 / runs)).all(), covered
