"""Common code of trainings of drafters on the target's states: texts sampled by the target, a loss for each position, the result.

The target is not trained. The held-out agreement of position k is the mean of Σ min(p, q): the probability that its token is
accepted if those before it were.
"""

from abc import abstractmethod
from collections.abc import Hashable, Iterator, Sequence
from functools import cached_property
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from sdbench.card import write_trained
from sdbench.config import ConfigError
from sdbench.draft.trained import TrainedDrafter
from sdbench.lm.load import free_bytes
from sdbench.train.answers import Answers, Text
from sdbench.train.distill import LOSSES
from sdbench.train.drafter_recipes import StatesRecipe
from sdbench.train.setup import group_by
from sdbench.train.trainer import Trainer, WarmAdamW

HELD_OUT = 32  # rows, at most a fifth of all
BATCH = 8  # texts per forward pass
AnyStatesRecipe = TypeVar("AnyStatesRecipe", bound=StatesRecipe)


class StatesTraining(Trainer[AnyStatesRecipe]):
    """A training. A subclass defines the initial weights, and the distributions at each position given a text's states."""

    checkpoint_every, report_every = 20, 10
    kind: ClassVar[str]  # written to the card of the result
    state_needs: ClassVar[frozenset[str]] = TrainedDrafter.needs

    def __post_init__(self) -> None:
        self.target = self.setup.decoder.engine.target
        self.target.model.requires_grad_(False)
        self.answers = Answers(self.setup, "target", self.recipe.seed)
        self.stored: dict[Hashable, Tensor] = {}  # the target's states of each text, with recipe.once
        weights = self.initial_weights()
        self.weights = {name: x.to(self.target.device).requires_grad_(True) for name, x in weights.items()}
        self.optimiser = WarmAdamW(self.weights, self.recipe.rate)

    @abstractmethod
    def initial_weights(self) -> dict[str, Tensor]: ...

    @abstractmethod
    def laws(self, texts: Sequence[Text], depth: int) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Yield (k, q [N,V], p [N,V]) for each of `depth` positions k: the drafter's distributions and the target's, at all N
        places of these texts where a round may draft that position.
        """

    @property
    @abstractmethod
    def depth(self) -> int:
        """Return how many positions are trained."""

    @property
    def num_positions(self) -> int:
        """Return how many positions are reported."""
        return self.depth

    def progress(self) -> str:
        agreement = " ".join(f"{value:.2f}" for value in self.agreement())
        return f"{self.recipe.loss} {self.rows[-1]:.4f}, held-out agreement by position {agreement}"

    def step(self, step: int) -> float:
        texts = self.texts(step)
        total, size = 0.0, sum(len(text) for _, text in texts)
        for group in group_by(texts, BATCH):
            for loss in self.losses(group):
                (loss / size).backward()
                total += float(loss.detach()) / size
        self.optimiser.step(step)
        return total

    def losses(self, texts: Sequence[Text]) -> Iterator[Tensor]:
        """Yield losses summed over tokens, each with a separate autograd graph."""
        for k, q, p in self.laws(texts, self.depth):
            if len(p):
                yield self.recipe.discount**k * LOSSES[self.recipe.loss](p, q).sum()

    def texts(self, step: int) -> Sequence[Text]:
        recipe = self.recipe
        if recipe.once and not self.stored:
            self.check_memory()
        texts = self.answers.of_step(self.training_keys, step, recipe.prompts, once=bool(recipe.once), first=1)
        if not self.stored:  # states are computed in fixed groups, so that a resumed training gets the same numbers
            for group in group_by(self.answers.kept, BATCH):
                self.states(group)
        return texts

    def check_memory(self) -> None:
        """Print how much memory the states of all texts take; raise ConfigError if less is free."""
        ids, keys = self.setup.prompts.ids, self.training_keys
        tokens = sum(len(ids[key]) for key in keys) + len(keys) * self.setup.task.max_new_tokens
        layers = 3 if "layer_hidden" in self.state_needs else 1
        need = tokens * layers * self.target.config.hidden_size * self.target.dtype.itemsize
        free = free_bytes(str(self.target.device))
        size = f"{need / 2**30:.2f} GiB of memory"
        if free is not None and need > free:
            raise ConfigError(
                f"the target's states of {len(keys)} answers take up to {size}, and {free / 2**30:.2f} GiB are free: "
                "give fewer rows=, or once=0, which computes them again at each step"
            )
        print(f"{self.name}: the target's states of {len(keys)} answers take up to {size}", flush=True)

    def states(self, texts: Sequence[Text]) -> list[Tensor]:
        """Return the target's states [L,d] of each text, or [L,3d] with the states of two other layers first. With recipe.once
        they are computed once and then kept.
        """
        if not self.recipe.once:
            return self.compute_states(texts)
        by_key = {(len(prompt), *prompt, *text): (prompt, text) for prompt, text in texts}
        new = {key: text for key, text in by_key.items() if key not in self.stored}
        if new:
            self.stored.update(zip(new, self.compute_states(list(new.values())), strict=True))
        return [self.stored[len(prompt), *prompt, *text] for prompt, text in texts]

    @torch.no_grad()
    def compute_states(self, texts: Sequence[Text]) -> list[Tensor]:
        """Run the target over each text and return its states."""
        whole = [torch.tensor([*prompt, *text], device=self.target.device) for prompt, text in texts]
        prefixes = self.target.prefill_all(whole, needs=self.state_needs)
        parts = [[x for x in (prefix.layer_hidden, prefix.hidden) if x is not None] for prefix in prefixes]
        return [torch.cat(states, -1) for states in parts]

    def law(self, states: Tensor) -> Tensor:
        """Return the distributions [...,V] that the target's head gives for states [...,d]."""
        return self.setup.decoder.warp.law(self.target.read_out(states))

    @property
    def training_keys(self) -> list[str]:
        keys = list(self.setup.prompts.ids)
        return keys[: len(keys) - self.num_held_out]

    @property
    def num_held_out(self) -> int:
        return min(HELD_OUT, len(self.setup.prompts.ids) // 5)

    @cached_property
    def held_out(self) -> list[Text]:
        keys = list(self.setup.prompts.ids)[-max(self.num_held_out, 1) :]
        return self.answers.sample(keys, 0, "held-out answers")

    @torch.no_grad()
    def agreement(self) -> list[float]:
        """Return the mean of Σ min(p, q) over held-out texts, for each position."""
        sums = torch.zeros(self.num_positions, 2, dtype=torch.float64)
        for group in group_by(self.held_out, BATCH):
            for k, q, p in self.laws(group, self.num_positions):
                sums[k] += torch.tensor([float(torch.minimum(p, q).sum()), len(p)], dtype=torch.float64)
        return (sums[:, 0] / sums[:, 1].clamp_min(1)).tolist()

    def save(self) -> None:
        """Write the weights in the target's precision."""
        stored = getattr(self.setup.pair_info.configs["target"], "dtype", None) or torch.float32
        dtype = stored if isinstance(stored, torch.dtype) else getattr(torch, str(stored))
        metadata: dict[str, Any] = self.metadata()
        checkpoints = {"target": metadata["checkpoints"]["target"]}
        facts = {"agreement": [round(value, 4) for value in self.agreement()]}
        weights = {name: x.detach().cpu().to(dtype) for name, x in self.weights.items()}
        write_trained(self.out, self.kind, weights, facts, {**metadata, "checkpoints": checkpoints})
