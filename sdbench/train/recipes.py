"""The options of each training, with the help texts. Nothing here imports torch at the start, so that --help is quick."""

import math
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any, ClassVar

from sdbench.config import ConfigError, nearest, show

PROMPTS_AT_ONCE = 30  # of a step of mining
LOSS_NAMES = ("forward_kl", "reverse_kl", "tv", "overlap")  # of sdbench/train/distill.py


def option(default: Any, text: str, least: float = 0) -> Any:
    """A field with its line of help and the least value of a number."""
    return field(default=default, metadata={"help": text, "least": least})


class TrainingRecipe:
    """What the recipes share; __init__ raises ValueError for a wrong option."""

    version: ClassVar[str]  # raised when the same recipe gives other weights
    about: ClassVar[str]
    folder: ClassVar[str]  # the default of out=, below results/
    usage: ClassVar[str]  # how a run uses what was trained
    trainer: ClassVar[str]  # the path of its class
    is_greedy: ClassVar[bool] = False
    is_rewarded: ClassVar[bool] = True  # reads the score of a text
    needs_draft: ClassVar[bool] = True
    is_model: ClassVar[bool] = False  # it writes a folder as `save_pretrained` does, which appears at the end and whole

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    prompts: int

    @property
    def num_rows(self) -> int:
        """How many rows of the train split it reads."""
        return getattr(self, "rows", self.prompts)

    @property
    def num_steps(self) -> int:
        return getattr(self, "steps", -(-self.prompts // PROMPTS_AT_ONCE))

    @classmethod
    def options(cls) -> dict[str, Field[Any]]:
        return {f.name: f for f in fields(cls) if f.init}

    def refuse_target(self, config: Any) -> None:
        """ConfigError for a target, by the text part of its configuration, that the options do not fit."""

    def refuse_temperature(self, temperature: float) -> None:
        """ConfigError for a temperature at which nothing can be learned."""
        if self.is_greedy and temperature != 0:
            raise ConfigError(f"temperature must be 0 to mine labels, got {temperature:g}")
        if not self.is_greedy and temperature == 0:
            raise ConfigError("temperature must be above 0 to sample different texts, got 0")


@dataclass(frozen=True)
class EnsembleRecipe(TrainingRecipe):
    """The options of DIVERSED's head."""

    version = "2"
    about = "train DIVERSED's head for a pair and a task, by policy gradient on the task's own score"
    folder = "heads/MODEL-TASK"
    usage = "verifier=diversed verifier.head=FOLDER"
    trainer = "sdbench.train.ensemble.EnsembleTraining"

    features: tuple[str, ...] = option(("draft_hidden", "target_hidden"), "what the head reads")
    hidden: int = option(0, "width of a hidden layer; 0: linear, as published")
    steps: int = option(100, "gradient steps", 1)
    prompts: int = option(8, "prompts of a step", 1)
    samples: int = option(8, "texts of a prompt, each compared with the mean of the others", 1)
    price: float = option(0.2, "reward that one unit of acceptance is worth")
    rate: float = option(0.02, "learning rate", 1e-9)
    decay: float = option(0.01, "weight decay")
    seed: int = option(0, "seed of the texts")
    rows: int = option(1000, "rows of the train split, read repeatedly", 1)

    def __post_init__(self) -> None:
        _refuse_features("ensemble", self.features)
        if self.samples < 2:
            raise ValueError(f"samples must be at least 2, to compare texts of one prompt, got {self.samples}")


@dataclass(frozen=True)
class JudgeRecipe(TrainingRecipe):
    """The options of mining labels and fitting a judge."""

    version = "2"
    about = "accept one wrong draft token at a time, see whether the score falls, and fit a logistic head to that"
    folder = "judges/MODEL-TASK"
    usage = "verifier=judge verifier.head=FOLDER"
    trainer = "sdbench.train.judge.JudgeTraining"
    is_greedy = True

    features: tuple[str, ...] = option(("token_hidden",), "what the head reads")
    prompts: int = option(300, "rows of the train split; every fifth is held out", 1)
    swaps: int = option(12, "the first wrong draft tokens of a text, each accepted in turn", 1)
    at_once: int = field(default=PROMPTS_AT_ONCE, init=False)

    def __post_init__(self) -> None:
        _refuse_features("judge", self.features)


@dataclass(frozen=True)
class DistillationRecipe(TrainingRecipe):
    """The options of bringing one distribution closer to another."""

    is_rewarded = False

    loss: str = option("forward_kl", "forward_kl, reverse_kl, tv or overlap")
    steps: int = option(200, "gradient steps", 1)
    prompts: int = option(32, "prompts of a step, each answered once", 1)
    rate: float = option(5e-4, "learning rate", 1e-9)
    seed: int = option(0, "seed of the texts")
    rows: int = option(2000, "rows of the train split, read repeatedly", 1)

    def __post_init__(self) -> None:
        if self.loss not in LOSS_NAMES:
            raise ValueError(f"loss cannot be {self.loss} {nearest(self.loss, LOSS_NAMES)}")


@dataclass(frozen=True)
class DraftRecipe(DistillationRecipe):
    """The options of distilling a draft."""

    version = "1"
    is_model = True
    about = "distil a pair's draft towards its target, on texts that the draft samples itself"
    folder = "drafts/MODEL-TASK-LOSS"
    usage = "model.draft=FOLDER"
    trainer = "sdbench.train.distill.Distillation"


@dataclass(frozen=True)
class PrunedRecipe(DistillationRecipe):
    """The options of healing a target that lacks some of its layers."""

    version = "1"
    is_model = True
    needs_draft = False
    about = "leave layers out of the target as drafter=pruned does, and distil the rest towards the target on its own answers"
    folder = "drafts/MODEL-TASK-pruned"
    usage = "model.draft=FOLDER"
    trainer = "sdbench.train.distill.Healing"

    keep_layers: int = option(0, "layers that stay; 0: three quarters of them")
    prompts: int = option(16, "prompts of a step, each answered once by the target", 1)

    def refuse_target(self, config: Any) -> None:
        from sdbench.draft.pruned import kept_of

        try:
            kept_of(config.num_hidden_layers, self.keep_layers or None)
        except ValueError as error:
            raise ConfigError(str(error)) from None


@dataclass(frozen=True)
class StatesRecipe(DistillationRecipe):
    """The options of a drafter on the target's states."""

    needs_draft = False

    discount: float = option(0.8, "weight of a position's loss over that of the position before it", 1e-9)
    prompts: int = option(16, "prompts of a step, each answered once", 1)
    rate: float = option(0.01, "learning rate", 1e-9)
    rows: int = option(2000, "rows of the train split, read repeatedly; the last are held out", 1)


@dataclass(frozen=True)
class MedusaRecipe(StatesRecipe):
    """The options of Medusa's heads."""

    version = "1"
    about = "train Medusa's heads on the target's states over its own answers; the target stays as it is"
    folder = "drafters/medusa/MODEL-TASK"
    usage = "drafter=medusa drafter.head=FOLDER"
    trainer = "sdbench.train.medusa.MedusaTraining"

    heads: int = option(5, "heads, each a token further ahead", 1)


@dataclass(frozen=True)
class MTPRecipe(StatesRecipe):
    """The options of a layer that drafts from its own states."""

    version = "1"
    about = "train a layer on the target's states and next tokens over its own answers; the target stays as it is"
    folder = "drafters/mtp/MODEL-TASK"
    usage = "drafter=mtp drafter.head=FOLDER"
    trainer = "sdbench.train.mtp.MTPTraining"

    passes: int = option(4, "positions that are trained, each on the layer's states of those before", 1)
    regression: float = option(0.0, "weight of the distance to the target's states")
    prompts: int = option(8, "prompts of a step", 1)
    rate: float = option(0.002, "learning rate", 1e-9)
    rows: int = option(640, "rows of the train split, each answered once, read repeatedly; the last are held out", 1)


@dataclass(frozen=True)
class EagleRecipe(MTPRecipe):
    """The options of EAGLE-1's layer: the first position alone, with the published weight of the distance."""

    about = "train EAGLE's layer on the target's states and next tokens over its own answers; the target stays as it is"
    folder = "drafters/eagle/MODEL-TASK"
    usage = "drafter=eagle drafter.head=FOLDER"
    trainer = "sdbench.train.mtp.EagleTraining"

    passes: int = option(1, "positions that are trained, each on the layer's states of those before", 1)
    regression: float = option(10.0, "weight of the distance to the target's states")


@dataclass(frozen=True)
class Eagle3Recipe(MTPRecipe):
    """The options of EAGLE-3's layer."""

    about = "train EAGLE-3's layer on states of three of the target's layers over its own answers; the target stays as it is"
    folder = "drafters/eagle3/MODEL-TASK"
    usage = "drafter=eagle3 drafter.head=FOLDER"
    trainer = "sdbench.train.mtp.Eagle3Training"


@dataclass(frozen=True)
class BlockRecipe(StatesRecipe):
    """The options of layers that draft a block in one forward."""

    version = "1"
    about = "train layers that draft a whole block from the target's states, over its own answers; the target stays as it is"
    folder = "drafters/block/MODEL-TASK"
    usage = "drafter=block drafter.head=FOLDER"
    trainer = "sdbench.train.block.BlockTraining"

    positions: int = option(5, "tokens of a block", 2)
    layers: int = option(2, "layers, each like the target's last", 1)
    prompts: int = option(8, "prompts of a step", 1)
    rate: float = option(0.002, "learning rate", 1e-9)
    rows: int = option(640, "rows of the train split, each answered once, read repeatedly; the last are held out", 1)

    def refuse_target(self, config: Any) -> None:
        count = config.num_hidden_layers
        if self.layers > count:
            raise ConfigError(f"layers must be at most {count}, the layers of the target, got {self.layers}")


RECIPES: Mapping[str, type[TrainingRecipe]] = {
    "ensemble": EnsembleRecipe,
    "judge": JudgeRecipe,
    "draft": DraftRecipe,
    "pruned": PrunedRecipe,
    "medusa": MedusaRecipe,
    "mtp": MTPRecipe,
    "eagle": EagleRecipe,
    "eagle3": Eagle3Recipe,
    "block": BlockRecipe,
}
OPTIONS = {name: f for recipe in RECIPES.values() for name, f in recipe.options().items()}


def parse_recipe(kind: str, texts: Mapping[str, str]) -> TrainingRecipe:
    """The recipe with these options; ConfigError for one that it does not have, or a wrong value."""
    values = {name: _parse_value(name, text) for name, text in texts.items() if name in OPTIONS}
    make = RECIPES[kind]
    for name in values:
        if name not in make.options():
            raise ConfigError(f"{name} is not an option of this training {nearest(name, sorted(make.options()))}")
    try:
        return make(**values)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def help_of(kind: str) -> str:
    """The help of a training."""
    make = RECIPES[kind]
    lines = [("out=FOLDER", "what is trained", f"results/{make.folder}")]
    if make.is_rewarded:
        lines.append(("reward=METRIC", "the score of a text", "the task's headline metric"))
    for name, f in make.options().items():
        default = f"[{','.join(f.default)}]" if isinstance(f.default, tuple) else show(f.default)
        lines.append((f"{name}=", f.metadata["help"], default))
    default = (
        "the temperature is 0" if make.is_greedy else "texts are sampled, at temperature 1 unless another is given"
    )
    return "\n".join(
        (
            f"sdbench.train {kind}: {make.about}.\n",
            f"  python -m sdbench.train {kind} model=llama-tiny task=gsm8k-tiny [OPTION=VALUE ...]\n",
            *(f"  {name:15} {text:62} ({default})" for name, text, default in lines),
            f"\nAll other options are those of python -m sdbench; {default}.",
            f"Then: python -m sdbench model=... task=... {make.usage}\n",
        )
    )


def _parse_value(name: str, text: str) -> Any:
    """The text in the type of the option's default: a word, a list of words, or a number that is large enough."""
    default: Any = OPTIONS[name].default
    least = OPTIONS[name].metadata["least"]
    if isinstance(default, str):
        return text
    if isinstance(default, tuple):
        return tuple(word.strip() for word in text.strip("[]").split(",") if word.strip())
    try:
        number = type(default)(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ConfigError(f"{name} must be a {'whole ' * isinstance(default, int)}number, got {show(text)}")
    if number < least:
        raise ConfigError(f"{name} must be at least {least:g}, got {show(text)}")
    return number


def _refuse_features(kind: str, features: tuple[str, ...]) -> None:
    from sdbench.verify.head import refuse_features

    refuse_features(kind, features)
