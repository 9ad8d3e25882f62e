"""The options of the trainings of drafters on the target's states."""

from dataclasses import dataclass
from typing import Any

from sdbench.config import ConfigError
from sdbench.train.recipes import ONCE, TargetsAnswersRecipe, option


@dataclass(frozen=True)
class StatesRecipe(TargetsAnswersRecipe):
    """The options that all trainings of drafters on the target's states share; `drafter` is the drafter's name. With `once` the
    states of all answers are kept on disk.
    """

    states_role = "target"

    def __init_subclass__(cls, drafter: str) -> None:
        cls.folder, cls.usage = f"drafters/{drafter}/MODEL-TASK", f"drafter={drafter} drafter.head=FOLDER"

    discount: float = option(0.8, "weight of a position's loss over that of the position before it", 1e-9)
    prompts: int = option(16, "prompts of a step, each answered once", 1)
    rate: float = option(0.01, "learning rate", 1e-9)
    rows: int = option(2000, "rows of the train split, read repeatedly; the last are held out", 1)
    once: int = option(1, ONCE)


@dataclass(frozen=True)
class MedusaRecipe(StatesRecipe, drafter="medusa"):
    """The options of Medusa's heads."""

    version = "2"
    about = "train Medusa's heads on the target's states over its own answers; the target stays as it is"
    trainer = "sdbench.train.medusa.MedusaTraining"

    heads: int = option(5, "heads, each a token further ahead", 1)


@dataclass(frozen=True)
class MTPRecipe(StatesRecipe, drafter="mtp"):
    """The options of a layer that drafts from its own earlier states."""

    version = "2"
    trained_role = "target"  # a copy of its last layers
    about = "train a layer on the target's states and next tokens over its own answers; the target stays as it is"
    trainer = "sdbench.train.mtp.MTPTraining"

    passes: int = option(4, "positions that are trained, each on the layer's states of those before", 1)
    regression: float = option(0.0, "weight of the distance to the target's states")
    prompts: int = option(8, "prompts of a step", 1)
    rate: float = option(0.002, "learning rate", 1e-9)
    rows: int = option(640, "rows of the train split, read repeatedly; the last are held out", 1)


@dataclass(frozen=True)
class EagleRecipe(MTPRecipe, drafter="eagle"):
    """The options of EAGLE-1's layer: only the first position is trained, with the published weight of the distance."""

    about = "train EAGLE's layer on the target's states and next tokens over its own answers; the target stays as it is"
    trainer = "sdbench.train.mtp.EagleTraining"

    passes: int = option(1, "positions that are trained, each on the layer's states of those before", 1)
    regression: float = option(10.0, "weight of the distance to the target's states")


@dataclass(frozen=True)
class Eagle3Recipe(MTPRecipe, drafter="eagle3"):
    """The options of EAGLE-3's layer."""

    about = "train EAGLE-3's layer on states of three of the target's layers over its own answers; the target stays as it is"
    trainer = "sdbench.train.mtp.Eagle3Training"


@dataclass(frozen=True)
class BlockRecipe(StatesRecipe, drafter="block"):
    """The options of layers that draft a block in one forward pass."""

    version = "2"
    trained_role = "target"  # a copy of its last layers
    about = "train layers that draft a whole block from the target's states, over its own answers; the target stays as it is"
    trainer = "sdbench.train.block.BlockTraining"

    positions: int = option(5, "tokens of a block", 2)
    layers: int = option(2, "layers, each like the target's last", 1)
    prompts: int = option(8, "prompts of a step", 1)
    rate: float = option(0.002, "learning rate", 1e-9)
    rows: int = option(640, "rows of the train split, read repeatedly; the last are held out", 1)

    def refuse_target(self, config: Any) -> None:
        count = config.num_hidden_layers
        if self.layers > count:
            raise ConfigError(f"layers must be at most {count}, the layers of the target, got {self.layers}")
