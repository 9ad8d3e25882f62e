"""Trains Medusa's heads on texts that the target samples itself; the target stays frozen.

Behind a text's position t head k reads the target's state h(t), and its distribution is brought closer to the target's own at
t + k, by one of the losses of distill.py. The held-out agreement of head k is the mean of Σ min(p, q): the acceptance of its token
where those before it were kept.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor

from sdbench.card import write_trained
from sdbench.draft.medusa import KIND, guess
from sdbench.train.distill import LOSSES
from sdbench.train.recipes import MedusaRecipe
from sdbench.train.setup import group_by
from sdbench.train.trainer import Trainer, WarmAdamW

HELD_OUT = 32  # rows, at most a fifth of all
BATCH = 8  # texts of a forward


class MedusaTraining(Trainer[MedusaRecipe]):
    """Steps from heads that guess what the target's own head does."""

    name, checkpoint_every, report_every = "medusa", 20, 10

    def __post_init__(self) -> None:
        self.target = self.setup.decoder.engine.target
        count, width = self.recipe.heads, self.target.config.hidden_size
        zeros = {"weight": torch.zeros(count, width, width), "bias": torch.zeros(count, width)}
        self.weights = {name: x.to(self.target.device).requires_grad_(True) for name, x in zeros.items()}
        self.optimiser = WarmAdamW(self.weights, self.recipe.rate)
        self.target.model.requires_grad_(False)

    def progress(self) -> str:
        agreement = " ".join(f"{value:.2f}" for value in self.agreement())
        return f"{self.recipe.loss} {self.rows[-1]:.4f}, held-out agreement by head {agreement}"

    def step(self, step: int) -> float:
        keys, count = self.keys[: len(self.keys) - self.num_held_out], self.recipe.prompts
        texts = self.sample([keys[(step * count + i) % len(keys)] for i in range(count)], step + 1)
        total, size = 0.0, sum(len(text) for _, text in texts)
        for group in group_by(texts, BATCH):
            for states, laws, begin in self.read(group):
                for k in range(self.recipe.heads):
                    q, p = self.laws_of_head(states, laws, begin, k)
                    loss = self.recipe.discount**k * LOSSES[self.recipe.loss](p, q).sum() / size
                    if len(p):
                        loss.backward()
                        total += float(loss.detach())
        self.optimiser.step(step)
        return total

    def sample(self, keys: Sequence[str], number: int) -> list[tuple[list[int], list[int]]]:
        """Return a prompt and the target's answer for each key; `number` selects the noise."""
        from sdbench.engine import Request
        from sdbench.verify import Exact

        decoder = self.setup.decoder
        options = decoder.options("target", batch_size=decoder.batch_size, is_measured=False)
        options = replace(options, seed=self.recipe.seed * 1_000_003 + number)
        ids = [self.setup.prompts.ids[key] for key in keys]
        requests = [Request(index, 0, 0, key, 0) for index, key in enumerate(keys)]
        stream = decoder.engine.stream(ids, [Exact()], requests, options, None, role="target")
        return list(zip(ids, [list(g.tokens) for g in sorted(stream, key=lambda g: g.request)], strict=True))

    @torch.no_grad()
    def read(self, texts: Sequence[tuple[list[int], list[int]]]) -> list[tuple[Tensor, Tensor, int]]:
        """Return of each text the target's states [L,d], its laws [L,V], and the position whose law made the first answer token."""
        warp, device = self.setup.decoder.warp, self.target.device
        whole = [torch.tensor([*prompt, *text], device=device) for prompt, text in texts]
        prefixes = self.target.prefill_all(whole, with_hidden=True)
        states = [prefix.hidden for prefix in prefixes]
        return [
            (x, warp.law(warp.logits(self.target.read_out(x))), len(prompt) - 1)
            for x, (prompt, _) in zip(states, texts, strict=True)
            if x is not None
        ]

    def laws_of_head(self, states: Tensor, laws: Tensor, begin: int, k: int) -> tuple[Tensor, Tensor]:
        """Return q of head k (from 0) and the target's p, [N,V] each, wherever a round may read the state that q comes from."""
        first, ahead, warp = max(begin - 1, 0), k + 1, self.setup.decoder.warp
        hidden = guess(
            {name: x[k : k + 1] for name, x in self.weights.items()}, states[first : len(states) - 1 - ahead].float(), 1
        )
        q = warp.law(warp.logits(self.target.read_out(hidden[:, 0].to(states.dtype))))
        return q, laws[first + ahead : len(states) - 1]

    @property
    def keys(self) -> list[str]:
        return list(self.setup.prompts.ids)

    @property
    def num_held_out(self) -> int:
        return min(HELD_OUT, len(self.keys) // 5)

    @cached_property
    def held_out(self) -> list[tuple[list[int], list[int]]]:
        return self.sample(self.keys[len(self.keys) - max(self.num_held_out, 1) :], 0)

    @torch.no_grad()
    def agreement(self) -> list[float]:
        """Return the mean of Σ min(p, q) of each head over held-out texts."""
        sums = torch.zeros(self.recipe.heads, 2, dtype=torch.float64)
        for group in group_by(self.held_out, BATCH):
            for states, laws, begin in self.read(group):
                for k in range(self.recipe.heads):
                    q, p = self.laws_of_head(states, laws, begin, k)
                    sums[k] += torch.tensor([float(torch.minimum(p, q).sum()), len(p)], dtype=torch.float64)
        return (sums[:, 0] / sums[:, 1].clamp_min(1)).tolist()

    def save(self) -> None:
        """Write the heads in the target's own precision."""
        stored = getattr(self.setup.pair_info.configs["target"], "dtype", None) or torch.float32
        dtype = stored if isinstance(stored, torch.dtype) else getattr(torch, str(stored))
        metadata = self.metadata()
        checkpoints = {"target": metadata["checkpoints"]["target"]}
        facts = {"agreement": [round(value, 4) for value in self.agreement()]}
        weights = {name: x.detach().cpu().to(dtype) for name, x in self.weights.items()}
        write_trained(self.out, KIND, weights, facts, {**metadata, "checkpoints": checkpoints})
