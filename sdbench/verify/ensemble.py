"""The static ensemble of DIVERSED (arXiv:2604.07622), v = w·p + (1 − w)·q; w is the weight of the target."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from sdbench.probs import at, excess
from sdbench.types import Evidence, Measures, Verdict
from sdbench.verify.tokenwise import Tokenwise, knob, measured_tv


@dataclass(frozen=True, slots=True)
class Ensemble(Tokenwise):
    """a = min(1, v/q), r = norm((v − q)+) = norm((p − q)+): accepts with 1 − w·TV(q,p), emits v, biased by (1 − w)·TV(q,p).

    mix: "prob" mixes laws, as the paper; "logit" mixes log-laws and normalises, as its authors' code. At temperature 0, greedy:
    "blend" keeps x iff x = argmax v of un-tempered laws, and corrects to argmax v (transformers' assistant_ensemble_weight);
    "mixture" puts one-hot laws into the sampled formula, so that a mismatch passes with probability 1 − w.
    """

    version: ClassVar[str] = "1"

    w: float | Tensor  # a number, [B] or [B,K]: a knob for each row, or for each position
    mix: Literal["prob", "logit"] = "prob"
    greedy: Literal["blend", "mixture"] = "blend"

    def __post_init__(self) -> None:
        if not isinstance(self.w, Tensor):
            object.__setattr__(self, "w", float(self.w))  # 1 and 1.0 are one family
        if not bool(((torch.as_tensor(self.w) >= 0) & (torch.as_tensor(self.w) <= 1)).all()):
            raise ValueError(f"w of Ensemble must be in [0, 1], got {self.w}")
        if self.mix not in ("prob", "logit"):
            raise ValueError(f'mix of Ensemble must be "prob" or "logit", got {self.mix!r}')
        if self.greedy not in ("blend", "mixture"):
            raise ValueError(f'greedy of Ensemble must be "blend" or "mixture", got {self.greedy!r}')

    @property
    def is_pointwise(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.mix == "prob"  # a mixture of logits needs its normaliser

    @property
    def draws_if_greedy(self) -> bool:
        return self.greedy == "mixture"

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"raw_if_greedy"}) if self.greedy == "blend" else frozenset()

    def is_lossless(self) -> Tensor:
        is_one = torch.atleast_1d(torch.as_tensor(self.w) == 1)
        return is_one if is_one.ndim == 1 else is_one.all(1)

    def law(self, p: Tensor, q: Tensor) -> Tensor:
        """v [B,K,V]."""
        w = knob(self.w, p)
        if self.mix == "prob":
            return w * p + (1 - w) * q
        w = torch.as_tensor(w, dtype=p.dtype, device=p.device)
        v = (torch.xlogy(w, p) + torch.xlogy(1 - w, q)).softmax(-1)  # xlogy: 0·log 0 is 0 at both ends of w
        return torch.where(v.isnan().any(-1, keepdim=True), p, v)  # no token with mass in both: the target's law

    def accept(self, p: Tensor, q: Tensor) -> Tensor:
        if self.mix == "logit":
            return (self.law(p, q) / q.clamp_min(torch.finfo(q.dtype).tiny)).clamp_max(1)
        w = knob(self.w, p)
        return (1 - w + w * (p / q.clamp_min(torch.finfo(q.dtype).tiny))).clamp_max(1)

    def replace(self, p: Tensor, q: Tensor) -> Tensor:
        return excess(p if self.mix == "prob" else self.law(p, q), q)

    def __call__(self, evidence: Evidence, u: Tensor, state: Tensor | None = None) -> Verdict:
        if evidence.is_greedy and self.greedy == "blend":
            return self._blend(evidence)
        return Tokenwise.__call__(self, evidence, u, state)

    def _blend(self, evidence: Evidence) -> Verdict:
        draft, num_slots = evidence.draft, evidence.draft.tokens.shape[1]
        best = evidence.p  # [B,K+1] ids: argmax p, which the bonus takes
        accepted = torch.zeros_like(draft.lengths)
        if num_slots:
            in_draft = torch.arange(num_slots, device=best.device) < draft.lengths[:, None]
            best = best.clone()
            blended = self.settled(evidence)._blended(evidence)
            best[:, :-1] = torch.where(in_draft, blended.argmax(-1), best[:, :-1])
            accepted = ((best[:, :-1] == draft.tokens) & in_draft).long().cumprod(1).sum(1)
        return Verdict(accepted, best.gather(1, accepted[:, None])[:, 0])

    def _blended(self, evidence: Evidence) -> Tensor:
        """v of un-tempered laws, or its logits, [B,K,V]."""
        log_p, log_q = evidence.raw_p[:, :-1], evidence.raw_q
        if self.mix == "prob":
            return self.law(log_p.exp(), log_q.exp())
        w = torch.as_tensor(knob(self.w, log_p), dtype=log_p.dtype, device=log_p.device)
        return _share(w, log_p) + _share(1 - w, log_q)

    def measure(self, evidence: Evidence) -> Measures:
        x = evidence.draft.tokens
        if evidence.is_greedy and self.greedy == "blend":  # a deterministic choice: no acceptance probability, no bias
            p, q = evidence.raw_p[:, :-1].exp(), evidence.raw_q.exp()
            tv = measured_tv(p, q)
            return Measures(at(p, x), at(q, x), tv, torch.full_like(tv, torch.nan), torch.full_like(tv, torch.nan))
        p, q = evidence.p[:, :-1], evidence.draft.q
        if self.mix == "logit":
            return Tokenwise.measure(self, evidence)
        tv = measured_tv(p, q)
        w = knob(self.settled(evidence).w, tv)
        return Measures(at(p, x), at(q, x), tv, 1 - w * tv, (1 - w) * tv)


def _share(w: Tensor, logits: Tensor) -> Tensor:
    """w·logits, where no weight at all is no share: 0·(−∞) is 0."""
    return torch.where(w == 0, 0, w * logits)
