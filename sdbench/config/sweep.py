"""Rules and the settings of their sweeps: the knobs that a rule's YAML file declares, and their values in a run."""

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sdbench.config.checks import ConfigError, as_list, integer, nearest, number, refuse_unknown, show, string, switch

BASELINES = (
    "target",
    "draft",
    "lossless",
    "generate",
    "assisted",
)  # reserved: records use these names for cells that a run adds itself
DECLARES = ("low", "high", "open", "whole", "strict", "equals", "sweep", "choices", "draws", "text", "trained")
INTERNAL = ("name", "_target_", "knobs")


@dataclass(frozen=True, slots=True)
class Knob:
    """A knob as declared in YAML, with its values in this run. At the value `strict` the rule equals the rule `equals`."""

    name: str
    values: tuple[Any, ...]
    choices: tuple[Any, ...] = ()
    strict: Any = None
    equals: str | None = None
    draws: tuple[Any, ...] = ()  # the values at which the rule draws random numbers even at temperature 0
    is_text: bool = False  # its values are names, such as files
    trained: str | None = None  # the folder below results/ that contains trained:TASK

    def rank(self, value: Any) -> float | None:
        """Return the distance from the strict end, or None for a knob without one. For choices it is the distance in their list.

        If the strict end is infinite, the rank is a number in (0, π) that grows with the distance.
        """
        if self.strict is None:
            return None
        if self.choices:
            return float(abs(self.choices.index(value) - self.choices.index(self.strict)))
        if math.isinf(self.strict):
            return math.atan2(1.0, math.copysign(1.0, self.strict) * value)
        return abs(float(value) - float(self.strict))

    @classmethod
    def check(cls, key: str, name: str, given: object, declared: object) -> "Knob":
        """Return a knob; raise ConfigError for a wrong value or declaration.

        `declared` is {low, high, open, whole, strict, equals, sweep}, {choices, strict, equals} or {text}.
        """
        if not isinstance(declared, Mapping):
            raise ConfigError(f"knobs.{name} must be a mapping such as {{low: 0, high: 1}}, got {show(declared)}")
        refuse_unknown(f"knobs.{name}.", declared, DECLARES)
        given = declared.get("sweep") if given is None else given
        values = tuple(_value(key, value, declared) for value in as_list(key, given))
        choices, strict = tuple(declared.get("choices") or ()), declared.get("strict")
        if strict is not None and not _is_infinite(strict):
            _value(f"knobs.{name}.strict", strict, declared)
        equals = None if declared.get("equals") is None else string(f"knobs.{name}.equals", declared["equals"])
        if equals is not None and strict is None:
            raise ConfigError(
                f"knobs.{name}.equals={equals} needs the value at which the rules are equal: add knobs.{name}.strict"
            )
        draws, is_text = tuple(declared.get("draws") or ()), bool(declared.get("text"))
        return cls(name, values, choices, strict, equals, draws, is_text, declared.get("trained"))


@dataclass(frozen=True, slots=True)
class RuleSweep:
    """A rule and the settings of its sweep, each as keyword arguments of the rule's class."""

    name: str
    target: str
    knobs: tuple[Knob, ...]
    settings: tuple[Mapping[str, Any], ...]
    draws: bool = False  # whether the rule draws random numbers at temperature 0 for all values of its knobs

    @property
    def has_w(self) -> bool:
        return any(knob.name == "w" for knob in self.knobs)

    @property
    def is_drawn(self) -> bool:
        """Return whether a setting of this sweep draws random numbers at temperature 0, so that its samples differ."""
        return self.draws or any(set(knob.values) & set(knob.draws) for knob in self.knobs)

    @classmethod
    def check(cls, tree: Mapping[str, Any], w: object, *, where: str = "verifier") -> "RuleSweep":
        """Return a rule's sweep; raise ConfigError for a mistake in it.

        A knob named w takes the top-level w. `where` is the option under which the user configures the rule.
        """
        name, target = string(f"{where}.name", tree.get("name")), string(f"{where}._target_", tree.get("_target_"))
        if name in BASELINES:
            raise ConfigError(f"{where}.name cannot be {name}: runs have a cell of that name; give another name")
        declared: Mapping[str, Any] = tree.get("knobs") or {}
        options = flat({key: value for key, value in tree.items() if key not in (*INTERNAL, "draws")})
        if "w" in options:
            raise ConfigError(f"{where}.w is not an option: write w=VALUE")
        if declared:
            settable = {name: value for name, value in options.items() if not name.endswith("._target_")}
            refuse_unknown(f"{where}.", settable, [name for name in declared if name != "w"])
        given = {knob: (f"{where}.{knob}", options.get(knob)) for knob in declared}
        if w is not None and "w" in declared:
            given["w"] = ("w", w)
        knobs = tuple(Knob.check(key, knob, value, declared[knob]) for knob, (key, value) in given.items())
        rest = {key: value for key, value in options.items() if key not in declared}
        points = itertools.product(*(knob.values for knob in knobs))
        settings = tuple({**rest, **dict(zip(declared, point, strict=True))} for point in points)
        return cls(name, target, knobs, settings, switch(f"{where}.draws", tree.get("draws", False)))


def check_rules(tree: Mapping[str, Any], w: object) -> tuple[RuleSweep, ...]:
    """Return the sweep of one rule, or of several by name. `w` goes to all rules that have it; at least one must."""
    if "_target_" in tree:
        rules = (RuleSweep.check(tree, w),)
    else:
        names = [key for key, value in tree.items() if isinstance(value, Mapping) and "_target_" in value]
        for key in tree:
            if key not in names:
                raise ConfigError(
                    f"verifier.{key} is not an option: write verifier.RULE.{key}=VALUE {nearest(key, names)}"
                )
        rules = tuple(RuleSweep.check(value, w, where=f"verifier.{key}") for key, value in tree.items())
    names = [rule.name for rule in rules]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"verifier names {name} twice: give one of the two another name in its file")
    if w is not None and not any(rule.has_w for rule in rules):
        knobs = ", ".join(f"verifier.{knob.name}" for rule in rules for knob in rule.knobs)
        has = "none has it" if len(rules) > 1 else f"its knobs are {knobs}" if knobs else "it has no knob"
        rule = ",".join(names)
        raise ConfigError(f"verifier={rule} takes no w, got w={show(w)}: remove w or use verifier=ensemble; {has}")
    return rules


def flat(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options as one level: those of a nested rule, a mapping with a `_target_`, get names such as rule.eps."""
    plain: dict[str, Any] = {}
    for key, value in options.items():
        is_rule = isinstance(value, Mapping) and "_target_" in value
        plain |= {f"{key}.{name}": inner for name, inner in flat(value).items()} if is_rule else {key: value}
    return plain


def _value(key: str, value: object, declared: Mapping[str, Any]) -> object:
    if declared.get("text"):
        return value if isinstance(value, int) and not isinstance(value, bool) else string(key, value)
    if declared.get("choices"):
        for choice in declared["choices"]:
            if choice == value and isinstance(choice, bool) == isinstance(value, bool):  # true is not the number 1
                return choice
        raise ConfigError(f"{key} cannot be {show(value)} {nearest(value, map(show, declared['choices']))}")
    if declared.get("whole"):
        return integer(key, value, declared.get("low", 0), declared.get("high", 10**9))
    low, high = declared.get("low", -math.inf), declared.get("high", math.inf)
    return number(key, value, low, high, is_open=declared.get("open", False))


def _is_infinite(value: object) -> bool:
    return isinstance(value, float) and math.isinf(value)
