"""Rules of one family differ in numbers only: one call judges rows with different knobs, stacked to tensors [B]."""

from collections.abc import Hashable, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import torch

from sdbench.types import Verifier


def family(rule: Verifier) -> Hashable:
    """What rules must share to be stacked: their type and every field that is not a real number."""
    if not is_dataclass(rule):
        return id(rule)
    return type(rule), tuple((f.name, _kind(getattr(rule, f.name))) for f in fields(rule))


def stack(rules: Sequence[Any], device: torch.device | str = "cpu") -> Any:
    """One rule for len(rules) rows: the fields that are real numbers become tensors [B]."""
    first: Any = rules[0]
    if not is_dataclass(first) or len({id(rule) for rule in rules}) == 1:
        return first
    values: dict[str, Any] = {f.name: getattr(first, f.name) for f in fields(first)}
    for name, value in values.items():
        if isinstance(value, float):
            column = [getattr(rule, name) for rule in rules]
            values[name] = torch.tensor(column, dtype=torch.float64, device=device)
    return type(first)(**values)


def _kind(value: Any) -> Hashable:
    return float if isinstance(value, float) else (type(value), value)
