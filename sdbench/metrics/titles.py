"""How the sweeps of a report are named: their titles, and the ends of their figures' files."""

import re
from collections.abc import Sequence

import pandas as pd

from sdbench.metrics.cells import VARIED, settings_of, task_options_of
from sdbench.metrics.server import server_endings


def titles(groups: Sequence[tuple[str, pd.DataFrame]]) -> list[str]:
    """Return pair and task, and what distinguishes sweeps: temperature, folder, protocol, settings, task, server, or a number."""
    firsts = [cells.iloc[0] for _, cells in groups]
    names = [f"{first['model']} on {first['task']}" for first in firsts]
    contents = [{"content": None, **first.to_dict()} for first in firsts]
    settings, options = list(map(settings_of, contents)), list(map(task_options_of, contents))
    known = dict.fromkeys(name for given in options for name in given)
    more = [
        [f" at T = {first['temperature']:g}" for first in firsts],
        [f" ({name})" for name, _ in groups],
        [f", {first['protocol']}" for first in firsts],
        *([_ending(name, given[name]) for given in settings] for name in VARIED),
        *([_ending(name, given.get(name)) for given in options] for name in known),
        *([f", {option}" if option else "" for option in given] for given in server_endings(contents)),
    ]
    for ends in more:
        if len(set(names)) < len(names) and len(set(ends)) > 1:
            names = [title + end for title, end in zip(names, ends, strict=True)]
    counts = [names[: number + 1].count(title) for number, title in enumerate(names)]
    return [title if count == 1 else f"{title}, sweep {count}" for title, count in zip(names, counts, strict=True)]


def _ending(name: str, value: object) -> str:
    return "" if value is None else f", {name.replace('_', ' ')} {value}"


def suffixes(groups: Sequence[tuple[str, pd.DataFrame]]) -> list[str]:
    """Return the suffix of each sweep's files: pair and task, then as needed T, the length of prompts, the folder in front,
    settings such as the seed, options of the server, a number.
    """
    if len(groups) == 1:
        return [""]
    firsts, folders = [cells.iloc[0].to_dict() for _, cells in groups], [name for name, _ in groups]
    names = [f"{first['model']}-{first['task']}" for first in firsts]
    names = _with_ends(names, [f"T{first['temperature']:g}" for first in firsts])
    lengths = [task_options_of(first)["padded to"] for first in firsts]
    settings = [settings_of(first) for first in firsts]
    if len(set(names)) < len(names):
        names = _with_ends(names, ["" if length is None else str(length) for length in lengths])
    if len(set(names)) < len(names) and len(set(folders)) > 1:
        names = [f"{folder}-{name}" for folder, name in zip(folders, names, strict=True)]
    for setting in VARIED:
        if len(set(names)) < len(names):
            values = [given[setting] for given in settings]
            ends = [
                "" if value is None else f"{setting}-{value}".replace(",", "").replace(" ", "-") for value in values
            ]
            names = _with_ends(names, ends)
    for words in server_endings(firsts):
        if len(set(names)) < len(names):
            names = _with_ends(names, [re.sub(r"[^\w.-]+", "-", word) for word in words])
    repeats = [names[:index].count(name) for index, name in enumerate(names)]
    return [f"{name}-{repeat + 1}" if repeat else name for name, repeat in zip(names, repeats, strict=True)]


def _with_ends(names: Sequence[str], ends: Sequence[str]) -> list[str]:
    """Return the names with these ends, unless the ends are equal."""
    if len(set(ends)) == 1:
        return list(names)
    return [f"{name}-{end}" if end else name for name, end in zip(names, ends, strict=True)]
