"""Trains Medusa's heads. After position t of a text head k reads the target's state h(t), and its distribution is brought closer to
the target's own at t + k, by one of the losses of distill.py.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from sdbench.draft.medusa import Medusa, guess
from sdbench.train.drafter_recipes import MedusaRecipe
from sdbench.train.heads import StatesTraining, Text


class MedusaTraining(StatesTraining[MedusaRecipe]):
    """Trains heads that start with the prediction of the target's head."""

    name = kind = Medusa.kind

    def initial_weights(self) -> dict[str, Tensor]:
        count, width = self.depth, self.target.config.hidden_size
        return {"weight": torch.zeros(count, width, width), "bias": torch.zeros(count, width)}

    @property
    def depth(self) -> int:
        return self.recipe.heads

    def log_laws(self, texts: Sequence[Text], depth: int) -> Iterator[tuple[int, Tensor, Tensor]]:
        for states, (prompt, _) in zip(self.states(texts), texts, strict=True):
            with torch.no_grad():
                log_laws = self.log_law(states)
            first = max(len(prompt) - 2, 0)  # the state after which the first round begins
            for k in range(min(depth, len(states) - 2 - first)):  # a short text has no place for later heads
                weights = {name: x[k : k + 1] for name, x in self.weights.items()}
                hidden = guess(weights, states[first : len(states) - 2 - k].float(), 1)
                yield k, self.log_law(hidden[:, 0].to(states.dtype)), log_laws[first + k + 1 : len(states) - 1]
