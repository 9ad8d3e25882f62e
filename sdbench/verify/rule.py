"""The base class of rules, with defaults for the members that other code reads, and the declaration of knobs with their ranges."""

from collections.abc import Sequence
from dataclasses import MISSING, Field, field, fields
from typing import Any, ClassVar, Literal, get_args, get_origin

import torch
from torch import Tensor

from sdbench.types import Limits

INF = float("inf")


def number(
    default: Any = MISSING, *, low: float = 0, high: float = INF, is_open: bool = False, lossless: float | None = None
) -> Any:
    """Declare a knob in [low, high], or (low, high] if open. A rule is lossless if each knob with a `lossless` value has it."""
    metadata = {"low": low, "high": high, "is_open": is_open}
    return field(default=default, metadata=metadata if lossless is None else {**metadata, "lossless": lossless})


class Rule:
    """A rule without limits, needs or state. A subclass may override each member, also with a property."""

    version: ClassVar[str] = ""
    limits: ClassVar[Limits] = Limits()
    needs: ClassVar[frozenset[str]] = frozenset()
    draws_if_greedy: ClassVar[bool] = False  # whether texts at temperature 0 depend on the uniforms

    def __post_init__(self) -> None:
        """Raise for a number outside the range of its knob, and for a string that is not in the Literal of its field."""
        for f in fields(self):  # type: ignore[arg-type]
            if "low" in f.metadata:
                _check_number(self, f)
            elif get_origin(f.type) is Literal:
                _check_choice(self, f)

    def is_lossless(self) -> Tensor:
        knobs = [f for f in getattr(self, "__dataclass_fields__", {}).values() if "lossless" in f.metadata]
        return is_all(*(getattr(self, f.name) == f.metadata["lossless"] for f in knobs), bool(knobs))

    def init_state(self, prompts: Sequence[Tensor], device: Any) -> Tensor | None:
        return None


def _check_number(rule: Rule, f: Field[Any]) -> None:
    """Raise for a value outside the range; convert an integer to float if the field holds floats."""
    value, low, high, is_open = getattr(rule, f.name), f.metadata["low"], f.metadata["high"], f.metadata["is_open"]
    is_number = isinstance(value, int | float | Tensor) and not isinstance(value, bool)
    numbers = torch.as_tensor(value if is_number else torch.nan)
    if not bool(((numbers > low) if is_open else (numbers >= low)).all() & (numbers <= high).all()):
        limit = f"in {'(' if is_open else '['}{low:g}, {high:g}{')' if high == INF else ']'}"
        raise ValueError(f"{f.name} of {type(rule).__name__} must be a number {limit}, got {value}")
    if isinstance(value, int) and "float" in str(f.type):
        object.__setattr__(rule, f.name, float(value))  # so that 1 and 1.0 give the same family


def _check_choice(rule: Rule, f: Field[Any]) -> None:
    value, choices = getattr(rule, f.name), get_args(f.type)
    if value not in choices:
        words = " or ".join(f'"{choice}"' for choice in choices)
        raise ValueError(f"{f.name} of {type(rule).__name__} must be {words}, got {value!r}")


def is_all(*conditions: Tensor | bool) -> Tensor:
    """Return [B] bool, or [1] if all are numbers: whether all conditions hold; a condition [B,K] must hold at every position."""
    holds = torch.tensor([True])
    for condition in conditions:
        by_row = torch.atleast_1d(torch.as_tensor(condition))
        holds = holds.to(by_row.device) & (by_row if by_row.ndim == 1 else by_row.flatten(1).all(1))
    return holds
