"""The trainings' command lines: their own words, the runner's words, and errors in one sentence."""

from __future__ import annotations

import fcntl
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

from sdbench.config import ConfigError, nearest, show
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
    "swaps": int,
    "rows": int,
    "loss": str,
    "price": float,
    "rate": float,
    "decay": float,
    "features": listed,
}

LEAST = {"steps": 1, "prompts": 1, "samples": 1, "swaps": 1, "rows": 1, "rate": 1e-9}


def main(kind: str, argv: Sequence[str], about: str) -> int:
    """`kind` is what is trained: ensemble, judge or distil."""
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
        if key in (*WORDS, "out", "reward"):
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
        if isinstance(out[key], float) and not math.isfinite(out[key]):
            raise ConfigError(f"{key} must be a number, got {show(text)}")
        if isinstance(out[key], int | float) and not out[key] >= LEAST.get(key, 0):
            raise ConfigError(f"{key} must be at least {LEAST.get(key, 0):g}, got {show(text)}")
    return out


def training_of(kind: str) -> tuple[Any, Any, str, str]:
    """Its recipe, its class, its usual temperature, and the folder below results/."""
    from sdbench.train import distill, ensemble, judge

    if kind == "judge":
        return judge.Recipe, judge.JudgeTraining, "0", "judges"
    if kind == "distil":
        return distill.Recipe, distill.Distillation, "1", "drafts"
    return ensemble.Recipe, ensemble.EnsembleTraining, "1", "heads"


def _main(kind: str, argv: Sequence[str]) -> None:
    from sdbench.train.course import Course, composed

    own, rest = split(argv)
    make_recipe, training, temperature, folder = training_of(kind)
    words = recipe_words(own)
    known = {field.name for field in fields(make_recipe)}
    for key in words:
        if key not in known:
            raise ConfigError(f"{key} is no option of this training {nearest(key, sorted(known))}")
    try:
        recipe = make_recipe(**words)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if not any(word.startswith(("temperature=", "decode=")) for word in rest):
        rest.append(f"temperature={temperature}")
    run = composed(rest, recipe)
    name = "-".join([run.model.name, run.task.name, *([recipe.loss] if kind == "distil" else [])])
    out = Path(own.get("out") or Path("results") / folder / name)
    if out.is_file() or (kind == "distil" and out.exists()):
        raise ConfigError(f"out={out} is there already: give another out=, or delete it")
    with alone(out):
        training(Course.make(run, rest, recipe, reward=own.get("reward")), recipe, out)()
    print(out)


@contextmanager
def alone(out: Path) -> Iterator[None]:
    """Two trainings at once would write over each other: the second is a ConfigError, as is a place that cannot be written to."""
    lock = out.with_name(f".{out.name}.lock")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        file = open(lock, "w")  # noqa: SIM115 - held until the end
    except OSError as error:
        raise ConfigError(f"out={out} cannot be written to: {error.strerror}") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"out={out} is being written to by another training: give another out=, or wait"
            ) from None
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)
