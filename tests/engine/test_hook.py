"""The hooks of the loop and of its models see phases and calls, and change no text."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch

import sdbench
from scripts import bench_drafters, bench_engine, bench_heads
from scripts.bench_tools import hook_models
from sdbench.verify import Ensemble, Exact
from tests.engine.models import PROMPTS, pair, tiny

QUICK = ("medusa", "mtp")  # of the heads; the others run with the slow tests
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


@pytest.fixture
def bench() -> bench_engine.Bench:
    target, draft = (model.float() for model in pair("llama"))
    corpus = torch.randint(3, 60, (2000,), generator=torch.Generator().manual_seed(0)).tolist()
    return bench_engine.Bench(target, draft, "cpu", 1, 1, sweep=2, new=4, corpus=corpus)


def test_the_benchmarks_time_models_and_phases_by_hooks(bench):
    corpus = bench.corpus
    shares = {
        figure.name: figure.median for figure in bench_engine.where_it_goes(bench, "x", [corpus[:9], corpus[9:20]])
    }
    assert {"x: target model, share of the time", "x: draft model, share of the time"} <= shares.keys()
    assert sum(shares.values()) == pytest.approx(1)
    (eager, replayed) = bench_engine.over_bare(bench, "x", [corpus[:9]])
    assert int(eager.note.split()[0]) == int(replayed.note.split()[0]) > 0
    assert bench_engine.over_machine(bench, "x", [corpus[:9]]).median > 0
    built = bench_drafters.built_of(bench, "pruned")
    assert built is not None
    (figure,) = bench_drafters.overhead(bench, "pruned", *built, 2)
    assert figure.name == "pruned: beyond model calls, share of a round at batch 2"
    assert 0 < figure.median < 1


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in bench_heads.HEADS]
)
def test_a_head_that_does_not_ship_for_a_pair_is_random_and_its_draft_has_a_price(bench, name):
    bench = replace(bench, target=tiny("llama", layers=4).float())
    figures = {figure.name: figure for figure in bench_drafters.measure_drafters(bench, name)}
    what = f"{name}: a draft of 5 tokens at batch 1 over"
    assert list(figures) == [
        *(f"{name}: beyond model calls, share of a round at batch {size}" for size in bench_drafters.SIZES),
        f"{what} a target call",
        f"{what} 5 calls of a layer",
        of_head := "the target's head and drawing a token at batch 1 over a call of a layer",
    ]
    assert figures.pop(of_head).median > 0
    assert all(figure.note.endswith("a random head") and figure.n == 1 for figure in figures.values())
    goals = {key: figure.note.partition(";")[0] for key, figure in figures.items() if "goal" in figure.note}
    assert goals == {
        "medusa": {f"{what} a target call": "goal: at most 0.15"},
        "block": {},
    }.get(name, {f"{what} 5 calls of a layer": "goal: at most 1.2"})


def test_a_layer_is_timed_by_the_first_layers_of_the_target_less_one(bench):
    target = tiny("llama", layers=8).float()
    timer, counts = bench_heads.layer_timer(replace(bench, target=target), 64), [0] * 8
    for number, layer in enumerate(target.model.layers):
        layer.self_attn.register_forward_hook(lambda *_, number=number: counts.__setitem__(number, counts[number] + 1))
    timer()
    assert counts[0] > counts[1] > 0, "a step of the first alone, and one of six layers"
    assert counts[1:] == [counts[1]] * 5 + [0] * 2
