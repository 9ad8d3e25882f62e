"""Uniforms as a function of where they are used: reproducible, in [0, 1), and independent in every direction they are named in."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kstest

from sdbench import noise

steady = settings(deadline=None, derandomize=True)  # a loaded machine is no failure, and nothing depends on luck
keys = st.one_of(st.integers(0, 2**40), st.text(max_size=12))


def block(seed=0, key=0, sample=0, rounds=64, num_draft=5):
    return noise.table(noise.stream_key(seed, key, sample), 0, rounds, num_draft)


@steady
@given(st.integers(0, 2**31), keys, st.integers(0, 100))
def test_a_place_has_one_value_in_the_half_open_interval(seed, key, sample):
    u = block(seed, key, sample, 4)
    assert u.dtype == np.float64
    assert (u >= 0).all()
    assert (u < 1).all()
    assert (u == block(seed, key, sample, 4)).all()
    assert ((u * 2.0**52) % 1 == 0).all()


def test_tables_are_windows_of_the_same_noise():
    whole = block(rounds=96)
    key = noise.stream_key(0, 0, 0)
    assert (noise.table(key, 32, 64, 5) == whole[32:]).all()
    coins = noise.uniforms(np.stack([key, key]), [3, 40], noise.slots(5), noise.VERIFY)
    assert (coins == whole[[3, 40], 5:]).all()
    drafts = noise.uniforms(key[None], [7], noise.slots(5)[:-1], noise.DRAFT)
    assert (drafts == whole[7:8, :5]).all()


def test_fewer_drafted_slots_share_the_coins_and_the_draw():
    """Two draft lengths of an example agree where both look."""
    five, three = block(), block(num_draft=3)
    assert (five[:, :3] == three[:, :3]).all()
    assert (five[:, 5:8] == three[:, 3:6]).all()
    assert (five[:, -1] == three[:, -1]).all()


def test_every_name_counts():
    """Seed, key, its type, sample, round, slot and stream: no two places share a value."""
    names = [*itertools.product((0, 1), (0, 1, "0", "1", "a"), (0, 1))]
    values = np.concatenate([block(*name).ravel() for name in names])
    assert len(np.unique(values)) == len(values)


def test_uniform_and_uncorrelated_in_every_direction():
    """Kolmogorov–Smirnov on 704,000 values, and correlations of neighbours within five standard errors."""
    u = np.stack([block(key=key, rounds=64) for key in range(1000)])  # [key, round, slot]
    assert kstest(u[:, ::7].ravel(), "uniform").pvalue > 1e-4
    centred = u - 0.5
    pairs = {
        "key": (centred[1:], centred[:-1]),
        "round": (centred[:, 1:], centred[:, :-1]),
        "slot": (centred[..., 1:], centred[..., :-1]),
        "stream": (centred[..., :5], centred[..., 5:10]),
        "reuse": (centred[:, 1:, 5], centred[:, :-1, 10]),
    }
    for name, (a, b) in pairs.items():
        assert abs((a * b).mean() * 12) < 5 / math.sqrt(a.size), name


def test_every_bit_is_fair():
    bits = (block(rounds=4096) * 2.0**52).astype(np.uint64)
    for place in range(52):
        share = ((bits >> np.uint64(place)) & np.uint64(1)).mean()
        assert abs(share - 0.5) < 5 * 0.5 / math.sqrt(bits.size), place


@pytest.mark.parametrize(("a", "b"), [((0, 12, 3), (0, 1, 23)), ((1, 2, 3), (12, 3, 0)), ((0, "1|0", 0), (0, "1", 0))])
def test_names_do_not_run_together(a, b):
    assert (noise.stream_key(*a) != noise.stream_key(*b)).any()
