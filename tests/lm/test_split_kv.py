"""The kernel that takes lengths instead of a mask, rehearsed: its documented meaning in plain torch.

flash-attn needs a GPU to be built and to run; what is tested here is all but the kernel itself.
"""

import sys
from types import ModuleType
from typing import Any

import pytest
import torch

import sdbench
from sdbench.engine import Engine
from sdbench.lm import model
from sdbench.lm.model import LM
from sdbench.lm.split_kv import kernel_for
from sdbench.verify import Ensemble, Exact
from tests.draft.heads import write_heads
from tests.engine.models import FAMILIES, PROMPTS, pair, tiny

calls: list[tuple[int, ...]] = []


def documented(
    q: Any, k_cache: Any, v_cache: Any, *, cache_seqlens: Any, softmax_scale: float, causal: bool, softcap: float
) -> Any:
    """q [B,T,H,D], caches [B,L,G,D]; causal: the last query sees the last of cache_seqlens[b] keys, the one before one less."""
    assert causal
    assert cache_seqlens.dtype == torch.int32
    assert k_cache.stride(-1) == v_cache.stride(-1) == 1, "the caches are read as they lie"
    assert int(cache_seqlens.max()) <= k_cache.shape[1], "no row may be read beyond its cache"
    calls.append(tuple(q.shape))
    steps, groups = q.shape[1], q.shape[2] // k_cache.shape[2]
    keys, values = (cache.repeat_interleave(groups, 2) for cache in (k_cache, v_cache))
    scores = torch.einsum("bthd,blhd->bhtl", q, keys) * softmax_scale
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    last = cache_seqlens[:, None] - steps + torch.arange(steps)  # of the keys that each query sees
    unseen = torch.arange(keys.shape[1]) > last[..., None]
    law = scores.masked_fill(unseen[:, None], -torch.inf).softmax(-1).nan_to_num(0.0)  # no key seen: zeros
    return torch.einsum("bhtl,blhd->bthd", law, values)


@pytest.mark.parametrize("capture", ["off", "graphs"])
@pytest.mark.parametrize("family", FAMILIES)
def test_texts_are_those_of_the_masks(monkeypatch, family, capture):
    models, rules = pair(family, attention="eager"), [Exact(), Ensemble(w=0.4)]
    options: dict[str, Any] = {
        "max_new_tokens": 14,
        "stop_ids": (),
        "num_draft": 3,
        "batch_size": 4,
        "capture": capture,
    }
    prompts = [*PROMPTS, [5]]
    wanted = sdbench.generate(*models, prompts, rules, **options)
    monkeypatch.setattr(model, "kernel_for", lambda device, dtype: documented)
    calls.clear()
    got = sdbench.generate(*models, prompts, rules, **options)
    assert [g.tokens for g in got] == [g.tokens for g in wanted]
    drafts = {1, 2} if "gemma" not in family else set()  # whose only layer is a sliding one: masks
    assert {shape[1] for shape in calls} >= {4, *drafts}, "drafts, their first step, and verification go through it"


@pytest.mark.parametrize("kind", ["mtp", "eagle3"])
def test_a_layers_first_draft_sees_the_same_keys_where_the_new_slots_end_past_a_bucket(monkeypatch, tmp_path, kind):
    """After 61 tokens and 4 drafts the slots of the first call end at 65, one past the bucket of 64 slots."""
    target = tiny("llama", layers=4, attention="eager")
    knobs = {"head": write_heads(tmp_path, target, kind)}
    prompts, options = (
        [[5 + n % 50 for n in range(61)], [7, 8, 9]],
        {"num_draft": 4, "max_new_tokens": 12, "stop_ids": ()},
    )

    def drafted() -> list[Any]:
        engine = Engine(target, capture="off")
        drafter = engine.drafter(kind, engine.warp(1.0), knobs)
        more: Any = {**options, "engine": engine, "drafter": drafter}
        return list(sdbench.generate(None, None, prompts, [Ensemble(w=0.4)], **more))

    wanted = drafted()
    monkeypatch.setattr(model, "kernel_for", lambda device, dtype: documented)
    for ours, theirs in zip(drafted(), wanted, strict=True):
        assert (ours.tokens, ours.draft_tokens) == (theirs.tokens, theirs.draft_tokens)
        assert ours.q == pytest.approx(theirs.q, abs=1e-9)


def test_the_last_block_of_a_text_may_end_past_the_models_positions(monkeypatch):
    """A text that fills all positions: the lengths that the kernel gets are those of the block, not of the positions."""
    models = [tiny("llama", seed=seed, attention="eager", max_position_embeddings=24) for seed in (1, 2)]
    options: dict[str, Any] = {"max_new_tokens": 24 - 9, "stop_ids": (), "num_draft": 6, "batch_size": 4}
    prompts = [[*range(5, 14)], [*range(20, 26)]]
    wanted = sdbench.generate(*models, prompts, [Exact()], **options)
    monkeypatch.setattr(model, "kernel_for", lambda device, dtype: documented)
    got = sdbench.generate(*models, prompts, [Exact()], **options)
    assert [g.tokens for g in got] == [g.tokens for g in wanted]


def test_a_kernel_that_reads_other_lengths_is_refused_before_anything_is_decoded(monkeypatch):
    def one_short(*states: Any, cache_seqlens: Any, **options: Any) -> Any:
        return documented(*states, cache_seqlens=cache_seqlens - 1, **options)

    monkeypatch.setattr(model, "kernel_for", lambda device, dtype: one_short)
    with pytest.raises(ValueError, match="gives other distributions with sdbench's KV cache"):
        LM(tiny("llama", seed=3))


def test_it_is_asked_for_where_it_is_installed_and_takes_the_tensors(monkeypatch):
    stand_in = ModuleType("flash_attn")
    stand_in.flash_attn_with_kvcache = documented  # type: ignore[attr-defined]
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    monkeypatch.setitem(sys.modules, "flash_attn", None)
    assert kernel_for(gpu, torch.bfloat16) is None
    monkeypatch.setitem(sys.modules, "flash_attn", stand_in)
    assert kernel_for(gpu, torch.bfloat16) is documented
    assert kernel_for(gpu, torch.float32) is None
    assert kernel_for(cpu, torch.bfloat16) is None
    assert Engine(tiny("llama")).target.kernel is None
