"""The sweeps of a page: cells of one pair that were asked the same, folder by folder, in reading order, each with a name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from sdbench.metrics.cells import BASELINES, table_of
from sdbench.records import Results

PLACES = {"target": 0, "generate": 1, "lossless": 2, "draft": 4}  # swept rules stand between, from lossless outwards
NAMES = {"target": "target alone", "generate": "plain generate", "draft": "draft alone", "lossless": "lossless"}


@dataclass(frozen=True, slots=True)
class Sweep:
    """`cells` is indexed by key and has a column `label`, `rows` are theirs of the summary; `metric` is the headline."""

    results: Results
    title: str
    cells: pd.DataFrame
    rows: pd.DataFrame
    metric: str


def sweeps_of(results: Sequence[Results], summaries: Sequence[pd.DataFrame]) -> list[Sweep]:
    """Every sweep that has records, folder by folder; each folder comes with its summary."""
    found: list[tuple[Results, pd.DataFrame, pd.DataFrame]] = []
    for one, summary in zip(results, summaries, strict=True):
        held = set(one.generations["cell"]) | set(one.timings["cell"])
        cells = table_of(one.cells)
        groups = [own for _, own in cells[cells.index.isin(held)].groupby("sweep", sort=True)]
        groups.sort(key=lambda own: tuple(own[["model", "task", "temperature", "protocol"]].iloc[0]))
        found += [(one, named(own), summary.set_index("cell")) for own in groups]
    names = titles([(one.name, own) for one, own, _ in found])
    return [
        Sweep(one, title, own, rows.reindex(own.index), str(own["metric"].iloc[0]))
        for title, (one, own, rows) in zip(names, found, strict=True)
    ]


def titles(groups: Sequence[tuple[str, pd.DataFrame]]) -> list[str]:
    """Pair and task, and as much more as tells the sweeps apart: temperature, folder, protocol, at last a number."""
    firsts = [own.iloc[0] for _, own in groups]
    found = [f"{first['model']} on {first['task']}" for first in firsts]
    more = [
        [f" at T = {first['temperature']:g}" for first in firsts],
        [f" ({name})" for name, _ in groups],
        [f", {first['protocol']}" for first in firsts],
    ]
    for ends in more:
        if len(set(found)) < len(found) and len(set(ends)) > 1:
            found = [title + end for title, end in zip(found, ends, strict=True)]
    places = [found[: place + 1].count(title) for place, title in enumerate(found)]
    return [title if place == 1 else f"{title}, sweep {place}" for title, place in zip(found, places, strict=True)]


def heading(sweeps: Sequence[Sweep]) -> str:
    """The pairs and the tasks of all sweeps, for the top of the page."""
    models, tasks = (list(dict.fromkeys(str(s.cells[name].iloc[0]) for s in sweeps)) for name in ("model", "task"))
    return f"{', '.join(models)} on {', '.join(tasks)}"


def named(cells: pd.DataFrame) -> pd.DataFrame:
    """The cells in reading order: the target, lossless, each rule from lossless outwards, the draft; with their labels."""
    place = cells["verifier"].map(lambda name: PLACES.get(name, 3))
    keys = cells.assign(_place=place, _w=-cells["w"].fillna(9.0))
    ordered = keys.sort_values(["_place", "verifier", "num_draft", "_w"], kind="stable").drop(columns=["_place", "_w"])
    return ordered.assign(label=labels(ordered))


def labels(cells: pd.DataFrame) -> list[str]:
    """What tells each cell from the others of its sweep, and no more."""
    swept = cells[~cells["verifier"].isin(BASELINES)]
    drafted = cells[cells["num_draft"] > 0]
    is_one_rule, is_one_length = swept["verifier"].nunique() < 2, drafted["num_draft"].nunique() < 2
    found: list[str] = []
    for _, cell in cells.iterrows():
        is_baseline = cell["verifier"] in BASELINES
        knob = "" if pd.isna(cell["w"]) else f"w = {cell['w']:g}"
        parts = (
            [NAMES.get(str(cell["verifier"]), str(cell["verifier"]))]
            if is_baseline or not is_one_rule or not knob
            else []
        )
        parts += [knob] * bool(knob)
        parts += [str(cell["knobs"])] * (not is_baseline and swept["knobs"].nunique() > 1 and bool(cell["knobs"]))
        parts += [f"K = {cell['num_draft']}"] * (cell["num_draft"] > 0 and not is_one_length)
        found.append(", ".join(parts))
    return found
