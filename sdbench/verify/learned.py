"""Rules with a head: DIVERSED's learned weight, and a judge."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from sdbench.types import Evidence, Limits, Measures, Verdict
from sdbench.verify.ensemble import Ensemble
from sdbench.verify.exact import Exact
from sdbench.verify.head import Head
from sdbench.verify.joint import Joint
from sdbench.verify.rule import INF, Rule, is_all, number
from sdbench.verify.tokenwise import Tokenwise, draw_bonus, keep_until_first_rejection, knob


@dataclass(frozen=True, slots=True)
class Diversed(Tokenwise):
    """DIVERSED (arXiv:2604.07622): the ensemble with w = σ(head(states of draft and target) + offset) at each position.

    Slot i reads the states that predict draft i. Exact at offset = ∞; at −∞ every draft is kept; values in between give a
    curve of one head. Emits w·p + (1 − w)·q with this w, for mix="prob". Greedy: as Ensemble, with w at each position.
    """

    version: ClassVar[str] = "1"

    head: Head
    offset: float | Tensor = number(0.0, low=-INF, lossless=INF)
    mix: Literal["prob", "logit"] = "prob"
    greedy: Literal["blend", "mixture"] = "blend"

    def __post_init__(self) -> None:
        if not isinstance(self.head, Head):
            object.__setattr__(self, "head", Head.load(self.head, "ensemble"))
        Rule.__post_init__(self)

    @property
    def limits(self) -> Limits:  # pyright: ignore[reportIncompatibleVariableOverride]
        return Limits(states="draft_hidden" in self.needs)

    @property
    def draws_if_greedy(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.greedy == "mixture"

    @property
    def needs(self) -> frozenset[str]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.head.needs | (frozenset({"raw_if_greedy"}) if self.greedy == "blend" else frozenset())

    def settle(self, evidence: Evidence) -> Any:
        """Return the ensemble with w [B,K]."""
        score = self.head.score(self.head.features_of(evidence)).double()
        w = torch.sigmoid(score + knob(self.offset, score)).nan_to_num(1)  # p and q keep the NaN of such logits
        return Ensemble(w, self.mix, self.greedy)

    def accept(self, p: Tensor, q: Tensor) -> Tensor:
        raise TypeError("call settle first: the weight of Diversed depends on states, not on p and q alone")

    def replace(self, p: Tensor, q: Tensor) -> Tensor:
        raise TypeError("call settle first: the weight of Diversed depends on states, not on p and q alone")

    def measure(self, evidence: Evidence) -> Measures:
        return self.settle(evidence).measure(evidence)


@dataclass(frozen=True, slots=True)
class Judge(Joint):
    """Judge decoding (arXiv:2501.19309): x is kept if Exact keeps it, or if the head accepts the target's state at x.

    The head accepts if σ(head) ≥ `threshold`. The state is that of x itself, one slot later than the one that predicts it.
    Rejected drafts are replaced as by Exact. Exact at any threshold above 1. Acceptance depends on the state at the drawn token,
    so neither its expectation nor the bias is known. Greedy: the same with exact match.
    """

    version: ClassVar[str] = "1"

    head: Head
    threshold: float | Tensor = number(0.5)

    def __post_init__(self) -> None:
        if not isinstance(self.head, Head):
            object.__setattr__(self, "head", Head.load(self.head, "judge"))
        Rule.__post_init__(self)

    @property
    def limits(self) -> Limits:  # pyright: ignore[reportIncompatibleVariableOverride]
        return Limits(states="draft_hidden" in self.needs)

    @property
    def needs(self) -> frozenset[str]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.head.needs

    def is_lossless(self) -> Tensor:
        return is_all(torch.as_tensor(self.threshold) > 1)

    def __call__(self, evidence: Evidence, u: Tensor, state: Tensor | None = None) -> Verdict:
        exact = Exact()
        if not evidence.draft.tokens.shape[1]:
            return draw_bonus(evidence, u, state)
        good = torch.sigmoid(self.head.score(self.head.features_of(evidence)).double())
        keep = exact.keeps(evidence, u[:, :-1]) | (good >= knob(self.threshold, good))
        return keep_until_first_rejection(keep, evidence, exact.correction, u, state)
