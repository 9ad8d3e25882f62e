"""What the page says of the machine is of the run that timed the sweep, not of the last run in its folder."""

from dataclasses import replace
from types import SimpleNamespace

import pandas as pd
import pytest

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


def facts(folder, drafter, **of_draft):
    """The facts of a sweep with one drafter. As in a run, a cell has the checkpoints and numbers of the models that it reads."""
    is_reader = drafter in ("model", {"name": "model"}, GATED)
    roles = {"target": ["target"], "draft": ["draft"], "lossless": ["target", "draft"] if is_reader else ["target"]}
    numbers = {"target": {"target_dtype": "torch.bfloat16"}, "draft": of_draft}
    cells = []
    for name, reads in roles.items():
        each = cell("a", "gsm8k-tiny", name, drafter=drafter)
        content = {
            **each.content,
            "dtype": None,
            **{key: value for role in reads for key, value in numbers[role].items()},
        }
        cells.append(replace(each, checkpoints={role: each.checkpoints[role] for role in reads}, content=content))
    config = {"model": {"name": "a", "target": "a/target", "draft": "a/draft"}}
    with Store.open(folder, config=config, provenance={}) as store:
        store.add_cells(cells)
        store.append_generations([Shape().decode(each, "0") for each in cells])
    results = read(folder)
    sweeps = sweeps_of([results], [summarise(results, resamples=50)])
    return next(dict(facts_of(sweep)) for sweep in sweeps if "lossless" in set(sweep.cells["verifier"]))


GATED = {"name": "model", "length": "gate"}
LOOKUP = {"name": "lookup", "shortest": 2}


@pytest.mark.parametrize(
    ("drafter", "drafters", "draft"),
    [
        ("model", None, "a/draft@89abcde"),
        ({"name": "model"}, None, "a/draft@89abcde"),
        (GATED, "model length=gate", "a/draft@89abcde"),
        (LOOKUP, "lookup shortest=2", "a/draft (decoded alone only: no drafter reads it)"),
    ],
    ids=str,
)
def test_the_drafter_is_named_unless_it_is_the_draft_model_itself(tmp_path, drafter, drafters, draft):
    shown = facts(tmp_path, drafter)
    assert shown.get("Drafters") == drafters
    assert shown["Draft"] == draft


def test_the_numbers_of_the_draft_are_named_too(tmp_path):
    """The first cell is the target alone, which knows nothing of the draft."""
    numbers = facts(tmp_path, "model", draft_dtype="torch.float16", draft_quantization="bnb-int8")["Numbers"]
    assert numbers == "target dtype bfloat16, draft dtype float16, draft quantization bnb-int8"


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
