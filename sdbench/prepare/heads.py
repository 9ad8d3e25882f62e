"""The heads of a run's rules, and their names in records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

from sdbench.prepare.progress import warn

if TYPE_CHECKING:
    from sdbench.config import Run
    from sdbench.prepare.rules import Parts
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


def warn_of_foreign_gates(run: Run, parts: Parts) -> None:
    """Warn of a length policy that was trained for another task or temperature: its estimates are off there, no text is."""
    from sdbench.draft.build import policy_in

    for drafter in parts.drafters:
        card = policy_in(drafter.component.options)[1].card
        for name, value in {"task": run.task.name, "temperature": run.temperature}.items():
            if name in card and card[name] != value:
                warn(f"length_head was trained at {name}={card[name]}, and this run is at {name}={value}")
