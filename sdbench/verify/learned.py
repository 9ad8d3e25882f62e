"""Rules with a head: DIVERSED's learned weight, and a judge."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from sdbench.types import Evidence, Limits, Measures, Verdict
from sdbench.verify.checks import as_floats, is_all, one_of
from sdbench.verify.ensemble import Ensemble
from sdbench.verify.exact import Exact
from sdbench.verify.head import Head
from sdbench.verify.joint import Joint
from sdbench.verify.tokenwise import Tokenwise, drawn, either, knob


@dataclass(frozen=True, slots=True)
class Diversed(Tokenwise):
    """DIVERSED (arXiv:2604.07622): the ensemble with w = σ(head(states of draft and target) + offset) at each position.

    Slot i reads the states that predict draft i. Exact at offset = ∞, the draft at −∞; between, one head is a curve. Emits
    w·p + (1 − w)·q of that w. Greedy: as Ensemble, with w at each position.
    """

    version: ClassVar[str] = "1"

    head: Head
    offset: float | Tensor = 0.0
    mix: Literal["prob", "logit"] = "prob"
    greedy: Literal["blend", "mixture"] = "blend"

    def __post_init__(self) -> None:
        if not isinstance(self.head, Head):
            object.__setattr__(self, "head", Head.load(self.head, "ensemble"))
        as_floats(self, "offset")
        if bool(torch.as_tensor(self.offset).isnan().any()):
            raise ValueError("offset of Diversed must be a number, got nan")
        one_of(self, "mix", ("prob", "logit"))
        one_of(self, "greedy", ("blend", "mixture"))

    @property
    def limits(self) -> Limits:  # pyright: ignore[reportIncompatibleVariableOverride]
        return Limits(states="draft_hidden" in self.needs)

    @property
    def draws_if_greedy(self) -> bool:
        return self.greedy == "mixture"

    @property
    def needs(self) -> frozenset[str]:
        return self.head.needs | (frozenset({"raw_if_greedy"}) if self.greedy == "blend" else frozenset())

    def is_lossless(self) -> Tensor:
        return is_all(torch.as_tensor(self.offset) == float("inf"))

    def settled(self, evidence: Evidence) -> Any:
        """The ensemble with w [B,K]."""
        score = self.head.score(self.head.seen(evidence)).double()
        return Ensemble(torch.sigmoid(score + knob(self.offset, score)), self.mix, self.greedy)

    def accept(self, p: Tensor, q: Tensor) -> Tensor:
        raise TypeError("Diversed is settled first: its weight hangs on states, not on p and q")

    def replace(self, p: Tensor, q: Tensor) -> Tensor:
        raise TypeError("Diversed is settled first: its weight hangs on states, not on p and q")

    def measure(self, evidence: Evidence) -> Measures:
        return self.settled(evidence).measure(evidence)


@dataclass(frozen=True, slots=True)
class Judge(Joint):
    """Judge decoding (arXiv:2501.19309): x stays if Exact keeps it, or if the head calls the target's state at x good enough.

    Good enough: σ(head) ≥ `threshold`. The state is that behind x, one slot later than the one that predicts it. What is
    rejected is replaced as by Exact. Exact at threshold = ∞. What is accepted hangs on the token that was drawn, so neither
    its expectation nor the bias is known. Greedy: the same with exact match.
    """

    version: ClassVar[str] = "1"

    head: Head
    threshold: float | Tensor = 0.5

    def __post_init__(self) -> None:
        if not isinstance(self.head, Head):
            object.__setattr__(self, "head", Head.load(self.head, "judge"))
        as_floats(self, "threshold")
        if not bool((torch.as_tensor(self.threshold) >= 0).all()):
            raise ValueError(f"threshold of Judge must be at least 0, got {self.threshold}")

    @property
    def needs(self) -> frozenset[str]:
        return self.head.needs

    def is_lossless(self) -> Tensor:
        return is_all(torch.as_tensor(self.threshold) > 1)

    def __call__(self, evidence: Evidence, u: Tensor, state: Tensor | None = None) -> Verdict:
        draft, p, exact = evidence.draft, evidence.p, Exact()
        num_slots = draft.tokens.shape[1]
        if not num_slots:
            return Verdict(torch.zeros_like(draft.lengths), drawn(p[:, 0], u[:, -1]), state)
        good = torch.sigmoid(self.head.score(self.head.seen(evidence)).double())
        keep = exact.keeps(evidence, u[:, :-1]) | (good >= knob(self.threshold, good))
        keep &= torch.arange(num_slots, device=u.device) < draft.lengths[:, None]
        accepted = keep.long().cumprod(1).sum(1)
        row, last = torch.arange(len(p), device=u.device), accepted.clamp_max(num_slots - 1)
        law = either(accepted == draft.lengths, p[row, accepted], exact.correction(evidence, last))
        return Verdict(accepted, drawn(law, u[:, -1]), state)
