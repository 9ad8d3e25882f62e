"""Common code of trainings that bring a draft's distribution q closer to the target's p: the held-out agreement, and training.json.

The held-out agreement is the mean of Σ min(p, q) over answers that the target samples to prompts that no step reads: the
probability that a token is accepted if those before it were.
"""

import json
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import torch

from sdbench.files import write_whole
from sdbench.prepare.trained import COURSE
from sdbench.train.answers import Answers, Text
from sdbench.train.recipes import DistillationRecipe
from sdbench.train.trainer import Trainer

AnyDistillationRecipe = TypeVar("AnyDistillationRecipe", bound=DistillationRecipe)
DIGITS = 4  # of agreement that is stored


@dataclass
class MeasuredTrainer(Trainer[AnyDistillationRecipe]):
    """A training whose steps return a loss."""

    reports: list[dict[str, Any]] = field(default_factory=list, init=False)  # the held-out agreement, at some steps

    @property
    @abstractmethod
    def num_held_out(self) -> int:
        """Return how many prompts are held out, the last ones."""

    @abstractmethod
    def agreement_over(self, texts: Sequence[Text]) -> list[float]:
        """Return the mean of Σ min(p, q) over these texts, for each drafted position that some text is long enough for."""

    @property
    def training_keys(self) -> list[str]:
        """Return the prompts that steps read."""
        keys = list(self.setup.prompts.ids)
        return keys[: len(keys) - self.num_held_out]

    @property
    def held_out_keys(self) -> list[str]:
        return list(self.setup.prompts.ids)[len(self.training_keys) :]

    @cached_property
    def held_out(self) -> list[Text]:
        return Answers(self.setup, "target", self.recipe.seed).sample(self.held_out_keys, 0, "held-out answers")

    @torch.no_grad()
    def agreement(self) -> list[float]:
        """Return the held-out agreement at each position; [] if there are too few rows to hold some out."""
        return [round(value, DIGITS) for value in self.agreement_over(self.held_out)] if self.num_held_out else []

    def progress(self) -> str:
        agreement = self.agreement()
        seconds = round(self.steps.seconds)
        self.reports.append({"step": len(self.rows), "agreement": agreement, "seconds": seconds})
        text = f"{self.recipe.loss} {self.rows[-1]:.4f}"
        if agreement:
            where = " by position" if len(agreement) > 1 else ""
            text += f", held-out agreement{where} {' '.join(f'{value:.2f}' for value in agreement)}"
        return text

    def state(self) -> dict[str, Any]:
        return {**super().state(), "reports": self.reports}

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        self.reports = state.get("reports", [])  # checkpoints of older versions have none

    def write_course(self, folder: Path, metadata: Mapping[str, Any]) -> None:
        """Write training.json: the pair and the options, the loss of each step, and the reports."""
        course = {**metadata, "rows": self.recipe.rows, "held_out": self.num_held_out}
        course |= {"losses": self.rows, "reports": self.reports}
        write_whole(folder / COURSE, json.dumps(course, indent=1) + "\n")
