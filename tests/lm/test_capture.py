"""Captured steps: one a shape, inputs and outputs that stay in place, eager where it cannot be, and that is said."""

import gc
import weakref
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

import sdbench
from sdbench.config import ConfigError
from sdbench.engine import Engine
from sdbench.engine.loop import Options
from sdbench.engine.row import Request
from sdbench.lm.capture import NARROW, PATIENCE, CapturedSteps, mode_of
from sdbench.lm.model import LM
from sdbench.prepare.pair_info import PairInfo
from sdbench.prepare.prompts import Prompts
from sdbench.prepare.rules import Parts
from sdbench.probs import Warp
from sdbench.verify import Ensemble
from tests.engine.models import PROMPTS, pair, tiny


def test_a_captured_step_serves_every_call_of_its_shape_and_no_call_overwrites_what_another_gave():
    steps, runs = CapturedSteps("graphs"), []

    def step(_, x):
        runs.append(x.shape)
        return (x * 2,)

    (first,) = steps(step, "double", 64, torch.ones(2))
    (second,) = steps(
        lambda _, x: (x * 0,), "double", 64, torch.full((2,), 5.0)
    )  # its name is known: the first step runs
    assert second.tolist() == [10, 10]
    assert first.tolist() == [2, 2]
    (other,) = steps(step, "double", 64, torch.ones(3))
    assert other.tolist() == [2, 2, 2]
    assert {tuple(shape) for shape in runs} == {(2,), (3,)}


def test_off_is_the_step_itself():
    x = torch.ones(2)
    assert CapturedSteps("off")(lambda _, x: (x,), "same", 64, x)[0] is x
    with pytest.raises(TypeError, match="a KV length before its tensors, got Tensor"):
        CapturedSteps("off")(lambda x: (x,), "same", x)  # type: ignore[arg-type]


def test_on_a_cpu_steps_of_a_narrow_model_are_traced_unless_asked_otherwise():
    model = tiny("llama")
    assert mode_of(None, model) == "trace"
    wide = SimpleNamespace(config=SimpleNamespace(get_text_config=lambda: SimpleNamespace(hidden_size=NARROW)))
    assert mode_of(None, cast(Any, SimpleNamespace(**vars(wide), device=torch.device("cpu")))) == "off"
    assert mode_of("off", model) == "off"
    assert mode_of("graphs", model) == "graphs"
    with pytest.raises(ValueError, match="capture must be"):
        mode_of("fast", model)  # type: ignore[arg-type]


def test_a_model_on_several_devices_runs_eagerly_with_a_warning():
    spread = SimpleNamespace(hf_device_map={"a": 0, "b": 1}, device=torch.device("cpu"), config=None)
    assert mode_of(None, spread) == "off"  # type: ignore[arg-type]
    with pytest.warns(UserWarning, match="needs a model on one device: its steps run eagerly"):
        assert mode_of("graphs", spread) == "off"  # type: ignore[arg-type]


def test_what_cannot_be_captured_runs_eagerly_with_a_warning():
    def step(_, x):
        if not torch.equal(x, torch.ones(2)):
            return (x + 1,)
        raise RuntimeError("operation not permitted when stream is capturing")

    steps = CapturedSteps("graphs")
    with (
        pytest.warns(
            UserWarning, match="cannot be captured as a CUDA graph, so all of them run eagerly: operation not permitted"
        ),
        pytest.raises(RuntimeError),
    ):  # the step itself fails on these values, captured or not
        steps(step, "step", 64, torch.ones(2))
    assert steps(step, "step", 64, torch.zeros(2))[0].tolist() == [1, 1]


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_texts_end_where_longer_ones_would_change_the_frequencies_of_all_rows(kind):
    """Below that length no row changes another, nor a chunk of a prompt the next; beyond it texts are refused by a sentence."""
    rope = {"rope_type": kind, "factor": 2.0, "rope_theta": 10_000.0, "original_max_position_embeddings": 64}
    factors = {"short_factor": [1.0] * 4, "long_factor": [3.0] * 4} if kind == "longrope" else {}
    model = tiny("llama", rope_parameters={**rope, **factors}, max_position_embeddings=128)
    assert LM(model).limit == 64
    pair_info, parts = PairInfo(cast(Any, None), {"target": model.config}), Parts((), ())
    assert pair_info.limit(parts) == 64, "prompts are cut to it"
    task, run = SimpleNamespace(max_new_tokens=64), SimpleNamespace(model=SimpleNamespace(name="m"))
    with pytest.raises(ConfigError, match=r"leaves no room .* 64 tokens in all: its configuration has 128, but longer"):
        Prompts.make(cast(Any, task), pair_info, cast(Any, run), parts)
    rules, options = [Ensemble(w=0.5)], {"max_new_tokens": 20, "stop_ids": ()}
    prompts = [[5 + i % 40 for i in range(44)], [7, 8, 9]]
    together = sdbench.generate(model, None, prompts, rules, **options)
    alone = [
        sdbench.generate(model, None, [prompt], rules, keys=[key], **options)[0] for key, prompt in enumerate(prompts)
    ]
    assert [g.tokens for g in together] == [g.tokens for g in alone]
    with pytest.raises(
        ValueError, match="64 positions of the target model: its configuration has 128, but longer texts"
    ):
        sdbench.generate(model, None, [prompts[0] + [1, 2]], rules, **options)
    with pytest.raises(ValueError, match="exceeds the 64 positions"):  # the runner's way in
        Engine(model).stream([prompts[0] + [1, 2]], rules, [Request(0, 0, 0, 0, 0)], Options(Warp(), max_new_tokens=20))
    spread = SimpleNamespace(config=model.config, device=torch.device("cuda"))
    assert mode_of(None, spread) == "off"  # type: ignore[arg-type]
    with pytest.warns(UserWarning, match="needs rotary frequencies that do not depend on the length"):
        assert mode_of("graphs", spread) == "off"  # type: ignore[arg-type]


def test_a_step_is_traced_when_it_has_come_back_often_and_python_is_out_of_it():
    model = tiny("llama")
    before = [parameter.requires_grad for parameter in model.parameters()]
    assert all(before)
    with torch.inference_mode():
        lm, runs = LM(model), []
        cache = lm.cache(2, 100)

        def step(length, ids, positions):
            runs.append(len(ids))
            return (lm.forward(ids, lm.plan(positions, cache, length), cache),)

        ids, positions = torch.tensor([[5, 6], [7, 8]]), torch.tensor([[3, 4], [0, 1]])
        (wanted,) = step(64, ids, positions)
        outputs = [cache.steps(step, "step", 64, ids, positions)[0] for _ in range(PATIENCE + 5)]
        assert len(runs) == 1 + (PATIENCE - 1) + 2, "once to compare with and once to trace; then never again"
        outputs += [cache.steps(step, "step", 100, ids, positions)[0] for _ in range(5)]
        assert len(runs) == 1 + (PATIENCE - 1) + 2 + 1, "its trace serves another KV length, once compared"
        one = ids[:1], positions[:1]
        for length in (64, 100):
            (row,) = [cache.steps(step, "step", length, *one)[0] for _ in range(PATIENCE)][-1:]
            assert torch.allclose(row, wanted[:1])
    again = PATIENCE - 1 + 2
    assert len(runs) == 1 + (PATIENCE - 1) + 2 + 1 + again, "with fewer rows it is traced; a KV length is compared once"
    assert all(torch.equal(x, wanted) for x in outputs)
    trace: Any = next(iter(cache.steps._traces.values()))
    assert "aten::size" not in str(trace.graph), "what follows from shapes is not worked out again in every call"
    assert [parameter.requires_grad for parameter in model.parameters()] == before


def test_a_trace_that_gives_other_values_is_not_used():
    times = iter(range(1, 9))

    def step(_, x):
        return (x * float(next(times)),)

    with pytest.warns(
        UserWarning, match="cannot be traced, so all of them run eagerly: the captured step gives different values"
    ):
        CapturedSteps("trace")(step, "step", 64, torch.ones(2))


def test_an_exception_of_others_ends_a_capture_and_is_not_taken_for_its_failure():
    """A scheduler's signal handler may raise one while a step is traced, as submitit's UncompletedJobError, a RuntimeError."""

    class EndOfJobError(RuntimeError):
        pass

    def step(_, x):
        raise EndOfJobError("time is up")

    steps = CapturedSteps("trace")
    with pytest.raises(EndOfJobError):
        steps(step, "step", 64, torch.ones(2))
    assert steps.mode == "trace"


def test_caches_and_captured_steps_are_kept_for_the_next_call_and_dropped_when_weights_move():
    model = tiny("llama")
    lm = LM(model, capture="graphs")
    cache = lm.cache(2, 100)
    assert cache.capacity == 512
    lm.give_back(cache)
    assert lm.cache(2, 300) is cache
    assert lm.cache(2, 300) is not cache, "one that is in use serves nobody else"
    lm.give_back(cache)
    assert lm.cache(3, 300) is not cache
    lm.give_back(cache)
    assert LM(model, capture="graphs").cache(2, 300) is not cache, "captured steps are their engine's own"
    model.float()
    assert lm.cache(2, 300) is not cache


@pytest.mark.parametrize("capture", ["off", "trace"])
def test_captured_steps_do_not_keep_a_model_alive(capture):
    models = pair("llama")
    sdbench.generate(*models, PROMPTS, [Ensemble(w=0.5)], max_new_tokens=8, capture=capture, stop_ids=())
    gone = [weakref.ref(model) for model in models]
    del models
    gc.collect()
    assert [reference() for reference in gone] == [None, None]


def test_few_captured_steps_serve_a_whole_stream(monkeypatch):
    target, draft = pair("llama")
    made = []
    honest = CapturedSteps._capture_step

    def counting(self, step, kind, length, inputs):
        made.append([tuple(x.shape) for x in inputs])
        return honest(self, step, kind, length, inputs)

    monkeypatch.setattr(CapturedSteps, "_capture_step", counting)
    rules = [Ensemble(w=w) for w in (0.2, 0.5, 0.8)]
    sdbench.generate(target, draft, PROMPTS, rules, max_new_tokens=20, batch_size=8, capture="graphs", stop_ids=())
    assert len(made) <= 2 * 4, "one for draft and target, times the powers of two up to 8 rows"
