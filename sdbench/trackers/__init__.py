"""Send the results of a run to an experiment tracker through its library; off unless tracker=NAME is given.

A tracker is a class with `send(findings)`, and a YAML file in configs/tracker that names the class. It sends the numbers of each
cell, the figures, the page and the configuration, all taken from the records; it sends no texts or tokens. pandas is imported
only for type checks, and a tracker's library only when the tracker is used.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from sdbench.imports import import_object

if TYPE_CHECKING:
    import pandas as pd

LABELS = ("model", "task", "verifier", "w", "drafter", "num_draft", "temperature", "metric", "cell")


class TrackerError(RuntimeError):
    """The tracker refused the results; the records are complete."""


@dataclass(frozen=True, slots=True)
class Findings:
    """A results folder: the configuration of the run that sends it, a summary with one row per cell, and the recommendation."""

    folder: Path
    config: Mapping[str, Any]
    summary: pd.DataFrame
    advice: str
    has_page: bool = True  # False: page and figures in the folder are older than its records (report=off)
    sweeps: Mapping[str, str] = field(default_factory=dict)  # cell -> the name of its sweep in file names

    @property
    def name(self) -> str:
        return self.folder.resolve().name

    @property
    def figures(self) -> list[Path]:
        """Return the PNG figures, sorted by name."""
        return sorted((self.folder / "figures").glob("*.png")) if self.has_page else []

    @property
    def pages(self) -> list[Path]:
        names = ("report.html", "summary.csv") if self.has_page else ("summary.csv",)
        return [path for name in names if (path := self.folder / name).is_file()]

    def cells(self) -> Iterator[tuple[str, dict[str, Any], dict[str, float]]]:
        """Yield (name with temperature, labels, finite numbers) of each cell."""
        names = self._names()
        for row in self.summary.to_dict("records"):
            known = {str(name): value for name, value in row.items() if value is not None and value == value}
            labels = {name: known.pop(name) for name in LABELS if name in known}
            numbers = {
                name: float(value)
                for name, value in known.items()
                if isinstance(value, int | float) and math.isfinite(value)
            }
            yield names[str(row["cell"])], labels, numbers

    def _names(self) -> dict[str, str]:
        """Return {cell: name}, which has the temperature and whatever else differs on its curve (pair, task, seed, …). If names
        still coincide, the cell's key is added.
        """
        from sdbench.metrics.cells import VARIED
        from sdbench.metrics.text import names_of

        cells = self.summary.set_index("cell")
        cells["sweep"] = cells.index.map(self.sweeps.get)
        names = {str(key): f"{name} T={cells.at[key, 'temperature']:g}" for key, name in names_of(cells).items()}
        for column in (name for name in ("model", "task", "protocol", *VARIED, "sweep") if name in cells):
            curves = {key: curve_of(name) for key, name in names.items()}
            varying = cells[column].groupby(curves).nunique(dropna=False) > 1
            known = [key for key in names if varying[curves[key]] and cells[column].notna()[key]]
            names |= {key: f"{names[key]} {column}={_value_of(cells.at[key, column])}" for key in known}
        counts = Counter(names.values())
        return {key: f"{name} {key}" if counts[name] > 1 else name for key, name in names.items()}


def _value_of(value: object) -> object:
    """Return a setting's value, a whole number as int: pandas stores integers as floats in a column that also has nulls."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def curve_of(name: str) -> str:
    """Return the name of the curve that a cell belongs to: its own name without w."""
    return " ".join(word for word in name.split() if not word.startswith("w="))


class Tracker(Protocol):
    """`send` sends everything and returns where to see it; it raises TrackerError if the tracker refuses."""

    def send(self, findings: Findings) -> str: ...


def make(target: str, options: Mapping[str, Any]) -> Tracker:
    """Build the tracker of a configuration; ValueError if its library is missing."""
    return import_object(target)(**options)


def need(library: str, extra: str) -> None:
    """Raise ValueError if a library is missing, before anything is decoded."""
    if find_spec(library) is None:
        raise ValueError(f"{library} is not installed: pip install 'sdbench[{extra}]'")


def flat(tree: Mapping[str, Any], above: str = "") -> dict[str, str]:
    """Return a nested configuration as one level, such as {"model.name": "llama-tiny"}; lists become JSON, nulls are left out."""
    params: dict[str, str] = {}
    for key, value in tree.items():
        name = f"{above}{key}"
        if isinstance(value, Mapping):
            params |= flat(value, f"{name}.")
        elif value is not None:
            params[name] = value if isinstance(value, str) else json.dumps(value, default=str)
    return params
