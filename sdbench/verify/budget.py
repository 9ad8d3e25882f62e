"""ASD: each text has a budget, and every mismatch that is kept costs some of it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from sdbench.probs import in_float32
from sdbench.types import Evidence, Limits, Verdict
from sdbench.verify.joint import Joint
from sdbench.verify.rule import is_all, number
from sdbench.verify.tokenwise import draw_bonus, keep_until_first_rejection, knob

ROUNDING = 1e-9  # tolerance of the authors' code for sums of regrets


@dataclass(frozen=True, slots=True)
class ASD(Joint):
    """Regret budget (arXiv:2608.03447, its code), greedy. A mismatch costs its regret max z − z(x), with the target's logits z.

    The block is judged from its start. Draft i of K (from 0) is kept while the regrets of all mismatches kept in the *text* sum
    to at most `budget`, its own regret is at most `gap`·(K − i), and the block has at most `mismatches` mismatches so far. The
    first draft that fails becomes argmax p. Exact match where any knob is 0. Needs the target's logits and a state, the regret
    spent so far. For temperature 0 only. Published settings: stable 8, 0.25, 2; discovery 12, 0.5, 2.
    """

    version: ClassVar[str] = "1"
    needs: ClassVar[frozenset[str]] = frozenset({"raw_if_greedy"})
    limits: ClassVar[Limits] = Limits(temperature="zero")

    budget: float | Tensor = number(8.0)
    gap: float | Tensor = number(0.25)
    mismatches: int | Tensor = number(2)

    def is_lossless(self) -> Tensor:
        return is_all(self._is_strict())

    def _is_strict(self) -> Tensor:
        """Return [B] or a single value: whether a knob of the row is 0."""
        knobs = (self.budget, self.gap, self.mismatches)
        return torch.stack(torch.broadcast_tensors(*(torch.as_tensor(value) == 0 for value in knobs))).any(0)

    def spending(self, logits: Tensor, tokens: Tensor) -> tuple[float, float]:
        """Return (the sum of the regrets of a text's tokens, its published bound), from the target's logits [n,V] at each token."""
        regrets = logits.max(-1).values - logits.gather(-1, tokens[:, None])[:, 0]
        return float(regrets.sum()), float(self.budget)

    def init_state(self, prompts: Sequence[Tensor], device: Any) -> Tensor:
        """Return [B,1]: the regret that each text has spent so far."""
        return torch.zeros(len(prompts), 1, dtype=torch.float64, device=device)

    def __call__(self, evidence: Evidence, u: Tensor, state: Tensor | None = None) -> Verdict:
        assert state is not None, "ASD needs the state that init_state returns: the regret spent so far"
        assert evidence.logits is not None, 'it names "raw_if_greedy" in its needs'
        draft, x = evidence.draft, evidence.draft.tokens
        num_slots = x.shape[1]
        if not num_slots:
            return draw_bonus(evidence, u, state)
        logits = evidence.logits[:, :-1]
        highest, best = logits.max(-1)
        is_mismatch = x != best
        regret = (in_float32(highest) - in_float32(logits.gather(-1, x[..., None])[..., 0])).double()
        cost = torch.where(is_mismatch, regret, 0).cumsum(1)
        value = draft.lengths[:, None] - torch.arange(num_slots, device=u.device)
        keep = ~is_mismatch | (regret <= knob(self.gap, regret) * value)
        keep &= cost <= knob(self.budget, cost) - state + ROUNDING
        keep &= is_mismatch.long().cumsum(1) <= knob(self.mismatches, x)
        keep &= ~is_mismatch | ~self._is_strict().to(u.device).reshape(-1, 1)
        verdict = keep_until_first_rejection(keep, evidence, lambda _, slot: best.gather(1, slot[:, None])[:, 0], u)
        spent = torch.nn.functional.pad(cost, (1, 0)).gather(1, verdict.accepted[:, None])
        return replace(verdict, state=state + spent)
