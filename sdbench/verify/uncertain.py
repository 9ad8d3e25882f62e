"""Rules that use how unsure the models are: EARS, EASD, and speculative contrastive decoding."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sdbench.probs import excess
from sdbench.verify.greedy import GreedyLaw
from sdbench.verify.rule import number
from sdbench.verify.tokenwise import Tokenwise, Towards, knob, peak, ratio


@dataclass(frozen=True, slots=True)
class EARS(Tokenwise):
    """EARS (arXiv:2512.13194; vLLM RFC 31483): a = min(1, p/q + β·(1 − max p)), β being `tolerance`; r = norm((p − q)+).

    Exact at β = 0; the paper uses 0.3 to 0.5. Needs only p and q. Greedy: as Exact, since the tolerance is 0 for one-hot laws.
    """

    version: ClassVar[str] = "1"
    draws_if_greedy: ClassVar[bool] = False

    tolerance: float | Tensor = number(high=1, lossless=0)

    def accept(self, p: Tensor, q: Tensor) -> Tensor:
        return (ratio(p, q) + knob(self.tolerance, p) * (1 - peak(p))).clamp_max(1)

    def replace(self, p: Tensor, q: Tensor) -> Tensor:
        return excess(p, q)


@dataclass(frozen=True, slots=True)
class EASD(Tokenwise):
    """EASD (arXiv:2512.23765): rejects x where H(p), H(q) > `entropy` and at least `overlap` of the `top` tokens are shared.

    Such an x is replaced by a draw from p; elsewhere the rule is Exact. In the paper's abstract the test does not depend on x,
    so both branches emit p: the rule is **exact** at every setting, and accepts less than Exact. The abstract has no thresholds;
    here entropy is in nats and overlap a share of `top`. Needs only p and q. Greedy: as Exact, since one-hot laws have entropy 0.
    """

    version: ClassVar[str] = "1"
    draws_if_greedy: ClassVar[bool] = False
    is_ordered: ClassVar[bool] = False

    entropy: float | Tensor = number(2.0)
    overlap: float | Tensor = number(0.8, high=1)
    top: int = number(10, low=1)

    def is_lossless(self) -> Tensor:
        return torch.tensor([True])

    def accept(self, p: Tensor, q: Tensor) -> Tensor:
        return torch.where(self._is_lost(p, q), 0, ratio(p, q).clamp_max(1))

    def replace(self, p: Tensor, q: Tensor) -> Tensor:
        return torch.where(self._is_lost(p, q), p, excess(p, q))

    def _is_lost(self, p: Tensor, q: Tensor) -> Tensor:
        """Return [B,K,1]: whether both models are unsure between mostly the same tokens."""
        least = torch.minimum(*(torch.special.entr(law).sum(-1, keepdim=True) for law in (p, q)))
        top = min(self.top, p.shape[-1])
        of_p, of_q = (law.topk(top, -1).indices for law in (p, q))
        is_of_q = torch.zeros_like(q, dtype=torch.bool).scatter_(-1, of_q, True)
        shared = is_of_q.gather(-1, of_p).sum(-1, keepdim=True)
        return (least > knob(self.entropy, least)) & (shared >= knob(self.overlap, least) * top)


@dataclass(frozen=True, slots=True)
class Contrastive(Towards, GreedyLaw):
    """Speculative contrastive decoding (arXiv:2311.08981): samples losslessly towards norm(1[p ≥ α·max p]·p^(1 + β)/q^β).

    This law is further from the draft's than p is, to improve quality, so the rule accepts less than Exact. Exact at α = β = 0.
    q is raised to the smallest normal number where it is 0. Needs only p and q. Greedy: keeps x iff it is the most likely token
    of this law, computed from un-tempered laws, else that token.
    """

    version: ClassVar[str] = "1"
    is_ordered: ClassVar[bool] = False

    alpha: float | Tensor = number(0.1, high=1, lossless=0)
    beta: float | Tensor = number(0.5, high=10, lossless=0)

    def law(self, p: Tensor, q: Tensor) -> Tensor:
        return self.greedy_scores(p.log(), q.log()).softmax(-1)

    def greedy_scores(self, log_p: Tensor, log_q: Tensor) -> Tensor:
        like = {"dtype": log_p.dtype, "device": log_p.device}
        beta, alpha = (torch.as_tensor(knob(value, log_p), **like) for value in (self.beta, self.alpha))
        scores = (1 + beta) * log_p - beta * log_q.clamp_min(math.log(torch.finfo(log_p.dtype).tiny))
        return scores.masked_fill(log_p < peak(log_p) + alpha.log(), -torch.inf)
