"""Checks of single values. Every error is one sentence with the option, its value, and how to correct it."""

import difflib
import math
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

from sdbench.imports import first_missing

OF_THE_HUB = ("split", "shots_split", "revision", "dataset_config")  # options that `data` leaves without effect


class ConfigError(ValueError):
    """A mistake of the user, as one sentence."""


def config_dir() -> Path:
    """Return the folder of the YAML files: sdbench/configs in an installed package, configs/ in a source tree."""
    here = Path(__file__).parents[1]
    inside = here / "configs"
    return inside if inside.is_dir() else here.parent / "configs"


def nearest(word: object, choices: Iterable[object]) -> str:
    """Return a hint in parentheses: the nearest match and all choices."""
    names = [str(choice) for choice in choices]
    match = difflib.get_close_matches(str(word), names, n=1, cutoff=0.5)
    hint = f"did you mean {match[0]}? " if match else ""
    return f"({hint}choices: {', '.join(names)})"


def show(value: object) -> str:
    """Return a value as the user would type it, on one line and shortened."""
    text = "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    text = "".join(c if c.isprintable() else " " for c in text)
    return text if len(text) <= 80 else text[:77] + "..."


def integer(key: str, value: object, low: int, high: int = 10**9) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        limit = f"of at least {low}" if high == 10**9 else f"between {low} and {high}"
        raise ConfigError(f"{key} must be a whole number {limit}, got {show(value)}")
    return value


def integers(key: str, value: object, low: int, high: int) -> list[int]:
    """Return whole numbers in [low, high], given as one or as a list, without duplicates."""
    return [integer(key, each, low, high) for each in as_list(key, value)]


def optional_integer(key: str, value: object, low: int) -> int | None:
    return None if value is None else integer(key, value, low)


def number(key: str, value: object, low: float, high: float, *, is_open: bool = False) -> float:
    """Return a finite number in [low, high], or in (low, high] if open."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < math.inf
    if not is_number or not low <= value <= high or (is_open and value == low):  # type: ignore[operator]
        limit = f"above {low:g}" if is_open else f"between {low:g} and {high:g}"
        if math.isinf(high) != is_open:  # closed without an upper end, or open with one
            limit = f"of at least {low:g}" if not is_open else f"{limit} and at most {high:g}"
        raise ConfigError(f"{key} must be a number {limit}, got {show(value)}")
    return float(value)  # type: ignore[arg-type]


def margins(key: str, value: object, task: str) -> float | dict[str, float]:
    """Return margins in points of 100: one number, or {task: number} with a value for this task.

    The key may be the task, its name without -tiny, or `default`.
    """
    if not isinstance(value, Mapping):
        if isinstance(value, str | list | tuple) or value is None:
            raise ConfigError(f"{key} must be a number, or numbers by task as {key}={{{task}: 1}}, got {show(value)}")
        return number(key, value, 0, 100, is_open=True)
    points = {str(name): number(f"{key} of {name}", each, 0, 100, is_open=True) for name, each in value.items()}
    if not {task, task.removesuffix("-tiny"), "default"} & set(points):
        raise ConfigError(f"{key} has no value for task {task}: add {task}: POINTS, or default: POINTS")
    return points


def choice(key: str, value: object, choices: Sequence[str]) -> str:
    if not isinstance(value, str) or value not in choices:
        raise ConfigError(f"{key} cannot be {show(value)} {nearest(value, choices)}")
    return value


def string(key: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"{key} must be a text, got {show(value) or 'an empty one'}")
    return value


def switch(key: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"{key} must be true or false, got {show(value)}")
    return value


def options(key: str, value: object) -> Mapping[str, object]:
    """Return a mapping; numbers in it, at any depth, are finite."""
    if not isinstance(value, Mapping):
        raise ConfigError(f"{key} must be options by name, as {key}={{NAME: VALUE}}, got {show(value)}")
    for name, each in value.items():
        if isinstance(each, Mapping):
            options(f"{key}.{name}", each)
        numbers = each if isinstance(each, list | tuple) else [each]
        if any(isinstance(number, float) and not math.isfinite(number) for number in numbers):
            raise ConfigError(f"{key}.{name} must be finite, got {show(each)}")
    return value


def as_list(key: str, value: object) -> list[object]:
    """Return a value or a list of values as a list without duplicates, in the given order."""
    values = list(value) if isinstance(value, list | tuple) else [value]
    if not values:
        raise ConfigError(f"{key} must not be an empty list; leave it out for its default")
    return [v for i, v in enumerate(values) if v not in values[:i]]


def refuse_unknown(where: str, given: Mapping[str, object], names: Iterable[str]) -> None:
    names = list(names)
    for key in given:
        if key not in names:
            raise ConfigError(f"{where}{key} is not an option {nearest(key, names)}")


def require_lm_eval(paths: Iterable[str]) -> None:
    """Raise ConfigError if the installed lm_eval lacks one of these; ModuleNotFoundError if it is not installed."""
    if (missing := first_missing(paths)) is not None:
        raise ConfigError(
            f"lm_eval {version('lm_eval')} has no {missing}, which sdbench uses: install lm-eval 0.4.13 or a later 0.4"
        )


def refuse_beside_data(options: Mapping[str, object]) -> None:
    """Raise ConfigError for an option of the hub's data set that is given beside a file. A training names its split, train."""
    if options.get("data") in (None, "null"):
        return
    for name in OF_THE_HUB:
        value = options.get(name)
        if value not in (None, "null") and (name, value) != ("split", "train"):
            raise ConfigError(
                f"task.{name}={show(value)} has no effect beside task.data={show(options['data'])}, whose rows are all read: "
                "remove one of the two"
            )
