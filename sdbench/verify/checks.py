"""Checks of knobs; an error names the rule, the knob and its value."""

import torch
from torch import Tensor


def within(rule: object, name: str, low: float, high: float = float("inf"), *, is_open: bool = False) -> None:
    """Refuse a knob outside [low, high], or (low, high] where open; make it a float where its field is one of floats."""
    value = getattr(rule, name)
    is_number = isinstance(value, int | float | Tensor) and not isinstance(value, bool)
    numbers = torch.as_tensor(value if is_number else torch.nan)
    if not bool(((numbers > low) if is_open else (numbers >= low)).all() & (numbers <= high).all()):
        limit = f"in {'(' if is_open else '['}{low:g}, {high:g}{')' if high == float('inf') else ']'}"
        raise ValueError(f"{name} of {type(rule).__name__} must be a number {limit}, got {value}")
    if isinstance(value, int) and "float" in str(rule.__dataclass_fields__[name].type):  # type: ignore[attr-defined]
        object.__setattr__(rule, name, float(value))  # 1 and 1.0 are one family


def one_of(rule: object, name: str, choices: tuple[str, ...]) -> None:
    """Refuse a knob that is none of the choices."""
    value = getattr(rule, name)
    if value not in choices:
        words = " or ".join(f'"{choice}"' for choice in choices)
        raise ValueError(f"{name} of {type(rule).__name__} must be {words}, got {value!r}")


def is_all(*conditions: Tensor | bool) -> Tensor:
    """Return [B] bool, [1] for numbers: whether all conditions hold, at every position where they are [B,K]."""
    holds = torch.tensor([True])
    for condition in conditions:
        by_row = torch.atleast_1d(torch.as_tensor(condition))
        holds = holds.to(by_row.device) & (by_row if by_row.ndim == 1 else by_row.flatten(1).all(1))
    return holds
