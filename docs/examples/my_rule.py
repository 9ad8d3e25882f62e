"""Typical acceptance (Medusa, arXiv:2401.10774, section 3.3): keep what the target finds likely, given how sure it is."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sdbench.verify import Tokenwise, knob


@dataclass(frozen=True, slots=True)
class MyRule(Tokenwise):
    """a(x) = 1 where p(x) > min(eps, delta·exp(−H(p))), else 0; r = p. Greedy: the same with one-hot laws."""

    version: ClassVar[str] = "1"
    eps: float | Tensor = 0.1  # `| Tensor`: settings of a sweep are judged in one call, a value for each row
    delta: float = 0.3

    def accept(self, p: Tensor, q: Tensor) -> Tensor:
        sureness = torch.exp(-torch.special.entr(p).sum(-1, keepdim=True))
        eps = torch.as_tensor(knob(self.eps, p), dtype=p.dtype, device=p.device)
        return (p > torch.minimum(eps, self.delta * sureness)).to(p)

    def replace(self, p: Tensor, q: Tensor) -> Tensor:
        return p
