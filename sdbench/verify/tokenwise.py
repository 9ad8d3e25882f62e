"""Rules that judge one token at a time: a pair (accept, replace). All the rest of such a rule is shared, and stands here."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from sdbench.probs import CHUNK, at, dense, draw, is_ids, total_variation
from sdbench.types import Evidence, Limits, Measures, Verdict
from sdbench.verify.families import at_part, at_slots

Part = tuple[slice, slice]  # rows and slots
SLICE = 1 << 18  # elements of laws that a rule works on at a time, or those of one position


class Tokenwise(ABC):
    """Accept the drafted x with probability a(x), else draw from r: emits out = q·a + (1 − Σ q·a)·r, known without sampling.

    A subclass gives `accept` and `replace`. A missing draft is a draft without mass: a = 0 and r = p there, and no rule is
    called. Knobs are numbers, tensors [B] where rows differ, or [B,K] where `settled` works them out of what is seen.
    """

    version: ClassVar[str] = ""
    limits: ClassVar[Limits] = Limits()
    is_pointwise: ClassVar[bool] = False  # accept at x looks at p(x) and q(x) only: it is then called with these, V = 1
    knows_rejected: ClassVar[bool] = False  # what replaces a draft depends on it: `replace_rejected` is the rule's own

    @property
    def draws_if_greedy(self) -> bool:
        """Whether texts at temperature 0 depend on the noise, as they may with one-hot laws in the sampled formula."""
        return True

    @abstractmethod
    def accept(self, p: Tensor, q: Tensor) -> Tensor:
        """a [B,K,V] of laws [B,K,V]."""

    @abstractmethod
    def replace(self, p: Tensor, q: Tensor) -> Tensor:
        """r [B,K,V] of laws [B,K,V]."""

    def replace_rejected(self, p: Tensor, q: Tensor, x: Tensor) -> Tensor:
        """r_x [B,K,V]: what stands in for the rejected x [B,K]."""
        return self.replace(p, q)

    @property
    def needs(self) -> frozenset[str]:
        return frozenset()

    def is_lossless(self) -> Tensor:
        return torch.tensor([False])

    def init_state(self, prompts: Sequence[Tensor], device: Any) -> Tensor | None:
        return None

    def settled(self, evidence: Evidence) -> Self:
        """The rule with its knobs worked out for this evidence, [B,K] where they differ by position."""
        return self

    def out(self, p: Tensor, q: Tensor) -> Tensor:
        """The law [B,K,V] of the token emitted at a drafted position: Σₓ q(x)·(a(x)·δₓ + (1 − a(x))·rₓ)."""
        kept = q * self.accept(p, q)
        if not self.knows_rejected:
            return kept + (1 - kept.sum(-1, keepdim=True)) * self.replace(p, q)
        refused, law = q - kept, kept
        for token in refused.flatten(0, -2).any(0).nonzero()[:, 0].tolist():
            x = torch.full(p.shape[:-1], token, device=p.device)
            law = law + refused[..., token, None] * self.replace_rejected(p, q, x)
        return law

    def __call__(self, evidence: Evidence, u: Tensor, state: Tensor | None = None) -> Verdict:
        """First rejection, then one draw: from r at the rejected position, from p where no draft is left."""
        draft, p = evidence.draft, evidence.p
        num_slots = draft.tokens.shape[1]
        if not num_slots:
            return Verdict(torch.zeros_like(draft.lengths), drawn(p[:, 0], u[:, -1]), state)
        rule = self.settled(evidence)
        keep = rule.keeps(evidence, u[:, :-1]) & (torch.arange(num_slots, device=u.device) < draft.lengths[:, None])
        accepted = keep.long().cumprod(1).sum(1)
        row, last = torch.arange(len(accepted), device=u.device), accepted.clamp_max(num_slots - 1)
        law = either(accepted == draft.lengths, p[row, accepted], rule.correction(evidence, last))
        return Verdict(accepted, drawn(law, u[:, -1]), state)

    def keeps(self, evidence: Evidence, u: Tensor) -> Tensor:
        """[B,K] bool: which drafts the coins u [B,K] keep, each judged by itself. The rule is settled."""
        return u < self._accept_drafted(evidence)

    def correction(self, evidence: Evidence, place: Tensor) -> Tensor:
        """The law [B,V], or ids [B], that stands in for the draft in slot place [B]. The rule is settled."""
        p, q = evidence.p[:, :-1], evidence.draft.q
        row, size = torch.arange(len(place), device=place.device), law_size(evidence.p, q)
        rule = at_slots(self, lambda knob: knob[row, place][:, None])

        def work(part: Part) -> Tensor:
            rows, _ = part
            own, where = at_part(rule, part), (row[rows], place[rows])
            p_row, q_row = (dense(law[where], size)[:, None] for law in (p, q))
            return own.replace_rejected(p_row, q_row, evidence.draft.tokens[where][:, None])

        return in_parts(work, (len(row), 1), size)[:, 0]

    def _accept_drafted(self, evidence: Evidence) -> Tensor:
        """a(x) [B,K] of the drafted tokens, of few slots at a time where the vocabulary is large."""
        x, p, q = evidence.draft.tokens, evidence.p[:, :-1], evidence.draft.q
        if self.is_pointwise:
            return self.accept(at(p, x)[..., None], at(q, x)[..., None])[..., 0]
        size = law_size(p, q)

        def work(part: Part) -> Tensor:
            return at(at_part(self, part).accept(dense(p[part], size), dense(q[part], size)), x[part])

        return in_parts(work, x.shape, size)

    def measure(self, evidence: Evidence) -> Measures:
        """Σ q·a and TV(out, p) by definition, a few positions at a time."""
        x, p, q = evidence.draft.tokens, evidence.p[:, :-1], evidence.draft.q
        rule, tv, size = self.settled(evidence), measured_tv(p, q), law_size(p, q)

        def work(part: Part) -> Tensor:
            own, p_part, q_part = at_part(rule, part), dense(p[part], size), dense(q[part], size)
            expected = (q_part * own.accept(p_part, q_part)).sum(-1)
            return torch.stack((expected, total_variation(own.out(p_part, q_part), p_part)), -1)

        # Sums of float32 laws may be a rounding above 1, which is no probability.
        expected, bias = in_parts(work, x.shape, size).clamp_max_(1).unbind(-1)
        return Measures(at(p, x), at(q, x), tv, expected, bias)


def best_at(evidence: Evidence, place: Tensor) -> Tensor:
    """The target's own choice [B] in slot place [B], at temperature 0."""
    return evidence.p.gather(1, place[:, None])[:, 0]


def measured_tv(p: Tensor, q: Tensor) -> Tensor:
    """TV(p, q) [B,K], a few slots at a time."""
    if is_ids(p) or p.numel() <= CHUNK:
        return total_variation(p, q).clamp_max_(1)
    step = max(1, CHUNK // (p.shape[0] * p.shape[2]))
    parts = zip(p.split(step, 1), q.split(step, 1), strict=True)
    return torch.cat([total_variation(a, b) for a, b in parts], 1).clamp_max_(1)


def law_size(p: Tensor, q: Tensor) -> int:
    """V, or where both laws are ids, room for the largest."""
    return next((law.shape[-1] for law in (p, q) if not is_ids(law)), 0) or int(max(p.max(), q.max())) + 1


def in_parts(work: Callable[[Part], Tensor], shape: Sequence[int], size: int) -> Tensor:
    """[B,K,…] of `work` on some rows and slots at a time, so that its temporaries have at most SLICE elements, or V."""
    num_rows, num_slots = shape
    slots = max(1, SLICE // (size * max(1, num_rows)))
    rows = num_rows if slots > 1 else max(1, SLICE // size)
    columns = [
        [work((slice(row, row + rows), slice(slot, slot + slots))) for row in range(0, num_rows, rows)]
        for slot in range(0, num_slots, slots)
    ]
    parts = [column[0] if len(column) == 1 else torch.cat(column) for column in columns]
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1)


def either(condition: Tensor, law: Tensor, other: Tensor) -> Tensor:
    """Row by row [B] one law or the other: ids [B] where both are, else [B,V]."""
    if is_ids(law) and is_ids(other):
        return torch.where(condition, law, other)
    size = law_size(law, other)
    return torch.where(condition[:, None], dense(law, size), dense(other, size))


def drawn(law: Tensor, u: Tensor) -> Tensor:
    """A token [B] of a law [B,V]; ids [B] are their own."""
    return law if is_ids(law) else draw(law, u)


def ratio(p: Tensor, q: Tensor) -> Tensor:
    """p/q, where q = 0 is as good as the smallest number."""
    return p / q.clamp_min(torch.finfo(q.dtype).tiny)


def peak(p: Tensor) -> Tensor:
    """The largest probability [...,1] of each law."""
    return p.amax(-1, keepdim=True)


def knob(value: Tensor | float, like: Tensor) -> Tensor | float:
    """A knob beside laws [B,K,V] or values [B,K]: a number as it is, a tensor [B] or [B,K] with the axes that it lacks."""
    if not isinstance(value, Tensor):
        return value
    return value.to(like)[(..., *[None] * (like.ndim - value.ndim))]
