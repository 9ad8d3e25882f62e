"""The hooks of the loop and of its models see phases and calls, and change no text."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch

import sdbench
from scripts import bench_drafters, bench_engine
from scripts.bench_tools import hook_models
from sdbench.verify import Ensemble, Exact
from tests.engine.models import PROMPTS, pair

OPTIONS = {"max_new_tokens": 8, "stop_ids": (), "num_draft": 3, "batch_size": 3}


def test_a_hook_sees_the_phases_of_every_round_and_changes_no_text():
    engine = sdbench.Engine(*pair("llama"))
    rules = [Exact(), Ensemble(w=0.5)]
    without = sdbench.generate(None, None, PROMPTS, rules, engine=engine, **OPTIONS)
    entered: list[str] = []
    left: list[str] = []
    rows: set[int] = set()

    @contextmanager
    def hook(phase: str, num_rows: int) -> Iterator[None]:
        entered.append(phase)
        rows.add(num_rows)
        yield
        left.append(phase)

    engine.hook = hook
    assert sdbench.generate(None, None, PROMPTS, rules, engine=engine, **OPTIONS) == without
    rounds = entered.count("round")
    assert rounds >= max(len(generation.drafted or ()) for generation in without)
    assert entered == [
        "admit",
        *["round", "draft", "score", "verify", "commit", "measure", "observe", "admit"] * rounds,
    ]
    assert left == ["admit", *["draft", "score", "verify", "measure", "observe", "commit", "round", "admit"] * rounds]
    assert rows == {0, 1, 2, 3}


@pytest.mark.parametrize("drafter", ["model", "early-exit", "pruned"])
def test_a_hook_of_models_sees_each_of_their_calls_and_changes_no_text(drafter):
    engine = sdbench.Engine(*pair("llama"), capture="off")
    built = engine.drafter(drafter, engine.warp(1.0))
    options = {**OPTIONS, "engine": engine, "drafter": built}
    without = sdbench.generate(None, None, PROMPTS, [Exact()], **options)
    seen: list[tuple[str, int]] = []

    def hook(lm: Any, inputs: torch.Tensor, call: Any) -> Any:
        seen.append((lm.role, inputs.shape[-1]))
        return nullcontext()

    models = [*engine.models, *engine.target.pruned.values()]
    with hook_models(models, hook):
        assert sdbench.generate(None, None, PROMPTS, [Exact()], **options) == without
    count = len(seen)
    assert ("target", OPTIONS["num_draft"] + 1) in seen
    assert (("target" if drafter == "early-exit" else "draft"), 1) in seen
    sdbench.generate(None, None, PROMPTS, [Exact()], **options)
    assert len(seen) == count, "the hook is gone"


def test_the_benchmarks_time_models_and_phases_by_hooks():
    target, draft = (model.float() for model in pair("llama"))
    corpus = torch.randint(3, 60, (2000,), generator=torch.Generator().manual_seed(0)).tolist()
    bench = bench_engine.Bench(target, draft, "cpu", 1, 1, sweep=2, new=4, corpus=corpus)
    shares = {
        figure.name: figure.median for figure in bench_engine.where_it_goes(bench, "x", [corpus[:9], corpus[9:20]])
    }
    assert {"x: target model, share of the time", "x: draft model, share of the time"} <= shares.keys()
    assert sum(shares.values()) == pytest.approx(1)
    (eager, replayed) = bench_engine.over_bare(bench, "x", [corpus[:9]])
    assert int(eager.note.split()[0]) == int(replayed.note.split()[0]) > 0
    assert bench_engine.over_machine(bench, "x", [corpus[:9]]).median > 0
    figure = bench_drafters.overhead(bench, "x", *bench_drafters.built_of(bench, "pruned"), 2)
    assert 0 < figure.median < 1
