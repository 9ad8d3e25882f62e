"""The heads of a run's rules: what they are called in records, and whether they belong to this pair."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

from sdbench.config import ConfigError, Run
from sdbench.run.progress import warn

if TYPE_CHECKING:
    from sdbench.run.outline import Outline
    from sdbench.run.parts import Parts
    from sdbench.verify.head import Head


TRAINED_AT = ("task", "temperature")


def heads_of(rule: object, prefix: str = "") -> dict[str, Head]:
    """The heads of a rule and of the rules within it, by the name of the option: head, or rule.head."""
    from sdbench.verify.head import Head

    found: dict[str, Head] = {}
    for f in fields(rule) if is_dataclass(rule) else ():
        value = getattr(rule, f.name)
        if isinstance(value, Head):
            found[f"{prefix}{f.name}"] = value
        elif hasattr(value, "is_lossless"):
            found |= heads_of(value, f"{prefix}{f.name}.")
    return found


def named(rule: object, setting: Mapping[str, Any]) -> dict[str, Any]:
    """A setting in which a head goes by what it is, wherever it lies."""
    return {**setting, **{option: head.label for option, head in heads_of(rule).items()}}


def contents(rule: object) -> dict[str, Any]:
    """What a cell holds of its heads: what each is, and where it was trained."""
    return {
        option: {"digest": head.digest, **{name: head.card.get(name) for name in TRAINED_AT}}
        for option, head in heads_of(rule).items()
    }


def check_heads(run: Run, outline: Outline, parts: Parts, protocol: str) -> None:
    """A head of another pair is a ConfigError, one of another task, protocol or temperature a warning."""
    several = len(parts.sweeps) > 1
    seen: set[tuple[str, str]] = set()
    for built in parts.sweeps:
        prefix = f"verifier.{built.sweep.name}." if several else "verifier."
        for rule in built.rules:
            for option, head in heads_of(rule, prefix).items():
                if (option, head.digest) not in seen:
                    seen.add((option, head.digest))
                    _check(option, head, run, outline, protocol)


def _check(option: str, head: Head, run: Run, outline: Outline, protocol: str) -> None:
    card = head.card
    from sdbench.verify.head import width_of

    trained = f"{option} is a head of {card.get('model', 'another pair')}"
    for role, identity in card.get("checkpoints", {}).items():
        if outline.checkpoints.get(role) != identity:
            raise ConfigError(
                f"{trained}, whose {role} is {identity}, and model={run.model.name} has {outline.checkpoints.get(role)}: "
                "train one for this pair"
            )
    if card.get("tokenizer", outline.tokenizer_key) != outline.tokenizer_key:
        raise ConfigError(f"{trained}, whose tokenizer is another than that of model={run.model.name}")
    wanted = width_of(head.features, {f"{role}_hidden": int(c.hidden_size) for role, c in outline.configs.items()})
    if head.size != wanted:
        raise ConfigError(f"{trained} with {head.size} features, and this pair gives {wanted}: train one for this pair")
    own = {"task": run.task.name, "temperature": run.temperature, "protocol": protocol}
    if "slot" in head.features and card.get("num_draft") not in run.num_draft:
        own["num_draft"] = run.num_draft[0]
    for name, value in own.items():
        if name in card and card[name] != value:
            warn(f"{option} was trained at {name}={card[name]}, and this run is at {name}={value}")
