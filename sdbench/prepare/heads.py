"""The heads of a run's rules, and their names in records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

from sdbench.config import LENGTH_OPTIONS, show
from sdbench.prepare.progress import warn
from sdbench.prepare.trained import GATE

if TYPE_CHECKING:
    from sdbench.config import Run
    from sdbench.prepare.rules import DrafterClass, Parts
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


def drafting_of(run: Run, drafter: DrafterClass) -> dict[str, Any]:
    """Return what decides a drafter's distributions besides its class and checkpoints: its options but those of its length, files
    by their content, and how its draft is quantised.
    """
    options = {name: value for name, value in drafter.component.options.items() if name not in LENGTH_OPTIONS}
    digests = {name: drafter.files[f"drafter.{name}"] for name in options if f"drafter.{name}" in drafter.files}
    draft = {"draft_quantization": run.model.draft_quantization} if drafter.needs_draft else {}
    return {**options, **digests, **draft}


def known_drafting(run: Run, drafter: DrafterClass) -> dict[str, Any] | None:
    """Return `drafting_of` for a drafter with a gate; None for others, since files take a while to hash."""
    return drafting_of(run, drafter) if drafter.component.options.get("length") == GATE else None


def warn_of_foreign_gates(run: Run, parts: Parts) -> None:
    """Warn of a length policy that was trained for another task or temperature: its estimates are off there, no text is."""
    from sdbench.draft.build import policy_in
    from sdbench.draft.gate import DRAFTING

    for drafter in parts.drafters:
        card = policy_in(drafter.component.options)[1].card
        if card and DRAFTING not in card:
            _warn_of_unknown_drafting(run, drafter)
        for name, value in {"task": run.task.name, "temperature": run.temperature}.items():
            if name in card and card[name] != value:
                warn(f"length_head was trained at {name}={card[name]}, and this run is at {name}={value}")


def _warn_of_unknown_drafting(run: Run, drafter: DrafterClass) -> None:
    """Warn of the options of a drafter whose gate is of an earlier version, which did not write them to its card."""
    options = [f"{name}={show(value)}" for name, value in drafting_of(run, drafter).items() if value is not None]
    if options:
        warn(
            f"the card of length_head does not name the options of its drafter, and this run has {', '.join(options)}: "
            "unless it was trained with them, its estimates are off"
        )
