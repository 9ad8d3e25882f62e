"""What a drafter that keeps nothing for its rows need not write, the drafter that drafts nothing, and building by name."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import yaml
from torch import Tensor

from sdbench.config import config_dir, nearest
from sdbench.imports import import_object
from sdbench.types import DRAFTER_NEEDS, Context, DraftBlock, Drafter, DraftSetup, Evidence, Limits, Verdict, needs_of

INTERNAL = ("name", "choices", "knobs")  # of a drafter's file: what the configuration reads, not the drafter


class BaseDrafter(ABC):
    """The empty methods of a drafter (see `sdbench.types.Drafter`). A subclass gives `draft`."""

    version: ClassVar[str] = ""
    limits: ClassVar[Limits] = Limits()
    needs: ClassVar[frozenset[str]] = frozenset()
    # Whether each token is drawn from the draft model's distribution at its prefix, and q is that distribution: the audit tests it.
    draws_draft_law: ClassVar[bool] = False

    @classmethod
    def build(cls, setup: DraftSetup, **options: Any) -> Self:
        """Return a drafter with its YAML's options; one that reads a model, the warpers or the tokenizer takes them from setup."""
        return cls(**options)

    def open(self, num_rows: int, capacity: int, cache: Any) -> None:  # noqa: B027 - empty on purpose, as those below
        pass

    def prefill(self, prompt: Tensor, prefix: Any) -> Any:
        return None

    def admit(self, row: int, prefix: Any) -> None:  # noqa: B027
        pass

    def move(self, source: int, row: int) -> None:  # noqa: B027
        pass

    @abstractmethod
    def draft(self, context: Context, k: int, lengths: Tensor, u: Tensor, needs: frozenset[str]) -> DraftBlock: ...

    def observe(self, emitted: Tensor, evidence: Evidence, verdict: Verdict) -> None:  # noqa: B027
        pass

    def close(self) -> None:  # noqa: B027
        pass


class NoDraft(BaseDrafter):
    """Draft blocks without slots: plain autoregressive decoding is speculation with empty drafts."""

    version: ClassVar[str] = "1"

    def draft(self, context: Context, k: int, lengths: Tensor, u: Tensor, needs: frozenset[str]) -> DraftBlock:
        return DraftBlock.empty(lengths)


def class_of(drafter: object) -> tuple[Any, Mapping[str, Any]]:
    """Return the class, and the options that its file gives it; an object is returned as it is."""
    if not isinstance(drafter, str):
        return drafter, {}
    files = {path.stem: path for path in (config_dir() / "drafter").glob("*.yaml")}
    if drafter not in files:
        raise ValueError(f"drafter={drafter} names no file in configs/drafter {nearest(drafter, sorted(files))}")
    tree = yaml.safe_load(files[drafter].read_text()) or {}
    return import_object(str(tree.pop("_target_"))), {key: value for key, value in tree.items() if key not in INTERNAL}


def build(drafter: object, setup: DraftSetup, options: Mapping[str, Any] | None = None) -> Drafter:
    """Return a drafter for this target: an object as it is, anything else built. A need that is not met is a ValueError."""
    kind, defaults = class_of(drafter)
    needs = needs_of(kind, DRAFTER_NEEDS)
    if not isinstance(kind, type):
        return kind
    name = drafter if isinstance(drafter, str) else kind.__name__
    for need, part, label in (("draft", setup.draft, "draft model"), ("tokenizer", setup.tokenizer, "tokenizer")):
        if need in needs and part is None:
            raise ValueError(f"drafter={name} needs a {label}, and there is none")
    if not hasattr(kind, "build"):
        raise ValueError(f"drafter={name} must have a classmethod build(setup, …): derive it from BaseDrafter")
    return kind.build(setup, **{**defaults, **(options or {})})  # type: ignore[attr-defined]
