"""The options of each training, with their help texts. Importing this module does not import torch, so --help is fast."""

from dataclasses import Field, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from sdbench.config import LENGTH_OPTIONS, ConfigError, Run, nearest

if TYPE_CHECKING:
    from sdbench.types import Limits

PROMPTS_AT_ONCE = 30  # prompts of a step in trainings that record or mine labels
HELD_OUT = 32  # rows on which trainings that bring a draft closer to its target are measured
ONCE = "1: rows are answered once, then read repeatedly; 0: answered each time"
LOSS_NAMES = ("forward_kl", "reverse_kl", "tv", "overlap")  # of sdbench/train/distill.py


def option(default: Any, text: str, least: float = 0) -> Any:
    """Return a dataclass field with its help text and, for a number, its minimum."""
    return field(default=default, metadata={"help": text, "least": least})


class TrainingRecipe:
    """Base class of recipes; __init__ raises ValueError for a wrong option."""

    version: ClassVar[str]  # changed when the same options give other weights
    about: ClassVar[str]
    folder: ClassVar[str]  # the default of out=, below results/
    usage: ClassVar[str]  # options of a run that uses the result
    trainer: ClassVar[str]  # dotted path of the class that trains
    is_greedy: ClassVar[bool] = False  # texts are decoded at temperature 0
    is_rewarded: ClassVar[bool] = True  # the training uses the scores of texts
    num_more_rows: ClassVar[int] = 0  # rows that are read beyond `num_rows`, where the split has them, and held out
    needs_draft: ClassVar[bool] = True
    has_drafter: ClassVar[bool] = True  # texts are decoded with the run's drafter
    trained_role: ClassVar[Literal["target", "draft"] | None] = (
        None  # the model whose weights, or a copy of them, are trained
    )
    states_role: ClassVar[Literal["target"] | None] = None  # the model on whose states a drafter is trained
    is_of_drafter: ClassVar[bool] = False  # the result is for the run's drafter, which may work without a draft model
    is_model: ClassVar[bool] = (
        False  # the result is a folder as of `save_pretrained`, which appears only when it is complete
    )

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    prompts: int

    @property
    def num_rows(self) -> int:
        """Return how many rows of the train split the training reads."""
        return getattr(self, "rows", self.prompts)

    @property
    def num_steps(self) -> int:
        return getattr(self, "steps", -(-self.prompts // PROMPTS_AT_ONCE))

    @classmethod
    def options(cls) -> dict[str, Field[Any]]:
        return {f.name: f for f in fields(cls) if f.init}

    @property
    def limits(self) -> "Limits":
        """Return the limits of the rule with which the training decodes."""
        from sdbench.types import Limits

        return Limits()

    def of_run(self, run: Run) -> Run:
        """Return the run that the training decodes, from the run that the user configured."""
        return run

    def refuse_target(self, config: Any) -> None:
        """Raise ConfigError if the options do not fit the target, given its text configuration."""

    def refuse_temperature(self, temperature: float) -> None:
        """Raise ConfigError for a temperature at which nothing can be learned."""
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

    @property
    def limits(self) -> "Limits":
        return _limits_of(self.features)


@dataclass(frozen=True)
class JudgeRecipe(TrainingRecipe):
    """The options of mining labels and fitting a judge."""

    version = "3"
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

    @property
    def limits(self) -> "Limits":
        return _limits_of(self.features)


@dataclass(frozen=True)
class GateRecipe(TrainingRecipe):
    """The options of recording which drafts the lossless rule keeps, and fitting a gate."""

    version = "1"
    about = "record what the lossless rule keeps of a drafter's blocks, and fit a logistic gate to that"
    folder = "gates/DRAFTER/MODEL-TASK-TTEMPERATURE"
    usage = "drafter.length=gate drafter.length_head=FOLDER"
    trainer = "sdbench.train.gate.GateTraining"
    is_rewarded = False
    is_of_drafter = True

    features: tuple[str, ...] = option(("draft_chance", "draft_entropy", "draft_margin", "slot"), "what the gate reads")
    prompts: int = option(300, "rows of the train split; every fifth is held out", 1)
    seed: int = option(0, "seed of the texts")
    at_once: int = field(default=PROMPTS_AT_ONCE, init=False)

    def __post_init__(self) -> None:
        from sdbench.draft.gate import refuse_features

        refuse_features(self.features)

    def of_run(self, run: Run) -> Run:
        """Return the run without its length policy, so that blocks have their full length."""
        plain = [{k: v for k, v in d.options.items() if k not in LENGTH_OPTIONS} for d in run.drafters]
        drafters = (replace(d, options=options) for d, options in zip(run.drafters, plain, strict=True))
        return replace(run, drafters=tuple(drafters))

    def refuse_temperature(self, temperature: float) -> None:
        """Accept every temperature; at 0 the gate is fitted to the draft's un-tempered distributions."""


@dataclass(frozen=True)
class DistillationRecipe(TrainingRecipe):
    """The options shared by all trainings that bring a draft's distribution closer to the target's."""

    is_rewarded = False
    has_drafter = False

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

    version = "2"
    num_more_rows = HELD_OUT
    is_model = True
    trained_role = "draft"
    about = "distil a pair's draft towards its target, on texts that the draft samples itself"
    folder = "drafts/MODEL-TASK-LOSS"
    usage = "model.draft=FOLDER"
    trainer = "sdbench.train.distill.Distillation"


@dataclass(frozen=True)
class TargetsAnswersRecipe(DistillationRecipe):
    """The options shared by all trainings that read the target's own answers."""

    needs_draft = False

    once: int = option(0, ONCE)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.once not in (0, 1):
            raise ValueError(f"once must be 0 or 1, got {self.once}")


@dataclass(frozen=True)
class PrunedRecipe(TargetsAnswersRecipe):
    """The options of training a pruned target, which lacks some layers, towards the whole target."""

    version = "2"
    num_more_rows = HELD_OUT
    is_model = True
    trained_role = "target"
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


def _refuse_features(kind: str, features: tuple[str, ...]) -> None:
    from sdbench.verify.head import refuse_features

    refuse_features(kind, features)


def _limits_of(features: tuple[str, ...]) -> "Limits":
    from sdbench.types import Limits

    return Limits(states="draft_hidden" in features)
