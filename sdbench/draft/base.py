"""What a drafter that keeps nothing for its rows need not write, and the drafter that drafts nothing."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Self

from torch import Tensor

from sdbench.types import Context, DraftBlock, DraftSetup, Evidence, Limits, Verdict


class BaseDrafter(ABC):
    """The empty methods of a drafter (see `sdbench.types.Drafter`). A subclass gives `draft`."""

    version: ClassVar[str] = ""
    limits: ClassVar[Limits] = Limits()
    needs: ClassVar[frozenset[str]] = frozenset()
    # Whether each token is drawn from the draft model's distribution at its prefix, and q is that distribution: the audit tests it.
    draws_draft_law: ClassVar[bool] = False
    # Whether `draft` may be called again within a round, for a text that ends in its own drafts.
    continues_drafts: ClassVar[bool] = False

    @classmethod  # noqa: B027 - empty on purpose, as those below
    def check(cls, setup: DraftSetup, **options: Any) -> None:
        """Raise ValueError for options that cannot be, before weights are read: `setup` has no models yet."""

    @classmethod
    def build(cls, setup: DraftSetup, **options: Any) -> Self:
        """Return a drafter with its YAML's options; one that reads a model, the warpers or the tokenizer takes them from setup."""
        return cls(**options)

    def open(self, num_rows: int, capacity: int, cache: Any) -> None:  # noqa: B027
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


def prefill_all(drafter: Any, prompts: Sequence[Tensor], prefixes: Sequence[Any]) -> list[Any]:
    """Call the drafter's `prefill_all`, unless a class built upon the one that has it writes a `prefill` of its own."""
    method = next(name for kind in type(drafter).__mro__ for name in ("prefill_all", "prefill") if name in vars(kind))
    if method == "prefill_all":
        return drafter.prefill_all(prompts, prefixes)
    return [drafter.prefill(prompt, prefix) for prompt, prefix in zip(prompts, prefixes, strict=True)]
