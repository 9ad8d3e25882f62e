"""Order and retention as they are defined, on cells whose truth is known."""

import numpy as np
import pandas as pd
import pytest

from sdbench.metrics.pareto import Resampled
from sdbench.metrics.published_claims import QUOTED, check_monotone, retention_of


def speeds(means, spread, *, n=40, resamples=2_000):
    """Cells a, b, c … whose speeds are known up to `spread`."""
    rng = np.random.default_rng(0)
    x = np.array(means)
    return Resampled(
        tuple("abcdef"[: len(x)]),
        x,
        x,
        x + spread * rng.standard_normal((resamples, len(x))),
        x + np.zeros((1, len(x))),
        (n,) * len(x),
    )


ACCEPTANCE = {"a": 0.5, "b": 0.7, "c": 0.9}


@pytest.mark.parametrize(
    ("means", "spread", "verdict"),
    [((1.2, 1.6, 2.2), 0.05, "yes"), ((1.2, 2.2, 1.6), 0.05, "no"), ((1.2, 1.6, 1.65), 0.2, "not told apart")],
)
def test_time_falls_with_acceptance_or_does_not_or_nobody_knows(means, spread, verdict):
    found = check_monotone(speeds(means, spread), ACCEPTANCE)
    assert (found["monotone"], found["pairs"]) == (verdict, 3)
    assert (found["slower"], found["faster"]) == (("c", "b") if verdict == "no" else ("", ""))


def test_a_few_timed_texts_that_agree_show_no_order():
    for means in ((1.2, 1.6, 2.2), (1.2, 2.2, 1.6)):
        assert check_monotone(speeds(means, 0.0, n=6), ACCEPTANCE)["monotone"] in ("yes", "no")
        for n in (1, 2, 5):
            found = check_monotone(speeds(means, 0.0, n=n), ACCEPTANCE)
            assert (found["monotone"], found["slower"], found["faster"]) == ("not told apart", "", "")


def test_cells_that_accept_alike_promise_nothing():
    for other in (0.705, float("nan")):
        found = check_monotone(speeds((1.2, 1.6), 0.05), {"a": 0.7, "b": other})
        assert (found["monotone"], found["pairs"]) == ("acceptances alike", 0)
    assert check_monotone(speeds((1.2,), 0.05), {"a": 0.7})["monotone"] == "one point"


def test_among_many_pairs_one_reversal_by_chance_is_not_called_one():
    """All six cells are equally fast: at this level at most one sweep in forty may be said to be out of order."""
    rng, acceptance = np.random.default_rng(1), {key: 0.1 * place for place, key in enumerate("abcdef")}
    called = 0
    for _ in range(200):
        measured = 1.5 + 0.1 * rng.standard_normal(6)
        xs = measured + 0.1 * rng.standard_normal((2_000, 6))
        called += (
            check_monotone(Resampled(tuple("abcdef"), measured, measured, xs, xs, (40,) * 6), acceptance)["monotone"]
            == "no"
        )
    assert called <= 200 / 40 + 3 * (200 / 40) ** 0.5


def test_a_retention_has_an_interval_and_a_number_of_examples_that_tells_it():
    rows = pd.DataFrame(
        {"difference": [-0.02, 0.0], "difference_low": [-0.05, -0.03], "difference_high": [0.01, 0.03], "n": [200, 200]}
    )
    found = retention_of(rows.assign(strict=0.8))
    assert found["retention"].tolist() == pytest.approx([0.975, 1.0])
    assert found["retention_low"].tolist() == pytest.approx([0.9375, 0.9625])
    assert found["retention_high"].tolist() == pytest.approx([1.0125, 1.0375])
    # Half of the interval is .03 at n = 200, .077 at 30 and .027 at 250: .02 is told at none of them.
    assert not found[[f"is_told_at_{n}" for n in QUOTED]].to_numpy().any()
    large = retention_of(rows.assign(difference_high=[-0.001, 0.03], strict=0.8))
    assert large.loc[0, [f"is_told_at_{n}" for n in QUOTED]].tolist() == [False, False, True]
