"""Parse the words of a command line: paths, and options as KEY=VALUE, --KEY=VALUE or --KEY VALUE.

An option may be prefixed by its group, as in task.shots=5: `groups` are the prefixes that are removed.
"""

import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from sdbench.config import nearest
from sdbench.subcommand import Exit

OPTION = re.compile(r"(?:--)?([A-Za-z_]+(?:\.[A-Za-z_]+)?)=(.*)", re.DOTALL)
ESCAPE = re.compile(r"\\[nrt]")  # two characters where a line break or a tab was meant


def key_of(word: str) -> str:
    """Return the key of KEY=VALUE, without Hydra's prefixes."""
    return word.partition("=")[0].lstrip("+~")


@dataclass(frozen=True, slots=True)
class Words:
    """Paths in order, and each option as text."""

    paths: tuple[str, ...]
    options: Mapping[str, str]


def parse_words(
    words: Sequence[str], options: Mapping[str, str], *, groups: Sequence[str] = (), keeps_unknown: bool = False
) -> Words:
    """Parse words by `options` {name: an example of its value}; any other option is a ValueError of one sentence.

    With `keeps_unknown` all other words, such as options for another parser, are returned as paths.
    """
    paths: list[str] = []
    given: dict[str, str] = {}
    rest = iter(words)
    for word in rest:
        match = OPTION.fullmatch(word)
        if match is None and not word.startswith("-"):
            paths.append(word)
            continue
        name = match[1] if match else word.removeprefix("--")
        group, dot, rest_of_name = name.partition(".")
        name = rest_of_name if dot and group in groups else name
        if name not in options and keeps_unknown:
            paths.append(word)
            continue
        if name not in options:
            raise ValueError(f"{name if match else word} is not an option {nearest(name.lstrip('-'), options)}")
        value = match[2] if match else next(rest, "")
        if not value:
            raise ValueError(f"{'' if match else '--'}{name} needs a value, for example {name}={options[name]}")
        if name in given:
            raise ValueError(f"{name} is given twice")
        given[name] = value
    return Words(tuple(paths), given)


@contextmanager
def exit_on_mistake(name: str, doc: str | None, words: Sequence[str]) -> Iterator[None]:
    """For scripts: --help prints `doc` and exits with 0; a ValueError inside is printed as one sentence, with exit code 2."""
    if {"-h", "--help"} & set(words):
        print(f"{doc}".strip())
        raise SystemExit(Exit.DONE)
    try:
        yield
    except ValueError as error:
        print(f"{name}: {error}", file=sys.stderr)
        raise SystemExit(Exit.BAD_CONFIG) from None


def choose(name: str, text: str, known: Iterable[str]) -> list[str]:
    """Return the names in a comma-separated list; ValueError for an unknown one."""
    known, names = tuple(known), text.split(",")
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"{name} must be among {', '.join(known)}, got {unknown[0]}")
    return names


def number(given: Words, name: str) -> float | None:
    """Return an option that is a number above 0; None if it is not given."""
    return _positive(name, given.options[name]) if name in given.options else None


def by_task(given: Words, name: str) -> float | dict[str, float] | None:
    """Return an option that is a number above 0, or {TASK: NUMBER, …}; None if it is not given."""
    text = given.options.get(name, "").strip()
    if not text.startswith("{"):
        return number(given, name)
    pairs = [part.partition(":") for part in text.strip("{}").split(",")]
    if not text.endswith("}") or not all(task.strip() and colon for task, colon, _ in pairs):
        raise ValueError(f"{name} by task must be written {{TASK: NUMBER, TASK: NUMBER}}, got {text}")
    return {task.strip(" '\""): _positive(f"{name} of {task.strip()}", value.strip()) for task, _, value in pairs}


def _positive(name: str, text: str) -> float:
    with suppress(ValueError):
        if 0 < float(text) < float("inf"):
            return float(text)
    raise ValueError(f"{name} must be a number above 0, got {text}")
