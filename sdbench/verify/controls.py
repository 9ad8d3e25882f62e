"""Controls: what speed a given acceptance would bring, and what the draft's confidence alone is worth. Neither is for quality."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sdbench.verify.rule import number
from sdbench.verify.sets import SetRule
from sdbench.verify.tokenwise import Tokenwise, knob


@dataclass(frozen=True, slots=True)
class Synthetic(Tokenwise):
    """Synthetic acceptance (vLLM's `synthetic`, SGLang's simulated length): a = `rate` whatever the token is, r = p.

    It keeps the *drafted* tokens, since text of random ids distorts what a round costs. Exact at rate = 0, where nothing is
    kept. Needs no law. Greedy: the same coins; what is rejected becomes argmax p.
    """

    version: ClassVar[str] = "1"
    is_pointwise: ClassVar[bool] = True

    rate: float | Tensor = number(high=1, lossless=0)

    def accept(self, p: Tensor, q: Tensor) -> Tensor:
        return torch.ones_like(q) * knob(self.rate, q)

    def replace(self, p: Tensor, q: Tensor) -> Tensor:
        return p


@dataclass(frozen=True, slots=True)
class Confidence(SetRule):
    """Keeps x iff the draft is confident, q(x) ≥ c, `threshold`, else draws from p.

    It is PIPO's gate (arXiv:2605.27255) without its head.
    Needs q alone. It is never exact. Greedy: the same of the un-tempered law, else argmax p.
    """

    version: ClassVar[str] = "1"
    is_pointwise: ClassVar[bool] = True
    keeps_best: ClassVar[bool] = False

    threshold: float | Tensor = number(high=1)

    def set_of(self, p: Tensor, q: Tensor) -> Tensor:
        return q >= knob(self.threshold, q)
