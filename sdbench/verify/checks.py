"""Ranges of knobs: each complaint is one sentence with rule, knob and value."""

import torch
from torch import Tensor


def within(rule: object, name: str, low: float, high: float = float("inf"), *, is_open: bool = False) -> None:
    """The knob `name`, a number or a tensor of them, lies in [low, high], or in (low, high] where open."""
    value = getattr(rule, name)
    numbers = (
        torch.as_tensor(value) if isinstance(value, int | float | Tensor) and not isinstance(value, bool) else None
    )
    if numbers is None or not bool(((numbers > low) if is_open else (numbers >= low)).all() & (numbers <= high).all()):
        limit = f"in {'(' if is_open else '['}{low:g}, {high:g}{')' if high == float('inf') else ']'}"
        raise ValueError(f"{name} of {type(rule).__name__} must be a number {limit}, got {value}")


def as_floats(rule: object, *names: str) -> None:
    """Knobs as floats, so that 1 and 1.0 are one family."""
    for name in names:
        value = getattr(rule, name)
        if isinstance(value, int) and not isinstance(value, bool):
            object.__setattr__(rule, name, float(value))


def one_of(rule: object, name: str, choices: tuple[str, ...]) -> None:
    value = getattr(rule, name)
    if value not in choices:
        words = " or ".join(f'"{choice}"' for choice in choices)
        raise ValueError(f"{name} of {type(rule).__name__} must be {words}, got {value!r}")


def is_all(*conditions: Tensor | bool) -> Tensor:
    """[B] bool of conditions that are numbers' or rows': all of them; a row's, where it is given for each position."""
    found = torch.tensor([True])
    for condition in conditions:
        one = torch.atleast_1d(torch.as_tensor(condition))
        found = found.to(one.device) & (one if one.ndim == 1 else one.flatten(1).all(1))
    return found
