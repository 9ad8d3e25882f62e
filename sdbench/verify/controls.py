"""Controls: `Synthetic` shows the speed that a given acceptance would bring, `Confidence` uses the draft's confidence alone."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sdbench.verify.rule import number
from sdbench.verify.sets import SetRule
from sdbench.verify.tokenwise import Tokenwise, knob


@dataclass(frozen=True, slots=True)
class Synthetic(Tokenwise):
    """Synthetic acceptance (vLLM's `synthetic`, SGLang's simulated length): a = `rate` for every token, r = p.

    For speed only: the quality of its texts means nothing. It keeps *drafted* tokens, because a text of random ids would change
    the cost of a round. Exact at rate = 0, where nothing is kept. Needs no law. Greedy: decided by the same uniforms; a
    rejected draft becomes argmax p.
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
    """Keeps x iff the draft is confident, q(x) ≥ c, `threshold`, and otherwise draws from p.

    It is PIPO's gate (arXiv:2605.27255) without its head. Needs only q. It is never exact. Greedy: the same with q
    un-tempered, else argmax p.
    """

    version: ClassVar[str] = "1"
    is_pointwise: ClassVar[bool] = True
    keeps_best: ClassVar[bool] = False

    threshold: float | Tensor = number(high=1)

    def set_of(self, p: Tensor, q: Tensor) -> Tensor:
        return q >= knob(self.threshold, q)
