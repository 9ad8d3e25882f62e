"""Lengths of texts in progress are estimated without the bias of those that end first."""

import math
from random import Random
from statistics import fmean

import pytest

from sdbench.prepare.lengths import LogLengths, expected_longest, likely_lengths, mean_beyond, mean_rest


@pytest.mark.parametrize(("mean", "sigma"), [(4.0, 0.3), (3.3, 1.0)])
def test_the_law_of_lengths_is_found_though_two_thirds_of_the_texts_are_in_progress(mean, sigma):
    """The mean of the finished ones alone is far too low: less than half of the true one in the wider law."""
    random = Random(3)
    lengths = [round(random.lognormvariate(mean, sigma)) for _ in range(600)]
    age = sorted(lengths)[200]
    finished, logs = [length for length in lengths if length <= age], LogLengths()
    for length in finished:
        logs.add(length)
    law = logs.fit([age], len(lengths) - len(finished))
    assert (law.mean, law.stdev) == pytest.approx((mean, sigma), abs=0.15)
    guessed = likely_lengths(law, [age], len(lengths) - len(finished), math.inf)
    assert min(guessed) > age
    assert fmean([*finished, *guessed]) == pytest.approx(fmean(lengths), rel=0.2)
    assert fmean(finished) < 0.75 * fmean(lengths)


def test_a_guess_is_longer_than_the_text_so_far_and_no_longer_than_the_limit():
    logs = LogLengths()
    for length in (10, 12, 14):
        logs.add(length)
    law = logs.fit([500.0], 1)
    assert all(500 < length <= 512 for length in likely_lengths(law, [500.0], 20, 512))
    assert likely_lengths(law, [], 1, 512) == []


def test_texts_of_no_tokens_and_of_one_length_have_a_law():
    logs = LogLengths()
    for length in (0, 0, 1):
        logs.add(length)
    assert logs.fit([], 1).stdev > 0
    assert logs.fit([0.0], 5).mean >= 0


def test_the_mean_beyond_a_point_of_the_normal_law():
    assert mean_beyond(0) == pytest.approx(math.sqrt(2 / math.pi))
    assert mean_beyond(-10) == pytest.approx(0, abs=1e-9)
    assert mean_beyond(50) == pytest.approx(50, rel=0.01), "its share of the law is 0 in floating point"


def test_the_longest_of_several_texts_is_expected_from_those_that_have_ended():
    assert expected_longest([10, 20], [0], 1) == pytest.approx(15, rel=0.05)
    assert expected_longest([10, 20], [12], 1) == pytest.approx(8, rel=0.05), "it is longer than 10"
    assert expected_longest([10, 20], [0], 2) == pytest.approx(17.5, rel=0.05)
    assert expected_longest([10, 20], [20, 30], 1) == 0
    assert expected_longest([0], [0], 1) == 0
    assert mean_rest([10, 20, 40], 15) == 15
    assert mean_rest([10, 20, 40], 40) == 0
