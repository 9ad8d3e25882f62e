"""Block verification."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sdbench.probs import at, dense, excess
from sdbench.types import Evidence, Verdict
from sdbench.verify.exact import Exact
from sdbench.verify.joint import Joint
from sdbench.verify.tokenwise import Part, choose_rows, draw_token, in_parts, law_size, ratio


@dataclass(frozen=True, slots=True)
class Block(Joint):
    """Block verification (Sun et al., arXiv:2403.10444, algorithm 2): lossless, and no lossless rule keeps more of a block on
    average.

    With c₀ = 1, cᵢ = min(1, cᵢ₋₁·pᵢ(xᵢ)/qᵢ(xᵢ)) and Sᵢ = Σ (cᵢ·pᵢ₊₁ − qᵢ₊₁)+, the first i drafts pass with probability hᵢ =
    Sᵢ/(Sᵢ + 1 − cᵢ), or cᵢ at the end of the draft. The longest prefix that passes is kept, even if a shorter one does not
    pass. The next token is drawn from norm((cᵢ·pᵢ₊₁ − qᵢ₊₁)+), or from p after a whole block. Needs only p and q. Greedy: exact
    match, which the formula gives for one-hot laws.
    """

    version: ClassVar[str] = "1"

    def is_lossless(self) -> Tensor:
        return torch.tensor([True])

    def __call__(self, evidence: Evidence, u: Tensor, state: Tensor | None = None) -> Verdict:
        draft, p, q = evidence.draft, evidence.p, evidence.draft.q
        num_slots, lengths = draft.tokens.shape[1], draft.lengths
        if evidence.is_greedy or not num_slots:
            return Exact()(evidence, u, state)
        size, row = law_size(p, q), torch.arange(len(p), device=u.device)
        c = [u.new_ones(len(p))]
        for step in ratio(at(p[:, :-1], draft.tokens), at(q, draft.tokens)).to(u).unbind(1):
            c.append((c[-1] * step).clamp_max(1))
        kept = torch.stack(c, 1)  # [B,K+1]

        def excess_of(part: Part) -> Tensor:
            target, drafted = (dense(law[:, 1:num_slots][part], size) for law in (p, q))
            return (kept[:, 1:-1][part][..., None].to(target) * target - drafted).clamp_min_(0).sum(-1).to(u)

        # Sᵢ for i = 1 … K − 1; after the last draft h needs no sum.
        over = in_parts(excess_of, (len(p), num_slots - 1), size) if num_slots > 1 else u.new_zeros(len(p), 0)
        bound = over + 1 - kept[:, 1:-1]
        h = torch.cat((torch.where(bound > 0, over / bound, 1), kept[:, -1:]), 1)  # [B,K]
        slot = torch.arange(1, num_slots + 1, device=u.device)
        h = torch.where(slot == lengths[:, None], kept[:, 1:], h)
        accepted = ((u[:, :-1] < h) & (slot <= lengths[:, None])).mul(slot).amax(1)
        last = accepted.clamp_max(num_slots - 1)
        target, drafted = dense(p[row, last], size), dense(q[row, last], size)
        law = choose_rows(
            accepted == lengths, p[row, accepted], excess(kept[row, accepted, None].to(target) * target, drafted)
        )
        return Verdict(accepted, draw_token(law, u[:, -1]), state)
