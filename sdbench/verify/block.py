"""Block verification."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sdbench.probs import at, dense, excess
from sdbench.types import Evidence, Verdict
from sdbench.verify.joint import Joint
from sdbench.verify.tokenwise import drawn, either, law_size, ratio


@dataclass(frozen=True, slots=True)
class Block(Joint):
    """Block verification (Sun et al., arXiv:2403.10444, algorithm 2): exact, and no exact rule keeps more of a block on average.

    With c₀ = 1, cᵢ = min(1, cᵢ₋₁·pᵢ(xᵢ)/qᵢ(xᵢ)) and Sᵢ = Σ (cᵢ·pᵢ₊₁ − qᵢ₊₁)+, the first i drafts may stay with probability hᵢ =
    Sᵢ/(Sᵢ + 1 − cᵢ), or c at the end of the draft; the longest that may is kept, also behind one that may not. What follows is
    drawn from norm((cᵢ·pᵢ₊₁ − qᵢ₊₁)+). Needs p and q alone. Greedy: one-hot laws, where it is exact match.
    """

    version: ClassVar[str] = "1"

    def is_lossless(self) -> Tensor:
        return torch.tensor([True])

    def __call__(self, evidence: Evidence, u: Tensor, state: Tensor | None = None) -> Verdict:
        draft, p = evidence.draft, evidence.p
        num_slots, lengths = draft.tokens.shape[1], draft.lengths
        accepted = torch.zeros_like(lengths)
        if not num_slots:
            return Verdict(accepted, drawn(p[:, 0], u[:, -1]), state)
        q, size = draft.q, law_size(p, draft.q)
        step = ratio(at(p[:, :-1], draft.tokens), at(q, draft.tokens))
        c = u.new_ones(len(p))
        kept = c  # c of the longest prefix that stays
        for i in range(1, num_slots + 1):
            c = (c * step[:, i - 1]).clamp_max(1)
            h = c
            if i < num_slots:
                over = (c[:, None] * dense(p[:, i], size) - dense(q[:, i], size)).clamp_min(0).sum(-1)
                bound = over + 1 - c
                h = torch.where(lengths == i, c, torch.where(bound > 0, over / bound, 1))
            stays = (u[:, i - 1] < h) & (i <= lengths)
            accepted, kept = torch.where(stays, i, accepted), torch.where(stays, c, kept)
        row, last = torch.arange(len(p), device=u.device), accepted.clamp_max(num_slots - 1)
        target, drafted = dense(p[row, last], size), dense(q[row, last], size)
        law = either(accepted == lengths, p[row, accepted], excess(kept[:, None].to(target) * target, drafted))
        return Verdict(accepted, drawn(law, u[:, -1]), state)
