"""Attention over a ragged cache, registered with transformers: keys and values are never copied to full heads.

Query heads that share a key head are folded into the query axis, so that one product serves them all.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface

from sdbench.lm import split_kv
from sdbench.lm.plan import Plan, current

NAME = "sdbench_ragged"


def ragged_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: object,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Queries [B,H,T,D] against the cache's keys and values [B,G,L,D]; gives [B,T,H,D].

    What is visible follows from the plan alone. transformers passes what it thinks of masks, dropout and the like: unused here.
    """
    plan, layer = current(), int(module.layer_idx)  # pyright: ignore[reportArgumentType]
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    batch, heads, steps, width = map(int, query.shape)  # a tracer's sizes are tensors
    groups = heads // int(key.shape[1])
    if plan.start is not None:
        out = _prefill(plan, layer, query, key, value, scale, softcap, s_aux)
    elif plan.kernel and plan.sights[layer].is_causal and s_aux is None and width <= split_kv.WIDEST_HEAD:
        return split_kv.attend(plan.kernel, query, key, value, plan.ends, scale, softcap), None
    else:
        folded = query.reshape(batch, key.shape[1], groups * steps, width)
        out = _attend(folded, key, value, plan.mask(layer, groups), scale, softcap, s_aux)
        out = out.reshape(batch, heads, steps, value.shape[-1])
    return out.transpose(1, 2).contiguous(), None


def _prefill(
    plan: Plan,
    layer: int,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    softcap: float | None,
    s_aux: Tensor | None,
) -> Tensor:
    """A chunk of prompts; a first chunk inside the window is causal without a mask tensor. [B,H,T,D]."""
    groups, steps = query.shape[1] // key.shape[1], query.shape[2]
    by_group = query.unflatten(1, (key.shape[1], groups)).unbind(2)
    local = plan.sights[layer].local
    is_plain = plan.start == 0 and (local is None or steps <= local) and softcap is None and s_aux is None
    if is_plain:
        parts = [F.scaled_dot_product_attention(q, key, value, is_causal=True, scale=scale) for q in by_group]
    else:
        mask = plan.mask(layer, 1)
        sinks = s_aux.view(key.shape[1], groups).unbind(1) if s_aux is not None else [None] * groups
        parts = [_attend(q, key, value, mask, scale, softcap, sink) for q, sink in zip(by_group, sinks, strict=True)]
    return torch.stack(parts, 2).flatten(1, 2)


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor,
    scale: float,
    softcap: float | None,
    s_aux: Tensor | None,
) -> Tensor:
    """Folded queries [B,G,N,D]. Soft-capping (Gemma 2) and attention sinks need the scores themselves."""
    if softcap is None and s_aux is None:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale)
    heads = zip(query.unbind(1), key.unbind(1), value.unbind(1), _by_head(s_aux, key.shape[1]), strict=True)
    return torch.stack([_attend_scored(*head, mask[:, 0], scale, softcap) for head in heads], 1)


def _by_head(s_aux: Tensor | None, kv_heads: int) -> Sequence[Tensor | None]:
    """The sinks of the query heads that share each key head."""
    return [None] * kv_heads if s_aux is None else s_aux.view(kv_heads, -1).unbind(0)


def _attend_scored(
    query: Tensor, key: Tensor, value: Tensor, sink: Tensor | None, mask: Tensor, scale: float, softcap: float | None
) -> Tensor:
    """One key head, [B,N,D] against [B,L,D]: a head at a time, because a product over all would copy the cache's views."""
    scores = torch.bmm(query, key.transpose(1, 2)) * scale
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    scores = scores + mask
    if sink is not None:
        rows = sink.repeat_interleave(scores.shape[1] // len(sink))
        scores = torch.cat((scores, rows[None, :, None].expand(len(scores), -1, -1).to(scores.dtype)), -1)
    wide = scores if scores.dtype == torch.float64 else scores.float()
    law = wide.softmax(-1)
    law = law if sink is None else law[..., :-1]
    return torch.bmm(law.to(value.dtype), value)


AttentionInterface.register(NAME, ragged_attention)
