"""Rules that keep a draft iff it is in a set of acceptable tokens. The set is a function of the two laws.

Above temperature 0 such a rule keeps every draft in its set A and otherwise draws from p, so it emits q·1_A + (1 − q(A))·p. A
token-specific speculative cascade with the same set (cascade.py) samples towards the same law and accepts at least as often. Most
of these rules were published for temperature 0, where a token outside the set is replaced by argmax p.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from sdbench.types import Evidence
from sdbench.verify.greedy import GreedySet, kept_of
from sdbench.verify.rule import number
from sdbench.verify.tokenwise import knob, peak


class SetRule(GreedySet):
    """a = 1 in the set and 0 outside, r = p. `reads_raw`: the set is computed from un-tempered laws at every temperature."""

    reads_raw: ClassVar[bool] = False

    @property
    def needs(self) -> frozenset[str]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return frozenset({"raw" if self.reads_raw else "raw_if_greedy"})

    def accept(self, p: Tensor, q: Tensor) -> Tensor:
        return self.set_of(p, q).to(p).expand_as(p)

    def replace(self, p: Tensor, q: Tensor) -> Tensor:
        return p

    def settle(self, evidence: Evidence) -> Any:
        return KeptSet(kept_of(self, evidence)) if self.reads_raw and not evidence.is_greedy else self


@dataclass(frozen=True, slots=True)
class KeptSet(SetRule):
    """A set rule whose set is already computed, for one round."""

    tokens: Tensor  # bool [B,K,V] or [B,K,1]

    def set_of(self, p: Tensor, q: Tensor) -> Tensor:
        return self.tokens


@dataclass(frozen=True, slots=True)
class Typical(SetRule):
    """Typical acceptance (Medusa, arXiv:2401.10774, section 3.3 and code): p(x) > min(ε, δ·exp(−H(p))), H in nats.

    replacement: "target" draws from p, as most engines do; "truncated" draws from p cut to the set, as Medusa does. Needs only
    p. It is never exact. Greedy: the same set, computed from the un-tempered law, else argmax p; Medusa's code uses exact match
    there.
    """

    version: ClassVar[str] = "1"

    eps: float | Tensor = number(0.3, high=1)
    delta: float | Tensor = number(0.09, high=1)
    replacement: Literal["target", "truncated"] = "target"

    def set_of(self, p: Tensor, q: Tensor) -> Tensor:
        sureness = torch.exp(-torch.special.entr(p).sum(-1, keepdim=True))
        eps = torch.as_tensor(knob(self.eps, sureness), dtype=p.dtype, device=p.device)
        return p > torch.minimum(eps, knob(self.delta, sureness) * sureness)

    def replace(self, p: Tensor, q: Tensor) -> Tensor:
        if self.replacement == "target":
            return p
        cut = p * self.set_of(p, q)
        total = cut.sum(-1, keepdim=True)
        return torch.where(total > 0, cut / total, p)


@dataclass(frozen=True, slots=True)
class TopKRelaxed(SetRule):
    """Relaxed acceptance: x among the k most likely, and p(x) ≥ max p − δ, or p(x) ≥ (1 − δ)·max p. Greedy: else argmax p.

    slack: "difference" is TensorRT-LLM's rule (`relaxed_topk`, `relaxed_delta`; its documentation has 15 and 0.5), "ratio" that
    of vLLM's pull requests 22238, 43184 and 45229 (k = 3, δ = 0.5). Both apply it only inside a reasoning span: see `Within`.
    Needs only p. At temperature 0 it is exact at k = 1 or δ = 0, except for ties. The rule was published for temperature 0; the
    sampled form is ours.
    """

    version: ClassVar[str] = "1"

    k: int | Tensor = number(15, low=1)
    delta: float | Tensor = number(0.5, high=1)
    slack: Literal["difference", "ratio"] = "difference"

    def set_of(self, p: Tensor, q: Tensor) -> Tensor:
        best, is_ratio = peak(p), self.slack == "ratio"
        least = knob(1 - self.delta, p) * best if is_ratio else best - knob(self.delta, p)
        return (p >= least) & (p >= kth_largest(p, self.k))


@dataclass(frozen=True, slots=True)
class BiLD(SetRule):
    """BiLD's rollback (arXiv:2302.07863, algorithm 1 and code): keeps x iff −ln p(x) ≤ RB, `threshold`. Needs only p.

    Greedy: the first draft with −ln p(x) > RB becomes argmax p. The other half of BiLD, a draft model that stops where it is
    unsure, is a matter of the drafter. At temperature 0 it is exact at RB = 0; the sampled form is ours.
    """

    version: ClassVar[str] = "1"

    threshold: float | Tensor = number(5.0)

    def set_of(self, p: Tensor, q: Tensor) -> Tensor:
        return p >= torch.exp(-torch.as_tensor(knob(self.threshold, p), dtype=p.dtype, device=p.device))


@dataclass(frozen=True, slots=True)
class SpecDec(SetRule):
    """SpecDec (arXiv:2203.16487, section 3.2): x among the β most likely and ln max p − ln p(x) ≤ τ. Greedy: else argmax p.

    Needs only p. At temperature 0 it is exact at β = 1 or τ = 0, except for ties; the sampled form is ours.
    """

    version: ClassVar[str] = "1"

    beta: int | Tensor = number(3, low=1)
    tau: float | Tensor = number(1.0)

    def set_of(self, p: Tensor, q: Tensor) -> Tensor:
        tau = torch.as_tensor(knob(self.tau, p), dtype=p.dtype, device=p.device)
        return (p >= peak(p) * torch.exp(-tau)) & (p >= kth_largest(p, self.beta))


@dataclass(frozen=True, slots=True)
class MARS(SetRule):
    """MARS (arXiv:2601.15498): the target's choice, or its runner-up if that is nearly as likely: p₂/p₁ ≥ θ. Needs only p.

    The paper uses the ratio of logits, which changes if all logits are shifted; here it is the ratio of probabilities. Greedy: a
    draft outside the set becomes argmax p. At temperature 0 it is exact at θ = 1, except for ties; the sampled form is ours.
    """

    version: ClassVar[str] = "1"

    theta: float | Tensor = number(0.9, high=1)

    def set_of(self, p: Tensor, q: Tensor) -> Tensor:
        first, second = p.topk(min(2, p.shape[-1]), -1).values.split([1, min(1, p.shape[-1] - 1)], -1)
        return (p == first) | ((p == second) & (second >= knob(self.theta, first) * first))


def kth_largest(p: Tensor, k: int | Tensor) -> Tensor:
    """Return the k-th largest probability [B,K,1] of each law; the smallest if k exceeds V."""
    if not isinstance(k, Tensor):
        return p.topk(min(k, p.shape[-1]), -1).values[..., -1:]
    largest = p.topk(min(int(k.max()), p.shape[-1]), -1).values
    index = (k.to(p.device)[(..., *[None] * (p.ndim - k.ndim))] - 1).clamp_max(largest.shape[-1] - 1)
    return largest.gather(-1, index.expand(*p.shape[:-1], 1))
