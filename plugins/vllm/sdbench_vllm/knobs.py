"""The rule that a request names, checked in the front end, where a mistake is a response with HTTP 400 and not the engine's end."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache, lru_cache
from inspect import isabstract
from typing import Any

from sdbench.config import Knob, config_dir
from sdbench.imports import import_object
from sdbench.types import needs_of
from sdbench.verify import Exact, Tokenwise

RULE, KNOBS, VERSION = "sdbench_rule", "sdbench_knobs", "sdbench_version"
WITHIN = " of "  # separates the version of a rule from that of the rule within it
LOSSLESS = Exact()


def rule_of(extra: Mapping[str, Any] | None, temperature: float) -> Tokenwise:
    """Return the rule that a request's `vllm_xargs` names, the lossless rule if none; ValueError of one sentence for a mistake.

    A request may name the version of the rule, because the server's copy of sdbench may differ from the client's.
    """
    extra = extra or {}
    name, knobs, version = extra.get(RULE), extra.get(KNOBS, "{}"), extra.get(VERSION)
    if name is None:
        if KNOBS in extra:
            raise ValueError(f"{KNOBS} without {RULE}: name the rule that takes them")
        return LOSSLESS
    if not isinstance(name, str) or not isinstance(knobs, str) or not isinstance(version, str | None):
        raise ValueError(f"{RULE}, {KNOBS} and {VERSION} must be texts, got {name!r}, {knobs!r} and {version!r}")
    rule = _made(name, knobs, version)
    settings = {"num_draft": 1, "has_draft_model": True, "has_logits": True, "calls_sure": False}
    if broken := rule.limits.broken_by(name, temperature=temperature, **settings):
        raise ValueError(broken)
    return rule


def version_of(rule: Tokenwise) -> str:
    """Return the version of a rule and of the rules within it, in the form of a cell's key in sdbench."""
    values = [getattr(rule, one.name) for one in fields(rule)] if is_dataclass(rule) else []
    return WITHIN.join((str(rule.version), *(version_of(value) for value in values if isinstance(value, Tokenwise))))


def _refuse_other_version(name: str, here: str, wanted: str) -> None:
    if here != wanted:
        raise ValueError(
            f"{name} has version {here} in this server's environment and {wanted} in the request: install sdbench and plugins/vllm "
            "there again, from the client's checkout"
        )


@lru_cache(maxsize=4096)
def _made(name: str, knobs: str, version: str | None = None) -> Tokenwise:
    try:
        found = import_object(name) if name.startswith("sdbench.verify.") else None
    except (ImportError, AttributeError):
        found = None
    if not (isinstance(found, type) and issubclass(found, Tokenwise) and not isabstract(found)):
        raise ValueError(f"{RULE}={name!r} is no rule of sdbench.verify that judges one token at a time")
    if version is not None:  # before the knobs, which another version may not have
        _refuse_other_version(name, str(found.version), version.partition(WITHIN)[0])
    try:
        values = json.loads(knobs)
    except ValueError:
        raise ValueError(f"{KNOBS} must be a JSON object, got {knobs!r}") from None
    known = {one.name for one in fields(found)} if is_dataclass(found) else set()
    if not isinstance(values, dict) or not set(values) <= known:
        raise ValueError(
            f"{KNOBS} of {name} must be an object with {', '.join(sorted(known)) or 'nothing'}, got {knobs!r}"
        )
    inner = {knob: value for knob, value in values.items() if isinstance(value, dict)}
    for knob, value in inner.items():  # the value is a rule itself, as in the rule Coin
        if set(value) != {RULE, KNOBS} or not isinstance(value[RULE], str):
            raise ValueError(f"{knob} of {name} must be a rule with {RULE} and {KNOBS}, got {value!r}")
        values[knob] = _made(value[RULE], json.dumps(value[KNOBS]))
    plain = {knob: value for knob, value in values.items() if knob not in inner}
    if not all(isinstance(value, str | bool | int | float | type(None)) for value in plain.values()):
        raise ValueError(f"{KNOBS} of {name} must be numbers and words, got {knobs!r}")
    declared = declared_knobs().get(found.__name__, {})
    values |= {knob: check_knob(f"{knob} of {name}", value, declared.get(knob)) for knob, value in plain.items()}
    try:
        rule = found(**values)
    except TypeError as error:
        raise ValueError(f"{name} cannot be made with {knobs!r}: {error}") from None
    except OverflowError:
        raise ValueError(f"{KNOBS} of {name} has a number that is too large, got {knobs!r}") from None
    if version is not None:
        _refuse_other_version(name, version_of(rule), version)
    if states := needs_of(rule) & {"target_hidden", "draft_hidden"}:
        raise ValueError(f"{name} reads {sorted(states)[0]}, the states of a model, which vLLM does not hand over")
    return rule


@cache
def declared_knobs() -> dict[str, dict[str, Any]]:
    """Return class name -> the knobs that its YAML declares, with ranges and types, as on the command line of sdbench."""
    import yaml

    trees = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in (config_dir() / "verifier").glob("*.yaml")]
    return {str(tree["_target_"]).rpartition(".")[2]: tree.get("knobs") or {} for tree in trees}


def check_knob(key: str, value: Any, declared: Mapping[str, Any] | None) -> Any:
    """Return the value in the type that its YAML declares; ValueError if it is out of range. The rule checks undeclared fields."""
    if declared is None or (
        isinstance(value, float) and value == declared.get("strict")
    ):  # the strict end may be infinite
        return value
    if value is None:
        raise ValueError(f"{key} must not be null")
    return Knob.check(key, key, value, declared).values[0]
