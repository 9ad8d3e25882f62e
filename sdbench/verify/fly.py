"""FLy: a rejected draft is kept if the drafts after it are accepted."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sdbench.probs import at, is_ids
from sdbench.types import Evidence, Limits, Verdict
from sdbench.verify.exact import Exact
from sdbench.verify.families import at_part
from sdbench.verify.joint import Joint
from sdbench.verify.rule import INF, number
from sdbench.verify.tokenwise import Part, draw_bonus, in_parts, keep_until_first_rejection, knob, offered_slots


@dataclass(frozen=True, slots=True)
class FLy(Joint):
    """FLy (arXiv:2511.22972) as in vLLM: keeps a rejected draft if the target is unsure and the next `window` drafts are kept.

    Unsure: −Σ p·ln p over the `top` most likely tokens, not renormalised, is at least `entropy`. "Rejected" and "kept" mean by
    the lossless rule. A draft without mass under p, or with fewer than `window` drafts after it, is never kept. A draft that
    stays rejected is replaced as by the lossless rule. Exact at entropy = ∞. Reads p, at temperature 0 the un-tempered one.
    Greedy: the same with exact match. vLLM's default window is min(6, K − 1); here it is a number, since a round near the end
    of a text drafts fewer than K.
    """

    version: ClassVar[str] = "1"
    needs: ClassVar[frozenset[str]] = frozenset({"raw_if_greedy"})

    window: int | Tensor = number(4, low=1)
    entropy: float | Tensor = number(0.3, lossless=INF)
    top: int = number(3, low=1)

    @property
    def limits(self) -> Limits:  # pyright: ignore[reportIncompatibleVariableOverride]
        return Limits(num_draft=(int(torch.as_tensor(self.window).max()) + 1, None))

    def __call__(self, evidence: Evidence, u: Tensor, state: Tensor | None = None) -> Verdict:
        draft, exact = evidence.draft, Exact()
        num_slots = draft.tokens.shape[1]
        if not num_slots:
            return draw_bonus(evidence, u, state)
        slot = torch.arange(num_slots, device=u.device)
        native = exact.keeps(evidence, u[:, :-1]) & offered_slots(draft)
        window = torch.as_tensor(knob(self.window, slot.expand_as(native)), device=u.device)
        ahead = torch.nn.functional.pad(native.long().cumsum(1), (1, 0))  # at index n: how many of the first n are kept
        behind = (slot + 1 + window).expand_as(native)
        follow = ahead.gather(1, behind.clamp_max(num_slots)) - ahead[:, 1:]
        has_room = behind <= draft.lengths[:, None]
        unsure, has_mass = self._unsure(evidence)
        keep = native | (has_room & (follow == window) & unsure & has_mass)
        return keep_until_first_rejection(keep, evidence, exact.correction, u, state)

    def _unsure(self, evidence: Evidence) -> tuple[Tensor, Tensor]:
        """Return where the target is unsure [B,K], and where it gives the draft any mass [B,K]."""
        x, p = evidence.draft.tokens, evidence.p[:, :-1]
        size = evidence.logits.shape[-1] if evidence.logits is not None else p.shape[-1]

        def work(part: Part) -> Tensor:
            law = evidence.raw_logs(lambda slots: slots[part])[0].exp() if is_ids(p) else p[part]
            first = law.topk(min(self.top, law.shape[-1]), -1).values
            entropy = torch.special.entr(first).sum(-1)
            least = at_part(self, part).entropy
            return torch.stack((entropy >= knob(least, entropy), at(law, x[part]) > 0), -1)

        unsure, has_mass = in_parts(work, x.shape, size).unbind(-1)
        return unsure, has_mass
