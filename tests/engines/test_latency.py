"""The latency pass: balanced orders, both ends of a sweep, drift that is there is said and drift that is not is not."""

import math
import random
import subprocess
import sys
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from sdbench.config import TimingOptions
from sdbench.engines.latency import LatencyPlan, Measured, evenly_spaced, order, points_to_time, quantile
from sdbench.engines.native.timing import continue_pass, library_cells
from sdbench.engines.native.trials import (
    PromptTimes,
    TimedCell,
    latency_pass,
    num_timed,
    outlier_sentence,
    trials_of,
    units,
    warm_up,
)
from sdbench.engines.served import timing as served_timing
from sdbench.metrics.cells import table_of
from sdbench.metrics.gain import lossless_settings
from sdbench.metrics.speed import drift, drift_sentence
from sdbench.prepare import progress
from sdbench.prepare.cells import Point
from sdbench.prepare.provenance import version_of_package
from sdbench.records import CallRecord, Cell, LoadRecord, Store, TimingRecord, read
from sdbench.records.keys import frame_of_cells
from sdbench.records.parts import new_stem
from tests.patience import is_soon
from tests.records import synthetic
from tests.records.synthetic import Shape, sweep, timings


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


def test_a_pass_that_was_cut_off_goes_on_and_other_cells_or_machines_begin_one(tmp_path, capsys):
    cells, shape = sweep("llama-tiny", "gsm8k-tiny", ws=(0.0, 1.0), num_drafts=(3,), temperature=1.0), Shape()
    keys = [cell.key for cell in cells[:2]]
    with Store.open(tmp_path) as store:
        store.add_cells(cells)
        for cell, pass_id, examples in [(cells[0], "a", "01"), (cells[1], "a", "01"), (cells[0], "b", "0")]:
            for name in examples:
                store.append(timings(cell, shape.decode(cell, name), pass_id=pass_id, repeats=2, shape=shape))
    results = read(tmp_path)

    def rest(cells, examples, machine="cpu-2x"):
        units = [tuple(example.split("+")) for example in examples]
        plan = LatencyPlan("new", machine, (), trials_of(units, 2))
        plan = continue_pass(plan, results, cells, examples)
        return plan.pass_id, {trial.key for trial in plan.todo if not trial.is_split}

    assert rest(keys, ["0", "1", "2"]) == ("a", {("2", 0, False), ("2", 1, False)})
    assert rest(keys[:1], ["0"])[0] == "b"
    assert not capsys.readouterr().err
    assert rest(keys, ["0", "1"], "another")[0] == "new"
    assert "a new latency pass begins" in capsys.readouterr().err
    assert rest(keys, ["0+1"])[0] == "new", "a batch of two is another pass"
    assert rest([cell.key for cell in cells], ["0", "1"])[0] == "new"
    assert not results.timings["stall"].any()


def test_a_pass_of_more_cells_is_not_continued_and_misses_no_timing_afterwards(tmp_path):
    """The settings that a command left out kept fewer examples than the others, and no later command timed the rest."""
    shape = Shape()
    target, _, lossless, *swept = sweep("m", "gsm8k-tiny", ws=(0.3, 0.5, 0.7), num_drafts=(3,), temperature=1.0)
    plain = synthetic.cell("m", "gsm8k-tiny", "generate")
    alone = [target, plain, lossless]

    def trials_left(cells, num_examples, num_timed=None):
        """The pass and the missing trials of a command; `num_timed` of them are then timed, all by default."""
        units = [(str(i),) for i in range(num_examples)]
        plan = LatencyPlan(new_stem(), "cpu-2x", (), trials_of(units, 1))
        plan = continue_pass(plan, read(tmp_path), [each.key for each in cells], [unit[0] for unit in units])
        for trial in plan.todo[:num_timed]:
            for each in cells if not trial.is_split else [each for each in cells if each is not plain]:
                both = timings(each, shape.decode(each, *trial.unit), pass_id=plan.pass_id, repeats=1, shape=shape)
                store.append([both[trial.is_split]])
        if num_timed is None:
            store.append([CallRecord(plan.pass_id, "cpu-2x", "m", "target", 1.0, 0.1)])
        return plan.pass_id, [trial.key for trial in plan.todo]

    with Store.open(tmp_path) as store:
        store.add_cells([*alone, *swept])
        first, todo = trials_left([*alone, *swept], 2, num_timed=3)
        assert len(todo) == 4
        assert trials_left([*alone, *swept], 2) == (first, todo[3:]), "the same command continues an interrupted pass"
        assert trials_left([*alone, *swept], 2) == (first, []), "and times nothing again"
        assert trials_left([*alone, swept[1]], 2) == (first, []), "all of it has been timed"
        second, todo = trials_left([*alone, swept[1]], 4)
        assert second != first
        assert len(todo) == 8
        last, todo = trials_left([*alone, *swept], 4)
        assert (last, {example for example, *_ in todo}) == (first, {"2", "3"})
        assert trials_left([*alone, *swept], 4) == (first, [])
        assert trials_left([*alone, swept[1]], 4) == (second, [])
    frame = read(tmp_path).timings
    assert (frame[~frame["is_split"]].groupby(["pass_id", "cell"])["example"].nunique() == 4).all()


def test_a_trial_that_one_cell_lacks_is_timed_again(tmp_path):
    cells, shape = sweep("m", "gsm8k-tiny", ws=(), num_drafts=(3,), temperature=1.0), Shape()
    with Store.open(tmp_path) as store:
        store.add_cells(cells)
        for each, examples in ((cells[0], "01"), (cells[2], "0")):
            for name in examples:
                store.append(timings(each, shape.decode(each, name), pass_id="a", repeats=1, shape=shape))
    plan = LatencyPlan("new", "cpu-2x", (), trials_of([("0",), ("1",)], 1))
    plan = continue_pass(plan, read(tmp_path), [cells[0].key, cells[2].key], ["0", "1"])
    assert (plan.pass_id, [trial.key for trial in plan.todo]) == ("a", [("1", 0, False), ("1", 1, True)])


def test_costs_of_calls_of_a_killed_pass_are_those_of_all_its_cells(tmp_path):
    """They are derived at the end of a pass: a command with fewer cells would leave out those of the other cells for good."""
    cells, shape = sweep("m", "gsm8k-tiny", ws=(), num_drafts=(3, 8), temperature=1.0), Shape()
    with Store.open(tmp_path) as store:
        store.add_cells(cells)
        for each in cells:
            store.append(timings(each, shape.decode(each, "0"), pass_id="a", repeats=1, shape=shape))
    for part, pass_id in ((cells, "a"), (cells[:3], "new")):
        plan = LatencyPlan("new", "cpu-2x", (), trials_of([("0",)], 1))
        assert continue_pass(plan, read(tmp_path), [each.key for each in part], ["0"]).pass_id == pass_id


def test_an_unfinished_pass_of_another_version_is_not_continued(tmp_path, capsys):
    """Its speeds would be those of both. A finished one stays: nothing of it is timed again."""
    (point,), shape = sweep("llama-tiny", "gsm8k-tiny", ws=(), num_drafts=(3,), temperature=1.0)[:1], Shape()
    with Store.open(tmp_path, provenance={"versions": {"torch": "1.0"}}) as store:
        store.add_cells([point])
        store.append(timings(point, shape.decode(point, "0"), pass_id=new_stem(), repeats=1, shape=shape))
    results = read(tmp_path)
    for examples, is_new in ((["0"], False), (["0", "1"], True)):
        plan = LatencyPlan("new", "cpu-2x", (), trials_of([(example,) for example in examples], 1))
        plan = continue_pass(plan, results, [point.key], examples)
        assert (plan.pass_id == "new") == is_new
        assert ("begun with torch 1.0: a new one begins" in capsys.readouterr().err) == is_new


@pytest.mark.parametrize("is_ours_first", [True, False])
def test_the_versions_of_a_pass_are_those_of_the_run_that_began_it(tmp_path, is_ours_first):
    """Not of a run of another machine that has begun meanwhile."""
    (point,), shape = sweep("llama-tiny", "gsm8k-tiny", ws=(), num_drafts=(3,), temperature=1.0)[:1], Shape()
    ours, other = version_of_package("torch"), "1.0"
    both = [{"versions": {"torch": version}} for version in ((ours, other) if is_ours_first else (other, ours))]
    with Store.open(tmp_path, provenance=both[0]) as first, Store.open(tmp_path, provenance=both[1]):
        first.add_cells([point])
        pass_id = new_stem()
        first.append(timings(point, shape.decode(point, "0"), pass_id=pass_id, repeats=1, shape=shape))
    plan = LatencyPlan("new", "cpu-2x", (), trials_of([("0",), ("1",)], 1))
    plan = continue_pass(plan, read(tmp_path), [point.key], ["0", "1"])
    assert plan.pass_id == (pass_id if is_ours_first else "new")


def test_a_pass_from_before_a_forced_decoding_is_not_continued(tmp_path):
    """An interrupted `force=true` names a command without it, which times the new texts."""
    cells, shape = sweep("llama-tiny", "gsm8k-tiny", ws=(0.0, 1.0), num_drafts=(3,), temperature=1.0), Shape()
    keys = [cell.key for cell in cells[:2]]

    def time_them(store):
        pass_id = new_stem()
        for cell in cells[:2]:
            store.append(timings(cell, shape.decode(cell, "0"), pass_id=pass_id, repeats=1, shape=shape))
            store.append([LoadRecord(pass_id, "node", cell.key, "0", 0, 1, 10, 0.1, 0.2, 0.3)])
        return pass_id

    def passes(cells):
        results = read(tmp_path)
        native = LatencyPlan("new", "cpu-2x", (), trials_of([("0",)], 1))
        served = LatencyPlan("new", "node", (), [served_timing.LoadBlock(key, 0, 1) for key in cells])
        plans = continue_pass(native, results, cells, ["0"]), served_timing.continue_pass(served, results, ["0"])
        return {plan.pass_id for plan in plans}

    with Store.open(tmp_path) as store:
        store.add_cells(cells)
        before = time_them(store)
        store.force([cells[2].key])
        assert passes(keys) == {before}, "another cell was decoded again"
        store.force([keys[0]])
        assert passes(keys) == {"new"}
        after = time_them(store)
        assert passes(keys) == {after}


@pytest.mark.parametrize(("count", "kept", "places"), [(11, 5, [0, 2, 5, 8, 10]), (3, 5, [0, 1, 2]), (4, 1, [3])])
def test_the_timed_cells_are_spread_with_both_ends(count, kept, places):
    assert evenly_spaced(count, kept) == places


def test_quantiles_are_values_that_occurred():
    values = [5.0, 1.0, 2.0, 3.0, 4.0]
    assert [quantile(values, share) for share in (0.5, 0.9, 0.99)] == [3.0, 5.0, 5.0]
    assert math.isnan(quantile([], 0.5))


def run(timed, todo):
    return list(latency_pass(timed, LatencyPlan("p", "here", (), todo), seed=0, prompts=PromptTimes()))


def test_every_cell_is_timed_on_every_unit_in_every_repeat_and_once_split():
    seen = []

    def clock(cell):
        return lambda unit, is_split: seen.append((cell, unit, is_split)) or Measured(5, 5, 0.1, 1.0, 0.1)

    timed = [TimedCell(cell, clock(cell), has_split=cell != "c") for cell in ("a", "b", "c")]
    todo = trials_of([("x", "y"), ("z",)], 3)
    blocks = run(timed, todo)
    records = [record for block in blocks for record in block]
    assert len(records) == len(seen) == num_timed(timed, todo) == 3 * 2 * 3 + 2 * 2
    assert {record.cell for record in records if record.is_split} == {"a", "b"}
    assert {(r.cell, r.example, r.repeat) for r in records if not r.is_split} == {
        (cell, example, repeat) for cell in "abc" for example in ("x+y", "z") for repeat in range(3)
    }


def test_a_trial_is_one_block_and_its_order_is_the_same_where_a_pass_goes_on():
    timed = [TimedCell(cell, lambda *_: Measured(5, 5, 0.1, 1.0, 0.1)) for cell in "abcd"]
    todo = trials_of([("x",), ("y",), ("z",)], 2)
    whole, rest = run(timed, todo), run(timed, todo[2:])
    assert [{record.example for record in block} for block in whole] == [{trial.unit[0]} for trial in todo]
    assert [[record.cell for record in block] for block in rest] == [[r.cell for r in block] for block in whole[2:]]


# Evenly slow in the first block is not among them: nothing there says that it is not the cell's own pace.
@pytest.mark.parametrize(("at", "is_uneven"), [(0, True), (5, True), (11, True), (5, False), (11, False)])
def test_an_outlier_is_timed_again_once_and_marked(at, is_uneven):
    draw, calls = random.Random(1), []

    def clock(pace):
        def time(unit, is_split):
            rounds = [pace * math.exp(draw.gauss(0, 0.1)) for _ in range(20 + 5 * int(unit[0]))]
            calls.append(unit)
            if len(calls) == at * 4 + 1:
                rounds = [*rounds[:-1], 8 * sum(rounds)] if is_uneven else [8 * each for each in rounds]
            return Measured(9, len(rounds), 0.1, sum(rounds), 0.1, tuple(rounds))

        return time

    timed = [TimedCell(str(i), clock(0.01 * (1 + i))) for i in range(4)]
    blocks = run(timed, trials_of([(str(i),) for i in range(12)], 1)[:12])
    assert len(calls) == 12 * 4 + 1
    stalled = [record for block in blocks for record in block if record.stall]
    assert [record.example for record in stalled] == [str(at)]
    assert all(record.decode_s / record.rounds < 0.1 for block in blocks for record in block)
    assert "1 of 48 timings stalled" in (outlier_sentence([record for block in blocks for record in block]) or "")


def test_the_peak_memory_of_a_gpu_is_that_of_each_timing_also_of_a_repeated_one(monkeypatch):
    """Before, cells that were timed after the one with the highest peak had its peak."""
    events, needs, is_stalled = [], {"large": 900, "small": 100}, iter([False] * 5 + [True] + [False] * 9)
    peak = [0]

    def clock(cell: str):
        def time(unit, is_split):
            events.append(cell)
            peak[0] = max(peak[0], needs[cell])
            return Measured(10, 10, 0.1, 50.0 if next(is_stalled) else 1.0, 0.1)

        return time

    def reset() -> None:
        events.append("reset")
        peak[0] = 0

    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.reset_peak_memory_stats", reset)
    monkeypatch.setattr("torch.cuda.max_memory_allocated", lambda: peak[0])
    todo = trials_of([("x",), ("y",), ("z",)], 2)[:6]
    records = [record for block in run([TimedCell(cell, clock(cell)) for cell in needs], todo) for record in block]
    assert sum(record.stall for record in records) == 1
    assert {(record.cell, record.peak_memory_bytes) for record in records} == set(needs.items())
    assert events[::2] == ["reset"] * 13
    assert "reset" not in events[1::2]


def test_longer_texts_and_a_slow_hour_are_no_outliers():
    draw = random.Random(2)

    def clock(pace):
        def time(unit, is_split):
            slow = 4 if unit[0] in "567" else 1  # the whole machine
            rounds = [slow * pace * math.exp(draw.gauss(0, 0.15)) for _ in range(draw.randint(5, 100))]
            return Measured(9, len(rounds), 0.1, sum(rounds), 0.1, tuple(rounds))

        return time

    timed = [TimedCell(str(i), clock(0.01 * (1 + i))) for i in range(4)]
    blocks = run(timed, trials_of([(str(i),) for i in range(10)], 2))
    assert not [record for block in blocks for record in block if record.stall]
    assert outlier_sentence([record for block in blocks for record in block]) is None


def test_the_default_pass_is_short():
    """Six cells over the default sweep: the target alone twice, lossless, three points."""
    timing = TimingOptions()
    timed = [TimedCell(str(i), lambda *_: Measured(1, 1, 0, 1, 0), has_split=i > 0) for i in range(6)]
    assert num_timed(timed, trials_of([(str(i),) for i in range(timing.examples)], timing.repeats)) <= 70


def passed(slowdown: float) -> pd.DataFrame:
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
    return pd.DataFrame(map(asdict, records))


def test_drift_is_found_and_its_absence_too():
    assert drift(passed(0.0)) == pytest.approx(1, abs=0.02)
    assert drift(passed(0.5)) == pytest.approx(1.3, abs=0.1)
    assert drift_sentence(passed(0.0)) is None
    assert "took 1.3" in (drift_sentence(passed(0.5)) or "")
    assert drift_sentence(passed(0.5).head(5)) is None, "too few to tell"


def points_of(ws, **labels) -> list[Point]:
    """A curve over w, from 0 upwards."""
    axes = [{"knob": "mix", "value": labels.get("mix", "prob"), "rank": None, "equals": None}]
    return [
        Point(
            Cell(
                model="m",
                task="t",
                verifier="ensemble",
                num_draft=5,
                temperature=1.0,
                checkpoints={},
                w=w,
                knobs={"mix": labels.get("mix", "prob")},
                axes=[{"knob": "w", "value": w, "rank": 1 - w, "equals": "exact"}, *axes],
            ),
            "pair",
            None,  # type: ignore[arg-type]  # nobody asks the rule here
            5,
        )
        for w in ws
    ]


def test_the_settings_between_which_the_advice_decides_are_timed_and_then_others_of_each_curve():
    prob, logit = (points_of([i / 10 for i in range(10)], mix=mix) for mix in ("prob", "logit"))
    advised = [prob[i].cell.key for i in (6, 7, 8)]
    chosen = [(point.cell.knobs["mix"], point.cell.w) for point in points_to_time([*prob, *logit], 3, advised)]
    assert chosen == [*(("prob", w) for w in (0.6, 0.7, 0.8)), *(("logit", w) for w in (0.0, 0.4, 0.9))]
    assert [point.cell.w for point in points_to_time(prob, 1, advised)] == [0.7]
    assert [point.cell.w for point in points_to_time(prob, 4, advised)] == [0.0, 0.6, 0.7, 0.8]


def lossless_point(verifier: str, num_draft: int = 5, axes: list[dict[str, Any]] | None = None) -> Point:
    cell = Cell(
        *("m", "t", verifier, num_draft, 1.0),
        checkpoints={},
        knobs={axis["knob"]: axis["value"] for axis in axes or ()},
        axes=axes or [],
        is_lossless=True,
    )
    return Point(cell, "pair", None, num_draft)  # type: ignore[arg-type]  # nobody asks the rule here


def test_each_lossless_setting_that_a_setting_must_beat_is_timed():
    """Block verification was never timed, so a setting could be called faster than every lossless one without it."""
    strict = {"knob": "w", "value": 1.0, "rank": 0.0, "equals": "exact"}
    base, end = [lossless_point("lossless", k) for k in (3, 5)], lossless_point("ensemble", axes=[strict])
    block = [lossless_point("block", k) for k in (3, 5)]
    easd = [lossless_point("easd", 5, [{"knob": "entropy", "value": h, "rank": 1 / h}]) for h in (0.5, 1.0, 2.0)]
    points = [*base, *points_of([0.5]), end, *block, *easd]
    chosen = points_to_time(points, 3, [])
    assert chosen == [*base, *points_of([0.5]), *block, *easd]
    assert points_to_time(points, 2, []) == [*base, *points_of([0.5]), *block, easd[0], easd[2]], "two of each curve"
    cells = table_of(frame_of_cells([point.cell for point in points]))
    assert set(lossless_settings(cells)) <= {point.cell.key for point in chosen}


@pytest.mark.slow
def test_a_process_counts_its_own_memory_not_that_of_its_parent():
    """`ru_maxrss` of a child begins at the peak of its parent."""
    asks = "from sdbench.engines.latency import peak_memory; print(int(peak_memory()))"
    begins = "import numpy, subprocess, sys; held = numpy.ones(200_000_000); subprocess.run(sys.argv[1:], check=True)"
    command = [sys.executable, "-c", asks]
    alone = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    launched = subprocess.run(
        [sys.executable, "-c", begins, *command], capture_output=True, text=True, check=True
    ).stdout
    assert abs(int(launched) - alone) < 0.3 * alone < 8 * 100_000_000


def test_only_lossless_carries_the_settings_with_its_texts():
    """Assisted generation has texts of its own."""
    target, _, lossless, strict = sweep("m", "gsm8k-tiny", ws=(1.0,), num_drafts=(3,), temperature=1.0)
    points: Any = [SimpleNamespace(cell=each) for each in (target, lossless.with_repeated(strict))]
    run: Any = SimpleNamespace(timing=TimingOptions(assisted=True), model=SimpleNamespace(attention=None))
    assert [(each.verifier, each.also) for each in library_cells(points, run)] == [("generate", {}), ("assisted", {})]


def timed(first_s: float, *others: float, reads_prompt: bool = True) -> Measured:
    rounds_s = (first_s, *others)
    more = {"rounds_s": rounds_s, "reads_prompt": reads_prompt}
    return Measured(9, len(rounds_s), 0.5, sum(rounds_s), 0.5 + first_s, **more)


def test_what_a_first_round_takes_more_than_a_typical_one_is_prefill():
    def parts(measured: Measured) -> tuple[float, float, float]:
        assert measured.prefill_s + measured.rounds_s[0] == pytest.approx(measured.first_token_s)
        assert sum(measured.rounds_s) == pytest.approx(measured.decode_s)
        return measured.prefill_s, measured.decode_s, measured.rounds_s[0]

    times = PromptTimes()
    assert parts(times.apart("a", timed(3, 1, 1, reads_prompt=False))) == (0.5, 5, 3)
    assert parts(times.apart("a", timed(3, 1, 1, 2, 2, 2))) == (1.5, 10, 2), "the median of its other rounds"
    assert parts(times.apart("a", timed(1, 2, 2, 2, 2, 2))) == (0.5, 11, 1), "never more than it took"
    # The last round of a text may be short: texts of few rounds are compared with those before them, too.
    assert parts(times.apart("a", timed(3, 0.3))) == (1.5, 2.3, 2)
    assert parts(times.apart("a", timed(3))) == (1.5, 2, 2)
    assert parts(times.apart("b", timed(3))) == (0.5, 3, 3), "another cell, of which nothing is known"


def test_a_warm_up_of_few_rounds_learns_what_a_round_without_a_prompt_takes():
    def clock(unit, is_split):
        seen.append(is_split)
        return timed(1, reads_prompt=False) if is_split else timed(3)

    seen: list[bool] = []
    known = warm_up([TimedCell("a", clock)], [("x",)])
    assert seen == [False, True]
    assert known.apart("a", timed(3)).decode_s == 1
    seen.clear()
    unknown = warm_up([TimedCell("a", clock, has_split=False)], [("x",)])
    assert seen == [False]
    assert unknown.apart("a", timed(3)).decode_s == 3
    seen.clear()
    warm_up([TimedCell("a", lambda *_: seen.append(False) or timed(3, 1, 1, 1, 1, 1, 1))], [("x",)])
    assert seen == [False], "a text of many rounds tells it"


def test_a_warm_up_says_how_many_settings_are_done_while_they_run(monkeypatch, capsys):
    """Each of the seven settings of a real pair takes half a minute on two cores."""
    monkeypatch.setattr(progress, "PLAIN_EVERY_S", 0.01)
    printed: list[str] = []

    def clock(unit, is_split):
        done = f"warming up: {clocked.pop(0)}/2 in "
        assert is_soon(lambda: printed.append(capsys.readouterr().err) or done in "".join(printed))
        return timed(3, 1, 1, 1, 1, 1, 1)

    clocked = [0, 1]
    warm_up([TimedCell("a", clock), TimedCell("b", clock)], [("x",)])
    assert not clocked
    assert capsys.readouterr().err.startswith("warming up: 2/2 in ")
