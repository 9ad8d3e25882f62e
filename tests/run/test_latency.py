"""The latency pass: balanced orders, both ends of a sweep, drift that is there is said and drift that is not is not."""

import math
import random

import pytest

from sdbench.records import TimingRecord
from sdbench.run.latency import Clocked, Contender, drift, drift_sentence, latency_pass, order, quantile, spread


def test_each_cell_stands_before_each_other_equally_often():
    before = {(a, b): 0 for a in range(4) for b in range(4) if a != b}
    for example in range(6):
        for visit in order(4, 2, 0, example):
            assert sorted(visit) == [0, 1, 2, 3]
            for i, a in enumerate(visit):
                for b in visit[i + 1 :]:
                    before[a, b] += 1
    assert set(before.values()) == {6}


@pytest.mark.parametrize(("count", "kept", "places"), [(11, 5, [0, 2, 5, 8, 10]), (3, 5, [0, 1, 2]), (4, 1, [3])])
def test_the_timed_cells_are_spread_with_both_ends(count, kept, places):
    assert spread(count, kept) == places


def test_quantiles_are_values_that_occurred():
    values = [5.0, 1.0, 2.0, 3.0, 4.0]
    assert [quantile(values, share) for share in (0.5, 0.9, 0.99)] == [3.0, 5.0, 5.0]
    assert math.isnan(quantile([], 0.5))


def test_every_cell_is_timed_on_every_example_in_every_repeat_and_once_split():
    seen = []

    def clock(cell):
        return lambda example, is_split: seen.append((cell, example, is_split)) or Clocked(5, 5, 0.1, 1.0, 0.1)

    contenders = [Contender(cell, clock(cell)) for cell in ("a", "b", "c")]
    records = list(latency_pass(contenders, ["x", "y"], 3, seed=0, where="here"))
    assert len(records) == 3 * 2 * 4
    assert len(seen) == 3 + len(records)  # each cell is warmed up once
    assert len({record.pass_id for record in records}) == 1
    assert sum(record.is_split for record in records) == 6
    assert {(r.cell, r.example, r.repeat) for r in records if not r.is_split} == {
        (cell, example, repeat) for cell in "abc" for example in "xy" for repeat in range(3)
    }


def passed(slowdown: float) -> list[TimingRecord]:
    """A pass on a machine that ends `slowdown` slower than it began, with 3 % of noise."""
    draw, records = random.Random(0), []
    total = 4 * 8 * 5
    for step in range(total):
        repeat, rest = divmod(step, 8 * 4)
        example, cell = divmod(rest, 4)
        seconds = (1 + cell) * (1 + example) * (1 + slowdown * step / total) * math.exp(draw.gauss(0, 0.03))
        record = TimingRecord("p", "m", str(cell), str(example), repeat, 9, 9, 0.1, seconds, started_at=float(step))
        records.append(record)
    return records


def test_drift_is_found_and_its_absence_too():
    assert drift(passed(0.0)) == pytest.approx(0, abs=0.02)
    assert drift(passed(0.5)) == pytest.approx(0.3, abs=0.1)
    assert drift_sentence(passed(0.0)) is None
    assert "slower" in (drift_sentence(passed(0.5)) or "")
