"""Rules of one family differ only in numbers. One call can judge rows with different numbers, stacked to tensors [B].

A number can be stacked if the type of its field includes Tensor (`eps: float | Tensor`). Rules that differ in any other field
belong to different families. A rule inside a rule is stacked in the same way.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import Field, fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from sdbench.types import Verifier


def family(rule: Verifier) -> Hashable:
    """Return what rules must share to be stacked: their type and every field that does not stack."""
    if not is_dataclass(rule):
        return id(rule)
    return type(rule), tuple((f.name, _kind(f, getattr(rule, f.name))) for f in fields(rule))


def stack(rules: Sequence[Any], device: torch.device | str = "cpu") -> Any:
    """Return one rule for len(rules) rows: the knobs that stack become tensors [B], of float64 or int64."""
    first: Any = rules[0]
    if not is_dataclass(first) or len({id(rule) for rule in rules}) == 1:
        return first
    changed: dict[str, Any] = {}
    for f in fields(first):
        column = [getattr(rule, f.name) for rule in rules]
        if _is_rule(column[0]):
            changed[f.name] = stack(column, device)
        elif _stacks(f, column[0]):
            changed[f.name] = torch.tensor(column, dtype=_dtype(f), device=device)
    return replace(first, **changed)  # type: ignore[type-var]


def at_slots(rule: Any, pick: Callable[[Tensor], Tensor], least: int = 2) -> Any:
    """Return the rule with `pick`, which selects slots, applied to every knob [B,K] or [B,K,V], also in rules within it.

    least: `pick` is applied to knobs with at least this many axes; 1 includes knobs [B].
    """
    if not is_dataclass(rule):
        return rule
    changed: dict[str, Any] = {}
    for f in fields(rule):
        value = getattr(rule, f.name)
        if _is_rule(value):
            inner = at_slots(value, pick, least)
            changed |= {} if inner is value else {f.name: inner}
        elif isinstance(value, Tensor) and value.ndim >= least and "Tensor" in str(f.type):
            changed[f.name] = pick(value)
    return replace(rule, **changed) if changed else rule  # type: ignore[type-var]


def at_part(rule: Any, part: tuple[slice, slice]) -> Any:
    """Return the rule with its knobs at some rows and slots."""
    rows, slots = part
    return at_slots(rule, lambda knob: knob[rows, slots] if knob.ndim > 1 else knob[rows], least=1)


def refuse_tensors(rule: Any) -> None:
    """Raise for a rule whose knobs are tensors. Users give numbers; `stack` makes tensors of them, with one number per row."""
    if not is_dataclass(rule):
        return
    for f in fields(rule):
        value = getattr(rule, f.name)
        if _is_rule(value):
            refuse_tensors(value)
        elif isinstance(value, Tensor) and "Tensor" in str(f.type):
            raise ValueError(
                f"{f.name} of {type(rule).__name__} must be a number, got a tensor: give one rule per value"
            )


def _is_rule(value: Any) -> bool:
    return is_dataclass(value) and not isinstance(value, type) and hasattr(value, "is_lossless")


def _stacks(f: Field[Any], value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and "Tensor" in str(f.type)


def _dtype(f: Field[Any]) -> torch.dtype:
    return torch.float64 if "float" in str(f.type) else torch.int64


def _kind(f: Field[Any], value: Any) -> Hashable:
    if _is_rule(value):
        return family(value)
    if _stacks(f, value):
        return _dtype(f)
    return type(value), value if value.__hash__ is not None else id(value)
