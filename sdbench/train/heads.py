"""Common code of trainings of drafters on the target's states: texts sampled by the target, a loss for each position, the result.

The target is not trained. The last prompts are held out, at most a fifth of all.
"""

import shutil
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from sdbench.card import write_trained
from sdbench.draft.trained import TrainedDrafter
from sdbench.train.answers import Answers, Text
from sdbench.train.distill import LOSSES
from sdbench.train.drafter_recipes import StatesRecipe
from sdbench.train.held_out import MeasuredTrainer
from sdbench.train.recipes import HELD_OUT
from sdbench.train.setup import group_by
from sdbench.train.states import StatesStore, check_disk
from sdbench.train.trainer import WarmAdamW

BATCH = 8  # texts per forward pass
AnyStatesRecipe = TypeVar("AnyStatesRecipe", bound=StatesRecipe)


class StatesTraining(MeasuredTrainer[AnyStatesRecipe]):
    """A training. A subclass defines the initial weights, and the distributions at each position given a text's states."""

    checkpoint_every, report_every = 20, 10
    kind: ClassVar[str]  # written to the card of the result
    state_needs: ClassVar[frozenset[str]] = TrainedDrafter.needs

    def __post_init__(self) -> None:
        self.target = self.setup.decoder.engine.target
        self.target.model.requires_grad_(False)
        self.answers = Answers(self.setup, "target", self.recipe.seed)
        self.store: StatesStore | None = None  # with recipe.once
        weights = self.initial_weights()
        self.weights = {name: x.to(self.target.device).requires_grad_(True) for name, x in weights.items()}
        self.optimiser = WarmAdamW(self.weights, self.recipe.rate)

    @abstractmethod
    def initial_weights(self) -> dict[str, Tensor]: ...

    @abstractmethod
    def log_laws(self, texts: Sequence[Text], depth: int) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Yield (k, log q [N,V], log p [N,V]) for each of `depth` positions k: of the drafter's distributions and the target's,
        at all N places of these texts where a round may draft that position.
        """

    @property
    @abstractmethod
    def depth(self) -> int:
        """Return how many positions are trained."""

    @property
    def num_positions(self) -> int:
        """Return how many positions are reported."""
        return self.depth

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
        for k, log_q, log_p in self.log_laws(texts, self.depth):
            if len(log_p):
                yield self.recipe.discount**k * LOSSES[self.recipe.loss](log_p, log_q).sum()

    def texts(self, step: int) -> Sequence[Text]:
        recipe = self.recipe
        return self.answers.of_step(self.training_keys, step, recipe.prompts, once=bool(recipe.once), first=1)

    def prepare(self) -> None:
        """With recipe.once, sample all answers and write the target's states of them to disk."""
        if not self.recipe.once:
            return
        ids, target, keys = self.setup.prompts.ids, self.target, [*self.training_keys, *self.held_out_keys]
        num_tokens = sum(len(ids[key]) for key in keys) + len(keys) * self.setup.task.max_new_tokens
        num_states = 3 if "layer_hidden" in self.state_needs else 1
        token_bytes = num_states * target.config.hidden_size * target.dtype.itemsize
        check_disk(self.name, self.states_folder, num_texts=len(keys), num_tokens=num_tokens, token_bytes=token_bytes)
        numerics = {name: value for name, value in self.setup.pair_info.numerics.items() if name.startswith("target_")}
        checkpoint = self.setup.pair_info.checkpoints["target"]
        identity = {"target": checkpoint, **numerics, "states": sorted(self.state_needs)}
        self.store = StatesStore(self.states_folder, identity, self.compute_states)
        answers = self.answers.keep(self.training_keys, 1)
        self.store.fill([*group_by(answers, BATCH), *group_by(self.held_out, BATCH)])

    @property
    def states_folder(self) -> Path:
        return self.out / "states"

    def states(self, texts: Sequence[Text]) -> list[Tensor]:
        """Return the target's states [L,d] of each text, or [L,3d] with the states of two other layers first."""
        return self.store.read(texts, self.target.device) if self.store else self.compute_states(texts)

    @torch.no_grad()
    def compute_states(self, texts: Sequence[Text]) -> list[Tensor]:
        """Run the target over each text and return its states."""
        whole = [torch.tensor([*prompt, *text], device=self.target.device) for prompt, text in texts]
        prefixes = self.target.prefill_all(whole, needs=self.state_needs)
        parts = [[x for x in (prefix.layer_hidden, prefix.hidden) if x is not None] for prefix in prefixes]
        return [torch.cat(states, -1) for states in parts]

    def log_law(self, states: Tensor) -> Tensor:
        """Return the logarithms of the distributions [...,V] that the target's head gives for states [...,d]."""
        return self.setup.decoder.warp.log_law(self.target.read_out(states))

    @property
    def num_held_out(self) -> int:
        return min(HELD_OUT, len(self.setup.prompts.ids) // 5)

    def agreement_over(self, texts: Sequence[Text]) -> list[float]:
        sums = torch.zeros(self.num_positions, 2, dtype=torch.float64)
        for group in group_by(texts, BATCH):
            for k, log_q, log_p in self.log_laws(group, self.num_positions):
                shared = float(torch.minimum(log_p, log_q).exp().sum())
                sums[k] += torch.tensor([shared, len(log_p)], dtype=torch.float64)
        return [shared / count for shared, count in sums.tolist() if count]

    def is_saved(self) -> bool:
        return super().is_saved() and not self.states_folder.exists()

    def save(self) -> None:
        """Write the weights in the target's precision."""
        stored = getattr(self.setup.pair_info.configs["target"], "dtype", None) or torch.float32
        dtype = stored if isinstance(stored, torch.dtype) else getattr(torch, str(stored))
        metadata: dict[str, Any] = self.metadata()
        metadata["checkpoints"] = {"target": metadata["checkpoints"]["target"]}
        facts = {"agreement": self.agreement()}
        weights = {name: x.detach().cpu().to(dtype) for name, x in self.weights.items()}
        self.write_course(self.out, metadata)
        write_trained(self.out, self.kind, weights, facts, metadata)
        shutil.rmtree(self.states_folder, ignore_errors=True)
