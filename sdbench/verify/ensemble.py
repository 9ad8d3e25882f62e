"""The static ensemble of DIVERSED (arXiv:2604.07622), v = w·p + (1 − w)·q; w is the weight of the target."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from sdbench.probs import excess
from sdbench.types import Evidence, Measures
from sdbench.verify.greedy import GreedyLaw, greedy_measures
from sdbench.verify.rule import number
from sdbench.verify.tokenwise import Tokenwise, knob, measured_tv, measures_of, ratio


@dataclass(frozen=True, slots=True)
class Ensemble(GreedyLaw):
    """a = min(1, v/q), r = norm((v − q)+) = norm((p − q)+): accepts with 1 − w·TV(q,p), emits v, biased by (1 − w)·TV(q,p).

    mix: "prob" mixes laws, as in the paper; "logit" mixes log-laws and normalises, as in its authors' code. greedy, at
    temperature 0: "blend" keeps x iff x = argmax v of un-tempered laws, and corrects to argmax v (transformers'
    assistant_ensemble_weight); "mixture" puts one-hot laws into the sampled formula, so that a mismatch passes with probability
    1 − w.
    """

    version: ClassVar[str] = "1"

    w: float | Tensor = number(high=1, lossless=1)  # or [B], one for each row, or [B,K], one for each position
    mix: Literal["prob", "logit"] = "prob"
    greedy: Literal["blend", "mixture"] = "blend"

    @property
    def is_pointwise(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.mix == "prob"  # a mixture of logits needs its normaliser

    @property
    def agrees_with_both(self) -> Tensor:  # pyright: ignore[reportIncompatibleVariableOverride]
        kind = type(self)  # a subclass may have another law; at w = 0 the law is q, and p breaks no tie
        is_blend = (kind.law, kind.greedy_scores) == (Ensemble.law, Ensemble.greedy_scores)
        return (torch.as_tensor(self.w) > 0) & is_blend

    @property
    def draws_if_greedy(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.greedy == "mixture"

    @property
    def needs(self) -> frozenset[str]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return frozenset({"raw_if_greedy"}) if self.greedy == "blend" else frozenset()

    @property
    def repeats_lossless(self) -> bool:
        """Whether w = 1 computes exactly the numbers of the lossless rule; a mixture of logits is normalised again, and rounds."""
        return self.mix == "prob"

    def law(self, p: Tensor, q: Tensor) -> Tensor:
        """Return v [B,K,V]."""
        if self.mix == "prob":
            return knob(self.w, p) * p + knob(1 - self.w, q) * q
        w = torch.as_tensor(knob(self.w, p), dtype=p.dtype, device=p.device)
        v = (torch.xlogy(w, p) + torch.xlogy(1 - w, q)).softmax(-1)  # xlogy: 0·log 0 is 0 at both ends of w
        return torch.where(v.isnan().any(-1, keepdim=True), p, v)  # no token has mass in both: use the target's law

    def accept(self, p: Tensor, q: Tensor) -> Tensor:
        if self.mix == "logit":
            return ratio(self.law(p, q), q).clamp_max(1)
        return (knob(1 - self.w, q) + knob(self.w, p) * ratio(p, q)).clamp_max(1)

    def replace(self, p: Tensor, q: Tensor) -> Tensor:
        return excess(p if self.mix == "prob" else self.law(p, q), q)

    def over_bound(self, p: Tensor, q: Tensor, out: Tensor) -> Tensor | None:
        """Return by how much the bias of the emitted law, out [..., V], exceeds (1 − w)·TV(p, q); None for a mixture of logits."""
        bias, tv = (out - p).abs().sum(-1) / 2, (p - q).abs().sum(-1) / 2
        return bias - (1 - float(self.w)) * tv if self.mix == "prob" else None

    def greedy_scores(self, log_p: Tensor, log_q: Tensor) -> Tensor:
        """Return v [B,K,V] computed from un-tempered laws, or its logits."""
        if self.mix == "prob":
            return self.law(log_p.exp(), log_q.exp())
        w = torch.as_tensor(knob(self.w, log_p), dtype=log_p.dtype, device=log_p.device)
        return _share(w, log_p) + _share(1 - w, log_q)

    def keeps(self, evidence: Evidence, u: Tensor) -> Tensor:
        return (GreedyLaw if self.greedy == "blend" else Tokenwise).keeps(self, evidence, u)

    def correction(self, evidence: Evidence, slot: Tensor) -> Tensor:
        return (GreedyLaw if self.greedy == "blend" else Tokenwise).correction(self, evidence, slot)

    def measure(self, evidence: Evidence) -> Measures:
        if evidence.is_greedy and self.greedy == "blend":
            return greedy_measures(evidence)
        if self.mix == "logit":
            return Tokenwise.measure(self, evidence)
        tv = measured_tv(evidence.p[:, :-1], evidence.draft.q)
        w = self.settle(evidence).w
        return measures_of(evidence, tv, 1 - knob(w, tv) * tv, knob(1 - w, tv) * tv)


def _share(w: Tensor, logits: Tensor) -> Tensor:
    """Return w·logits, with 0 where w = 0, even for logits of −∞."""
    return torch.where(w == 0, 0, w * logits)
