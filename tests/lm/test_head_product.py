"""The head of a model reads contiguous states: nothing of the size of its weight is copied, whatever is kept of a forward."""

import re
from collections.abc import Callable
from contextlib import nullcontext, redirect_stdout
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from sdbench.draft.medusa import Medusa
from sdbench.engines.native import plain
from sdbench.lm.model import LM
from sdbench.lm.packed import has_instructions
from sdbench.probs import Warp
from tests.draft.heads import HEADS, random_heads
from tests.engine.models import tiny

VOCAB, ROWS = 40_000, 4
NOTE = Path(__file__).parents[2] / "docs/notes/head_copy.md"
needs_bfloat16 = pytest.mark.skipif(
    not has_instructions(torch.bfloat16),
    reason="without instructions for bfloat16 PyTorch multiplies without this copy",
)


DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")],
    ),
]


def allocated(call: Callable[[], Any], device: str = "cpu") -> int:
    """The bytes that the operations of a call allocate in all, the second time."""
    with torch.inference_mode():
        call()
        if device == "cuda":
            before = torch.cuda.memory_stats()["allocated_bytes.all.allocated"]
            call()
            return torch.cuda.memory_stats()["allocated_bytes.all.allocated"] - before
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            call()
    events: Any = profiler.events()
    return sum(max(0, event.self_cpu_memory_usage) for event in events)


def bytes_of_forward(lm: LM, steps: int, keep: int) -> int:
    cache = lm.cache(ROWS, 64)
    ids = torch.arange(5, 5 + ROWS * steps, device=lm.device).view(ROWS, steps)
    positions = torch.arange(steps, device=lm.device).expand(ROWS, -1)
    return allocated(lambda: lm.forward(ids, lm.plan(positions, cache, 64), cache, keep=keep), lm.device.type)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("family", ["llama", "gemma2", "qwen3"])
@pytest.mark.parametrize(("steps", "keep"), [(2, 1), (7, 1), (7, 0)])
def test_a_forward_allocates_its_logits_and_no_copy_of_the_head(family, steps, keep, device):
    model = tiny(family, vocab=VOCAB, attention="eager" if family == "gemma2" else "sdpa")
    lm = LM(model.to(device).bfloat16().requires_grad_(False), capture="off")
    logits = ROWS * (keep or steps) * VOCAB * 2
    # Gemma 2 caps its logits: three more tensors of their size.
    assert bytes_of_forward(lm, steps, keep) <= (4 if family == "gemma2" else 1) * logits + 2**20


@pytest.mark.parametrize("shape", ["last", "middle", "one row", "rows last"])
def test_states_are_read_out_without_a_copy_of_the_head(shape):
    """Whoever reads a position out passes a slice of the states of all positions."""
    lm = LM(tiny("llama", vocab=VOCAB).bfloat16().requires_grad_(False), capture="off")
    whole = torch.zeros(ROWS, 7, lm.config.hidden_size).bfloat16()
    states = {
        "last": whole[:, -1:],
        "middle": whole[:, 2:4],
        "one row": whole[:1, -1:],
        "rows last": whole.transpose(0, 1),
    }[shape]
    assert allocated(lambda: lm.read_out(states)) <= states[..., 0].numel() * VOCAB * 2 + 2**20


@pytest.mark.parametrize("k", [1, HEADS])
def test_medusas_heads_are_read_out_without_a_copy_of_the_head(k):
    model = tiny("llama", vocab=VOCAB)
    weights = random_heads(model)
    lm = LM(model.bfloat16().requires_grad_(False), capture="off")
    drafter: Any = Medusa(lm, Warp(0.0), weights)
    drafter.open(ROWS, 64, None)
    lengths, u = torch.full((ROWS,), k), torch.rand(ROWS, k + 1, dtype=torch.float64)
    used = allocated(lambda: drafter.draft(None, k, lengths, u, frozenset()))
    assert used <= ROWS * k * VOCAB * 2 + 2**20


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


@needs_bfloat16
@pytest.mark.parametrize("num_draft", [0, 3])
def test_such_copies_are_seen(num_draft, monkeypatch):
    monkeypatch.setattr(plain, "as_from_pretrained", lambda *models: nullcontext())
    assert copies_in_generate(num_draft) >= (2 if num_draft else 1)


@needs_bfloat16
@pytest.mark.parametrize(("rows", "dtype"), [(1, "bfloat16"), (4, "bfloat16"), (4, "float32")])
def test_the_reproduction_in_the_note_allocates_what_the_note_says(rows, dtype):
    """Its block has four rows in bfloat16."""
    (block,) = re.findall(r"```python\n(.*?)```", NOTE.read_text(), re.DOTALL)
    given: dict[str, Any] = {}
    threads, printed = torch.get_num_threads(), StringIO()
    try:
        with redirect_stdout(printed):
            exec(block.replace("(4, 7", f"({rows}, 7").replace("bfloat16", dtype), given)
    finally:
        torch.set_num_threads(threads)
    ((*shown,),) = re.findall(rf"\| {rows}, {dtype} \| ([\d.]+) MiB \| ([\d.]+) MiB \|", NOTE.read_text())
    for states, number in zip((given["states"], given["flat"]), map(float, shown), strict=True):
        used = allocated(lambda states=states: torch.nn.functional.linear(states, given["weight"]))
        assert used / 2**20 == pytest.approx(number, rel=0.02, abs=0.06)
    assert len(printed.getvalue().splitlines()) == 4
