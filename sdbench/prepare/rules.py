"""The rules and drafters of a run: their classes, needs and limits, all before weights are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from sdbench.config import Component, ConfigError, RuleSweep, Run
from sdbench.errors import first_line
from sdbench.imports import import_object
from sdbench.prepare.versions import files_of, paths_of
from sdbench.types import DRAFTER_NEEDS, NEEDS, needs_of

if TYPE_CHECKING:
    from sdbench.types import Verifier


@dataclass(frozen=True)
class BuiltSweep:
    """A rule's sweep and its rules, one for each setting."""

    sweep: RuleSweep
    rules: tuple[Verifier, ...]


@dataclass(frozen=True)
class DrafterClass:
    """A drafter of the run: its name, options and class, and whether it reads the draft model."""

    component: Component
    kind: type
    needs_draft: bool
    translates: bool = False  # whether it may have another tokenizer than the target

    @property
    def name(self) -> str:
        return self.component.name

    @property
    def free(self) -> dict[str, Any]:
        """Options that may name files: not the length policy, and no value that the class reads as a word (`option_words`)."""
        words = getattr(self.kind, "option_words", {})
        options = self.component.free.items()
        return {name: value for name, value in options if name != "length" and value not in words.get(name, ())}

    @cached_property
    def files(self) -> dict[str, str]:
        """Hashes of the files in its options; of a records folder, its texts are hashed. For a large corpus this takes a while."""
        from sdbench.draft.corpus import digest_of_corpus

        return files_of(self.free, prefix="drafter", digest=digest_of_corpus)


@dataclass(frozen=True)
class Parts:
    """The rules and drafters of a run."""

    sweeps: tuple[BuiltSweep, ...]
    drafters: tuple[DrafterClass, ...]

    @property
    def translates(self) -> bool:
        """Whether a drafter reads the draft's tokenizer."""
        return any(drafter.translates for drafter in self.drafters)

    @property
    def has_one_vocabulary(self) -> bool:
        """Whether target and draft must have the same ids: yes, unless every drafter that reads the draft translates."""
        return not self.translates or any(drafter.needs_draft and not drafter.translates for drafter in self.drafters)


def build_parts(run: Run, ids_of: Callable[[str], Sequence[int]] | None = None) -> Parts:
    """Build every rule of the run and import the drafters' classes.

    `ids_of` encodes the texts with which some rules mark a span; without it they stay texts.
    """
    drafters = tuple(map(_drafter_class, run.drafters))
    return Parts(tuple(BuiltSweep(sweep, rules_of(sweep, ids_of)) for sweep in run.verifiers), drafters)


def rules_of(sweep: RuleSweep, ids_of: Callable[[str], Sequence[int]] | None) -> tuple[Verifier, ...]:
    """Return a rule for each setting. A marker that is not a single token is a ConfigError."""
    rules: list[Any] = [rule_of(sweep.target, setting) for setting in sweep.settings]
    for rule in rules:
        _needs(rule, NEEDS, f"verifier={sweep.name}")
    if ids_of is None:
        return tuple(rules)
    try:
        return tuple(rule.with_markers(ids_of) if hasattr(rule, "with_markers") else rule for rule in rules)
    except ValueError as error:
        raise ConfigError(f"verifier={sweep.name}: {error}") from None


def rule_of(target: str, setting: Mapping[str, Any]) -> Verifier:
    """Build a rule from the path of its class, with the rules within it. Its errors become ConfigErrors."""
    inner: dict[str, dict[str, Any]] = {}
    for key, value in setting.items():
        name, dot, rest = key.partition(".")
        if dot:
            inner.setdefault(name, {})[rest] = value
    arguments = {key: value for key, value in setting.items() if "." not in key}
    arguments |= {name: rule_of(str(options.pop("_target_")), options) for name, options in inner.items()}
    try:
        return import_object(target)(**arguments)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise ConfigError(f"verifier {target} cannot be built: {first_line(error)}") from None


def refuse_folder_of_run(run: Run, parts: Parts) -> None:
    """Raise if a drafter reads the texts that the run writes, because the keys of its cells would change with each text."""
    options = [(drafter, *option) for drafter in parts.drafters for option in paths_of(drafter.free)]
    for drafter, name, path in options:
        if path.resolve() == run.folder.resolve():
            raise ConfigError(
                f"drafter={drafter.name}: {name}={path} is the folder of this run, whose texts change while it runs: give "
                "name=NAME, to write into another"
            )


def _drafter_class(drafter: Component) -> DrafterClass:
    name = f"drafter={drafter.name}"
    try:
        kind = import_object(str(drafter.target))
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"{name} cannot be built: {first_line(error)}") from None
    if not isinstance(kind, type):
        raise ConfigError(f"{name} must name a class, and {drafter.target} is not one")
    needs = _needs(kind, DRAFTER_NEEDS, name)
    return DrafterClass(drafter, kind, "draft" in needs, "draft_tokenizer" in needs)


def _needs(part: object, known: frozenset[str], name: str) -> frozenset[str]:
    try:
        return needs_of(part, known)
    except ValueError as error:
        raise ConfigError(f"{name}: {error}") from None
