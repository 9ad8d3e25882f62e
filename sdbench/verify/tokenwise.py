"""Rules that judge one token at a time: a pair (accept, replace). All the rest of such a rule is shared, and stands here."""

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from sdbench.probs import CHUNK, at, dense, draw, is_ids, total_variation
from sdbench.types import Evidence, Measures, Verdict

TINY = torch.finfo(torch.float32).tiny


class Tokenwise(ABC):
    """Accept the drafted x with probability a(x), else draw from r: emits out = q·a + (1 − Σ q·a)·r, known without sampling.

    A subclass gives `accept` and `replace`. A missing draft is a draft without mass: a = 0 and r = p there, and no rule is called.
    """

    is_pointwise: ClassVar[bool] = False  # accept at x looks at p(x) and q(x) only: it is then called with these, V = 1

    @abstractmethod
    def accept(self, p: Tensor, q: Tensor) -> Tensor:
        """a [B,K,V] of laws [B,K,V]."""

    @abstractmethod
    def replace(self, p: Tensor, q: Tensor) -> Tensor:
        """r [B,K,V] of laws [B,K,V]."""

    @property
    def needs(self) -> frozenset[str]:
        return frozenset()

    def is_lossless(self) -> Tensor:
        return torch.tensor([False])

    def init_state(self, num_rows: int) -> Tensor | None:
        return None

    def out(self, p: Tensor, q: Tensor) -> Tensor:
        """The law [B,K,V] of the token emitted at a drafted position."""
        kept = q * self.accept(p, q)
        return kept + (1 - kept.sum(-1, keepdim=True)) * self.replace(p, q)

    def __call__(self, evidence: Evidence, u: Tensor, state: Tensor | None = None) -> Verdict:
        """First rejection, then one draw: from r at the rejected position, from p where no draft is left."""
        draft, p = evidence.draft, evidence.p
        num_slots = draft.tokens.shape[1]
        if not num_slots:
            return Verdict(torch.zeros_like(draft.lengths), _draw(p[:, 0], u[:, -1]), state)
        slot = torch.arange(num_slots, device=u.device)
        keep = (u[:, :-1] < self._accept_drafted(evidence)) & (slot < draft.lengths[:, None])
        accepted = keep.long().cumprod(1).sum(1)
        row = torch.arange(len(accepted), device=u.device)
        p_row, q_row = p[row, accepted], draft.q[row, accepted.clamp_max(num_slots - 1)]
        is_bonus = accepted == draft.lengths
        size = _size(p, draft.q)
        p_row, q_row = dense(p_row, size), dense(q_row, size)
        r = self.replace(p_row[:, None], q_row[:, None])[:, 0]
        return Verdict(accepted, draw(torch.where(is_bonus[:, None], p_row, r), u[:, -1]), state)

    def _accept_drafted(self, evidence: Evidence) -> Tensor:
        """a(x) [B,K] of the drafted tokens."""
        x, p, q = evidence.draft.tokens, evidence.p[:, :-1], evidence.draft.q
        if self.is_pointwise:
            return self.accept(at(p, x)[..., None], at(q, x)[..., None])[..., 0]
        size = _size(p, q)
        return at(self.accept(dense(p, size), dense(q, size)), x)

    def measure(self, evidence: Evidence) -> Measures:
        """Σ q·a and TV(out, p) by definition, a few slots at a time."""
        x, p, q = evidence.draft.tokens, evidence.p[:, :-1], evidence.draft.q
        tv = measured_tv(p, q)
        size = _size(p, q)
        step = max(1, CHUNK // (size * len(x)))
        expected, bias = [], []
        for part in range(0, x.shape[1], step):
            p_part, q_part = (dense(law[:, part : part + step], size) for law in (p, q))
            expected.append((q_part * self.accept(p_part, q_part)).sum(-1))
            bias.append(total_variation(self.out(p_part, q_part), p_part))
        return Measures(at(p, x), at(q, x), tv, torch.cat(expected, 1), torch.cat(bias, 1))


def measured_tv(p: Tensor, q: Tensor) -> Tensor:
    """TV(p, q) [B,K], a few slots at a time."""
    if is_ids(p) or p.numel() <= CHUNK:
        return total_variation(p, q)
    step = max(1, CHUNK // (p.shape[0] * p.shape[2]))
    parts = zip(p.split(step, 1), q.split(step, 1), strict=True)
    return torch.cat([total_variation(a, b) for a, b in parts], 1)


def _size(p: Tensor, q: Tensor) -> int:
    """V, or where both laws are ids, room for the largest."""
    return next((law.shape[-1] for law in (p, q) if not is_ids(law)), 0) or int(max(p.max(), q.max())) + 1


def _draw(p: Tensor, u: Tensor) -> Tensor:
    return p if is_ids(p) else draw(p, u)


def knob(value: Tensor | float, like: Tensor) -> Tensor | float:
    """A knob beside laws [B,K,V]: a number as it is, a tensor [B] as [B,1,1]."""
    return value.to(like)[:, None, None] if isinstance(value, Tensor) else value
