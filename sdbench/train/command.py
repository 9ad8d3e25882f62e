"""The trainings' command lines: their own words, the runner's words, and errors in one sentence."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sdbench.config import ConfigError, show
from sdbench.hub import HubError

DONE, BAD_CONFIG, INTERRUPTED = 0, 2, 130
Kind = Callable[[str], Any]


def listed(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.strip("[]").split(",") if word.strip())


WORDS: Mapping[str, Kind] = {
    "steps": int,
    "prompts": int,
    "samples": int,
    "hidden": int,
    "seed": int,
    "price": float,
    "rate": float,
    "features": listed,
}


def main(kind: str, argv: Sequence[str], about: str) -> int:
    """`kind` is what is trained: ensemble."""
    if {"-h", "--help"} & set(argv):
        print(about.strip())
        return DONE
    try:
        _main(kind, argv)
    except (ConfigError, HubError) as error:
        print(f"{kind}: {error}", file=sys.stderr)
        return BAD_CONFIG
    except KeyboardInterrupt:
        print(f"{kind}: interrupted; run the same command again to go on", file=sys.stderr)
        return INTERRUPTED
    return DONE


def split(argv: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """The training's own words, and the runner's."""
    own, rest = {}, []
    for word in argv:
        key, _, value = word.partition("=")
        if key in (*WORDS, "out", "rows", "reward"):
            own[key] = value
        else:
            rest.append(word)
    return own, rest


def recipe_words(own: Mapping[str, str]) -> dict[str, Any]:
    """Words of a recipe as what they are."""
    out: dict[str, Any] = {}
    for key, text in own.items():
        if key not in WORDS:
            continue
        try:
            out[key] = WORDS[key](text)
        except ValueError:
            raise ConfigError(f"{key} must be a number, got {show(text)}") from None
        if isinstance(out[key], int | float) and out[key] < 0:
            raise ConfigError(f"{key} must not be below 0, got {show(text)}")
    return out


def _main(kind: str, argv: Sequence[str]) -> None:
    from sdbench.train.course import Course
    from sdbench.train.ensemble import EnsembleTraining, Recipe

    own, rest = split(argv)
    recipe = Recipe(**recipe_words(own))
    if not any(word.startswith(("temperature=", "decode=")) for word in rest):
        rest.append("temperature=1")
    rows = int(own.get("rows", 1000))
    course = Course.make(rest, rows=rows, reward=own.get("reward"))
    out = Path(own.get("out") or Path("results") / "heads" / f"{course.run.model.name}-{course.run.task.name}")
    EnsembleTraining(course, recipe, out)()
    print(out)
