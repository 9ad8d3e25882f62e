"""Between vLLM's flattened laws and a rule's: [num_tokens, V] to [B,K,V] and back. Torch and the rules, nothing of vLLM.

B rows, K the longest draft of the batch, V the vocabulary; row b has num_draft[b] of the num_tokens.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Mapping, Sequence

import torch
from torch import Tensor

from sdbench.types import DraftBlock, Evidence, Verdict
from sdbench.verify import Exact, Tokenwise, family, stack

PLACEHOLDER = -1  # behind the last token of a row; as a draft: one that is to be rejected
_log = logging.getLogger("vllm.sdbench")


def expand(x: Tensor, cu: Tensor, num_tokens: int, replace_from: float = 0, replace_to: float = 0) -> Tensor:
    """x [B] once for each token of its row, [num_tokens]; cu [B] are the rows' ends."""
    if replace_from != replace_to:
        x = torch.where(x == replace_from, torch.full_like(x, replace_to), x)
    counts = torch.diff(cu.long(), prepend=cu.new_zeros(1).long())
    return x.repeat_interleave(counts, output_size=num_tokens)


def uniforms(num_rows: int, num_slots: int, generators: Mapping[int, torch.Generator], device: torch.device) -> Tensor:
    """u [B,K+1]: of a request that has a seed by its own generator. In 52 bits, for float64 may round up to 1 otherwise."""
    u = torch.rand(num_rows, num_slots + 1, dtype=torch.float64, device=device)
    for row, generator in generators.items():
        if row < num_rows:
            u[row].uniform_(generator=generator)
    return u.clamp_max_(1 - 2.0**-52)


def judged(
    rules: Sequence[Tokenwise],
    is_greedy: Tensor,
    draft_ids: Tensor,
    num_draft: Sequence[int],
    draft_probs: Tensor | None,
    target_logits: Tensor,
    bonus_ids: Tensor,
    u: Tensor,
) -> Tensor:
    """What each row emits, int32 [B,K+1], PLACEHOLDER behind it. Nothing raises here: an exception would end the engine for all.

    A row whose rule raises or finds no token with mass is judged by the lossless rule, and the error is logged. Logits that are NaN
    count as −inf; a position without a finite one gets a flat law.

    is_greedy [B]; draft_ids [num_tokens]; draft_probs [num_tokens,V], or None where drafts were chosen, not drawn;
    target_logits [num_tokens,V], processed, cut and divided by the temperature (by 1 in greedy rows); bonus_ids [B] or [B,1],
    which the engine has drawn; u [B,K+1].
    """
    is_broken = ~torch.isfinite(target_logits.amax(-1, keepdim=True))
    if bool(is_broken.any()):
        _log.error(
            "the target's logits are NaN or infinite at %d positions: their texts are junk", int(is_broken.sum())
        )
        target_logits = target_logits.nan_to_num(nan=-torch.inf, posinf=torch.finfo(target_logits.dtype).max)
        target_logits = torch.where(target_logits.amax(-1, keepdim=True) == -torch.inf, 0.0, target_logits)
    device, num_rows, num_slots = target_logits.device, len(num_draft), u.shape[1] - 1
    lengths = torch.tensor(num_draft, device=device)
    there = torch.arange(num_slots, device=device) < lengths[:, None]  # [B,K]
    tokens = torch.zeros(num_rows, num_slots, dtype=torch.int64, device=device).masked_scatter_(there, draft_ids.long())
    place = torch.zeros(num_rows, num_slots, dtype=torch.int64, device=device)
    place.masked_scatter_(there, torch.arange(len(draft_ids), device=device))  # of each draft among the flattened
    offered = (there & (tokens >= 0)).long().cumprod(1).sum(1)  # [B] drafts before the first that is padded
    tokens = tokens.clamp_min(0)
    emitted = torch.full((num_rows, num_slots + 1), PLACEHOLDER, dtype=torch.int32, device=device)
    for members in _families(rules, is_greedy.tolist()):
        rows, greedy = torch.tensor(members, device=device), bool(is_greedy[members[0]])
        drafts = (tokens[rows], offered[rows], lengths[rows], place[rows], bonus_ids.view(-1).long()[rows])
        evidence = _evidence(*drafts, draft_probs, target_logits, is_greedy=greedy)
        emitted[rows] = _judge_safely([rules[row] for row in members], evidence, u[rows])
    return emitted


def _judge_safely(rules: Sequence[Tokenwise], evidence: Evidence, u: Tensor) -> Tensor:
    """What rows of one family emit [b,K+1]; those at fault, found by judging each alone, emit what the lossless rule does."""
    try:
        emitted = _emitted(stack(list(rules), u.device)(evidence, u), evidence.draft.tokens)
        # A rule that has no law to draw from gives the id V: vLLM drops it, no token comes back, and it asks for ever.
        is_at_fault = (emitted >= _vocab_of(evidence)).any(1)
        error: object = "no token has mass"
    except Exception as caught:  # noqa: BLE001 - whatever it is, the other requests of the batch go on
        if len(rules) > 1:
            alone = [torch.tensor([row], device=u.device) for row in range(len(rules))]
            return torch.cat(
                [_judge_safely([rules[row]], evidence.rows(index), u[index]) for row, index in enumerate(alone)]
            )
        emitted, error = torch.full(u.shape, PLACEHOLDER, dtype=torch.int32, device=u.device), caught
        is_at_fault = torch.ones(1, dtype=torch.bool, device=u.device)
    if bool(is_at_fault.any()):
        rows = is_at_fault.nonzero()[:, 0]
        _log.error("%s cannot judge %d rows (%s): they are decoded losslessly", rules[int(rows[0])], len(rows), error)
        part = evidence.rows(rows)
        emitted[rows] = _emitted(Exact()(part, u[rows]), part.draft.tokens)
    return emitted


def _emitted(verdict: Verdict, tokens: Tensor) -> Tensor:
    """Accepted drafts and the token behind them, int32 [b,K+1]."""
    emitted = torch.nn.functional.pad(tokens.int(), (0, 1))
    slots = torch.arange(emitted.shape[1], device=tokens.device)
    emitted = torch.where(slots < verdict.accepted[:, None], emitted, PLACEHOLDER)
    return emitted.scatter(1, verdict.accepted[:, None], verdict.next_token.int()[:, None])


def _vocab_of(evidence: Evidence) -> int:
    return evidence.p.shape[-1] if evidence.p.is_floating_point() else torch.iinfo(torch.int32).max


def _families(rules: Sequence[Tokenwise], is_greedy: Sequence[bool]) -> list[list[int]]:
    """The rows that are judged in one call."""
    members: dict[Hashable, list[int]] = {}
    for row, (rule, greedy) in enumerate(zip(rules, is_greedy, strict=True)):
        members.setdefault((family(rule), bool(greedy)), []).append(row)
    return list(members.values())


def _evidence(
    tokens: Tensor,
    offered: Tensor,
    lengths: Tensor,
    place: Tensor,
    bonus: Tensor,
    draft_probs: Tensor | None,
    target_logits: Tensor,
    *,
    is_greedy: bool,
) -> Evidence:
    """The laws of some rows [b]. Greedy ones are ids: all mass on the likeliest token; a missing draft's slot holds any law.

    The bonus stands in slot `lengths` as it was drawn, so that drawing from it draws it. `offered` is less where drafts are padded:
    the token there is drawn from the target.
    """
    num_slots, size = tokens.shape[1], target_logits.shape[-1]
    if not len(target_logits):
        target_logits = target_logits.new_zeros(1, size)  # no row drafts: slots hold a law that nobody reads
        draft_probs = None
    if is_greedy:
        p = torch.cat((target_logits.argmax(-1)[place], bonus[:, None]), 1)
        return Evidence(
            p.scatter(1, lengths[:, None], bonus[:, None]), DraftBlock(tokens, tokens, offered), is_greedy=True
        )
    law = target_logits.softmax(-1, dtype=torch.float32)
    certain = torch.zeros(len(tokens), size, dtype=law.dtype, device=law.device).scatter_(1, bonus[:, None], 1)
    p = torch.cat((law[place], certain[:, None]), 1)  # [b,K+1,V]
    p[torch.arange(len(tokens), device=p.device), lengths] = certain
    q = tokens if draft_probs is None else draft_probs.float()[place]
    return Evidence(p, DraftBlock(tokens, q, offered)) if num_slots else Evidence(p, DraftBlock.empty(lengths))
