"""The first round of a text alone in its batch reads the rest of its prompt: a forward pass fewer, and the same text."""

import dataclasses
from collections import Counter
from contextlib import contextmanager
from typing import Any

import pytest

import sdbench
from sdbench.draft import BaseDrafter, ModelDrafter, reads_target
from sdbench.draft.early_exit import EarlyExit
from sdbench.engine import Engine, Request, prefill
from sdbench.engine.clock import Clock
from sdbench.engine.row import Decoding
from sdbench.lm import model as lm_module
from sdbench.lm.known import KnownPrefixes
from sdbench.lm.model import LM
from sdbench.types import DraftBlock
from sdbench.verify import Ensemble, Exact
from tests.engine.models import PROMPTS, by_family, pair
from tests.engine.test_invariance import same

LONG = [3 + (7 * i) % 50 for i in range(30)]
OPTIONS: dict[str, Any] = {"num_draft": 3, "max_new_tokens": 14, "stop_ids": (), "seed": 3}
# Drafters that read a draft model, those that read none, and those that read the target's cache, whose prompts are read before.
DRAFTERS: dict[str, dict[str, Any]] = {
    "none": {},
    "model": {},
    "model heuristic": {"length": "heuristic"},
    "model confidence": {"length": "confidence"},
    "hybrid": {},
    "pruned": {},
    "lookup": {},
    "suffix": {},
    "early-exit": {"exit_layer": 1},
    "tiers": {"exit_layer": 1, "chunk": 2},
}


def counted(engine: Engine) -> Counter[str]:
    """Count the calls of each model from now on."""
    calls: Counter[str] = Counter()

    @contextmanager
    def count(lm: Any, inputs: Any, call: Any) -> Any:
        calls[lm.role] += 1
        yield

    for lm in engine.models:
        lm.hook = count
    return calls


def generate(engine: Engine, prompts: Any, rules: Any = None, **options: Any) -> list[Any]:
    return sdbench.generate(None, None, prompts, rules or [Exact()], engine=engine, **OPTIONS | options)


def drafter_of(engine: Engine, drafter: str, temperature: float) -> Any:
    if drafter == "none":
        return None
    return engine.drafter(drafter.partition(" ")[0], engine.warp(temperature), DRAFTERS[drafter])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_no_text_and_no_measure_depends_on_when_its_prompt_is_read(monkeypatch, drafter, temperature):
    engine = Engine(*pair("llama"), capture="off")
    prompts = [*PROMPTS, LONG]
    options = {"temperature": temperature, "num_draft": 0 if drafter == "none" else 3}
    texts: dict[Any, list[Any]] = {}
    for batch_size, chunk in ((1, 512), (1, 8), (5, 512)):
        monkeypatch.setattr(prefill, "CHUNK", chunk)
        monkeypatch.setattr(lm_module, "CHUNK", chunk)
        built = drafter_of(engine, drafter, temperature)
        texts[batch_size, chunk] = generate(engine, prompts, drafter=built, batch_size=batch_size, **options)
    for others in (texts[1, 8], texts[5, 512]):
        for a, b in zip(texts[1, 512], others, strict=True):
            same(a, b)


@by_family
@pytest.mark.parametrize("rule", [Ensemble(w=0.5), Exact()], ids=["ensemble", "exact"])
def test_windows_and_every_family_see_the_whole_prompt(monkeypatch, family, rule):
    """With windows that are shorter than the part that the first round reads."""
    models = pair(family, attention="eager")  # transformers' SDPA has no soft-capping, which Gemma 2 needs
    late, ahead = Engine(*models, capture="off"), Engine(*models, capture="off")
    ahead.target.known = KnownPrefixes()  # prompts are then read ahead
    for a, b in zip(generate(late, [LONG], [rule]), generate(ahead, [LONG], [rule]), strict=True):
        same(a, b)


@pytest.mark.parametrize(("length", "chunks"), [(1, 0), (2, 0), (9, 1), (16, 1), (17, 2), (18, 2)])
def test_a_text_alone_takes_a_forward_pass_for_each_round_and_each_whole_chunk(monkeypatch, length, chunks):
    monkeypatch.setattr(prefill, "CHUNK", 8)
    monkeypatch.setattr(lm_module, "CHUNK", 8)
    engine = Engine(*pair("llama"), capture="off")
    calls = counted(engine)
    (text,) = generate(engine, [LONG[:length]])
    assert calls["target"] == chunks + len(text.drafted)
    assert calls["draft"] == sum(text.drafted) + (-(-max(0, min(8 * chunks, length - 2)) // 8))


def test_a_prompt_that_several_requests_need_is_read_once():
    engine = Engine(*pair("llama"), capture="off")
    calls = counted(engine)
    texts = generate(engine, [LONG], [Exact(), Ensemble(w=0.5)], batch_size=1)
    assert calls["target"] == 1 + sum(len(text.drafted) for text in texts)


def test_captured_steps_and_drafters_that_may_read_the_target_have_the_prompt_read_before(monkeypatch):
    class Outside(BaseDrafter):
        def prefill(self, prompt: Any, prefix: Any) -> Any:
            lengths.append((len(prompt), prefix.length))

        def draft(self, context: Any, k: int, lengths: Any, u: Any, needs: Any) -> DraftBlock:
            return DraftBlock.empty(lengths)

    lengths: list[tuple[int, int]] = []
    generate(Engine(*pair("llama"), capture="off"), [LONG], drafter=Outside())
    assert lengths == [(30, 29)]
    honest, read = LM.prefill_all, []
    monkeypatch.setattr(LM, "prefill_all", lambda lm, x, **o: read.append(len(x[0])) or honest(lm, x, **o))
    for capture, expected in (("graphs", [29, 28]), ("trace", [29, 28]), ("off", [0, 0])):
        engine = Engine(*pair("llama"), capture=capture)
        read.clear()  # of what the engine itself has tried
        generate(engine, [LONG])
        assert read == expected, "the target, then the draft"


def test_the_times_of_a_text_say_whether_its_first_round_read_the_prompt():
    row = Decoding(0, Request(0, 0, 0, 0, 3), 0, num_prompt=10, num_prefilled=8, budget=9, prefill_s=2.0)
    row.rounds_s = [3.0, 1.0]
    clock = Clock(Engine(*pair("llama")).target.device, True)
    timing = clock.timing(row)
    assert timing is not None
    assert (timing.prefill_s, timing.decode_s, timing.first_token_s, timing.rounds_s) == (2, 4, 5, (3, 1))
    assert timing.reads_prompt
    row.num_prefilled = 9
    assert clock.timing(row) == dataclasses.replace(timing, reads_prompt=False)


def test_a_subclass_that_reads_texts_in_another_way_declares_it_again():
    class Same(ModelDrafter):
        version = "9"

    class Other(ModelDrafter):
        def draft(self, *args: Any) -> DraftBlock:
            return super().draft(*args)

    class Declared(Other):
        reads_target = False

    expected = {ModelDrafter: False, Same: False, Other: True, Declared: False, EarlyExit: True, object: True}
    assert {kind: reads_target_of(kind) for kind in expected} == expected


def reads_target_of(kind: type) -> bool:
    return reads_target(object.__new__(kind))


def test_a_text_timed_in_parts_has_its_prompt_read_before():
    engine = Engine(*pair("llama"), capture="off")
    calls = counted(engine)
    for timing in (True, "split"):
        calls.clear()
        (text,) = generate(engine, [LONG], timing=timing)
        assert calls["target"] == len(text.drafted) + (timing == "split")
