"""Rules that read only the target: exact match, and SGLang's two thresholds, which relax it."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sdbench.probs import dense
from sdbench.verify.greedy import GreedySet
from sdbench.verify.rule import number
from sdbench.verify.tokenwise import Tokenwise, knob


class WithoutRejected(Tokenwise):
    """r_x is p without the rejected x: norm(p·1[v ≠ x])."""

    knows_rejected: ClassVar[bool] = True

    def replace(self, p: Tensor, q: Tensor) -> Tensor:
        raise AssertionError("the replacement depends on the rejected draft: use replace_rejected")

    def replace_rejected(self, p: Tensor, q: Tensor, x: Tensor) -> Tensor:
        rest = p.masked_fill(dense(x, p.shape[-1]) > 0, 0)
        total = rest.sum(-1, keepdim=True)
        return torch.where(total > 0, rest / total, p)

    def out(self, p: Tensor, q: Tensor) -> Tensor:
        kept = q * self.accept(p, q)
        left = 1 - p
        share = torch.where(left > 0, (q - kept) / left, 0)
        return kept + p * (share.sum(-1, keepdim=True) - share)


@dataclass(frozen=True, slots=True)
class ExactMatch(WithoutRejected):
    """Keeps x iff a draw from p is x: a = p(x), else p without x. Exact, but accepts less than Exact: Σ p·q ≤ Σ min(p, q).

    Engines do this with drafts of unknown law (transformers for prompt lookup, vLLM in its former "strict" mode). A draw that
    differs from x is the replacement, so its law is p without x. Needs only p. Greedy: exact match, as Exact.
    """

    version: ClassVar[str] = "1"
    draws_if_greedy: ClassVar[bool] = False
    is_pointwise: ClassVar[bool] = True

    def is_lossless(self) -> Tensor:
        return torch.tensor([True])

    def accept(self, p: Tensor, q: Tensor) -> Tensor:
        return p

    def out(self, p: Tensor, q: Tensor) -> Tensor:
        return p


@dataclass(frozen=True, slots=True)
class SGLang(WithoutRejected, GreedySet):
    """SGLang's two thresholds (`speculative_accept_threshold_single`, `_acc`): a = 1 if p(x) ≥ single, else min(1, p/acc).

    A rejected x is replaced by a draw from p without x. At single = acc = 1, the defaults, it is ExactMatch and so exact. Needs
    only p. SGLang's trees are not implemented, only chains, where the mass of tried siblings is p(x). Greedy: keeps x iff p(x)
    ≥ single, else argmax p.
    """

    version: ClassVar[str] = "1"
    is_pointwise: ClassVar[bool] = True

    single: float | Tensor = number(1.0, high=1, lossless=1)
    acc: float | Tensor = number(1.0, high=1, is_open=True, lossless=1)

    def accept(self, p: Tensor, q: Tensor) -> Tensor:
        return torch.where(self.set_of(p, q), 1, (p / knob(self.acc, p)).clamp_max(1))

    def set_of(self, p: Tensor, q: Tensor) -> Tensor:
        return p >= knob(self.single, p)
