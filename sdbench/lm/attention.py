"""Attention over a ragged cache, registered with transformers. Keys and values are never repeated for each query head.

Query heads that share a key head are folded into the query axis, so that one product serves all of them.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface

from sdbench.lm import split_kv
from sdbench.lm.plan import Plan, current

NAME = "sdbench_ragged"


class Scoring(NamedTuple):
    """How products of queries and keys become attention scores."""

    scale: float
    softcap: float | None = None  # Gemma 2
    sinks: Tensor | None = None  # [H], one for each query head (GPT-OSS)

    @property
    def is_plain(self) -> bool:
        return self.softcap is None and self.sinks is None


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
    """Attend with queries [B,H,T,D] to the cache's keys and values [B,G,L,D]; return [B,T,H,D].

    Only the current plan determines what is visible. transformers' arguments for masks, dropout and so on are ignored.
    """
    plan, layer = current(), int(module.layer_idx)  # pyright: ignore[reportArgumentType]
    scoring = Scoring(scaling if scaling is not None else query.shape[-1] ** -0.5, softcap, s_aux)
    batch, heads, steps, width = map(int, query.shape)  # in a trace, sizes are tensors
    groups = heads // int(key.shape[1])
    if plan.start is not None:
        out = _prefill(plan, layer, query, key, value, scoring)
    elif plan.kernel and plan.layer_masks[layer].is_causal and s_aux is None and width <= split_kv.WIDEST_HEAD:
        return split_kv.attend(plan.kernel, query, key, value, plan.ends, scoring.scale, softcap), None
    else:
        folded = query.reshape(batch, key.shape[1], groups * steps, width)
        out = _attend(folded, key, value, plan.mask(layer, groups), scoring)
        out = out.reshape(batch, heads, steps, value.shape[-1])
    return out.transpose(1, 2).contiguous(), None


def _prefill(plan: Plan, layer: int, query: Tensor, key: Tensor, value: Tensor, scoring: Scoring) -> Tensor:
    """Attend from a chunk of prompts [B,H,T,D]. A first chunk that fits in the sliding window is causal, without a mask tensor."""
    groups, steps = query.shape[1] // key.shape[1], query.shape[2]
    by_group = query.unflatten(1, (key.shape[1], groups)).unbind(2)
    local = plan.layer_masks[layer].local
    if plan.start == 0 and (local is None or steps <= local) and scoring.is_plain:
        attend = F.scaled_dot_product_attention
        parts = [attend(q, key, value, is_causal=True, scale=scoring.scale) for q in by_group]
    else:
        sinks = [None] * groups if scoring.sinks is None else scoring.sinks.view(-1, groups).unbind(1)
        pairs = zip(by_group, sinks, strict=True)
        mask = plan.mask(layer, 1)
        parts = [_attend(q, key, value, mask, scoring._replace(sinks=sink)) for q, sink in pairs]
    return torch.stack(parts, 2).flatten(1, 2)


def _attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scoring: Scoring) -> Tensor:
    """Attend with folded queries [B,G,N,D]. Soft-capping and attention sinks need explicit scores."""
    if scoring.is_plain:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scoring.scale)
    num_heads = key.shape[1]
    sinks = [None] * num_heads if scoring.sinks is None else scoring.sinks.view(num_heads, -1).unbind(0)
    heads = zip(query.unbind(1), key.unbind(1), value.unbind(1), sinks, strict=True)
    return torch.stack(
        [_attend_scored(q, k, v, mask[:, 0], scoring._replace(sinks=sink)) for q, k, v, sink in heads], 1
    )


def _attend_scored(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scoring: Scoring) -> Tensor:
    """Attend with one key head, [B,N,D] to [B,L,D], because one product over all heads would copy the cache's views."""
    scores = torch.bmm(query, key.transpose(1, 2)) * scoring.scale
    if scoring.softcap is not None:
        scores = torch.tanh(scores / scoring.softcap) * scoring.softcap
    scores = scores + mask
    if scoring.sinks is not None:
        rows = scoring.sinks.repeat_interleave(scores.shape[1] // len(scoring.sinks))
        scores = torch.cat((scores, rows[None, :, None].expand(len(scores), -1, -1).to(scores.dtype)), -1)
    wide = scores if scores.dtype == torch.float64 else scores.float()
    law = wide.softmax(-1)
    law = law if scoring.sinks is None else law[..., :-1]
    return torch.bmm(law.to(value.dtype), value)


AttentionInterface.register(NAME, ragged_attention)
