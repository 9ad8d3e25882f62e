"""What a command line that narrows an experiment leaves of the experiment's own sweep."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from sdbench.cli.command import LISTS
from sdbench.words import key_of

DECODE = ("temperature", "top_k", "top_p")  # what a file of configs/decode sets


def sweep_words(params: Mapping[str, Any], given: Collection[str]) -> list[str]:
    """Return the words of an experiment's sweep, without what the command line gives itself; `given`: its keys."""
    decided = {*given, *DECODE} if "decode" in given else {*given}
    return [f"{key}={value}" for key, value in params.items() if key not in decided]


def of_chosen(words: Sequence[str], given: Collection[str], names: Callable[[str], Sequence[str]]) -> list[str]:
    """Return a job's words without GROUP.NAME.OPTION of an experiment if the command line gives GROUP and leaves NAME out.

    For a GROUP with NAME alone it is GROUP.OPTION. `names` returns the files of a group.
    """
    values = {key_of(word): word.partition("=")[2] for word in words}
    kept: list[str] = []
    for word in words:
        key, _, value = word.partition("=")
        group, name, option = [*key.split(".", 2), "", ""][:3]
        is_swept = group in LISTS and group in given and key not in given
        chosen = values.get(group, "")
        if not is_swept or not option or name not in names(group) or chosen == "all":
            kept.append(word)
        elif chosen.startswith("["):
            kept += [word] if name in map(str.strip, chosen.strip("[]").split(",")) else []
        elif chosen == name and f"{group}.{option}" not in given:
            kept.append(f"{group}.{option}={value}")
    return kept


def takes_w(verifier: Mapping[str, Any]) -> bool:
    """Return whether a rule, or one of several by name, has the knob w."""
    rules = [verifier] if "_target_" in verifier else list(verifier.values())
    return any("w" in (rule.get("knobs") or ()) for rule in rules)
