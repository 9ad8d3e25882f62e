"""Parse the command line and translate it into Hydra's overrides."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sdbench.config import ConfigError, member_options, nearest, show
from sdbench.config.checks import refuse_beside_data
from sdbench.words import ESCAPE, key_of

CLASS_GROUPS = (
    "verifier",
    "drafter",
    "task",
)  # groups whose class may be given on the command line: GROUP._target_=module.Class
LISTS = ("verifier", "drafter")  # groups of which a run may have several: GROUP=[A,B]
OPEN = (
    "model.chat_options.",
    "task.bounds.",
    *(f"engine.{name}." for name in ("args", "speculative", "env", "request", "urls", "headers")),
)
MAPPINGS = ("margin={", *(f"{prefix[:-1]}={{" for prefix in OPEN))  # values whose keys are in no file
FLAGS = {
    "-h": "help",
    "--help": "help",
    "--version": "version",
    "--cfg": "config",
    "--plan": "plan",
    "--prefetch": "prefetch",
}
EXAMPLES = {"verifier": "verifier=[ensemble,exact]", "drafter": "drafter=[model,lookup]"}
LISTED = ("model", "task", "verifier", "drafter", "experiment", "method", "decode", "engine", "tracker")
LIST = re.compile(rf"({'|'.join(LISTS)})=\[(.*)\]")
AT = re.compile(rf"\+({'|'.join(LISTS)})@\1\.([^=]+)=.*")
TEXTS = re.compile(r"task\.(stop|system)|verifier\.([^.]+\.)?(begin|end)")  # options that may hold line breaks
SEEDS = re.compile(r"seed=\[\s*(\d+(?:\s*,\s*\d+)*)\s*\]")  # a sweep with one job for each seed, like -m seed=0,1,2


@dataclass(frozen=True, slots=True)
class Command:
    """A parsed command line."""

    overrides: tuple[str, ...] = ()
    is_multirun: bool = False
    config_dir: str | None = None
    show: str | None = None  # what to show or do instead of a run: one of FLAGS, or "list"
    group: str | None = None  # the argument of --list


def parse(argv: Sequence[str]) -> Command:
    """Parse a command line: words that start with a dash are options, all others are KEY=VALUE."""
    overrides: list[str] = []
    is_multirun, folder, shown, group = False, None, None, None
    words = iter(argv)
    for word in words:
        if word in FLAGS:
            shown = FLAGS[word]
        elif word in ("-m", "--multirun"):
            is_multirun = True
        elif word == "--config-dir" or word.startswith("--config-dir="):
            folder = word.partition("=")[2] or next(words, None)
            if folder is None or not Path(folder).is_dir():
                raise ConfigError(f"--config-dir needs an existing folder, got {show(folder)}")
        elif word == "--list" or word.startswith("--list="):
            shown, group = "list", word.partition("=")[2] or next(words, None)
            if group not in LISTED:
                raise ConfigError(f"--list cannot be {show(group)} {nearest(group, LISTED)}")
        elif seeds := SEEDS.fullmatch(word):
            overrides.append(f"seed={','.join(seeds[1].replace(' ', '').split(','))}")
            is_multirun = True
        elif word.startswith("-"):
            known = (*FLAGS, "-m", "--multirun", "--config-dir", "--list")
            raise ConfigError(f"{show(word)} is not an option {nearest(word, known)}")
        else:
            overrides.append(word)
    warn_of_repeated(overrides)
    return Command(tuple(overrides), is_multirun, folder, shown, group)


def groups_of_user_classes(words: Sequence[str]) -> list[str]:
    """Return the groups with a class but no file on the command line; the options of their default file do not apply."""
    keys = {key_of(word) for word in words}
    return [group for group in CLASS_GROUPS if f"{group}._target_" in keys and group not in keys]


def expand(words: Sequence[str]) -> list[str]:
    """Return Hydra's overrides: a list of rules or drafters becomes one package each; options of a user's class become new keys."""
    prefixes = ("verifier.", *(f"{group}." for group in groups_of_user_classes(words)), *OPEN)
    expanded: list[str] = []
    for word in words:
        several = LIST.fullmatch(word)
        if several is not None:
            group, names = several[1], [name.strip() for name in several[2].split(",") if name.strip()]
            if not names:
                raise ConfigError(f"{group} must not be an empty list: name some, as {EXAMPLES[group]}")
            twice = next((name for name in names if names.count(name) > 1), None)
            if twice is not None:
                raise ConfigError(f"{group}={show(word.partition('=')[2])} names {twice} twice")
            expanded += [f"~{group}", *(f"+{group}@{group}.{name}={name}" for name in names)]
        elif word.startswith("task="):
            file, member = member_options(word.removeprefix("task="))
            expanded += [f"task={file}", *(f"task.{key}='{value}'" for key, value in member.items())]
        else:
            # Keys that are new to Hydra: knobs (files have them under `knobs:`), draft lengths, open groups, tasks of a margin.
            key = key_of(word)
            is_length = key.startswith("drafter.") and key.rpartition(".")[2].startswith("length")
            is_new = is_length or key.startswith(prefixes) or word.startswith(MAPPINGS)
            expanded.append(f"++{word.lstrip('+')}" if is_new else word)
    return expanded


def collapse(words: Sequence[str]) -> list[str]:
    """Return the words as the user types them; the inverse of `expand`."""
    names: dict[str, list[str]] = {}
    for named in filter(None, map(AT.fullmatch, words)):
        names.setdefault(named[1], []).append(named[2])
    dropped = {f"~{group}" for group in names}
    kept = [re.sub(r"^\+\+", "", word) for word in words if not AT.fullmatch(word) and word not in dropped]
    return [*(f"{group}=[{','.join(chosen)}]" for group, chosen in names.items()), *kept]


def refuse_contradictions(words: Sequence[str]) -> None:
    """Raise ConfigError for timing options beside timing=off, or beside timing=on, which would reset them."""
    off = next((word for word in words if word in ("timing=off", "timing=false", "timing=null")), None)
    on = next((word for word in words if word in ("timing=on", "timing=true")), None)
    option = next((word for word in words if key_of(word).startswith("timing.")), None)
    if off and option:
        raise ConfigError(f"{off} leaves the latency pass out, so {show(option)} has no effect: remove one of the two")
    if on and option:
        raise ConfigError(f"{on} sets all options of the latency pass back, also {show(option)}: remove {on}")


def refuse_escapes(words: Sequence[str]) -> None:
    r"""Raise ConfigError for a text with \n, \r or \t as two characters: Hydra keeps both, and no model writes them."""
    for word in words:
        key, value = key_of(word), word.partition("=")[2]
        if TEXTS.fullmatch(key) and (escape := ESCAPE.search(value)):
            example = r'["\n\n"]' if key == "task.stop" else r'"\n\n"'
            raise ConfigError(
                f"{show(word)} has {escape[0]} as two characters, a backslash and a letter, which are not turned into a line break "
                f"or tab: use the shell's $'…' quoting, such as $'{key}={example}'"
            )


def refuse_idle_values(words: Sequence[str]) -> None:
    """Raise ConfigError for values of a job that have no effect, or not the one that they seem to have."""
    refuse_escapes(words)
    options = {key_of(word): word.partition("=")[2] for word in words}
    refuse_beside_data({key.removeprefix("task."): value for key, value in options.items() if key.startswith("task.")})


def misspelt(word: str) -> str:
    """Return the message for a word that Hydra's grammar cannot parse."""
    key, _, value = word.partition("=")
    start = f"{show(word)} cannot be read as KEY=VALUE"
    if value.startswith("="):
        return f"{start}: write {show(key)}{show(value)}, with one equals sign"
    for opening, closing in ("[]", "{}", "()"):
        if value.count(opening) > value.count(closing):
            return f"{start}: a bracket is not closed, {closing} is missing"
        if value.count(opening) < value.count(closing):
            return f"{start}: {opening} is missing before {closing}"
    if not word.isascii():
        strange = next(char for char in word if not char.isascii())
        return f"{start}: write a value with letters such as {strange} in quotes, as '{show(key)}=\"{show(value)}\"'"
    return f"{start}: write lists as KEY=[A,B], and other signs than letters, digits, . _ - + / : @ in quotes"


def without_the_default(group: str, tree: Mapping[str, Any], words: Sequence[str]) -> dict[str, Any]:
    """Return the options of a user's class: those of the command line and a name. Its lists of numbers become sweeps."""
    prefix = f"{group}."  # the run's name= and n= are not options of the class
    given = {key_of(word).removeprefix(prefix).split(".")[0] for word in words if key_of(word).startswith(prefix)}
    kept = {key: value for key, value in tree.items() if key in given}
    kept.setdefault("name", str(kept["_target_"]).rpartition(".")[2].lower())
    swept = {key: {} for key, value in kept.items() if group == "verifier" and _is_numbers(value)}
    # A rule with knobs has no other options, so the others become knobs with a single choice.
    options = {key: value for key, value in kept.items() if key not in ("name", "_target_", "knobs")}
    if swept:
        kept["knobs"] = {key: swept.get(key, {"choices": [value]}) for key, value in options.items()}
    return kept


def _is_numbers(value: object) -> bool:
    numbers = (
        [isinstance(item, int | float) and not isinstance(item, bool) for item in value]
        if isinstance(value, list)
        else []
    )
    return bool(numbers) and all(numbers)


def warn_of_repeated(words: Sequence[str]) -> None:
    """Warn of each option that is given more than once: Hydra takes the last one."""
    given: dict[str, list[str]] = {}
    for word in words:
        key, sign, _ = word.partition("=")
        if key and sign:
            given.setdefault(key, []).append(word)
    for key, repeated in given.items():
        if len(repeated) > 1:
            from sdbench.prepare.progress import warn

            warn(f"{key} is given {len(repeated)} times, and the last one counts: {' '.join(repeated)}")
