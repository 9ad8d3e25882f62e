"""AdamW for heads and drafts, whose state is a dict of tensors."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

CLIP, WARM_UP = 1.0, 10


@dataclass
class WarmAdamW:
    """AdamW over named weights, with clipped gradients and a linear warm-up of the rate."""

    weights: dict[str, Tensor]
    rate: float
    decay: float = 0.0

    def __post_init__(self) -> None:
        self.inner = torch.optim.AdamW(list(self.weights.values()), lr=self.rate, weight_decay=self.decay)

    def step(self, step: int) -> None:
        """Apply the gradients of a step, and clear them."""
        for group in self.inner.param_groups:
            group["lr"] = self.rate * min(1.0, (step + 1) / WARM_UP)
        torch.nn.utils.clip_grad_norm_(list(self.weights.values()), CLIP)
        self.inner.step()
        self.inner.zero_grad()

    def state(self) -> dict[str, Any]:
        weights = {name: tensor.detach().clone() for name, tensor in self.weights.items()}
        return {"weights": weights, "optimiser": self.inner.state_dict()}

    @torch.no_grad()
    def restore(self, state: Mapping[str, Any]) -> None:
        for name, tensor in self.weights.items():
            tensor.copy_(state["weights"][name])
        self.inner.load_state_dict(state["optimiser"])
