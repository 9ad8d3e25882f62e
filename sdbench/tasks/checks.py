"""Checks of a task's options, each failure one sentence with option and value."""

from __future__ import annotations

from typing import Any


def whole(option: str, value: Any, low: int) -> None:
    """None, or a whole number of at least `low`."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < low):
        kind = "null or a whole number" if option == "seed" else "a whole number"
        raise ValueError(f"{option} must be {kind} of at least {low}, got {value}")


def texts(option: str, value: Any) -> tuple[str, ...]:
    """One text or a list of texts, none of them empty."""
    listed = (value,) if isinstance(value, str) else value
    if not isinstance(listed, list | tuple) or not all(isinstance(text, str) and text for text in listed):
        raise ValueError(f"{option} must be a text or a list of texts that are not empty, got {value!r}")
    return tuple(listed)
