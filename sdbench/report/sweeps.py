"""The sweeps of a page: the cells of one pair, task and temperature in one folder, in reading order, each with a name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from sdbench.metrics.summary import BASELINES
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
    """Every pair, task and temperature that has records, folder by folder."""
    found = []
    for one in results:
        held = set(one.generations["cell"]) | set(one.timings["cell"])
        cells = one.cells[one.cells["cell"].isin(held)].set_index("cell")
        for (model, task, temperature), own in cells.groupby(["model", "task", "temperature"], sort=True):
            title = f"{model} on {task}"
            if cells["temperature"].nunique() > 1:
                title += f" at T = {temperature:g}"
            if len(results) > 1:
                title += f" ({one.name})"
            found.append(Sweep(one, title, named(own), str(own["metric"].iloc[0])))
    return found


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
    knobs = [name for name in cells.columns if name.startswith("knob_") and swept[name].map(repr).nunique() > 1]
    found = []
    for _, cell in cells.iterrows():
        is_baseline = cell["verifier"] in BASELINES
        knob = "" if pd.isna(cell["w"]) else f"w = {cell['w']:g}"
        parts = [NAMES.get(cell["verifier"], cell["verifier"])] if is_baseline or not is_one_rule or not knob else []
        parts += [knob] * bool(knob)
        parts += [] if is_baseline else [f"{name.removeprefix('knob_')} = {cell[name]}" for name in knobs]
        parts += [f"K = {cell['num_draft']}"] * (cell["num_draft"] > 0 and not is_one_length)
        found.append(", ".join(parts))
    return found
