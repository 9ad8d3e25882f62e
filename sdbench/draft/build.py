"""Build drafters by name: find the class, and read and check the options of its file."""

from collections.abc import Iterable, Mapping
from typing import Any

import yaml

from sdbench.config import CONSTANT, LENGTH_OPTIONS, Component, config_dir, nearest
from sdbench.draft.length import VariableLength
from sdbench.draft.policies import POLICIES, LengthPolicy, policy_of
from sdbench.imports import import_object
from sdbench.types import DRAFTER_NEEDS, Drafter, DraftSetup, needs_of

INTERNAL = ("name", "choices", "knobs")  # keys of a drafter's file that are not options of the drafter


def class_of(drafter: object) -> tuple[Any, Mapping[str, Any]]:
    """Return a drafter's class and the options of its file; an object is returned unchanged."""
    if not isinstance(drafter, str):
        return drafter, {}
    files = {path.stem: path for path in (config_dir() / "drafter").glob("*.yaml")}
    if drafter not in files:
        raise ValueError(f"drafter={drafter} names no file in configs/drafter {nearest(drafter, sorted(files))}")
    tree = yaml.safe_load(files[drafter].read_text()) or {}
    return import_object(str(tree.pop("_target_"))), {key: value for key, value in tree.items() if key not in INTERNAL}


def build(drafter: object, setup: DraftSetup, options: Mapping[str, Any] | None = None) -> Drafter:
    """Build a drafter for this target; an object is returned unchanged. A need that is not met is a ValueError."""
    kind, defaults = class_of(drafter)
    needs = needs_of(kind, DRAFTER_NEEDS)
    if not isinstance(kind, type):
        return kind
    name = drafter if isinstance(drafter, str) else kind.__name__
    parts = (
        ("draft", setup.draft, "draft model"),
        ("tokenizer", setup.tokenizer, "tokenizer"),
        ("draft_tokenizer", setup.draft_tokenizer, "tokenizer of the draft"),
    )
    for need, part, label in parts:
        if need in needs and part is None:
            raise ValueError(f"drafter={name} needs a {label}: give one")
    shares = "draft" in needs and "draft_tokenizer" not in needs
    if shares and setup.draft.vocab_size < (setup.warp.vocab_size or 0):
        raise ValueError(
            f"drafter={name} needs a draft with the target's tokenizer: use drafter=intersection or drafter=universal"
        )
    if not hasattr(kind, "build"):
        raise ValueError(f"drafter={name} must have a classmethod build(setup, …): derive its class from BaseDrafter")
    rest, policy = policy_in({**defaults, **(options or {})})
    built = kind.build(setup, **rest)  # type: ignore[attr-defined]
    return built if type(policy) is LengthPolicy else VariableLength(built, policy, setup.warp, setup.target.device)


def cache_share(drafters: Iterable[Component], config: Any) -> float:
    """Return the largest of these drafters' `cache_share` (lm/memory.py)."""
    shares = [0.0]
    for drafter in drafters:
        kind, (options, _) = import_object(str(drafter.target)), policy_in(drafter.options)
        if hasattr(kind, "cache_share"):
            shares.append(kind.cache_share(config, **options))
    return max(shares)


def policy_in(options: Mapping[str, Any]) -> tuple[dict[str, Any], LengthPolicy]:
    """Return the options of a drafter's class, and the length policy that its other options describe."""
    length = {key: options[key] for key in LENGTH_OPTIONS if key in options}
    rest = {key: value for key, value in options.items() if key not in LENGTH_OPTIONS}
    return rest, policy_of(length.pop("length", CONSTANT), length)


def calls_sure(kind: type, options: Mapping[str, Any]) -> bool:
    """Return whether this drafter may mark tokens as sure."""
    policy = POLICIES.get(options.get("length", CONSTANT), LengthPolicy)
    return bool(getattr(kind, "calls_sure", False)) or policy.calls_sure


def check(kind: type, options: Mapping[str, Any], setup: DraftSetup, num_draft: Iterable[int]) -> None:
    """Raise ValueError for invalid options before weights are read: `setup` then has no models."""
    rest, policy = policy_in(options)
    shortest = min(num_draft, default=policy.least)
    if shortest < policy.least:
        name = options["length"]
        raise ValueError(f"length={name} takes a num_draft of at least {policy.least}, got num_draft={shortest}")
    policy.check(kind, setup)
    if hasattr(kind, "check"):
        kind.check(setup, **rest)  # type: ignore[attr-defined]
