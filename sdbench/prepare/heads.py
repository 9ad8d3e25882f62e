"""The trained heads of a run's rules and drafters: their names in records, and whether they fit the run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

from sdbench.config import LENGTH_OPTIONS, ConfigError, show
from sdbench.prepare.progress import warn
from sdbench.prepare.trained import GATE

if TYPE_CHECKING:
    from sdbench.config import Run
    from sdbench.prepare.pair_info import PairInfo
    from sdbench.prepare.rules import DrafterClass, Parts
    from sdbench.verify.head import Head

TRAINED_AT = ("task", "temperature")


def heads_of(rule: object, prefix: str = "") -> dict[str, Head]:
    """Return the heads of a rule and of the rules within it, by the option that names each: head, or rule.head."""
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
    """Return a setting with the label of each head in place of its path."""
    return {**setting, **{option: head.label for option, head in heads_of(rule).items()}}


def contents(rule: object) -> dict[str, Any]:
    """Return what a cell stores about its heads: the hash of each, and the task and temperature of its training."""
    return {
        option: {"digest": head.digest, **{name: head.card.get(name) for name in TRAINED_AT}}
        for option, head in heads_of(rule).items()
    }


def drafting_of(run: Run, drafter: DrafterClass) -> dict[str, Any]:
    """Return what decides a drafter's distributions, and which drafts are kept, besides its class and checkpoints: its options
    except those of its length, with a hash in place of each file, and how draft and target are quantised.
    """
    options = {name: value for name, value in drafter.component.options.items() if name not in LENGTH_OPTIONS}
    digests = {name: drafter.files[f"drafter.{name}"] for name in options if f"drafter.{name}" in drafter.files}
    draft = {"draft_quantization": run.model.draft_quantization} if drafter.needs_draft else {}
    return {**options, **digests, **draft, "target_quantization": run.model.quantization}


def known_drafting(run: Run, drafter: DrafterClass) -> dict[str, Any] | None:
    """Return `drafting_of` for a drafter with a gate; None for others, because hashing their files would take time."""
    return drafting_of(run, drafter) if drafter.component.options.get("length") == GATE else None


def drafter_cards(parts: Parts) -> Iterator[tuple[str, DrafterClass, Mapping[str, Any]]]:
    """Yield the option, the drafter and the card of each gate and head of the run's drafters."""
    from sdbench.draft.build import policy_in
    from sdbench.draft.mtp import CHECKPOINT
    from sdbench.draft.trained import TrainedDrafter

    for drafter in parts.drafters:
        options, policy = policy_in(drafter.component.options)
        if policy.card:
            yield "length_head", drafter, policy.card
        head = options.get("head")
        if issubclass(drafter.kind, TrainedDrafter) and head != CHECKPOINT:
            yield "head", drafter, drafter.kind.read(head)[0]


def refuse_foreign_heads(run: Run, pair_info: PairInfo, parts: Parts, wanted: Mapping[str, Any]) -> None:
    """Raise for a head of another pair; warn for one that was trained with other settings than `wanted`, such as its task."""
    several = len(parts.sweeps) > 1
    seen: set[tuple[str, str]] = set()
    for built in parts.sweeps:
        prefix = f"verifier.{built.sweep.name}." if several else "verifier."
        for rule in built.rules:
            for option, head in heads_of(rule, prefix).items():
                if (option, head.digest) not in seen:
                    seen.add((option, head.digest))
                    _refuse_foreign_head(option, head, run, pair_info, wanted)


def _refuse_foreign_head(
    option: str, head: Head, run: Run, pair_info: PairInfo, trained_for: Mapping[str, Any]
) -> None:
    from sdbench.verify.head import width_of

    card = head.card
    trained = f"{option} is a head of {card.get('model', 'another pair')}"
    for role, identity in card.get("checkpoints", {}).items():
        if pair_info.checkpoints.get(role) != identity:
            raise ConfigError(
                f"{trained}, whose {role} is {identity}, and model={run.model.name} has {pair_info.checkpoints.get(role)}: "
                "train one for this pair"
            )
    if card.get("tokenizer", pair_info.tokenizer_key) != pair_info.tokenizer_key:
        raise ConfigError(
            f"{trained}, whose tokenizer differs from that of model={run.model.name}: train one for this pair"
        )
    for role, model_option in (("target", "model.quantization"), ("draft", "model.draft_quantization")):
        name, value = f"{role}_quantization", pair_info.metadata.quantization(role)
        if name in card and card[name] != value:  # cards of earlier versions lack it
            raise ConfigError(
                f"{trained}, trained with {model_option}={show(card[name])}, and this run has {model_option}={show(value)}: "
                "train one with the options of this run"
            )
    wanted = width_of(head.features, {f"{role}_hidden": int(c.hidden_size) for role, c in pair_info.configs.items()})
    if head.size != wanted:
        raise ConfigError(f"{trained} with {head.size} features, and this pair gives {wanted}: train one for this pair")
    settings = dict(trained_for)
    if "slot" in head.features and card.get("num_draft") not in run.num_draft:
        settings["num_draft"] = run.num_draft[0]
    for name, value in settings.items():
        if name in card and card[name] != value:
            warn(
                f"{option} was trained with {name}={card[name]}, but this run has {name}={value}: its estimates may be worse"
            )


def warn_of_foreign_drafter_heads(run: Run, parts: Parts) -> None:
    """Warn of a drafter's gate or head that was trained for another task or temperature. Its estimates or drafts are then worse,
    but texts are not.
    """
    from sdbench.draft.gate import DRAFTING

    for option, drafter, card in drafter_cards(parts):
        name = f"drafter.{option}" if len(parts.drafters) == 1 else f"drafter.{drafter.name}.{option}"
        settings: dict[str, Any] = {"task": run.task.name}
        if option == "length_head" or run.temperature > 0:  # heads cannot be trained at 0
            settings["temperature"] = run.temperature
        for key, value in settings.items():
            if key in card and card[key] != value:
                warn(
                    f"{name} was trained with {key}={card[key]}, but this run has {key}={value}: its drafts or estimates may be "
                    "worse, its texts are not"
                )
        if option == "length_head":
            _warn_of_unknown_drafting(run, drafter, name, card.get(DRAFTING, {}))


def _warn_of_unknown_drafting(run: Run, drafter: DrafterClass, name: str, known: Mapping[str, Any]) -> None:
    """Warn if the run sets options that are not in `known`, those that a gate's card names, as in earlier versions of sdbench."""
    drafting = drafting_of(run, drafter).items()
    options = [f"{key}={show(value)}" for key, value in drafting if value is not None and key not in known]
    if options:
        warn(
            f"{name} was trained by an earlier version of sdbench, which did not record whether {', '.join(options)} was set: if "
            "not, its estimates are wrong; train it again to be sure"
        )
