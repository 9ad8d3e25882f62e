"""The rules and the drafter of a run: their classes, what they need and cannot do; all before weights are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sdbench.config import ConfigError, RuleSweep, Run
from sdbench.errors import first_line
from sdbench.imports import import_object
from sdbench.types import DRAFTER_NEEDS, NEEDS, Limits, needs_of

if TYPE_CHECKING:
    from sdbench.types import Verifier


class LimitError(ConfigError):
    """A rule or a drafter cannot do what the run asks."""


@dataclass(frozen=True)
class BuiltSweep:
    """A rule's sweep and its rules, one a setting."""

    sweep: RuleSweep
    rules: tuple[Verifier, ...]


@dataclass(frozen=True)
class Parts:
    """What decides what is drafted and kept."""

    sweeps: tuple[BuiltSweep, ...]
    drafter: type
    needs_draft: bool  # whether the drafter reads the draft model


def build_parts(run: Run) -> Parts:
    """Every rule of the run and the drafter's class; what one of them needs and does not get is a ConfigError."""
    drafter = _drafter_class(run)
    sweeps = tuple(
        BuiltSweep(sweep, tuple(rule_of(sweep.target, setting) for setting in sweep.settings))
        for sweep in run.verifiers
    )
    parts = Parts(sweeps, drafter, "draft" in _needs(drafter, DRAFTER_NEEDS, f"drafter={run.drafter.name}"))
    for built in sweeps:
        for rule in built.rules:
            _needs(rule, NEEDS, f"verifier={built.sweep.name}")
    _refuse_broken_limits(run, parts)
    return parts


def can_run(run: Run, rule: RuleSweep) -> bool:
    """Whether a rule of the run is within its limits and, if it needs a trained head, has got one."""
    heads = [value for knob in rule.knobs if knob.trained for value in knob.values]
    if heads:
        return "none" not in heads
    try:
        build_parts(replace(run, verifiers=(rule,)))
    except LimitError:
        return False
    return True


def rule_of(target: str, setting: Mapping[str, Any]) -> Verifier:
    """A rule of a class named by its path, with the rules within it; its own complaint is the user's."""
    inner: dict[str, dict[str, Any]] = {}
    for key, value in setting.items():
        name, dot, rest = key.partition(".")
        if dot:
            inner.setdefault(name, {})[rest] = value
    own = {key: value for key, value in setting.items() if "." not in key}
    own |= {name: rule_of(str(options.pop("_target_")), options) for name, options in inner.items()}
    try:
        return import_object(target)(**own)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise ConfigError(f"verifier {target} cannot be made: {first_line(error)}") from None


def with_markers(parts: Parts, ids_of: Callable[[str], Sequence[int]]) -> Parts:
    """The same with texts that mark a span looked up in the target's tokenizer: a text that is no single token is a ConfigError."""
    return replace(parts, sweeps=tuple(_with_markers(built, ids_of) for built in parts.sweeps))


def _with_markers(built: BuiltSweep, ids_of: Callable[[str], Sequence[int]]) -> BuiltSweep:
    rules: list[Any] = list(built.rules)
    try:
        known = tuple(rule.with_markers(ids_of) if hasattr(rule, "with_markers") else rule for rule in rules)
    except ValueError as error:
        raise ConfigError(f"verifier={built.sweep.name}: {error}") from None
    return replace(built, rules=known)


def _drafter_class(run: Run) -> type:
    try:
        kind = import_object(str(run.drafter.target))
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"drafter={run.drafter.name} cannot be made: {first_line(error)}") from None
    if not isinstance(kind, type):
        raise ConfigError(f"drafter={run.drafter.name} must name a class, and {run.drafter.target} is none")
    return kind


def _needs(part: object, known: frozenset[str], name: str) -> frozenset[str]:
    try:
        return needs_of(part, known)
    except ValueError as error:
        raise ConfigError(f"{name}: {error}") from None


def _refuse_broken_limits(run: Run, parts: Parts) -> None:
    """The first limit that a setting of the run breaks."""
    named: list[tuple[str, object]] = [(f"drafter={run.drafter.name}", parts.drafter)]
    named += [(f"verifier={built.sweep.name}", rule) for built in parts.sweeps for rule in built.rules]
    has_draft = run.model.draft is not None
    if parts.needs_draft and not has_draft:
        raise ConfigError(f"drafter={run.drafter.name} needs a draft model, and there is none: give model.draft=ID")
    for name, part in named:
        limits = getattr(part, "limits", Limits())
        for k in run.num_draft:
            sentence = limits.broken_by(
                name,
                temperature=run.temperature,
                num_draft=k,
                has_draft_model=has_draft,
                has_logits=parts.needs_draft and has_draft,
            )
            if sentence is not None:
                raise LimitError(sentence)
