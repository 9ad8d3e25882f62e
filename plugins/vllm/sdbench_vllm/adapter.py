"""Between vLLM's flattened laws and a rule's: [num_tokens, V] to [B,K,V] and back. Torch and the rules, nothing of vLLM.

B rows, K the longest draft of the batch, V the vocabulary; row b has num_draft[b] of the num_tokens.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import torch
from torch import Tensor

from sdbench.types import DraftBlock, Evidence
from sdbench.verify import Tokenwise, family, stack

PLACEHOLDER = -1  # behind the last token of a row


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
    """What each row emits, int32 [B,K+1], PLACEHOLDER behind it.

    is_greedy [B]; draft_ids [num_tokens]; draft_probs [num_tokens,V], or None where drafts were chosen, not drawn;
    target_logits [num_tokens,V], processed, cut and divided by the temperature (by 1 in greedy rows); bonus_ids [B] or [B,1],
    which the engine has drawn; u [B,K+1].
    """
    if not bool(torch.isfinite(target_logits.amax(-1)).all()):
        raise ValueError("the target's logits hold a NaN, or nothing that is finite: no law can be made of them")
    device, num_rows, num_slots = target_logits.device, len(num_draft), u.shape[1] - 1
    lengths = torch.tensor(num_draft, device=device)
    there = torch.arange(num_slots, device=device) < lengths[:, None]  # [B,K]
    tokens = torch.zeros(num_rows, num_slots, dtype=torch.int64, device=device).masked_scatter_(there, draft_ids.long())
    place = torch.zeros(num_rows, num_slots, dtype=torch.int64, device=device)
    place.masked_scatter_(there, torch.arange(len(draft_ids), device=device))  # of each draft among the flattened
    emitted = torch.full((num_rows, num_slots + 1), PLACEHOLDER, dtype=torch.int32, device=device)
    for rows, rule, greedy in _groups(rules, is_greedy.tolist(), device):
        own = (tokens[rows], lengths[rows], place[rows], bonus_ids.view(-1).long()[rows])
        evidence = _evidence(*own, draft_probs, target_logits, is_greedy=greedy)
        verdict = rule(evidence, u[rows])
        kept = torch.arange(num_slots, device=device) < verdict.accepted[:, None]
        block = torch.full((len(rows), num_slots + 1), PLACEHOLDER, dtype=torch.int32, device=device)
        block[:, :num_slots] = torch.where(kept, tokens[rows].int(), block[:, :num_slots])
        block.scatter_(1, verdict.accepted[:, None], verdict.next_token.int()[:, None])
        emitted[rows] = block
    # A rule that has no law to draw from gives the id V: vLLM drops it, no token comes back, and it asks for ever.
    if num_rows and int(emitted.amax()) >= target_logits.shape[-1]:
        raise ValueError("a rule found no token with mass: its laws are no laws")
    return emitted


def _groups(
    rules: Sequence[Tokenwise], is_greedy: Sequence[bool], device: torch.device
) -> list[tuple[Tensor, Tokenwise, bool]]:
    """(rows [b], their stacked rule, whether they are greedy) of every family."""
    members: dict[Hashable, list[int]] = {}
    for row, (rule, greedy) in enumerate(zip(rules, is_greedy, strict=True)):
        members.setdefault((family(rule), bool(greedy)), []).append(row)
    return [
        (torch.tensor(rows, device=device), stack([rules[row] for row in rows], device), bool(is_greedy[rows[0]]))
        for rows in members.values()
    ]


def _evidence(
    tokens: Tensor,
    lengths: Tensor,
    place: Tensor,
    bonus: Tensor,
    draft_probs: Tensor | None,
    target_logits: Tensor,
    *,
    is_greedy: bool,
) -> Evidence:
    """The laws of some rows [b]. Greedy ones are ids: all mass on the likeliest token; a missing draft's slot holds any law.

    The bonus stands in slot `lengths` as it was drawn, so that drawing from it draws it.
    """
    num_slots, size = tokens.shape[1], target_logits.shape[-1]
    if not len(target_logits):
        target_logits = target_logits.new_zeros(1, size)  # no row drafts: slots hold a law that nobody reads
        draft_probs = None
    if is_greedy:
        p = torch.cat((target_logits.argmax(-1)[place], bonus[:, None]), 1)
        return Evidence(
            p.scatter(1, lengths[:, None], bonus[:, None]), DraftBlock(tokens, tokens, lengths), is_greedy=True
        )
    law = target_logits.softmax(-1, dtype=torch.float32)
    certain = torch.zeros(len(tokens), size, dtype=law.dtype, device=law.device).scatter_(1, bonus[:, None], 1)
    p = torch.cat((law[place], certain[:, None]), 1)  # [b,K+1,V]
    p[torch.arange(len(tokens), device=p.device), lengths] = certain
    q = tokens if draft_probs is None else draft_probs.float()[place]
    return Evidence(p, DraftBlock(tokens, q, lengths)) if num_slots else Evidence(p, DraftBlock.empty(lengths))
