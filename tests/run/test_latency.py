"""The latency pass: balanced orders, both ends of a sweep, drift that is there is said and drift that is not is not."""

import math
import random

import pytest

from sdbench.config import Timing
from sdbench.records import TimingRecord
from sdbench.run.latency import (
    Clocked,
    Contender,
    drift,
    drift_sentence,
    latency_pass,
    num_timed,
    order,
    quantile,
    spread,
    units,
)


def test_each_cell_stands_before_each_other_equally_often():
    before = {(a, b): 0 for a in range(4) for b in range(4) if a != b}
    for visit in range(12):
        places = order(4, visit, 0)
        assert sorted(places) == [0, 1, 2, 3]
        for i, a in enumerate(places):
            for b in places[i + 1 :]:
                before[a, b] += 1
    assert set(before.values()) == {6}


def test_a_unit_is_as_many_examples_as_are_decoded_together():
    assert units("abcde", 1) == [("a",), ("b",), ("c",), ("d",), ("e",)]
    assert units("abcde", 2) == [("a", "b"), ("c", "d")]
    assert units("abc", 4) == []


@pytest.mark.parametrize(("count", "kept", "places"), [(11, 5, [0, 2, 5, 8, 10]), (3, 5, [0, 1, 2]), (4, 1, [3])])
def test_the_timed_cells_are_spread_with_both_ends(count, kept, places):
    assert spread(count, kept) == places


def test_quantiles_are_values_that_occurred():
    values = [5.0, 1.0, 2.0, 3.0, 4.0]
    assert [quantile(values, share) for share in (0.5, 0.9, 0.99)] == [3.0, 5.0, 5.0]
    assert math.isnan(quantile([], 0.5))


def test_every_cell_is_timed_on_every_unit_in_every_repeat_and_once_split():
    seen = []

    def clock(cell):
        return lambda unit, is_split: seen.append((cell, unit, is_split)) or Clocked(5, 5, 0.1, 1.0, 0.1)

    contenders = [Contender(cell, clock(cell), has_split=cell != "c") for cell in ("a", "b", "c")]
    records = list(latency_pass(contenders, [("x", "y"), ("z",)], 3, seed=0, where="here"))
    assert len(records) == num_timed(contenders, 2, 3) == 3 * 2 * 3 + 2 * 2
    assert len(seen) == 3 + len(records)  # each cell is warmed up once
    assert len({record.pass_id for record in records}) == 1
    assert {record.cell for record in records if record.is_split} == {"a", "b"}
    assert {(r.cell, r.example, r.repeat) for r in records if not r.is_split} == {
        (cell, example, repeat) for cell in "abc" for example in ("x+y", "z") for repeat in range(3)
    }


def test_every_unit_is_warmed_up_by_the_ends_of_each_kind_so_that_no_step_is_recorded_on_the_clock():
    seen = []

    def clock(cell):
        return lambda unit, is_split: seen.append((cell, unit)) or Clocked(5, 5, 0.1, 1.0, 0.1)

    kinds = {"target": 0, "lossless": 5, "a": 5, "b": 5, "c": 5, "generate": None}
    contenders = [Contender(cell, clock(cell), kind=kind) for cell, kind in kinds.items()]
    next(latency_pass(contenders, [("x",), ("y",)], 1, seed=0, where="here"))
    warm = [(cell, ("x",)) for cell in kinds] + [(cell, ("y",)) for cell in ("target", "lossless", "a", "c")]
    assert seen[:-1] == warm


def test_the_default_pass_is_short():
    """Six contenders over the default sweep: the target alone twice, lossless, three points."""
    timing = Timing()
    contenders = [Contender(str(i), lambda *_: Clocked(1, 1, 0, 1, 0), has_split=i > 0) for i in range(6)]
    assert num_timed(contenders, timing.examples, timing.repeats) <= 70


def passed(slowdown: float) -> list[TimingRecord]:
    """A pass on a machine that ends `slowdown` slower than it began, with 3 % of noise."""
    draw, records = random.Random(0), []
    total = 4 * 8 * 5
    for step in range(total):
        repeat, rest = divmod(step, 8 * 4)
        example, cell = divmod(rest, 4)
        seconds = (1 + cell) * (1 + example) * (1 + slowdown * step / total) * math.exp(draw.gauss(0, 0.03))
        rounds = 5 * (1 + example)
        record = TimingRecord(
            "p", "m", str(cell), str(example), repeat, 9, rounds, 0.1, seconds, started_at=float(step)
        )
        records.append(record)
    return records


def test_drift_is_found_and_its_absence_too():
    assert drift(passed(0.0)) == pytest.approx(0, abs=0.02)
    assert drift(passed(0.5)) == pytest.approx(0.3, abs=0.1)
    assert drift_sentence(passed(0.0)) is None
    assert "slower" in (drift_sentence(passed(0.5)) or "")
