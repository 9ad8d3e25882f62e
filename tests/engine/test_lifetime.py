"""What an engine keeps between calls, and for how long: nothing stale, nothing lost, nothing leaked into its caller."""

from typing import Any

import pytest
import torch

import sdbench
from sdbench.engine import Options, Request
from sdbench.engine.batch import Batch
from sdbench.engine.loop import BatchRun
from sdbench.engine.prefill import Prefixes
from sdbench.lm import cache as room
from sdbench.lm.fingerprint import fingerprint
from sdbench.probs import Warp
from sdbench.verify import Ensemble, Exact
from tests.engine.models import PROMPTS, by_family, pair, tiny

OPTIONS: dict[str, Any] = {"max_new_tokens": 12, "stop_ids": (), "num_draft": 3}


def train(model: Any) -> None:
    model.train()
    for _ in range(3):
        loss = model(torch.tensor([PROMPTS[0]]), labels=torch.tensor([PROMPTS[0]])).loss
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter -= 0.5 * parameter.grad
        model.zero_grad()
    model.eval()


def hook(model: Any) -> None:
    model.model.layers[0].register_forward_hook(lambda module, inputs, output: output * 1.5)


def replace_forward(model: Any) -> None:
    inner = model.model.layers[1].mlp
    honest = inner.forward
    inner.forward = lambda x: honest(x) * 3


def rescale(model: Any) -> None:
    for layer in model.model.layers:
        layer.self_attn.scaling *= 4


def move_norms(model: Any) -> None:
    model.model.norm.weight.data.mul_(torch.linspace(-2, 2, len(model.model.norm.weight)))


def turn_faster(model: Any) -> None:
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            if name.endswith("inv_freq"):
                setattr(module, name, buffer * 0.3)


CHANGES = [train, hook, replace_forward, rescale, move_norms, turn_faster]


@pytest.mark.slow
@by_family
@pytest.mark.parametrize("capture", ["trace", "graphs"])
def test_what_changes_between_two_calls_changes_the_next_text(family, capture):
    """Captured steps of an engine are used again only while nothing that moves a logit has changed; each change shows."""
    target, draft = pair(family, attention="eager")
    engine = sdbench.Engine(target, draft, capture=capture)
    for change in (None, *CHANGES):
        if change is not None:
            change(target)
        kept = sdbench.generate(None, None, PROMPTS, [Ensemble(w=0.7)], engine=engine, **OPTIONS)
        eager = sdbench.generate(target, draft, PROMPTS, [Ensemble(w=0.7)], capture="off", **OPTIONS)
        assert [g.tokens for g in kept] == [g.tokens for g in eager], change


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_another_fingerprint_and_no_change_is_none(change):
    model = tiny("llama")
    before = fingerprint(model)
    sdbench.generate(model, None, PROMPTS, [Exact()], **OPTIONS)
    assert fingerprint(model) == before, "decoding changes nothing"
    change(model)
    assert fingerprint(model) != before


class Adapter(torch.nn.Module):
    """A layer with an unmerged adapter, whose scale is in a dictionary, as in PEFT."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner, self.scaling, self.active, self.merged = inner, {"default": 1.0}, {"default"}, []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) * self.scaling["default"]


def with_adapter(model: Any) -> Adapter:
    adapter = model.model.layers[0].mlp = Adapter(model.model.layers[0].mlp)
    return adapter


CONTENT = {
    "dictionary": lambda adapter: adapter.scaling.update(default=3.0),
    "set": lambda adapter: adapter.active.add("other"),
    "list": lambda adapter: adapter.merged.append("default"),
}


@pytest.mark.parametrize("change", CONTENT.values(), ids=CONTENT)
def test_a_change_inside_a_container_is_another_fingerprint(change):
    adapter = with_adapter(model := tiny("llama"))
    before = fingerprint(model)
    assert fingerprint(model) == before
    change(adapter)
    assert fingerprint(model) != before


def test_the_scale_of_an_adapter_changes_the_next_text():
    adapter = with_adapter(model := tiny("llama"))
    engine = sdbench.Engine(model, capture="trace")
    texts = []
    for scale in (1.0, 3.0):
        adapter.scaling["default"] = scale
        kept = sdbench.generate(None, None, PROMPTS, [Exact()], engine=engine, **OPTIONS)
        eager = sdbench.generate(model, None, PROMPTS, [Exact()], capture="off", **OPTIONS)
        assert [g.tokens for g in kept] == [g.tokens for g in eager]
        texts.append([g.tokens for g in kept])
    assert texts[0] != texts[1]


def test_steps_are_captured_once_per_engine_and_again_for_each_call_without_one(monkeypatch):
    from sdbench.lm.capture import CapturedSteps

    honest, captured = CapturedSteps._capture_step, []
    monkeypatch.setattr(
        CapturedSteps, "_capture_step", lambda self, step, *more: captured.append(step) or honest(self, step, *more)
    )
    models = pair("llama")
    engine = sdbench.Engine(*models, capture="graphs")
    for _ in range(3):
        sdbench.generate(None, None, PROMPTS, [Exact()], engine=engine, **OPTIONS)
    once = len(captured)
    assert once > 0
    for _ in range(2):
        sdbench.generate(*models, PROMPTS, [Exact()], capture="graphs", **OPTIONS)
    assert len(captured) == 3 * once
    with pytest.raises(ValueError, match="target and draft must be the engine's own models"):
        sdbench.generate(tiny("llama"), None, PROMPTS, [Exact()], engine=engine, **OPTIONS)
    with pytest.raises(ValueError, match="are the engine's"):
        sdbench.generate(None, None, PROMPTS, [Exact()], engine=engine, capture="off", **OPTIONS)


def test_a_trace_leaves_nothing_in_the_register_of_all_functions():
    """What stood there would keep its weights and its cache in memory for as long as the process lives."""
    register: Any = torch.jit._state._python_cu
    before = len(register.get_functions())
    engine = sdbench.Engine(*pair("llama"), capture="trace")
    sdbench.generate(None, None, PROMPTS, [Exact()], engine=engine, **OPTIONS)
    traced = register.get_functions()[before:]
    assert traced
    assert sum(len(list(one.graph.nodes())) for one in traced) == 0


@pytest.mark.parametrize("failing", [0, 1, 3, 4], ids=["draft keys", "draft values", "first layer", "second layer"])
@pytest.mark.parametrize("capture", ["trace", "graphs"])
def test_a_cache_that_could_not_grow_is_not_used_again(monkeypatch, capture, failing):
    """The engine kept it for its captured steps, with layers that had lost their keys and values."""
    engine = sdbench.Engine(*pair("llama"), capture=capture)
    honest, calls = torch.Tensor.new_zeros, []

    def short_of_memory(self: Any, *sizes: Any, **options: Any) -> Any:
        if len(sizes) == 4:  # keys or values
            calls.append(sizes)
            if len(calls) == failing + 1:
                raise torch.OutOfMemoryError("injected")
        return honest(self, *sizes, **options)

    monkeypatch.setattr(room, "ROOM", 8)  # so that it grows after the prompt
    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "new_zeros", short_of_memory)
        with pytest.raises(torch.OutOfMemoryError, match="injected"):
            sdbench.generate(None, None, PROMPTS[:1], [Exact()], engine=engine, **OPTIONS)
    again = sdbench.generate(None, None, PROMPTS[:1], [Exact()], engine=engine, **OPTIONS)
    eager = sdbench.generate(*pair("llama"), PROMPTS[:1], [Exact()], capture="off", **OPTIONS)
    assert [g.tokens for g in again] == [g.tokens for g in eager]


@pytest.mark.parametrize("role", ["target", "draft"])
def test_a_prompt_with_nan_logits_spoils_no_later_text(role):
    """The cache that is kept for captured steps would hold its NaN, also in slots that a shorter text masks."""
    models = pair("llama")
    options: dict[str, Any] = {**OPTIONS, "temperature": 0}
    (wanted,) = sdbench.generate(*models, PROMPTS[:1], [Exact()], capture="off", **options)
    read = {*PROMPTS[0], *wanted.tokens, *(wanted.draft_tokens or ())}
    sick = next(token for token in range(60, 4, -1) if token not in read)
    models[role == "draft"].get_input_embeddings().weight.data[sick] = torch.nan
    engine = sdbench.Engine(*models, capture="trace")
    for _ in range(2):
        (text,) = sdbench.generate(None, None, PROMPTS[:1], [Exact()], engine=engine, **options)
        assert text.tokens == wanted.tokens
        with pytest.raises(ValueError, match=f"the {role} model's logits are NaN at prompt 0"):
            sdbench.generate(None, None, [[*PROMPTS[2], sick, *PROMPTS[0]]], [Exact()], engine=engine, **options)


PLACES = [
    (Prefixes, "_make"),
    (BatchRun, "_score"),
    (BatchRun, "_verify"),
    (BatchRun, "_measures"),
    (BatchRun, "_admit"),
]
PLACES += [(Batch, "admit"), (Batch, "_move"), (Batch, "remove"), (Batch, "write")]


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place[1])
def test_memory_that_runs_out_at_any_call_of_a_run_costs_no_text(monkeypatch, place):
    models, (home, name) = pair("llama"), place
    rules = [Exact(), Ensemble(w=0.3), Ensemble(w=0.3, mix="logit")]
    stops = {"stop_ids": [3, 4, 9, 20]}
    wanted = sdbench.generate(*models, PROMPTS, rules, **{**OPTIONS, **stops})
    honest = getattr(home, name)
    count, fails_at = 0, 0

    def short_of_memory(self: Any, *arguments: Any, **options: Any) -> Any:
        nonlocal count
        count += 1
        if count == fails_at:
            raise torch.OutOfMemoryError("injected")
        return honest(self, *arguments, **options)

    monkeypatch.setattr(home, name, short_of_memory)
    fails_at = 1
    while True:
        count = 0
        seen: list[Any] = []
        options: dict[str, Any] = {**OPTIONS, **stops, "batch_size": 8, "progress": seen.append}
        with pytest.warns(ResourceWarning, match="going on with 4"):
            got = sdbench.generate(*models, PROMPTS, rules, **options)
        assert [g.tokens for g in got] == [g.tokens for g in wanted]
        assert sorted(g.request for g in seen) == list(range(len(wanted))), "each came once"
        fails_at += 1 + fails_at // 2
        count_of_a_whole_run = count
        if fails_at > count_of_a_whole_run // 2:
            return


def requests(count: int) -> list[Request]:
    return [Request(prompt, 0, 0, prompt, 3) for prompt in range(count)]


def test_a_stream_leaves_its_callers_grad_mode_alone_and_two_may_be_read_by_turns():
    models = pair("llama")
    options = Options(warp=Warp(vocab_size=61), max_new_tokens=8, batch_size=2)
    engines = [sdbench.Engine(*models) for _ in range(2)]
    streams = [
        engine.stream(PROMPTS, [Exact()], requests(len(PROMPTS)), options, engine.drafter("model", options.warp))
        for engine in engines
    ]
    weight = torch.ones(3, requires_grad=True)
    texts: list[list[Any]] = [[], []]
    for pairs in zip(*streams, strict=True):
        assert not torch.is_inference_mode_enabled()
        assert torch.is_grad_enabled()
        (weight * 2).sum().backward()
        for side, generation in zip(texts, pairs, strict=True):
            side.append(generation.tokens)
    assert texts[0] == texts[1]
    assert len(texts[0]) == len(PROMPTS)
