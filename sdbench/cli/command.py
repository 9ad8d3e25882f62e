"""The command line taken apart, and the words that Hydra understands in place of the user's."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sdbench.config import ConfigError, member_options, nearest, show
from sdbench.words import key_of

OWN = (
    "verifier",
    "drafter",
    "task",
)  # groups whose class may be named on the command line: GROUP._target_=module.Class
LISTS = ("verifier", "drafter")  # groups of which a run may name several: GROUP=[A,B]
OPEN = (
    "model.chat_options.",
    *(f"engine.{name}." for name in ("args", "speculative", "env", "request", "urls", "headers")),
)
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
SEEDS = re.compile(r"seed=\[\s*(\d+(?:\s*,\s*\d+)*)\s*\]")  # a sweep: a job a seed, as -m seed=0,1,2


@dataclass(frozen=True, slots=True)
class Command:
    """A command line, taken apart."""

    overrides: tuple[str, ...] = ()
    is_multirun: bool = False
    config_dir: str | None = None
    show: str | None = None  # what is shown or done instead of a run: one of FLAGS, or "list"
    group: str | None = None  # of --list


def parse(argv: Sequence[str]) -> Command:
    """Options begin with a dash, everything else is KEY=VALUE."""
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


def classes_of_ones_own(words: Sequence[str]) -> list[str]:
    """The groups whose class is named on the command line while no file is: what their default file says is not theirs."""
    keys = {key_of(word) for word in words}
    return [group for group in OWN if f"{group}._target_" in keys and group not in keys]


def expand(words: Sequence[str]) -> list[str]:
    """What Hydra is told: `verifier=[a,b]` as one package a rule, drafters too, the options of a class of one's own as new keys."""
    prefixes = ("verifier.", *(f"{group}." for group in classes_of_ones_own(words)), *OPEN)
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
            # Keys that no file names: knobs, which stand under `knobs:` alone, lengths of drafts, open groups, tasks of a margin.
            key = key_of(word)
            is_length = key.startswith("drafter.") and key.rpartition(".")[2].startswith("length")
            is_new = is_length or key.startswith(prefixes) or word.startswith("margin={")
            expanded.append(f"++{word.lstrip('+')}" if is_new else word)
    return expanded


def collapse(words: Sequence[str]) -> list[str]:
    """`expand` backwards: words as the user types them."""
    names: dict[str, list[str]] = {}
    for named in filter(None, map(AT.fullmatch, words)):
        names.setdefault(named[1], []).append(named[2])
    dropped = {f"~{group}" for group in names}
    kept = [re.sub(r"^\+\+", "", word) for word in words if not AT.fullmatch(word) and word not in dropped]
    return [*(f"{group}=[{','.join(chosen)}]" for group, chosen in names.items()), *kept]


def refuse_contradictions(words: Sequence[str]) -> None:
    """A pass that is left out has no options."""
    off = next((word for word in words if word in ("timing=off", "timing=false", "timing=null")), None)
    option = next((word for word in words if key_of(word).startswith("timing.")), None)
    if off and option:
        raise ConfigError(f"{off} leaves the latency pass out, so {show(option)} has no effect: remove one of the two")


def misspelt(word: str) -> str:
    """Why a word cannot be read, in our words instead of the grammar's."""
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
        return f"{start}: a value with letters such as {strange} stands in quotes, as '{show(key)}=\"{show(value)}\"'"
    return f"{start}: lists are KEY=[A,B], and a value with other signs than letters, digits, . _ - + / : @ stands in quotes"


def without_the_default(group: str, tree: Mapping[str, Any], words: Sequence[str]) -> dict[str, Any]:
    """Of a class of one's own: what the command line says of it, and a name. Its lists of numbers are swept."""
    prefix = f"{group}."  # name= and n= of the run are no options of the class
    given = {key_of(word).removeprefix(prefix).split(".")[0] for word in words if key_of(word).startswith(prefix)}
    kept = {key: value for key, value in tree.items() if key in given}
    kept.setdefault("name", str(kept["_target_"]).rpartition(".")[2].lower())
    swept = {key: {} for key, value in kept.items() if group == "verifier" and _is_numbers(value)}
    # A rule that declares knobs has no options beside them: the others become choices of one.
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
