"""The base class of trainings: numbered steps, which continue where an earlier run of the command stopped, then the result."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor

from sdbench.card import CARD, is_complete
from sdbench.prepare.known_rows import rows_read
from sdbench.train.failed_files import explain_failed_write
from sdbench.train.recipes import TrainingRecipe
from sdbench.train.setup import TrainingSetup
from sdbench.train.steps import Steps

CLIP, WARM_UP = 1.0, 10
Recipe = TypeVar("Recipe", bound=TrainingRecipe)


@dataclass
class Trainer(ABC, Generic[Recipe]):
    """A training. A subclass defines a step, and what is written at the end."""

    name: ClassVar[str]  # names the checkpoint and the lines of progress
    checkpoint_every: ClassVar[int]  # steps
    report_every: ClassVar[int]  # steps

    setup: TrainingSetup
    recipe: Recipe
    out: Path
    rows: list[Any] = field(default_factory=list)  # what each step returned
    optimiser: Any = field(default=None, init=False)  # a WarmAdamW, where weights are trained by gradients
    answers: Any = field(default=None, init=False)  # an Answers, where a step reads texts that a model samples

    def __post_init__(self) -> None:
        """Build the weights to train, before the first step."""

    def __call__(self) -> None:
        identity, every = self.setup.identity(self.recipe), (self.checkpoint_every, self.report_every)
        self.steps = Steps(self.name, self.recipe.num_steps, self.checkpoint, identity, True, *every)
        stored = self.steps.resume()
        if stored is not None:
            self.restore(stored)
        if self.steps.first < self.recipe.num_steps:
            self.prepare()
        for step in self.steps.run(self.recipe.num_steps, self.state):
            self.rows.append(self.step(step))
            self.steps.report(step, self.progress)
        if self.steps.num_run or not self.is_saved():
            with explain_failed_write(self.out):
                self.save()

    def is_saved(self) -> bool:
        """Return whether a head was written after the last checkpoint. A second time its card would have other seconds, and the
        cells of a drafter with it other keys.
        """
        return is_complete(self.out) and (self.out / CARD).stat().st_mtime_ns >= self.checkpoint.stat().st_mtime_ns

    @property
    def checkpoint(self) -> Path:
        return self.out / f"{self.name}.ckpt"

    def state(self) -> dict[str, Any]:
        """Return the state that a checkpoint stores."""
        parts = [part.state() for part in (self.optimiser, self.answers) if part]
        common = {"rows": self.rows, "batch_size": self.setup.decoder.batch_size}
        return common | {name: value for part in parts for name, value in part.items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a state that `state` returned."""
        self.rows = state["rows"]
        if "batch_size" in state:  # checkpoints of older versions lack it
            self.setup.decoder.keep_batch_size(state["batch_size"])
        for part in (self.optimiser, self.answers):
            if part:
                part.restore(state)

    def prepare(self) -> None:
        """Compute what several steps read, if there are steps to do."""

    @abstractmethod
    def step(self, step: int) -> Any:
        """Do one step of the training; return what `save` needs of it, as tensors, numbers or strings."""

    @abstractmethod
    def progress(self) -> str:
        """Return the last row as text for a line of progress."""

    @abstractmethod
    def save(self) -> None: ...

    def metadata(self) -> dict[str, Any]:
        """Return the pair, the task, the options of the training, the rows of a file that it read, and its seconds."""
        names = [name for name in self.recipe.options() if name not in ("features", "rows")]
        options = {name: getattr(self.recipe, name) for name in names}
        return {**self.setup.metadata(), **options, **rows_read(self.setup.task), "seconds": round(self.steps.seconds)}


@dataclass
class WarmAdamW:
    """AdamW over named weights, with clipped gradients and a linear warm-up of the learning rate.

    Weights in half precision are updated in float32 and rounded after each step: small steps would be lost otherwise.
    """

    weights: dict[str, Tensor]
    rate: float
    decay: float = 0.0

    def __post_init__(self) -> None:
        # Weights that are precise enough share their memory with these.
        self.precise = {
            name: x.detach().to(torch.promote_types(x.dtype, torch.float32)) for name, x in self.weights.items()
        }
        self.inner = torch.optim.AdamW(list(self.precise.values()), lr=self.rate, weight_decay=self.decay)

    @torch.no_grad()
    def step(self, step: int) -> None:
        """Apply the gradients of a step and reset them."""
        for group in self.inner.param_groups:
            group["lr"] = self.rate * min(1.0, (step + 1) / WARM_UP)
        for name, x in self.weights.items():
            self.precise[name].grad = None if x.grad is None else x.grad.to(self.precise[name].dtype)
            x.grad = None
        torch.nn.utils.clip_grad_norm_(list(self.precise.values()), CLIP)
        self.inner.step()
        self._round()

    def state(self) -> dict[str, Any]:
        return {
            "weights": {name: x.clone() for name, x in self.precise.items()},
            "optimiser": self.inner.state_dict(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        for name, x in self.precise.items():
            x.copy_(state["weights"][name])
        self._round()
        self.inner.load_state_dict(state["optimiser"])

    @torch.no_grad()
    def _round(self) -> None:
        for name, x in self.weights.items():
            x.copy_(self.precise[name])
