"""Common code of drafters that were trained on a target's states: a folder of weights, and its checks."""

from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

from torch import Tensor

from sdbench.card import read_trained
from sdbench.draft.base import BaseDrafter
from sdbench.lm.model import LM
from sdbench.probs import Warp
from sdbench.types import DraftSetup


class TrainedDrafter(BaseDrafter):
    """A drafter with weights from `python -m sdbench.train KIND`, for one target and tokenizer.

    A text of n tokens has states up to h(n−2), which predicted its last token; the last token itself has not been run. After a
    verdict that kept m drafts the newest state is target_hidden[:, m].
    """

    kind: ClassVar[str]  # its name in cards, trainings and configurations
    needs: ClassVar[frozenset[str]] = frozenset({"target_hidden"})

    @abstractmethod
    def __init__(self, target: LM, warp: Warp, weights: Mapping[str, Tensor]) -> None: ...

    @classmethod
    @abstractmethod
    def width_of(cls, weights: Mapping[str, Tensor]) -> int | None:
        """Return the width of the states that the weights read; None if tensors are missing or have wrong shapes."""

    @classmethod
    def most_drafts(cls, weights: Mapping[str, Tensor]) -> int | None:
        """Return the longest possible block; None: any length."""
        return None

    @classmethod
    def build(cls, setup: DraftSetup, head: str | None = None) -> Self:  # pyright: ignore[reportIncompatibleMethodOverride]
        _, weights = cls.read(head)
        cls._refuse_width(head, weights, setup.target.config.hidden_size)
        return cls(setup.target, setup.warp, weights)

    @classmethod
    def check(  # pyright: ignore[reportIncompatibleMethodOverride]
        cls, setup: DraftSetup, head: str | None = None
    ) -> None:
        card, weights = cls.read(head)
        trained = f"head={head} is of {card.get('model', 'another pair')}"
        target, tokenizer = card["checkpoints"]["target"], card["tokenizer"]
        if setup.checkpoint not in (None, target):
            raise ValueError(
                f"{trained}, whose target is {target}; this run's target is {setup.checkpoint}: train a head for this target"
            )
        if setup.tokenizer_key not in (None, tokenizer):
            raise ValueError(f"{trained}, whose tokenizer differs from this target's: train a head for this target")
        if setup.target_config is not None:
            cls._refuse_width(head, weights, setup.target_config.hidden_size)
        most = cls.most_drafts(weights)
        if most is not None and setup.num_draft > most:
            raise ValueError(
                f"head={head} drafts at most {most} tokens: give a num_draft of at most {most}, got {setup.num_draft}"
            )

    @classmethod
    def read(cls, head: str | None) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Return the card and the weights of a folder."""
        advice = f"train one with python -m sdbench.train {cls.kind} model=NAME task=NAME, then drafter.head=FOLDER"
        if head is None:
            raise ValueError(f"a head is needed: {advice}")
        try:
            card, weights = read_trained(Path(head), cls.kind, f"drafter={cls.kind}")
        except FileNotFoundError as error:
            raise ValueError(f"head={head} has no {Path(error.filename).name}: {advice}") from None
        except OSError as error:
            raise ValueError(f"head={head} cannot be read: {error.strerror}") from None
        if cls.width_of(weights) is None:
            shapes = {name: tuple(x.shape) for name, x in weights.items()}
            raise ValueError(f"head={head} is damaged: its tensors have the shapes {shapes}; train it again")
        return card, weights

    @classmethod
    def _refuse_width(cls, head: str | None, weights: Mapping[str, Tensor], width: int) -> None:
        """Raise ValueError if the head reads states of another width than the target's."""
        trained = cls.width_of(weights)
        if trained != width:
            raise ValueError(
                f"head={head} reads states of width {trained}, but this target's have width {width}: train a head for this target"
            )
