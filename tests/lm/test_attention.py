"""Ragged attention against the definition, written out with full heads."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from transformers.masking_utils import sliding_window_causal_mask_function

from sdbench.lm.attention import ragged_attention
from sdbench.lm.plan import CAUSAL, CURRENT, LayerMask, Plan

B, H, G, T, L, D = 3, 4, 2, 3, 11, 5
LEVELS = torch.tensor(0.0).double(), torch.tensor(-torch.inf).double()
WINDOW = LayerMask(sliding_window_causal_mask_function(4), 4)


def by_definition(query, keys, values, positions, window, softcap=None, sinks=None):
    keys, values = (x.repeat_interleave(H // G, 1) for x in (keys, values))
    scores = query @ keys.transpose(2, 3) * D**-0.5
    if softcap is not None:
        scores = (scores / softcap).tanh() * softcap
    slot, place = torch.arange(keys.shape[2]), positions[:, None, :, None]
    seen = (slot <= place) & ((slot > place - window) if window else True)
    scores = scores.masked_fill(~seen, -torch.inf)
    if sinks is not None:
        scores = torch.cat((scores, sinks.view(1, H, 1, 1).expand(len(query), H, query.shape[2], 1)), -1)
    return (scores.softmax(-1)[..., : keys.shape[2]] @ values).transpose(1, 2)


def attend(query, keys, values, plan, **more):
    token = CURRENT.set(plan)
    try:
        return ragged_attention(SimpleNamespace(layer_idx=0), query, keys, values, None, **more)[0]  # type: ignore[arg-type]
    finally:
        CURRENT.reset(token)


def random(*shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("layer_mask", [CAUSAL, WINDOW], ids=["full", "window"])
@pytest.mark.parametrize("steps", [1, T])
@pytest.mark.parametrize("extra", [{}, {"softcap": 2.0}, {"s_aux": True}, {"softcap": 2.0, "s_aux": True}], ids=str)
def test_ragged_blocks(layer_mask, steps, extra):
    query, keys, values = random(B, H, steps, D), random(B, L, G, D).transpose(1, 2), random(B, L, G, D).transpose(1, 2)
    positions = torch.tensor([[0], [5], [L - steps]]) + torch.arange(steps)
    sinks = random(H) if extra.get("s_aux") else None
    plan = Plan(positions, positions.flatten(), L, LEVELS, {0: layer_mask})
    given = attend(query, keys, values, plan, **{**extra, "s_aux": sinks})
    wanted = by_definition(query, keys, values, positions, layer_mask.local, extra.get("softcap"), sinks)
    assert torch.allclose(given, wanted, atol=1e-12)


@pytest.mark.parametrize("layer_mask", [CAUSAL, WINDOW], ids=["full", "window"])
@pytest.mark.parametrize(("start", "steps"), [(0, 3), (0, 9), (4, 5)])
@pytest.mark.parametrize("softcap", [None, 2.0])
def test_chunks_of_a_prompt(layer_mask, start, steps, softcap):
    query, keys, values = random(1, H, steps, D), *(random(1, start + steps, G, D).transpose(1, 2) for _ in range(2))
    positions = torch.arange(start, start + steps)[None]
    plan = Plan(positions, positions[0], start + steps, LEVELS, {0: layer_mask}, start)
    wanted = by_definition(query, keys, values, positions, layer_mask.local, softcap)
    assert torch.allclose(attend(query, keys, values, plan, softcap=softcap), wanted, atol=1e-12)


def test_no_copy_of_keys_and_values_to_full_heads():
    """The largest tensor made is smaller than the keys of one head more."""
    steps, length = 2, 4096
    query, keys = random(1, 8, steps, 16), random(1, length, 1, 16).transpose(1, 2)
    positions = torch.tensor([[length - 2, length - 1]])
    plan = Plan(positions, positions.flatten(), length, LEVELS, {0: CAUSAL})
    plan.mask(0, 8)
    with torch.profiler.profile(profile_memory=True, activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        attend(query, keys, keys, plan)
    largest = max(event.self_cpu_memory_usage for event in seen.key_averages())
    assert largest < 2 * keys.nbytes


@pytest.mark.parametrize("extra", [{"softcap": 5.0}, {"s_aux": True}, {}])
def test_no_step_copies_the_keys_and_values_it_sees(extra):
    """Bytes of aten::clone and aten::copy_ in a step stay far below those of the cache, with soft-capping and sinks too."""
    batch, heads, kv_heads, length, width = 2, 8, 2, 512, 32
    store = torch.randn(batch, length + 1, kv_heads, width)
    keys = values = store[:, :length].transpose(1, 2)
    query = torch.randn(batch, heads, 3, width)
    more = {**extra, **({"s_aux": torch.randn(heads)} if "s_aux" in extra else {})}
    levels = torch.tensor([0.0, -torch.inf]).unbind()
    positions = torch.arange(length - 3, length).expand(batch, -1)
    plan = Plan(positions, positions.flatten(), length, levels, {0: CAUSAL})
    module = SimpleNamespace(layer_idx=0)
    token = CURRENT.set(plan)
    try:
        ragged_attention(module, query, keys, values, None, **more)
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as seen:
            ragged_attention(module, query, keys, values, None, **more)
    finally:
        CURRENT.reset(token)
    copied = 0
    for event in seen.events():
        if event.name in ("aten::clone", "aten::copy_") and event.input_shapes and event.input_shapes[0]:
            copied = max(copied, int(np.prod(event.input_shapes[0])))
    assert copied < keys.numel() / 2
