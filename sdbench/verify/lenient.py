"""Rules that keep up to a constant factor more than p allows: lenience with both residuals, and lossy decoding with two knobs."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from sdbench.probs import excess
from sdbench.verify.greedy import GreedySet
from sdbench.verify.rule import number
from sdbench.verify.tokenwise import knob, peak, ratio


@dataclass(frozen=True, slots=True)
class Lenience(GreedySet):
    """Leviathan et al. 2023, A.5 (arXiv:2211.17192): a = min(1, p/(l·q)); out ≤ p/l. Exact at l = 1. Needs only p and q.

    residual: "target" is r = norm((p − q)+), as in Google's notebook of arXiv:2405.19261; no rule with the same bias accepts
    more often. "scaled" is r = norm((p − l·q)+), the paper's formula with l·q in place of q; its bias is larger. Greedy: keeps
    x iff p(x) ≥ l·max p, else argmax p.
    """

    version: ClassVar[str] = "1"
    is_pointwise: ClassVar[bool] = True

    lenience: float | Tensor = number(high=1, is_open=True, lossless=1)
    residual: Literal["target", "scaled"] = "target"

    def accept(self, p: Tensor, q: Tensor) -> Tensor:
        return ratio(p, knob(self.lenience, q) * q).clamp_max(1)

    def replace(self, p: Tensor, q: Tensor) -> Tensor:
        return excess(p, q if self.residual == "target" else knob(self.lenience, q) * q)

    def set_of(self, p: Tensor, q: Tensor) -> Tensor:
        return p >= knob(self.lenience, p) * peak(p)


@dataclass(frozen=True, slots=True)
class Lossy(GreedySet):
    """Tran-Thien 2023, as in arXiv:2405.19261 (table 1): a = min(1, p/((1 − α)·q)), r = norm((p/β − q)+).

    Exact at α = 0 and β = 1. The paper requires β ≥ 1 − α. With β = 1 it is lenience; with the β at which Σ max(min(q, p/(1 −
    α)), p/β) = 1 it is mentored decoding. Where (p/β − q)+ vanishes, r is p. Needs only p and q. Greedy (ours): keeps x iff
    p(x) ≥ (1 − α)·max p, else argmax p.
    """

    version: ClassVar[str] = "1"
    is_pointwise: ClassVar[bool] = True

    alpha: float | Tensor = number(high=1, lossless=0)
    beta: float | Tensor = number(1.0, high=10, is_open=True, lossless=1)

    def accept(self, p: Tensor, q: Tensor) -> Tensor:
        return ratio(p, knob(1 - self.alpha, q) * q).clamp_max(1)

    def replace(self, p: Tensor, q: Tensor) -> Tensor:
        r = excess(p / knob(self.beta, p), q)
        return r / r.sum(-1, keepdim=True)

    def set_of(self, p: Tensor, q: Tensor) -> Tensor:
        return p >= knob(1 - self.alpha, p) * peak(p)
