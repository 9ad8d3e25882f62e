"""Which cells belong together: a sweep, the curves inside it, and the baselines that a cell is compared with."""

from __future__ import annotations

import json
from typing import Any

import pandas as pd

BASELINES = ("target", "draft", "lossless", "generate")
SETTINGS = ("seed", "top_k", "top_p")  # of a cell's content: what a sweep holds fixed besides its labels


def sweep_of(cells: pd.DataFrame) -> pd.Series:
    """A text a cell, equal for cells of one sweep: pair, task, temperature, what was asked, law settings and seed."""
    return pd.Series([json.dumps(_sweep(cell)) for cell in cells.to_dict("records")], index=cells.index, dtype=object)


def _sweep(cell: dict[Any, Any]) -> list[Any]:
    content = cell["content"] or {}
    settings = [content.get(name) for name in SETTINGS]
    return [cell["model"], cell["task"], float(cell["temperature"]), cell["protocol"], cell["asked"], settings]


def knobs_of(cells: pd.DataFrame) -> pd.Series:
    """A text a cell with what else than w and the draft length makes its curve: the rule's other options, the drafter."""
    return pd.Series([_knobs(cell) for cell in cells.to_dict("records")], index=cells.index, dtype=object)


def _knobs(cell: dict[Any, Any]) -> str:
    found = {name.removeprefix("knob_"): value for name, value in cell.items() if str(name).startswith("knob_")}
    drafter = (cell["content"] or {}).get("drafter")
    if isinstance(drafter, dict) and drafter.get("name") != "model":
        found["drafter"] = "/".join(str(value) for value in drafter.values())
    kept = {name: value for name, value in found.items() if name != "w" and value is not None and value == value}
    return ", ".join(
        f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}" for name, value in kept.items()
    )


def metric_of(cells: pd.DataFrame, key: str) -> str:
    return str(cells.at[key, "metric"])


def reference(cells: pd.DataFrame, key: str, verifier: str) -> str | None:
    """The baseline a cell is compared with: of the same sweep; lossless of the same draft length first."""
    sweeps = cells["sweep"] if "sweep" in cells else sweep_of(cells)
    same = cells[sweeps == sweeps.at[key]]
    own = same[same["verifier"] == verifier]
    if own.empty and verifier == "lossless":
        own = same[same["is_lossless"].astype(bool) & ~same["verifier"].isin(BASELINES)]
    near = own[own["num_draft"] == cells.at[key, "num_draft"]]
    chosen = near if len(near) else own
    return str(chosen.index[0]) if len(chosen) else None


def table_of(cells: pd.DataFrame) -> pd.DataFrame:
    """`results.cells` by key, with `sweep` and `knobs`."""
    table = cells.set_index("cell")
    return table.assign(sweep=sweep_of(table), knobs=knobs_of(table))
