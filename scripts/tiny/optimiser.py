"""Muon for the matrices and Adam for the rest; the state is a dict of tensors."""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from scripts.tiny.forward import Weights, working_dtype
from scripts.tiny.pairs import PairRecipe
from scripts.tiny.ranks import Rank

MOMENTUM, DECAY = 0.95, 0.01
BETAS, ADAM_EPS = (0.9, 0.98), 1e-10
VECTORS = frozenset({"embed", "head", "q_norm"})


def orthogonal(m: Tensor, steps: int = 5) -> Tensor:
    """Approximate the nearest orthogonal matrix of each m [L, out, in] by quintic Newton–Schulz (Muon, Jordan et al. 2024)."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = m.to(working_dtype(m.device))
    is_tall = x.shape[-2] > x.shape[-1]
    x = x.mT if is_tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if is_tall else x


def _cosine(step: int, steps: int, warmup: int) -> float:
    if step < warmup:
        return (step + 1) / warmup
    return 0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))


@dataclass(slots=True)
class Optimiser:
    """The optimiser of stacked weights; `first` and `second` are the moments by kind."""

    recipe: PairRecipe
    rank: Rank
    begun: int = 0  # the step at which the moments begin
    first: Weights = field(default_factory=dict)
    second: Weights = field(default_factory=dict)

    def rate(self, step: int) -> float:
        """Return the share of the peak rate: in each phase a linear warm-up, then a cosine to 1 % of the phase's rate."""
        index, within = self.recipe.at(step)
        phase = self.recipe.phases[index]
        return phase.rate * _cosine(within, phase.steps, self.recipe.warmup)

    @torch.no_grad()
    def step(self, weights: Weights, grads: Weights, step: int) -> None:
        rate = self.rate(step)
        for kind, weight in weights.items():
            self.first.setdefault(kind, torch.zeros_like(weight))
        for kind in VECTORS & weights.keys():
            self._adam(kind, weights[kind], grads[kind].float(), step - self.begun, rate * self.recipe.vector_lr)
        updates = {kind: self._direction(kind, grads[kind]) for kind in weights.keys() - VECTORS}
        self.rank.add_up([updates[kind] for kind in sorted(updates)])
        lr = rate * self.recipe.matrix_lr
        for kind, update in updates.items():
            rows, columns = update.shape[-2:]
            weights[kind].mul_(1 - lr * DECAY).add_(update, alpha=-lr * math.sqrt(max(1, rows / columns)))

    def _adam(self, kind: str, weight: Tensor, grad: Tensor, step: int, lr: float) -> None:
        first, second = self.first[kind], self.second.setdefault(kind, torch.zeros_like(weight))
        b1, b2 = BETAS
        first.lerp_(grad, 1 - b1)
        second.mul_(b2).addcmul_(grad, grad, value=1 - b2)
        scale = math.sqrt(1 - b2 ** (step + 1)) / (1 - b1 ** (step + 1))
        weight.addcdiv_(first, second.sqrt().add_(ADAM_EPS), value=-lr * scale)

    def _direction(self, kind: str, grad: Tensor) -> Tensor:
        """Return the orthogonalised momentum [layers, out, in] of this rank's layers, and 0 for the layers of other ranks."""
        first = self.first[kind].lerp_(grad.float(), 1 - MOMENTUM)
        mine = slice(self.rank.index, None, self.rank.world)
        update = torch.zeros_like(grad)
        if update[mine].numel():
            update[mine] = orthogonal(grad[mine].float().lerp(first[mine], MOMENTUM))
        return update
