"""Rules that judge one token at a time, defined by two functions (accept, replace). Everything else is shared here."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar, Self

import torch
from torch import Tensor

from sdbench.probs import SLICE, at, dense, draw, excess, is_ids, slice_size, total_variation
from sdbench.types import DraftBlock, Evidence, Measures, Verdict
from sdbench.verify.families import at_part, at_slots
from sdbench.verify.rule import Rule

Part = tuple[slice, slice]  # rows and slots


class Tokenwise(Rule, ABC):
    """Accept the drafted x with probability a(x), else draw from r. The emitted law is out = q·a + (1 − Σ q·a)·r.

    A subclass defines `accept` and `replace`. They are called on all slots. What they return past the `lengths` of a row is
    ignored, but they must not raise there: a missing draft counts as rejected with r = p. Knobs are numbers, tensors [B] where
    rows differ, or [B,K] where `settle` computes them from the evidence.
    """

    draws_if_greedy: ClassVar[bool] = True  # the sampled formula may draw on one-hot laws too
    is_pointwise: ClassVar[bool] = False  # a(x) depends on p(x) and q(x) only; `accept` is then called with V = 1
    knows_rejected: ClassVar[bool] = False  # the replacement depends on the draft: `replace_rejected` is overridden
    # Whether acceptance rises along each knob from its strict end; False where it was observed to fall (docs/audit.md).
    is_ordered: ClassVar[bool] = True

    @abstractmethod
    def accept(self, p: Tensor, q: Tensor) -> Tensor:
        """Return a [B,K,V] for laws [B,K,V]."""

    @abstractmethod
    def replace(self, p: Tensor, q: Tensor) -> Tensor:
        """Return r [B,K,V] for laws [B,K,V]."""

    def replace_rejected(self, p: Tensor, q: Tensor, x: Tensor) -> Tensor:
        """Return r_x [B,K,V], the law that replaces the rejected x [B,K]."""
        return self.replace(p, q)

    def settle(self, evidence: Evidence) -> Self:
        """Return the rule with its knobs computed from this evidence, [B,K] where they differ by position."""
        return self

    def out(self, p: Tensor, q: Tensor) -> Tensor:
        """Return the law [B,K,V] of the token emitted at a drafted position: Σₓ q(x)·(a(x)·δₓ + (1 − a(x))·rₓ)."""
        kept = q * self.accept(p, q)
        if not self.knows_rejected:
            return kept + (1 - kept.sum(-1, keepdim=True)) * self.replace(p, q)
        refused, law = q - kept, kept
        for token in refused.flatten(0, -2).any(0).nonzero()[:, 0].tolist():
            x = torch.full(p.shape[:-1], token, device=p.device)
            law = law + refused[..., token, None] * self.replace_rejected(p, q, x)
        return law

    def __call__(self, evidence: Evidence, u: Tensor, state: Tensor | None = None) -> Verdict:
        if not evidence.draft.tokens.shape[1]:
            return draw_bonus(evidence, u, state)
        rule = self.settle(evidence)
        return keep_until_first_rejection(rule.keeps(evidence, u[:, :-1]), evidence, rule.correction, u, state)

    def keeps(self, evidence: Evidence, u: Tensor) -> Tensor:
        """Return [B,K] bool: which drafts the uniforms u [B,K] keep, each judged by itself. The rule is settled."""
        return u < self._accept_drafted(evidence)

    def correction(self, evidence: Evidence, slot: Tensor) -> Tensor:
        """Return the law [B,V], or ids [B], that replaces the draft in that slot [B]. The rule is settled."""
        p, q = evidence.p[:, :-1], evidence.draft.q
        row, size = torch.arange(len(slot), device=slot.device), law_size(evidence.p, q)
        rule = at_slots(self, lambda knob: knob[row, slot][:, None])

        def work(part: Part) -> Tensor:
            where = row[part[0]], slot[part[0]]
            p_row, q_row = (dense(law[where], size)[:, None] for law in (p, q))
            return at_part(rule, part).replace_rejected(p_row, q_row, evidence.draft.tokens[where][:, None])

        return in_parts(work, (len(row), 1), size)[:, 0]

    def _accept_drafted(self, evidence: Evidence) -> Tensor:
        """Return a(x) [B,K] of the drafted tokens, computed a few slots at a time."""
        x, p, q = evidence.draft.tokens, evidence.p[:, :-1], evidence.draft.q
        if self.is_pointwise:
            return self.accept(at(p, x)[..., None], at(q, x)[..., None])[..., 0]
        size = law_size(p, q)

        def work(part: Part) -> Tensor:
            return at(at_part(self, part).accept(dense(p[part], size), dense(q[part], size)), x[part])

        return in_parts(work, x.shape, size)

    def measure(self, evidence: Evidence) -> Measures:
        """Return Σ q·a and TV(out, p) by definition, computed a few positions at a time."""
        p, q = evidence.p[:, :-1], evidence.draft.q
        rule, size = self.settle(evidence), law_size(p, q)

        def work(part: Part) -> Tensor:
            of_part, p_part, q_part = at_part(rule, part), dense(p[part], size), dense(q[part], size)
            expected = (q_part * of_part.accept(p_part, q_part)).sum(-1)
            return torch.stack((expected, total_variation(of_part.out(p_part, q_part), p_part)), -1)

        # Rounding may bring sums of float32 laws above 1.
        expected, bias = in_parts(work, evidence.draft.tokens.shape, size).clamp_max_(1).unbind(-1)
        return measures_of(evidence, measured_tv(p, q), expected, bias)


class Towards(Tokenwise):
    """Sample losslessly towards a law v of p and q: a = min(1, v/q), r = norm((v − q)+). No rule that emits v accepts more."""

    @abstractmethod
    def law(self, p: Tensor, q: Tensor) -> Tensor:
        """Return v [B,K,V] from laws [B,K,V]."""

    def accept(self, p: Tensor, q: Tensor) -> Tensor:
        return ratio(self.law(p, q), q).clamp_max(1)

    def replace(self, p: Tensor, q: Tensor) -> Tensor:
        return excess(self.law(p, q), q)

    def out(self, p: Tensor, q: Tensor) -> Tensor:
        return self.law(p, q)


def draw_bonus(evidence: Evidence, u: Tensor, state: Tensor | None = None) -> Verdict:
    """Return the verdict on a block without slots: a token drawn from p."""
    return Verdict(torch.zeros_like(evidence.draft.lengths), draw_token(evidence.p[:, 0], u[:, -1]), state)


def keep_until_first_rejection(
    keep: Tensor,
    evidence: Evidence,
    correction: Callable[[Evidence, Tensor], Tensor],
    u: Tensor,
    state: Tensor | None = None,
) -> Verdict:
    """Accept up to the first draft that `keep` [B,K] rejects; draw a token from its correction, or from p if none is rejected.

    `correction(evidence, slot [B])` is the law [B,V], or ids [B], that replaces the draft in that slot.
    """
    accepted = (keep & offered_slots(evidence.draft)).long().cumprod(1).sum(1)
    row, last = torch.arange(len(accepted), device=keep.device), accepted.clamp_max(keep.shape[1] - 1)
    law = choose_rows(accepted == evidence.draft.lengths, evidence.p[row, accepted], correction(evidence, last))
    return Verdict(accepted, draw_token(law, u[:, -1]), state)


def offered_slots(draft: DraftBlock) -> Tensor:
    """Return [B,K] bool: which slots of the block hold a draft."""
    return torch.arange(draft.tokens.shape[1], device=draft.lengths.device) < draft.lengths[:, None]


def best_at(evidence: Evidence, slot: Tensor) -> Tensor:
    """Return the target's most likely token [B] in that slot [B], at temperature 0."""
    return evidence.p.gather(1, slot[:, None])[:, 0]


def measured_tv(p: Tensor, q: Tensor) -> Tensor:
    """Return TV(p, q) [B,K], computed a few slots at a time."""
    most = slice_size(p.device.type)
    if is_ids(p) or p.numel() <= most:
        return total_variation(p, q).clamp_max_(1)
    return in_parts(lambda part: total_variation(p[part], q[part]), p.shape[:2], p.shape[2], most).clamp_max_(1)


def measures_of(evidence: Evidence, tv: Tensor, expected: Tensor, bias: Tensor) -> Measures:
    """Return the measures of a rule that reads p and q as they are; at temperature 0 these are tokens, and `tv` [B,K] is NaN."""
    x = evidence.draft.tokens
    tv = torch.full_like(tv, torch.nan) if evidence.is_greedy else tv
    return Measures(at(evidence.p[:, :-1], x), at(evidence.draft.q, x), tv, expected, bias)


def law_size(p: Tensor, q: Tensor) -> int:
    """Return V; where both laws are ids, the largest id + 1."""
    return next((law.shape[-1] for law in (p, q) if not is_ids(law)), 0) or int(max(p.max(), q.max())) + 1


def in_parts(work: Callable[[Part], Tensor], shape: Sequence[int], size: int, most: int = 0) -> Tensor:
    """Return `work` [B,K,…], computed for some rows and slots at a time.

    Temporaries have at most `most` elements (0: SLICE), or V if that is more.
    """
    num_rows, num_slots = shape
    most = most or SLICE
    slots = max(1, most // (size * max(1, num_rows)))
    rows = num_rows if slots > 1 else max(1, most // size)
    columns = [
        [work((slice(row, row + rows), slice(slot, slot + slots))) for row in range(0, num_rows, rows)]
        for slot in range(0, num_slots, slots)
    ]
    parts = [column[0] if len(column) == 1 else torch.cat(column) for column in columns]
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1)


def choose_rows(condition: Tensor, law: Tensor, other: Tensor) -> Tensor:
    """Return `law` in the rows where `condition` [B] holds, else `other`: ids [B] where both are ids, else [B,V]."""
    if is_ids(law) and is_ids(other):
        return torch.where(condition, law, other)
    size = law_size(law, other)
    return torch.where(condition[:, None], dense(law, size), dense(other, size))


def draw_token(law: Tensor, u: Tensor) -> Tensor:
    """Draw tokens [B] from laws [B,V]; ids [B] are returned unchanged."""
    return law if is_ids(law) else draw(law, u)


def ratio(p: Tensor, q: Tensor) -> Tensor:
    """Return p/q. Values of q below the smallest normal number are raised to it."""
    return p / q.clamp_min(torch.finfo(q.dtype).tiny)


def peak(p: Tensor) -> Tensor:
    """Return the largest probability [...,1] of each law."""
    return p.amax(-1, keepdim=True)


def knob(value: Tensor | float, like: Tensor) -> Tensor | float:
    """Return a knob that broadcasts with laws [B,K,V] or values [B,K]: a number, or a tensor [B] or [B,K] with axes added.

    Write knob(1 - value, …) for its complement: 1 - knob(value, …) would round a tensor before the subtraction, a number after it.
    """
    if not isinstance(value, Tensor):
        return value
    return value.to(like)[(..., *[None] * (like.ndim - value.ndim))]
