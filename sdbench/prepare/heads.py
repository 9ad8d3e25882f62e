"""The heads of a run's rules, and their names in records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sdbench.verify.head import Head

TRAINED_AT = ("task", "temperature")


def heads_of(rule: object, prefix: str = "") -> dict[str, Head]:
    """Return the heads of a rule and of the rules within it, by option: head, or rule.head."""
    from sdbench.verify.head import Head

    heads: dict[str, Head] = {}
    for f in fields(rule) if is_dataclass(rule) else ():
        value = getattr(rule, f.name)
        if isinstance(value, Head):
            heads[f"{prefix}{f.name}"] = value
        elif hasattr(value, "is_lossless"):
            heads |= heads_of(value, f"{prefix}{f.name}.")
    return heads


def with_labels(rule: object, setting: Mapping[str, Any]) -> dict[str, Any]:
    """Return a setting with the identity of a head instead of its path."""
    return {**setting, **{option: head.label for option, head in heads_of(rule).items()}}


def contents(rule: object) -> dict[str, Any]:
    """Return what a cell stores about its heads: their identity, and where they were trained."""
    return {
        option: {"digest": head.digest, **{name: head.card.get(name) for name in TRAINED_AT}}
        for option, head in heads_of(rule).items()
    }
