"""What a rule claims to do with a block, without sampling: the laws of how many drafts it keeps and of the next token.

A token-wise rule states it by `accept` and `replace`. A joint rule states it by a method `outcomes(evidence, prompt, texts)`, or is
listed below with its paper's formula. A rule with a state that the text does not determine has `outcomes_from(evidence, state)`,
which returns the next state of each outcome too. For any other rule the distribution is unknown, and only losslessness is tested.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import singledispatch
from typing import Any

import torch
from torch import Tensor

from sdbench.probs import at, dense, excess, in_float32
from sdbench.types import Evidence, Limits
from sdbench.verify import Block, Exact, FLy, Judge, Tokenwise, Within, knob


@dataclass(frozen=True, slots=True)
class Outcomes:
    """The distribution of how many drafts of each block are kept, and of the next token after each such number."""

    accepted: Tensor  # [B,K+1]
    following: Tensor  # [B,K+1,V]
    state: Tensor | None = None  # [B,K+1,V,S] where a rule carries one: its value after so many drafts and that token


class UnknownLawError(ValueError):
    """A rule or a drafter that does not state its distribution."""


def is_memoryless(rule: Any) -> bool:
    """Return whether `accept` and `replace` define a rule: it is token-wise, has no state and does not read `sure` drafts."""
    return isinstance(rule, Tokenwise) and type(rule).init_state is Tokenwise.init_state and not rule.limits.sure


def why_unknown(rule: Any) -> str | None:
    """Return why a rule's distribution is unknown; None where it is known."""
    if hasattr(rule, "outcomes") or hasattr(rule, "outcomes_from") or is_memoryless(rule):
        return None
    if (getattr(rule, "limits", None) or Limits()).sure:  # also of a rule around another, such as Within
        return f"what {type(rule).__name__} emits depends on what the drafter is sure of"
    if isinstance(rule, Tokenwise):
        return f"{type(rule).__name__} carries a state and has no method outcomes_from(…) that states its distribution"
    if outcomes_of.dispatch(type(rule)) is not outcomes_of.dispatch(object):
        return None
    return f"{type(rule).__name__} judges whole blocks and has no method outcomes(…) that states its distribution"


def outcomes(
    rule: Any, evidence: Evidence, prompt: Sequence[int], texts: Tensor, state: Tensor | None = None
) -> Outcomes:
    """Return the outcomes of blocks after prompt + texts [B,T], in states [B,S] if the text does not determine them."""
    if state is not None:
        return rule.outcomes_from(evidence, state)
    if hasattr(rule, "outcomes"):
        return rule.outcomes(evidence, prompt, texts)
    if reason := why_unknown(rule):
        raise UnknownLawError(reason)
    return outcomes_of(rule, evidence, prompt, texts)


@singledispatch
def outcomes_of(rule: Any, evidence: Evidence, prompt: Sequence[int], texts: Tensor) -> Outcomes:
    raise UnknownLawError(f"{type(rule).__name__} has no exact formula")


def p_of(evidence: Evidence) -> Tensor:
    """Return p [B,K+1,V] in float64; one-hot where only the best tokens are given."""
    return dense(evidence.p, _vocab_of(evidence), torch.float64)


def q_of(evidence: Evidence) -> Tensor:
    """Return the draft's distributions [B,K,V] in float64; one-hot if only the drafted tokens are given."""
    return dense(evidence.draft.q, _vocab_of(evidence), torch.float64)


def _vocab_of(evidence: Evidence) -> int:
    return evidence.p.shape[-1] if evidence.p.is_floating_point() else evidence.logits.shape[-1]  # type: ignore[union-attr]


def is_offered(evidence: Evidence) -> Tensor:
    """Return which slots hold a draft [B,K]."""
    return torch.arange(evidence.draft.tokens.shape[1]) < evidence.draft.lengths[:, None]


def judge_in_order(evidence: Evidence, keep: Tensor, replaced: Tensor) -> Outcomes:
    """Judge drafts one by one: each is kept with its probability keep [B,K], else a token of replaced [B,K,V] ends the round."""
    p, width, lengths = p_of(evidence), keep.shape[1], evidence.draft.lengths
    keep = torch.where(is_offered(evidence), keep, 0.0)
    reached = torch.cat((keep.new_ones(len(keep), 1), keep.cumprod(1)), 1)  # [B,K+1]
    stop = torch.cat((1 - keep, keep.new_ones(len(keep), 1)), 1)
    is_end = torch.arange(width + 1) == lengths[:, None]
    replaced = torch.cat((replaced, p[:, -1:]), 1)
    return Outcomes(reached * torch.where(is_end, 1.0, stop), torch.where(is_end[..., None], p, replaced))


def keep_and_replace(rule: Any, evidence: Evidence) -> tuple[Tensor, Tensor]:
    """Return a token-wise rule's probability [B,K] of keeping each draft, and the distribution [B,K,V] of its replacement."""
    p, x, judge = p_of(evidence), evidence.draft.tokens, rule.settle(evidence)
    if evidence.is_greedy and not rule.draws_if_greedy:
        keep = judge.keeps(evidence, torch.full(x.shape, 0.5, dtype=torch.float64)).double()
        slots = [torch.full((len(x),), slot) for slot in range(x.shape[1])]
        laws = [dense(judge.correction(evidence, slot), p.shape[-1], torch.float64) for slot in slots]
        return keep, torch.stack(laws, 1)
    q = q_of(evidence)
    return at(judge.accept(p[:, :-1], q), x).double(), judge.replace_rejected(p[:, :-1], q, x).double()


@outcomes_of.register(Tokenwise)
def _(rule: Tokenwise, evidence: Evidence, prompt: Sequence[int], texts: Tensor) -> Outcomes:
    return judge_in_order(evidence, *keep_and_replace(rule, evidence))


@outcomes_of.register(Within)
def _(rule: Within, evidence: Evidence, prompt: Sequence[int], texts: Tensor) -> Outcomes:
    """Read the text token by token, since it decides whether a draft is inside a span."""
    prefix = torch.tensor(list(prompt)).expand(len(texts), -1)
    is_inside = [torch.zeros(len(texts), dtype=torch.bool)]  # before each token, and after the last
    for token in torch.cat((prefix, texts, evidence.draft.tokens), 1).unbind(1):
        is_inside.append((is_inside[-1] | (token == rule.begin)) & (token != rule.end))
    within = torch.stack(is_inside[:-1], 1)[:, prefix.shape[1] + texts.shape[1] :]
    keep, replaced = keep_and_replace(rule.rule, evidence)
    keep_outside, replaced_outside = keep_and_replace(Exact(), evidence)
    laws = torch.where(within[..., None], replaced, replaced_outside)
    return judge_in_order(evidence, torch.where(within, keep, keep_outside), laws)


@outcomes_of.register(Judge)
def _(rule: Judge, evidence: Evidence, prompt: Sequence[int], texts: Tensor) -> Outcomes:
    """Keep what the lossless rule keeps or the head scores as good; replace the rest as the lossless rule does."""
    native, replaced = keep_and_replace(Exact(), evidence)
    good = torch.sigmoid(rule.head.score(rule.head.features_of(evidence)).double())
    return judge_in_order(evidence, torch.where(good >= knob(rule.threshold, good), 1.0, native), replaced)


@outcomes_of.register(FLy)
def _(rule: FLy, evidence: Evidence, prompt: Sequence[int], texts: Tensor) -> Outcomes:
    """Go through every pattern of what the lossless rule keeps, with its probability; then rejections are forgiven in order."""
    p, offered = p_of(evidence), is_offered(evidence)
    native, replaced = keep_and_replace(Exact(), evidence)
    law = (
        in_float32(evidence.logits[:, :-1]).softmax(-1)
        if evidence.is_greedy and evidence.logits is not None
        else p[:, :-1]
    )
    first = law.sort(-1, descending=True).values[..., : rule.top]
    is_unsure = -(first * first.clamp_min(1e-300).log()).sum(-1) >= float(rule.entropy)
    may_forgive = is_unsure & (at(law, evidence.draft.tokens) > 0) & offered
    width, window = native.shape[1], int(rule.window)
    accepted = p.new_zeros(len(p), width + 1, dtype=torch.float64)
    for pattern in itertools.product((True, False), repeat=width):
        is_kept = torch.tensor(pattern) & offered
        chance = torch.where(torch.tensor(pattern), native, 1 - native).prod(1)
        keep = is_kept.clone()
        for slot in range(width):
            has_room = slot + 1 + window <= evidence.draft.lengths
            keep[:, slot] |= may_forgive[:, slot] & has_room & is_kept[:, slot + 1 : slot + 1 + window].all(1)
        accepted.scatter_add_(1, keep.long().cumprod(1).sum(1, keepdim=True), chance[:, None])
    return Outcomes(accepted, judge_in_order(evidence, native, replaced).following)


@outcomes_of.register(Block)
def _(rule: Block, evidence: Evidence, prompt: Sequence[int], texts: Tensor) -> Outcomes:
    """Algorithm 2 of arXiv:2403.10444: keep the longest i whose uniform is below hᵢ; the uniforms are independent."""
    if evidence.is_greedy:
        return judge_in_order(evidence, *keep_and_replace(Exact(), evidence))
    p, q, offered = p_of(evidence), q_of(evidence), is_offered(evidence)
    lengths, width = evidence.draft.lengths, q.shape[1]
    c = [p.new_ones(len(p))]
    for slot in range(width):
        x = evidence.draft.tokens[:, slot]
        c.append((c[-1] * at(p[:, slot], x) / at(q[:, slot], x).clamp_min(1e-300)).clamp_max(1))
    accepted, rest = [p.new_zeros(len(p))] * (width + 1), p.new_ones(len(p))
    for kept in range(width, 0, -1):
        over = (c[kept][:, None] * p[:, kept] - q[:, min(kept, width - 1)]).clamp_min(0).sum(-1)
        bound = over + 1 - c[kept]
        inner = torch.where(bound > 0, over / bound.clamp_min(1e-300), 1.0)
        chance = torch.where(offered[:, kept - 1], torch.where(lengths == kept, c[kept], inner.clamp(0, 1)), 0.0)
        accepted[kept], rest = rest * chance, rest * (1 - chance)
    accepted[0] = rest
    following = []
    for kept in range(width + 1):
        law = excess(c[kept][:, None] * p[:, kept], q[:, min(kept, width - 1)]) if width else p[:, 0]
        following.append(torch.where((lengths == kept)[:, None], p[:, kept], law))
    return Outcomes(torch.stack(accepted, 1), torch.stack(following, 1))
