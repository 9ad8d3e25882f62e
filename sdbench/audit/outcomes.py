"""What a rule claims to do with a block, without sampling: how many drafts stay with which probability, and what follows.

A token-wise rule says it by `accept` and `replace`. A joint rule says it by a method `outcomes(evidence, prompt, texts)`, or stands
below by its paper's formula. A rule that carries a state that no text tells says it by `outcomes_from(evidence, state)`, with the
state behind each outcome. Of any other rule the law is unknown, and only its losslessness can be tested.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import singledispatch
from typing import Any

import torch
from torch import Tensor

from sdbench.probs import at, dense, excess
from sdbench.types import Evidence
from sdbench.verify import Block, Exact, FLy, Judge, Tokenwise, Within, knob


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Of each row's block: the law of how many drafts stay, and of the next token behind so many."""

    accepted: Tensor  # [B,K+1]
    following: Tensor  # [B,K+1,V]
    state: Tensor | None = (
        None  # [B,K+1,V,S], where a rule carries one: what it is behind so many drafts and that token
    )


class UnknownLawError(ValueError):
    """A rule or a drafter whose law nobody has written down."""


def is_memoryless(rule: Any) -> bool:
    """A token-wise rule that carries no state: `accept` and `replace` say all of it."""
    return isinstance(rule, Tokenwise) and type(rule).init_state is Tokenwise.init_state


def has_outcomes(rule: Any) -> bool:
    if hasattr(rule, "outcomes") or hasattr(rule, "outcomes_from") or is_memoryless(rule):
        return True
    return outcomes_of.dispatch(type(rule)) is not outcomes_of.dispatch(object) and not isinstance(rule, Tokenwise)


def why_unknown(rule: Any) -> str:
    if isinstance(rule, Tokenwise):
        return f"{type(rule).__name__} carries a state and says no law by outcomes_from(…)"
    return f"{type(rule).__name__} judges whole blocks and says no law by outcomes(…)"


def outcomes(
    rule: Any, evidence: Evidence, prompt: Sequence[int], texts: Tensor, state: Tensor | None = None
) -> Outcomes:
    """Of blocks behind prompt + texts [B,T], or in a state [B,S] that no text tells; the evidence has dense laws."""
    if state is not None:
        return rule.outcomes_from(evidence, state)
    if hasattr(rule, "outcomes"):
        return rule.outcomes(evidence, prompt, texts)
    if not has_outcomes(rule):
        raise UnknownLawError(why_unknown(rule))
    return outcomes_of(rule, evidence, prompt, texts)


@singledispatch
def outcomes_of(rule: Any, evidence: Evidence, prompt: Sequence[int], texts: Tensor) -> Outcomes:
    raise UnknownLawError(why_unknown(rule))


def _size(evidence: Evidence) -> int:
    return evidence.p.shape[-1] if evidence.p.is_floating_point() else evidence.logits.shape[-1]  # type: ignore[union-attr]


def _dense(evidence: Evidence) -> tuple[Tensor, Tensor, Tensor]:
    """p [B,K+1,V], q [B,K,V] and which slots are offered [B,K]."""
    size = _size(evidence)
    slots = torch.arange(evidence.draft.tokens.shape[1])
    return (
        dense(evidence.p, size, torch.float64),
        dense(evidence.draft.q, size, torch.float64),
        slots < evidence.draft.lengths[:, None],
    )


def in_order(keep: Tensor, replaced: Tensor, p: Tensor, lengths: Tensor) -> Outcomes:
    """Drafts judged one by one with probabilities keep [B,K]: the first that goes is replaced, else the bonus follows."""
    width = keep.shape[1]
    offered = torch.arange(width) < lengths[:, None]
    keep = torch.where(offered, keep, 0.0)
    reached = torch.cat((keep.new_ones(len(keep), 1), keep.cumprod(1)), 1)  # [B,K+1]
    stop = torch.cat((1 - keep, keep.new_ones(len(keep), 1)), 1)
    is_end = torch.arange(width + 1) == lengths[:, None]
    replaced = torch.cat((replaced, p[:, -1:]), 1)
    return Outcomes(reached * torch.where(is_end, 1.0, stop), torch.where(is_end[..., None], p, replaced))


def judged(rule: Any, evidence: Evidence) -> tuple[Tensor, Tensor]:
    """Of a token-wise rule: the probability [B,K] that each draft stays, and the law [B,K,V] that stands in for it."""
    p, q, _ = _dense(evidence)
    x, width = evidence.draft.tokens, evidence.draft.tokens.shape[1]
    if evidence.is_greedy and not rule.draws_if_greedy:
        own = rule.settled(evidence)
        keep = own.keeps(evidence, torch.full(x.shape, 0.5, dtype=torch.float64)).double()
        places = [torch.full((len(x),), slot) for slot in range(width)]
        laws = [dense(own.correction(evidence, place), p.shape[-1], torch.float64) for place in places]
        return keep, torch.stack(laws, 1)
    own = rule.settled(evidence)
    return at(own.accept(p[:, :-1], q), x).double(), own.replace_rejected(p[:, :-1], q, x).double()


@outcomes_of.register(Tokenwise)
def _(rule: Tokenwise, evidence: Evidence, prompt: Sequence[int], texts: Tensor) -> Outcomes:
    keep, replaced = judged(rule, evidence)
    return in_order(keep, replaced, _dense(evidence)[0], evidence.draft.lengths)


@outcomes_of.register(Within)
def _(rule: Within, evidence: Evidence, prompt: Sequence[int], texts: Tensor) -> Outcomes:
    """Whether a draft is inside a span is a function of the text before it, walked here token by token."""
    prefix = torch.tensor(list(prompt)).expand(len(texts), -1)
    walked = torch.cat((prefix, texts, evidence.draft.tokens), 1)
    inside, flags = torch.zeros(len(walked), dtype=torch.bool), []
    for place, token in enumerate(walked.unbind(1)):
        if place >= walked.shape[1] - evidence.draft.tokens.shape[1]:
            flags.append(inside)
        inside = (inside | (token == rule.begin)) & (token != rule.end)
    (keep, replaced), (kept, other) = judged(rule.rule, evidence), judged(Exact(), evidence)
    within = torch.stack(flags, 1) if flags else torch.zeros_like(keep, dtype=torch.bool)
    laws = torch.where(within[..., None], replaced, other)
    return in_order(torch.where(within, keep, kept), laws, _dense(evidence)[0], evidence.draft.lengths)


@outcomes_of.register(Judge)
def _(rule: Judge, evidence: Evidence, prompt: Sequence[int], texts: Tensor) -> Outcomes:
    """What the lossless rule keeps, and what the head calls good; what goes is replaced as by the lossless rule."""
    native, replaced = judged(Exact(), evidence)
    good = torch.sigmoid(rule.head.score(rule.head.seen(evidence)).double())
    keep = torch.where(good >= knob(rule.threshold, good), 1.0, native)
    return in_order(keep, replaced, _dense(evidence)[0], evidence.draft.lengths)


@outcomes_of.register(FLy)
def _(rule: FLy, evidence: Evidence, prompt: Sequence[int], texts: Tensor) -> Outcomes:
    """Every pattern of what the lossless rule keeps, with its probability; then rejections are forgiven in order."""
    p, _, offered = _dense(evidence)
    native, replaced = judged(Exact(), evidence)
    law = evidence.logits[:, :-1].softmax(-1) if evidence.is_greedy and evidence.logits is not None else p[:, :-1]
    first = law.sort(-1, descending=True).values[..., : rule.top]
    unsure = -(first * first.clamp_min(1e-300).log()).sum(-1) >= float(rule.entropy)
    may = unsure & (at(law, evidence.draft.tokens) > 0)
    width, window = native.shape[1], int(rule.window)
    accepted = p.new_zeros(len(p), width + 1, dtype=torch.float64)
    for pattern in itertools.product((True, False), repeat=width):
        stays = torch.tensor(pattern) & offered
        chance = torch.where(torch.tensor(pattern), native, 1 - native).prod(1)
        keep = stays.clone()
        for slot in range(width):
            behind = slice(slot + 1, slot + 1 + window)
            has_room = slot + 1 + window <= evidence.draft.lengths
            keep[:, slot] |= may[:, slot] & has_room & stays[:, behind].all(1) & offered[:, slot]
        length = keep.long().cumprod(1).sum(1)
        accepted.scatter_add_(1, length[:, None], chance[:, None])
    return Outcomes(accepted, in_order(native, replaced, p, evidence.draft.lengths).following)


@outcomes_of.register(Block)
def _(rule: Block, evidence: Evidence, prompt: Sequence[int], texts: Tensor) -> Outcomes:
    """Algorithm 2 of arXiv:2403.10444: the longest i with coin i below hᵢ is kept, each coin by itself."""
    p, q, offered = _dense(evidence)
    if evidence.is_greedy:
        keep, replaced = judged(Exact(), evidence)
        return in_order(keep, replaced, p, evidence.draft.lengths)
    lengths, width = evidence.draft.lengths, q.shape[1]
    c = [p.new_ones(len(p))]
    for slot in range(width):
        x = evidence.draft.tokens[:, slot]
        c.append((c[-1] * at(p[:, slot], x) / at(q[:, slot], x).clamp_min(1e-300)).clamp_max(1))
    accepted, rest = [p.new_zeros(len(p))] * (width + 1), p.new_ones(len(p))
    following = []
    for kept in range(width, 0, -1):
        over = (c[kept][:, None] * p[:, kept] - q[:, min(kept, width - 1)]).clamp_min(0).sum(-1)
        bound = over + 1 - c[kept]
        inner = torch.where(bound > 0, over / bound.clamp_min(1e-300), 1.0)
        chance = torch.where(offered[:, kept - 1], torch.where(lengths == kept, c[kept], inner.clamp(0, 1)), 0.0)
        accepted[kept], rest = rest * chance, rest * (1 - chance)
    accepted[0] = rest
    for kept in range(width + 1):
        law = excess(c[kept][:, None] * p[:, kept], q[:, min(kept, width - 1)]) if width else p[:, 0]
        following.append(torch.where((lengths == kept)[:, None], p[:, kept], law))
    return Outcomes(torch.stack(accepted, 1), torch.stack(following, 1))
