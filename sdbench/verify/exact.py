"""Lossless speculative sampling."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sdbench.probs import excess
from sdbench.types import Evidence, Measures
from sdbench.verify.greedy import Greedy
from sdbench.verify.tokenwise import measured_tv, measures_of, ratio


@dataclass(frozen=True, slots=True)
class Exact(Greedy):
    """Leviathan et al. 2023, algorithm 1 (arXiv:2211.17192): a = min(1, p/q), r = norm((p − q)+). Emits p.

    Where all of p is on one token, a is 1 there and 0 elsewhere, and r is p, so no law over the vocabulary is needed.
    """

    version: ClassVar[str] = "1"
    needs: ClassVar[frozenset[str]] = frozenset()
    is_pointwise: ClassVar[bool] = True

    def accept(self, p: Tensor, q: Tensor) -> Tensor:
        return ratio(p, q).clamp_max(1)

    def replace(self, p: Tensor, q: Tensor) -> Tensor:
        return excess(p, q)

    def greedy_keeps(self, evidence: Evidence) -> Tensor:
        return evidence.draft.tokens == evidence.p[:, :-1]

    def is_lossless(self) -> Tensor:
        return torch.tensor([True])

    def measure(self, evidence: Evidence) -> Measures:
        tv = measured_tv(evidence.p[:, :-1], evidence.draft.q)
        return measures_of(evidence, tv, 1 - tv, torch.zeros_like(tv))
