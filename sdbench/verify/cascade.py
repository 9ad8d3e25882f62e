"""Speculative cascades (Narasimhan et al., arXiv:2405.19261) and fuzzy speculative decoding (arXiv:2502.20704).

A cascade defers to the target where the draft is not good enough, by position (Chow, Diff, OPT) or by token (V1, V2, V3), and
samples losslessly towards the resulting law π = q·1_A + (1 − q(A))·p. For Chow, Diff and OPT, A holds all tokens or none.
Thresholds apply to un-tempered laws, as in the authors' notebook. Fuzzy speculative decoding compares a divergence with a
threshold, and draws a token from p where it defers.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from sdbench.probs import total_variation
from sdbench.types import Evidence
from sdbench.verify.combine import Coin
from sdbench.verify.greedy import kept_of
from sdbench.verify.rule import number
from sdbench.verify.sets import KeptSet, SetRule
from sdbench.verify.tokenwise import Towards, knob, measured_tv, peak


@dataclass(frozen=True, slots=True)
class _Cascade(Towards, SetRule):
    """Samples towards π, the law of its set. Never lossless, not even at α = 0. Greedy: keeps x iff it is in A, else argmax p.

    Needs un-tempered laws. At temperature 0 the target's own choice is kept even if A does not contain it, because sampling
    towards π of one-hot laws keeps it too.
    """

    version: ClassVar[str] = "1"
    reads_raw: ClassVar[bool] = True

    alpha: float | Tensor = number(high=1)

    def law(self, p: Tensor, q: Tensor) -> Tensor:
        return KeptSet(self.set_of(p, q)).out(p, q)

    def settle(self, evidence: Evidence) -> Any:
        return self if evidence.is_greedy else Coin(KeptSet(kept_of(self, evidence)))


@dataclass(frozen=True, slots=True)
class CascadeChow(_Cascade):
    """Chow's rule (equation 2): the draft's law where max q ≥ 1 − α, otherwise the target's."""

    def set_of(self, p: Tensor, q: Tensor) -> Tensor:
        return peak(q) >= knob(1 - self.alpha, q)


@dataclass(frozen=True, slots=True)
class CascadeDiff(_Cascade):
    """Diff (equation 5): the draft's law where max q ≥ max p − α, otherwise the target's."""

    def set_of(self, p: Tensor, q: Tensor) -> Tensor:
        return peak(q) >= peak(p) - knob(self.alpha, q)


@dataclass(frozen=True, slots=True)
class CascadeOPT(_Cascade):
    """OPT (equation 10): the draft's law where max q ≥ max p − α·TV(p, q), otherwise the target's. TV is that of tempered laws.

    At temperature 0 these are one-hot, and TV is 1 wherever they differ, so the rule is Diff.
    """

    def set_of(self, p: Tensor, q: Tensor) -> Tensor:
        return peak(q) >= peak(p) - knob(self.alpha, q) * total_variation(p, q)[..., None]

    def settle(self, evidence: Evidence) -> Any:
        if evidence.is_greedy:
            return CascadeDiff(self.alpha)
        tv = measured_tv(evidence.p[:, :-1], evidence.draft.q).clamp_max(1)
        # TV is NaN for NaN logits, and may be in slots that are not offered. The knob is then 0; p and q keep the NaN.
        return CascadeDiff((knob(self.alpha, tv) * tv).nan_to_num(0)).settle(evidence)


@dataclass(frozen=True, slots=True)
class CascadeV1(_Cascade):
    """Token-specific V1 (equation 13): A = {v: q(v) ≥ max p − α}."""

    is_ordered: ClassVar[bool] = False

    def set_of(self, p: Tensor, q: Tensor) -> Tensor:
        return q >= peak(p) - knob(self.alpha, q)


@dataclass(frozen=True, slots=True)
class CascadeV2(_Cascade):
    """Token-specific V2 (equation 14): A = {v: p(v) ≥ max p − α}."""

    is_ordered: ClassVar[bool] = False

    def set_of(self, p: Tensor, q: Tensor) -> Tensor:
        return p >= peak(p) - knob(self.alpha, p)


@dataclass(frozen=True, slots=True)
class CascadeV3(_Cascade):
    """Token-specific V3 (equation 15): A = {v: p(v) ≥ (1 − α)·max p}."""

    is_ordered: ClassVar[bool] = False

    def set_of(self, p: Tensor, q: Tensor) -> Tensor:
        return p >= knob(1 - self.alpha, p) * peak(p)


@dataclass(frozen=True, slots=True)
class _Fuzzy(SetRule):
    """Keeps any draft where D(p, q) ≤ T, `threshold`, and otherwise draws from p. out is q or p. Exact at T = 0, where no draft
    is kept.

    Needs un-tempered laws, from which D is computed. Greedy: keeps x iff D ≤ T or x = argmax p, else argmax p; the authors' code
    draws from p where D > T, without comparing x.
    """

    version: ClassVar[str] = "1"
    reads_raw: ClassVar[bool] = True

    threshold: float | Tensor = number(lossless=0)

    @abstractmethod
    def distance(self, p: Tensor, q: Tensor) -> Tensor:
        """Return D [B,K,1] of laws [B,K,V]."""

    def set_of(self, p: Tensor, q: Tensor) -> Tensor:
        # Rounding in float32 may give D ≤ 0 for laws that nearly agree; a threshold of 0 must not keep such drafts.
        return self.distance(p, q).clamp_min(torch.finfo(p.dtype).tiny) <= knob(self.threshold, p)


@dataclass(frozen=True, slots=True)
class FuzzyJS(_Fuzzy):
    """Fuzzy speculative decoding, its default: D = ½ KL(m‖p) + ½ KL(m‖q), m = (p + q)/2, in nats.

    This is what its code computes. The Jensen–Shannon divergence of textbooks is ½ KL(p‖m) + ½ KL(q‖m), which is bounded.
    """

    def distance(self, p: Tensor, q: Tensor) -> Tensor:
        m = (p + q) / 2
        return (_kl(m, p) + _kl(m, q)) / 2


@dataclass(frozen=True, slots=True)
class FuzzyKL(_Fuzzy):
    """Fuzzy speculative decoding with D = KL(q‖p) in nats, as in its code; also the training-free judge of arXiv:2601.04766."""

    def distance(self, p: Tensor, q: Tensor) -> Tensor:
        return _kl(q, p)


@dataclass(frozen=True, slots=True)
class FuzzyTV(_Fuzzy):
    """Fuzzy speculative decoding with D = TV(p, q)."""

    def distance(self, p: Tensor, q: Tensor) -> Tensor:
        return total_variation(p, q)[..., None]


def _kl(a: Tensor, b: Tensor) -> Tensor:
    """Return KL(a‖b) [B,K,1]; ∞ if a token has mass in a and none in b."""
    return (torch.xlogy(a, a) - torch.xlogy(a, b)).sum(-1, keepdim=True)
