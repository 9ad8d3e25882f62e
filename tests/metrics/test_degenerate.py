"""Loops and repetition are seen in the ids, and an ordinary text has neither."""

import numpy as np
import pytest

import sdbench
from sdbench.metrics.degenerate import MAX_PERIOD, degenerate, ends_in_loop, repeated_share
from sdbench.metrics.summary import summarise
from tests.records.synthetic import write_synthetic

START = list(range(100, 140))


@pytest.mark.parametrize("period", [1, 2, 3, 7, 30, MAX_PERIOD])
def test_a_text_that_turns_in_a_circle_ends_in_a_loop(period):
    turn = list(range(period))
    for turns in (4, 5.5):
        text = START + (turn * 16)[: int(max(turns * period, 16))]
        assert ends_in_loop(text)
        assert ends_in_loop([*text, 9999]), "an end mark behind it changes nothing"
        assert not ends_in_loop([*text, *START])


@pytest.mark.parametrize("text", [[], [1], [1] * 15, START, START + [1, 2] * 7, START + list(range(20)) * 3])
def test_a_short_or_ordinary_text_does_not(text):
    assert not ends_in_loop(text)


def test_repeated_4grams_are_counted_after_their_first_time():
    assert repeated_share([1, 2, 3]) == 0
    assert repeated_share(START) == 0
    assert repeated_share([1, 2, 3, 4, 1, 2, 3, 4]) == pytest.approx(1 / 5)
    assert repeated_share([7] * 103) == pytest.approx(99 / 100)


def test_both_stand_in_the_summary(tmp_path):
    results = sdbench.read(write_synthetic(tmp_path / "r", n=12, ws=(0.5,), timing_examples=0))
    frame, summary = degenerate(results), summarise(results, resamples=200).set_index("cell")
    assert len(frame) == len(results.generations)
    means = frame.groupby("cell")["repeated"].mean()
    assert summary.loc[means.index, "repeated_4grams"].to_numpy() == pytest.approx(means.to_numpy())
    assert (summary["loop_rate"] == 0).all()
    assert (summary["loop_rate_high"] > 0).all(), "none of 12 is no proof of none"


def test_a_large_text_is_quick_to_look_at():
    text = np.random.default_rng(0).integers(0, 3, 4000)
    assert not ends_in_loop(text)
