"""The head of a model reads contiguous states: nothing of the size of its weight is copied, whatever is kept of a forward."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from sdbench.engines.native import plain
from sdbench.lm.model import LM
from sdbench.lm.packed import has_instructions
from tests.engine.models import tiny

VOCAB, ROWS = 40_000, 4


def allocated(lm: LM, steps: int, keep: int) -> int:
    """The bytes that the operations of a forward allocate in all."""
    cache = lm.cache(ROWS, 64)
    ids = torch.arange(5, 5 + ROWS * steps).view(ROWS, steps)
    positions = torch.arange(steps).expand(ROWS, -1)
    with torch.inference_mode():
        lm.forward(ids, lm.plan(positions, cache, 64), cache, keep=keep)
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            logits = lm.forward(ids, lm.plan(positions, cache, 64), cache, keep=keep)
    assert logits.shape == (ROWS, keep or steps, VOCAB)
    events: Any = profiler.events()
    return sum(max(0, event.self_cpu_memory_usage) for event in events)


@pytest.mark.parametrize("family", ["llama", "gemma2", "qwen3"])
@pytest.mark.parametrize(("steps", "keep"), [(2, 1), (7, 1), (7, 0)])
def test_a_forward_allocates_its_logits_and_no_copy_of_the_head(family, steps, keep):
    model = (
        tiny(family, vocab=VOCAB, attention="eager" if family == "gemma2" else "sdpa").bfloat16().requires_grad_(False)
    )
    lm = LM(model, capture="off")
    logits = ROWS * (keep or steps) * VOCAB * 2
    # Gemma 2 caps its logits: three more tensors of their size.
    assert allocated(lm, steps, keep) <= (4 if family == "gemma2" else 1) * logits + 2**20


@pytest.mark.parametrize("family", ["llama", "gemma2", "gemma3"])
def test_the_kept_logits_are_the_last_ones(family):
    lm = LM(tiny(family, attention="eager" if family == "gemma2" else "sdpa").requires_grad_(False), capture="off")
    ids, positions = torch.arange(5, 26).view(3, 7), torch.arange(7).expand(3, -1)
    with torch.inference_mode():
        cache = lm.cache(3, 64)
        whole, states = lm.forward_hidden(ids, lm.plan(positions, cache, 64), cache)
        for keep in (1, 2, 7):
            kept, again = lm.forward_hidden(ids, lm.plan(positions, cache, 64), cache, keep=keep)
            assert torch.allclose(kept, whole[:, -keep:], atol=1e-12)
            assert torch.equal(again, states)


def copies_in_generate(num_draft: int) -> int:
    """How often something of the size of the head's weight is allocated while transformers' own generation is timed."""
    model = tiny("llama", vocab=VOCAB).bfloat16().requires_grad_(False)
    head = model.get_output_embeddings().weight
    run, task = SimpleNamespace(temperature=0.0, seed=0), SimpleNamespace(max_new_tokens=8)
    decoder: Any = SimpleNamespace(
        pair=SimpleNamespace(target=model, draft=model),
        job=SimpleNamespace(run=run, task=task),
        stop_ids=lambda role: (),
        should_stop=None,
    )
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        clocked = plain.time_generate(decoder, [[5, 6, 7, 8]], num_draft)
    assert clocked.tokens == 8
    assert not any(weight.requires_grad for weight in model.parameters())
    events: Any = profiler.events()
    return sum(event.self_cpu_memory_usage >= head.nbytes for event in events)


@pytest.mark.parametrize("num_draft", [0, 3])
def test_transformers_is_timed_without_copies_of_the_head(num_draft):
    """A run's models need no gradients; `generate` is timed as users have it, with models as `from_pretrained` leaves them."""
    assert copies_in_generate(num_draft) == 0


@pytest.mark.skipif(
    not has_instructions(torch.bfloat16),
    reason="without instructions for bfloat16 PyTorch multiplies without this copy",
)
@pytest.mark.parametrize("num_draft", [0, 3])
def test_such_copies_are_seen(num_draft, monkeypatch):
    monkeypatch.setattr(plain, "as_from_pretrained", lambda *models: nullcontext())
    assert copies_in_generate(num_draft) >= (2 if num_draft else 1)
