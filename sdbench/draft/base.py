"""Default members of a drafter, and the drafter that drafts nothing."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from sdbench.types import Context, DraftBlock, DraftSetup, Evidence, Limits, Verdict

# Methods that may read texts or the target's values.
READING = frozenset({"open", "prefill", "prefill_all", "admit", "draft", "observe", "_propose", "feed"})


class BaseDrafter(ABC):
    """The optional methods of a drafter, all empty (see `sdbench.types.Drafter`). A subclass defines `draft`."""

    version: ClassVar[str] = ""
    limits: ClassVar[Limits] = Limits()
    needs: ClassVar[frozenset[str]] = frozenset()
    # Whether q is the draft model's distribution after each prefix, and tokens are drawn from it. The audit tests this.
    draws_draft_law: ClassVar[bool] = False
    # Whether a drafter that reads the draft model returns its logits and states for rules that read them.
    has_logits: ClassVar[bool] = True
    # Whether `draft` may be called again within a round, for a text that ends in earlier drafts.
    continues_drafts: ClassVar[bool] = False
    # Whether it reads the target's keys, values or states. If not, the target may read the prompt in its first round only.
    reads_target: ClassVar[bool] = True
    # Option -> values that are keywords: they never name a file, even if a file of this name exists.
    option_words: ClassVar[Mapping[str, tuple[str, ...]]] = {}

    @classmethod  # noqa: B027 - empty on purpose, as those below
    def check(cls, setup: DraftSetup, **options: Any) -> None:
        """Raise ValueError for invalid options before weights are read: `setup` has no models yet."""

    @classmethod
    def cache_share(cls, config: Any, **options: Any) -> float:
        """Return the size of the keys and values that it keeps besides those of the models, as a share of the target's."""
        return 0.0

    @classmethod
    def build(cls, setup: DraftSetup, **options: Any) -> Self:
        """Build the drafter with the options of its YAML file; models, warper and tokenizers are in `setup`."""
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

    def rehearse(self, context: Context) -> None:  # noqa: B027
        """Run the steps that only some blocks need, so that they are captured before rounds are timed."""

    def close(self) -> None:  # noqa: B027
        pass


class NoDraft(BaseDrafter):
    """Drafts nothing: plain autoregressive decoding is speculation with empty drafts."""

    version: ClassVar[str] = "1"
    reads_target: ClassVar[bool] = False

    def draft(self, context: Context, k: int, lengths: Tensor, u: Tensor, needs: frozenset[str]) -> DraftBlock:
        return DraftBlock.empty(lengths)


def new_tokens(context: Context, sizes: Mapping[int, int]) -> dict[int, list[int]]:
    """Return {row: its tokens after the first sizes[row]}, without a device synchronisation for each row."""
    lengths = context.lengths.tolist()
    counts = {row: lengths[row] - size for row, size in sizes.items() if row < len(lengths)}
    width = max(counts.values(), default=0)
    if width <= 0:
        return {}
    positions = context.lengths[:, None] - torch.arange(width, 0, -1, device=context.lengths.device)
    tails = context.tokens.gather(1, positions.clamp_min(0)).tolist()
    return {row: tails[row][width - count :] for row, count in counts.items()}


def is_whole(value: object) -> bool:
    """Return whether an option is an integer and not a bool."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """Return whether an option is a finite number."""
    return is_whole(value) or (isinstance(value, float) and isfinite(value))


def num_layers(option: str, count: int, value: int | None, default: int) -> int:
    """Return the value of an option from 1 to `count` − 1, where a target has `count` layers; None gives `default`, at least 1."""
    value = max(1, default) if value is None else value
    if not is_whole(value) or not 1 <= value < count:
        span = f"from 1 to {count - 1}, as the target has {count} layers"
        raise ValueError(f"{option} must be a whole number {span}, got {value}")
    return value


def reads_target(drafter: Any) -> bool:
    """Return whether a drafter may read the target's keys, values or states: unless it declares `reads_target = False`.

    A subclass that overrides how a drafter reads or drafts texts must declare it again.
    """
    if "reads_target" in getattr(drafter, "__dict__", {}):
        return bool(drafter.reads_target)
    for kind in type(drafter).__mro__:
        if "reads_target" in vars(kind):
            return bool(kind.reads_target)
        if READING & vars(kind).keys():
            return True
    return True


def prefill_all(drafter: Any, prompts: Sequence[Tensor], prefixes: Sequence[Any]) -> list[Any]:
    """Call the drafter's `prefill_all`, unless a subclass of the class that has it overrides `prefill`."""
    method = next(name for kind in type(drafter).__mro__ for name in ("prefill_all", "prefill") if name in vars(kind))
    if method == "prefill_all":
        return drafter.prefill_all(prompts, prefixes)
    return [drafter.prefill(prompt, prefix) for prompt, prefix in zip(prompts, prefixes, strict=True)]
