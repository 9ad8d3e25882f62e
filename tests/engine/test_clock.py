"""The clock waits for any kind of accelerator, and for nothing on a CPU or when it is off."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

import sdbench
from sdbench.engine import Engine
from sdbench.engine.batch import Batch
from sdbench.engine.clock import Clock
from sdbench.verify import Exact
from tests.engine.models import PROMPTS, pair


@pytest.mark.parametrize("kind", ["cuda", "xpu", "mps", "hpu"])
def test_a_reading_waits_for_the_device(kind, monkeypatch):
    waits = []
    modules = {kind: SimpleNamespace(synchronize=lambda: waits.append(kind))}
    monkeypatch.setattr(torch, "get_device_module", lambda device: modules[device.type])
    assert Clock(torch.device(kind), True).read() > 0
    assert waits == [kind]
    assert Clock(torch.device(kind), None).read() == 0
    assert waits == [kind]


def test_a_reading_on_a_cpu_waits_for_nothing(monkeypatch):
    monkeypatch.setattr(torch, "get_device_module", lambda device: pytest.fail("nothing to wait for"))
    assert Clock(torch.device("cpu"), True).read() > 0


def test_copying_the_keys_and_values_of_a_prompt_counts_as_reading_it(monkeypatch):
    """`generate` has all of its cache work inside its time."""
    now_s, admit = [0.0], Batch.admit

    def slow(self: Batch, *given: object) -> None:
        now_s[0] += 5.0
        admit(self, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(Batch, "admit", slow)
    monkeypatch.setattr("sdbench.engine.clock.time", SimpleNamespace(perf_counter=lambda: now_s[0]))
    engine = Engine(*pair("llama"), capture="off")
    options = {"num_draft": 3, "max_new_tokens": 4, "stop_ids": (), "seed": 3, "timing": True}
    generations = sdbench.generate(None, None, PROMPTS[:2], [Exact()], engine=engine, **options)
    assert [generation.timing.prefill_s for generation in generations] == [5.0, 5.0]
    assert [generation.timing.first_token_s for generation in generations] == [5.0, 5.0]


@pytest.mark.parametrize("timing", [True, "split"])
def test_moving_rows_after_a_text_has_ended_counts_for_those_that_go_on(timing, monkeypatch):
    """`generate` never moves rows, and decodes them to the end of the longest."""
    now_s, remove = [0.0], Batch.remove

    def slow(self: Batch, slot: int) -> None:
        now_s[0] += 5.0
        remove(self, slot)

    engine = Engine(*pair("llama"), capture="off")
    options: dict[str, Any] = {"engine": engine, "num_draft": 1, "max_new_tokens": 6, "stop_ids": (), "seed": 3}
    short, long = (g.tokens for g in sdbench.generate(None, None, PROMPTS[:2], [Exact()], **options))
    assert short[:2] != long[:2]
    options |= {"timing": timing, "should_stop": lambda tokens: tuple(tokens) == short[:2]}
    monkeypatch.setattr(Batch, "remove", slow)
    monkeypatch.setattr("sdbench.engine.clock.time", SimpleNamespace(perf_counter=lambda: now_s[0]))
    generations = sdbench.generate(None, None, PROMPTS[:2], [Exact()], **options)
    assert [len(generation.tokens) for generation in generations] == [2, 6]
    times = [generation.timing for generation in generations]
    assert [(each.prefill_s, each.decode_s) for each in times] == [(0.0, 0.0), (0.0, 5.0)]
    if timing == "split":
        assert [(each.draft_s, each.verify_s, each.rest_s) for each in times] == [(0.0, 0.0, 0.0), (0.0, 0.0, 5.0)]
