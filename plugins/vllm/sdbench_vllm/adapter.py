"""Convert between vLLM's flattened laws [num_tokens, V] and those of a rule [B,K,V]. Imports torch and the rules, but not vLLM.

B rows, K the longest draft of the batch, V the vocabulary; row b has num_draft[b] of the num_tokens.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from sdbench.types import DraftBlock, Evidence, Verdict
from sdbench.verify import Exact, Tokenwise, family, stack

PLACEHOLDER = -1  # fills a row after its last token; as a draft, it is always rejected
_log = logging.getLogger("vllm.sdbench")


def expand(x: Tensor, cu: Tensor, num_tokens: int, replace_from: float = 0, replace_to: float = 0) -> Tensor:
    """Return x [B] repeated for each token of its row, [num_tokens]; cu [B] are the ends of the rows."""
    if replace_from != replace_to:
        x = torch.where(x == replace_from, torch.full_like(x, replace_to), x)
    counts = torch.diff(cu.long(), prepend=cu.new_zeros(1).long())
    return x.repeat_interleave(counts, output_size=num_tokens)


def uniforms(num_rows: int, num_slots: int, generators: Mapping[int, torch.Generator], device: torch.device) -> Tensor:
    """Return u [B,K+1]; a request with a seed has its own generator. Values are at most 1 − 2^−52, so that none rounds up to 1."""
    u = torch.rand(num_rows, num_slots + 1, dtype=torch.float64, device=device)
    for row, generator in generators.items():
        if row < num_rows:
            u[row].uniform_(generator=generator)
    return u.clamp_max_(1 - 2.0**-52)


@dataclass(frozen=True)
class FlatBatch:
    """The rows to judge, as vLLM passes them: the tokens of all rows are flattened."""

    is_greedy: Tensor  # [B]
    draft_ids: Tensor  # [num_tokens]
    num_draft: Sequence[int]
    draft_logs: Tensor | None  # [num_tokens,V] log-laws that drafts were drawn from; None if drafts were not sampled
    target_logits: Tensor  # [num_tokens,V] processed, cut and divided by the temperature (by 1 in greedy rows)
    bonus_ids: Tensor  # [B] or [B,1], drawn by vLLM
    u: Tensor  # [B,K+1]
    raw_logits: Tensor | None = None  # [num_tokens,V] of the target, neither cut nor divided; None: target_logits
    temperature: Tensor | None = None  # [B]; None: 1


class Judgement(NamedTuple):
    """The tokens that rows emit, and for some rows the reason why they were decoded losslessly instead of by their rule."""

    emitted: Tensor  # [B,K+1] int32, PLACEHOLDER after the last token
    faults: dict[int, str]  # row -> the reason


def reads_raw(rule: Tokenwise, *, is_greedy: bool) -> bool:
    """Return whether a rule reads un-tempered laws at this temperature."""
    return "raw" in rule.needs or (is_greedy and "raw_if_greedy" in rule.needs)


def judged(rules: Sequence[Tokenwise], batch: FlatBatch) -> Judgement:
    """Judge each row by its rule. A rule's exception is caught here, because it would end the engine for all requests.

    If the rule raises, or no token has mass, the row is judged by the lossless rule and is listed in `faults`. NaN logits count
    as −inf; a position without a finite logit gets a uniform law.
    """
    batch, u = _with_finite_logits(batch), batch.u
    device, num_rows, num_slots = u.device, len(batch.num_draft), u.shape[1] - 1
    lengths = torch.tensor(batch.num_draft, device=device)
    there = torch.arange(num_slots, device=device) < lengths[:, None]  # [B,K]
    tokens, place = (torch.zeros(num_rows, num_slots, dtype=torch.int64, device=device) for _ in range(2))
    tokens.masked_scatter_(there, batch.draft_ids.long())
    place.masked_scatter_(there, torch.arange(len(batch.draft_ids), device=device))  # index in the flat tensors
    offered = (there & (tokens >= 0)).long().cumprod(1).sum(1)  # [B] number of drafts before the first PLACEHOLDER
    tokens = tokens.clamp_min(0)
    emitted = torch.full((num_rows, num_slots + 1), PLACEHOLDER, dtype=torch.int32, device=device)
    faults: dict[int, str] = {}
    for members in _families(rules, batch.is_greedy.tolist()):
        rows = torch.tensor(members, device=device)
        evidence = _evidence(batch, rules[members[0]], rows, tokens[rows], offered[rows], lengths[rows], place[rows])
        judgement = _judge_safely([rules[row] for row in members], evidence, u[rows])
        emitted[rows] = judgement.emitted
        faults |= {members[row]: reason for row, reason in judgement.faults.items()}
    return Judgement(emitted, faults)


def _with_finite_logits(batch: FlatBatch) -> FlatBatch:
    logits = batch.target_logits
    is_broken = ~torch.isfinite(logits.amax(-1, keepdim=True))
    if not bool(is_broken.any()):
        return batch
    _log.error("the target's logits are NaN or infinite at %d positions: their texts are junk", int(is_broken.sum()))

    def mended(x: Tensor) -> Tensor:
        x = x.nan_to_num(nan=-torch.inf, posinf=torch.finfo(x.dtype).max)
        return torch.where(x.amax(-1, keepdim=True) == -torch.inf, 0.0, x)

    raw = None if batch.raw_logits is None else mended(batch.raw_logits)
    return replace(batch, target_logits=mended(logits), raw_logits=raw)


def _judge_safely(rules: Sequence[Tokenwise], evidence: Evidence, u: Tensor) -> Judgement:
    """Judge the rows of one family; if the rule raises, judge each row alone to find those at fault. They are judged losslessly."""
    try:
        emitted = _emitted(stack(list(rules), u.device)(evidence, u), evidence.draft.tokens)
        # A rule without a law to draw from gives the id V. vLLM would drop it, get no token, and repeat the step for ever.
        is_at_fault = (emitted >= _vocab_of(evidence)).any(1)
        error: object = "no token has mass"
    except Exception as caught:  # noqa: BLE001 - no error may stop the other requests of the batch
        if len(rules) > 1:
            parts = []
            for row, rule in enumerate(rules):
                index = torch.tensor([row], device=u.device)
                parts.append(_judge_safely([rule], evidence.rows(index), u[index]))
            faults = {row: reason for row, part in enumerate(parts) for reason in part.faults.values()}
            return Judgement(torch.cat([part.emitted for part in parts]), faults)
        emitted, error = torch.full(u.shape, PLACEHOLDER, dtype=torch.int32, device=u.device), caught
        is_at_fault = torch.ones(1, dtype=torch.bool, device=u.device)
    rows = is_at_fault.nonzero()[:, 0]
    if len(rows):
        _log.error("%s cannot judge %d rows (%s): they are decoded losslessly", rules[int(rows[0])], len(rows), error)
        part = evidence.rows(rows)
        emitted[rows] = _emitted(Exact()(part, u[rows]), part.draft.tokens)
    return Judgement(emitted, {row: f"{rules[row]} cannot judge it ({error})" for row in rows.tolist()})


def _emitted(verdict: Verdict, tokens: Tensor) -> Tensor:
    """Return the accepted drafts and the token after them, int32 [b,K+1]."""
    emitted = pad(tokens.int(), (0, 1))
    slots = torch.arange(emitted.shape[1], device=tokens.device)
    emitted = torch.where(slots < verdict.accepted[:, None], emitted, PLACEHOLDER)
    return emitted.scatter(1, verdict.accepted[:, None], verdict.next_token.int()[:, None])


def _vocab_of(evidence: Evidence) -> int:
    return evidence.p.shape[-1] if evidence.p.is_floating_point() else torch.iinfo(torch.int32).max


def _families(rules: Sequence[Tokenwise], is_greedy: Sequence[bool]) -> list[list[int]]:
    """Return groups of rows that are judged in one call."""
    members: dict[Hashable, list[int]] = {}
    for row, (rule, greedy) in enumerate(zip(rules, is_greedy, strict=True)):
        members.setdefault((family(rule), bool(greedy)), []).append(row)
    return list(members.values())


def _evidence(
    batch: FlatBatch, rule: Tokenwise, rows: Tensor, tokens: Tensor, offered: Tensor, lengths: Tensor, place: Tensor
) -> Evidence:
    """Return the evidence for the rows [b] of one family. Laws of greedy rows are ids, with all mass on the likeliest token; the
    slot of a missing draft may hold any law.

    Slot `lengths` has all its mass on the bonus token that vLLM drew, so that drawing from it gives this token. If a PLACEHOLDER is
    among the drafts, `offered` is smaller than `lengths`, and the token there is drawn from the target.
    """
    if not tokens.shape[1]:
        bonus = batch.bonus_ids.view(-1).long()[rows, None]
        return Evidence(bonus, DraftBlock.empty(lengths), bool(batch.is_greedy[rows[0]]))
    logits, draft_logs, bonus = batch.target_logits, batch.draft_logs, batch.bonus_ids.view(-1).long()[rows]
    if not len(logits):
        logits, draft_logs = (
            logits.new_zeros(1, logits.shape[-1]),
            None,
        )  # no row drafts: slots hold a law that is never read
    is_greedy = bool(batch.is_greedy[rows[0]])
    raw = draft_raw = None
    if reads_raw(rule, is_greedy=is_greedy):
        # At temperature T the log-law is logits / T plus a constant, so T times the log-law are logits of the un-tempered law.
        raw = pad(
            (logits if batch.raw_logits is None or not len(batch.raw_logits) else batch.raw_logits)[place], (0, 0, 0, 1)
        )
        draft_raw = None if draft_logs is None else draft_logs[place]
        if draft_raw is not None and batch.temperature is not None and not is_greedy:
            draft_raw = draft_raw * batch.temperature[rows, None, None]
    if is_greedy:
        p = torch.cat((logits.argmax(-1)[place], bonus[:, None]), 1)
        p, q = p.scatter(1, lengths[:, None], bonus[:, None]), tokens
    else:
        law = logits.softmax(-1, dtype=torch.float32)
        certain = torch.zeros(len(tokens), law.shape[-1], device=law.device).scatter_(1, bonus[:, None], 1)
        p = torch.cat((law[place], certain[:, None]), 1)  # [b,K+1,V]
        p[torch.arange(len(tokens), device=p.device), lengths] = certain
        q = tokens if draft_logs is None else draft_logs[place].exp()
    return Evidence(p, DraftBlock(tokens, q, offered, draft_raw), is_greedy, raw)
