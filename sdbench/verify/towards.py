"""Lossless sampling towards another law than the target's."""

from abc import abstractmethod

from torch import Tensor

from sdbench.probs import excess
from sdbench.verify.tokenwise import Tokenwise, ratio


class Towards(Tokenwise):
    """a = min(1, v/q), r = norm((v − q)+) for a law v of p and q: emits v, and accepts as often as any rule that does."""

    @abstractmethod
    def law(self, p: Tensor, q: Tensor) -> Tensor:
        """v [B,K,V] of laws [B,K,V]."""

    def accept(self, p: Tensor, q: Tensor) -> Tensor:
        return ratio(self.law(p, q), q).clamp_max(1)

    def replace(self, p: Tensor, q: Tensor) -> Tensor:
        return excess(self.law(p, q), q)

    def out(self, p: Tensor, q: Tensor) -> Tensor:
        return self.law(p, q)
