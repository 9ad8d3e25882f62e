"""What the page says of the machine is of the run that timed the sweep, not of the last run in its folder."""

from types import SimpleNamespace

import pandas as pd

from sdbench import read
from sdbench.metrics.summary import summarise
from sdbench.records import Store
from sdbench.report.page.facts import check_lossless, facts_of
from sdbench.report.sweep import sweeps_of
from sdbench.types import Metric
from tests.records.synthetic import Shape, cell, timings


def test_the_machine_is_that_of_the_last_run_that_timed_the_sweep(tmp_path):
    greedy, sampled = (
        cell("a", "gsm8k-tiny", "ensemble", w=0.3, temperature=temperature) for temperature in (0.0, 1.0)
    )
    timing = {"batch_size": 1}
    runs = [("A", 2, timing, greedy, "0"), ("B", 8, timing, greedy, "1"), ("C", 1, None, sampled, "0")]
    for (
        name,
        threads,
        timing,
        point,
        example,
    ) in runs:  # B was to time them too, and decoded only: another shard, or stopped
        provenance = {"device": {"name": name, "type": "cpu"}, "threads": threads}
        with Store.open(tmp_path, config={"timing": timing}, provenance=provenance) as store:
            store.add_cells([point])
            record = Shape().decode(point, example)
            store.append_generations([record])
            if name == "A":
                store.append(timings(point, record, pass_id="pass", repeats=1, shape=Shape()))
    results = read(tmp_path)
    machines = {
        each.temperature: dict(facts_of(each))["Machine"]
        for each in sweeps_of([results], [summarise(results, resamples=50)])
    }
    assert machines == {0.0: "A, cpu, 2 threads", 1.0: "C, cpu, 1 thread"}


def test_a_difference_of_lossless_from_the_target_allows_for_the_number_of_settings():
    def check(count, low):
        row = {
            "difference_from_target": 0.04,
            "difference_from_target_low": low,
            "difference_from_target_high": 0.08 - low,
        }
        same = row | {
            "difference_from_target": 0.0,
            "difference_from_target_low": -0.04,
            "difference_from_target_high": 0.04,
        }
        frame = pd.DataFrame([row, *[same] * (count - 1)]).assign(label=[f"lossless K={k}" for k in range(count)])
        return check_lossless(SimpleNamespace(baseline=lambda name: frame, metric=Metric("strict", "share")))

    text, is_odd = check(1, 0.002)
    assert is_odd
    assert text.startswith("a difference beyond noise (1 in 20 by luck); lossless K=0: ")
    text, is_odd = check(8, 0.002)
    assert not is_odd
    assert text.startswith(
        "no difference is shown over the 8 settings together (0 lies outside 1 of their intervals); "
    )
    text, is_odd = check(8, 0.02)
    assert is_odd
    assert text.startswith("a difference beyond noise (1 in 20 by luck over the 8 settings together); ")
