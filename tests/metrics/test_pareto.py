"""Fronts, hypervolumes and areas by hand and by brute force."""

from copy import copy

import numpy as np
import pandas as pd
import pytest

from sdbench.metrics import pareto, speed
from sdbench.metrics.stats import bootstrap_sums


def brute_front(x, y):
    pairs = list(zip(x, y, strict=True))
    return [not any(a >= p and b >= q and (a, b) != (p, q) for a, b in pairs) for p, q in pairs]


@pytest.mark.parametrize("seed", range(20))
def test_the_front_equals_brute_force_with_ties(seed):
    x, y = np.random.default_rng(seed).integers(0, 6, (2, 12)) / 5
    assert pareto.non_dominated(x, y).tolist() == brute_front(x, y)


@pytest.mark.parametrize("seed", range(10))
def test_the_hypervolume_equals_counting_points(seed):
    rng = np.random.default_rng(seed)
    x, y = rng.uniform(size=(2, 6))
    points = rng.uniform(size=(200_000, 2))
    counted = ((points[:, :1] <= x) & (points[:, 1:] <= y)).any(1).mean()
    assert pareto.hypervolume(x, y) == pytest.approx(counted, abs=4 * 0.5 / np.sqrt(200_000))


def test_the_hypervolume_counts_from_its_corner():
    assert pareto.hypervolume([2.0], [3.0], (1.0, 1.0)) == pytest.approx(2.0)
    assert pareto.hypervolume([0.5], [3.0], (1.0, 1.0)) == 0


def test_the_area_between_two_lines_is_a_trapezium():
    first, second = ([0.0, 1.0], [1.0, 2.0]), ([0.5, 1.0], [0.0, 0.0])
    assert pareto._gap(first, second) == pytest.approx((0.5 * (1.5 + 2.0) / 2, 0.5))
    assert pareto._gap(second, first)[0] == pytest.approx(-0.5 * (1.5 + 2.0) / 2)
    assert np.isnan(pareto._gap(([0.0, 1.0], [1, 1]), ([2.0, 3.0], [1, 1]))).all()


def test_every_resample_has_a_front(results):
    cells = results.cells
    keys = cells.loc[(cells["verifier"] == "ensemble") & (cells["num_draft"] == 5), "cell"].tolist()
    front = pareto.front_of(pareto.joint(results, keys, resamples=1000))
    assert front.points["probability"].between(0, 1).all()
    assert front.points["probability"].sum() >= 1
    assert front.points["is_on_front"].any()
    assert front.hypervolume.low <= front.hypervolume.value <= front.hypervolume.high
    assert front.hypervolume.n == 60


def test_a_front_of_corpus_bleu_is_drawn_too(translations):
    cells = translations.cells
    keys = cells.loc[(cells["verifier"] == "ensemble") & (cells["task"] == "wmt-tiny"), "cell"].tolist()
    front = pareto.front_of(pareto.joint(translations, keys, resamples=500))
    assert len(front.points) == 2
    # w=0.5 accepts more and w=1 translates better, in these records by far: both are on it.
    assert (front.points["probability"] > 0.9).all()


def test_unknown_cells_are_refused(results):
    with pytest.raises(ValueError, match="generations"):
        pareto.front_of(pareto.joint(results, ["nothing"]))


def test_a_cell_with_few_texts_leaves_the_front_of_the_others_alone(results):
    """A setting that has just been added has one text: it is left out, not all others reduced to its example."""
    cells = results.cells
    keys = cells.loc[(cells["verifier"] == "ensemble") & (cells["num_draft"] == 5), "cell"].tolist()
    few = copy(results)
    is_kept = (results.generations["cell"] != keys[0]) | (results.generations["example"] == "7")
    few.__dict__["generations"] = results.generations[is_kept]
    whole, rest = pareto.joint(results, keys[1:], resamples=200), pareto.joint(few, keys, resamples=200)
    assert rest.cells == tuple(keys[1:])
    assert rest.n == 60
    np.testing.assert_array_equal(rest.x, whole.x)


def test_a_cell_with_many_texts_leaves_the_others_on_the_front(results):
    """w=0.7 with n=60 after four settings with n=20: all are compared on the 20 that they share."""
    cells = results.cells
    keys = cells.loc[(cells["verifier"] == "ensemble") & (cells["num_draft"] == 5), "cell"].tolist()
    some = copy(results)
    is_kept = (results.generations["cell"] == keys[0]) | (results.generations["example"].astype(int) < 20)
    some.__dict__["generations"] = results.generations[is_kept]
    front = pareto.joint(some, keys, resamples=200)
    assert (front.cells, front.n) == (tuple(keys), 20)


def timed_again(results, timings):
    """The same records with other timings."""
    again = copy(results)
    again.__dict__["timings"] = timings
    return again


def keys_of(results):
    cells = results.cells
    return cells.loc[(cells["verifier"] == "ensemble") & (cells["num_draft"] == 5), "cell"].tolist()


def few_timings(results, examples=("0", "1", "2")):
    return results.timings[results.timings["example"].isin(examples)]


def test_the_cells_of_one_pass_are_resampled_together(results):
    keys, few = keys_of(results), few_timings(results)
    joint = pareto.joint(timed_again(results, few), keys, rate="speedup", resamples=300)
    names = ["decoded_tokens", "decode_s", "decoded_tokens_base", "decode_s_base"]
    pairs = speed.against_baseline(few)
    sums = np.concatenate([pairs[key].groupby("example")[names].sum().to_numpy() for key in keys], 1)
    rates = [drawn[..., ::2] / drawn[..., 1::2] for drawn in (sums.sum(0), bootstrap_sums(sums, resamples=300, seed=1))]
    x, xs = (rate[..., ::2] / rate[..., 1::2] for rate in rates)
    np.testing.assert_array_equal(joint.x, x)
    np.testing.assert_array_equal(joint.xs, xs)


def test_two_passes_of_few_examples_have_finite_limits(results):
    """A resample of both passes together could contain none of a cell, which is no speed."""
    keys, few = keys_of(results), few_timings(results)
    is_later = few["cell"].isin(keys[::2])
    later = few[is_later | few["verifier"].isin(speed.ALONE)]
    later = later.assign(pass_id="later", started_at=later["started_at"] + 1e4)
    one, two = (
        pareto.joint(timed_again(results, timings), keys, rate="speedup", resamples=300)
        for timings in (few, pd.concat([few[~is_later], later]))
    )
    np.testing.assert_array_equal(two.x, one.x)
    np.testing.assert_allclose(two.xs, one.xs, err_msg="both passes timed the same examples, which are drawn together")
    volume = pareto.volume_of(two)
    assert 0 < volume.low <= volume.value <= volume.high < 10


def test_a_setting_with_a_single_timed_example_has_a_speed_in_every_resample(results):
    """The pass ended before the others of its examples."""
    keys, few = keys_of(results), few_timings(results)
    rest = few[(few["cell"] != keys[0]) | (few["example"] == "1")]
    joint = pareto.joint(timed_again(results, rest), keys, rate="speedup", resamples=300)
    assert joint.cells == tuple(keys)
    assert (joint.xs > 0).all()
    np.testing.assert_allclose(joint.xs[:, 0], joint.x[0])
    assert joint.of(keys[:1]).n == 1
    assert joint.of(keys[1:]).n == 3, "the other settings rest on all three"


def test_the_plane_of_speeds_rests_on_the_timed_examples(results):
    """Its n was that of the 60 examples with a quality, and a single timed one gave intervals without width."""
    keys = keys_of(results)
    three, single = (
        pareto.joint(timed_again(results, few_timings(results, examples)), keys, rate="speedup", resamples=300)
        for examples in (("0", "1", "2"), ("1",))
    )
    assert (three.n, single.n) == (3, 1)
    front, unknown = pareto.front_of(three), pareto.front_of(single)
    assert front.points["probability"].notna().all()
    assert unknown.points["probability"].isna().all()
    assert (front.hypervolume.n, unknown.hypervolume.n) == (3, 1)
    assert np.isnan([unknown.hypervolume.low, unknown.hypervolume.high, unknown.bias]).all()
    area = pareto.gain(single, keys[:2], keys[2:4])["area"]
    assert area.n == 1
    assert np.isnan([area.low, area.high]).all()
    assert pareto.joint(results, keys, rate="acceptance", resamples=100).n == 60
