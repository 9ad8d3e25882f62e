"""The sweeps of a page: cells of one pair that were asked the same, folder by folder, in reading order, each with a name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from sdbench.metrics.cells import BASELINES, table_of
from sdbench.records import Results

PLACES = {"target": 0, "generate": 1, "lossless": 2, "draft": 4}  # swept rules stand between, from lossless outwards
NAMES = {"target": "target alone", "generate": "target, plain generate", "draft": "draft alone", "lossless": "lossless"}


@dataclass(frozen=True, slots=True)
class Sweep:
    """`cells` is indexed by key and has a column `label`; `metric` is the task's headline."""

    results: Results
    title: str
    cells: pd.DataFrame
    metric: str


def sweeps_of(results: Sequence[Results]) -> list[Sweep]:
    """Every sweep that has records, folder by folder."""
    found = []
    for one in results:
        held = set(one.generations["cell"]) | set(one.timings["cell"])
        cells = table_of(one.cells)
        cells = cells[cells.index.isin(held)]
        groups = [own for _, own in cells.groupby("sweep", sort=True)]
        groups.sort(key=lambda own: tuple(own[["model", "task", "temperature", "protocol"]].iloc[0]))
        for title, own in zip(titles(groups), groups, strict=True):
            place = f" ({one.name})" if len(results) > 1 else ""
            found.append(Sweep(one, title + place, named(own), str(own["metric"].iloc[0])))
    return found


def titles(groups: Sequence[pd.DataFrame]) -> list[str]:
    """Pair and task, and as much more as tells the sweeps of one folder apart."""
    firsts = [own.iloc[0] for own in groups]
    found = [f"{first['model']} on {first['task']}" for first in firsts]
    if len({first["temperature"] for first in firsts}) > 1:
        found = [f"{title} at T = {first['temperature']:g}" for title, first in zip(found, firsts, strict=True)]
    if len(set(found)) < len(found):
        found = [f"{title}, {first['protocol']}" for title, first in zip(found, firsts, strict=True)]
    places = [found[: place + 1].count(title) for place, title in enumerate(found)]
    return [title if place == 1 else f"{title}, sweep {place}" for title, place in zip(found, places, strict=True)]


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
