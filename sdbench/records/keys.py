"""What a cell is, and its key: a hash of everything that determines its content, equal on every host."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from sdbench.files import digest_of
from sdbench.records.schema import LABELS

if TYPE_CHECKING:
    import pandas as pd


def canonical(value: Any) -> Any:
    """Convert to canonical plain JSON: 1 and 1.0 are one number, tuples are lists, sets are sorted, floats have 12 digits."""
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        value = value.item()  # a NumPy scalar
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int | float):
        if not math.isfinite(value):
            raise ValueError(f"a cell's content must be finite, got {value}")
        rounded = float(f"{value:.12g}")  # 0.1 + 0.2 is the same knob as 0.3
        return int(rounded) if rounded.is_integer() and abs(rounded) < 2**53 else rounded
    if isinstance(value, Mapping):
        return {str(name): canonical(value[name]) for name in sorted(value, key=str)}
    if isinstance(value, list | tuple):
        return [canonical(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted((canonical(item) for item in value), key=json.dumps)
    raise ValueError(f"a cell's content must be plain data, got {type(value).__name__}")


def cell_key(content: Mapping[str, Any]) -> str:
    """Return the hash of canonical JSON."""
    return digest_of(json.dumps(canonical(content), sort_keys=True, ensure_ascii=True, separators=(",", ":")))


def asked_of(model: str, task: str, protocol: str, content: Mapping[str, Any]) -> str:
    """Return a hash that is equal for the cells of a model with the same prompts."""
    room = {name: content.get(name) for name in ("task", "rows", "shown", "max_new_tokens")}
    return cell_key({"model": model, "task": task, "protocol": protocol, "content": room})


GenerationKey = tuple[str, str, int]  # cell, example, sample


def unit_of(key: GenerationKey) -> str:
    """Return what is claimed as one unit: all samples of an example in a cell."""
    return f"{key[0]}\n{key[1]}"


# Fields of a cell that are not part of its key.
UNKEYED = ("model", "metric", "metrics", "axes", "is_lossless", "same_as", "also")


@dataclass(frozen=True)
class Cell:
    """One point of a sweep; all fields but UNKEYED determine its key.

    `axes` are `types.Axis` in the order of the rule's YAML, `metrics` the `types.Metric` that the task declares, as plain data.

    `checkpoints` maps a role ("target", "draft") to repository@commit or a hash of the weights. `content` holds the rest:
    dtype, quantisation, attention implementation, task version and rows, drafter, max_new_tokens, stops, top_k, top_p, seed.

    `same_as` is the key of the lossless cell that has the same texts, token for token: a job has one cell for both. `also` of a
    lossless cell has the labels of such settings, by the key that each would have alone, which older records may hold.
    """

    model: str
    task: str
    verifier: str
    num_draft: int
    temperature: float
    checkpoints: Mapping[str, str]
    w: float | None = None
    knobs: Mapping[str, Any] = field(default_factory=dict)  # a rule's options other than w
    protocol: str = ""
    law: str = ""  # the rule's law and its version, for example "blend/1"
    metric: str = ""  # the task's headline metric
    metrics: Sequence[Mapping[str, Any]] = ()
    axes: Sequence[Mapping[str, Any]] = ()
    is_lossless: bool = False
    same_as: str | None = None
    also: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    content: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def key(self) -> str:
        return cell_key({name: getattr(self, name) for name in self.__dataclass_fields__ if name not in UNKEYED})

    @cached_property
    def asked(self) -> str:
        """A hash that is equal for cells with the same prompts: task, rows, tokenization, room for the answer."""
        return asked_of(self.model, self.task, self.protocol, self.content)

    @property
    def drafter(self) -> str | None:
        """The name of the drafter; None without one."""
        drafter = self.content.get("drafter")
        return str(drafter["name"]) if isinstance(drafter, Mapping) else drafter

    def __hash__(self) -> int:
        return hash(self.key)

    def to_json(self) -> dict[str, Any]:
        """Return everything, including the key, as plain data."""
        names = (*self.__dataclass_fields__, "key")
        return {name: canonical(getattr(self, name)) for name in names}

    def with_repeated(self, cell: Cell) -> Cell:
        """Return the cell with the setting of `cell` in `also`."""
        labels = {name: getattr(cell, name) for name in ("verifier", "w", "knobs", "axes")}
        return replace(self, also={**self.also, cell.key: canonical(labels)})

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Cell:
        """Build the cell that wrote `data`. Its key is computed again."""
        return cls(**{name: data[name] for name in cls.__dataclass_fields__ if name in data})


def frame_of_cells(cells: Iterable[Cell]) -> pd.DataFrame:
    """Return the frame of `Results.cells`. `also` are the settings that a cell covers and that have no cell of their own."""
    import pandas as pd

    cells = list(cells)
    keys = {cell.key for cell in cells}
    rows: list[dict[str, Any]] = [cell.to_json() | {"asked": cell.asked, "drafter": cell.drafter} for cell in cells]
    for row in rows:
        row["cell"] = row.pop("key")
        row["also"] = [labels for key, labels in row["also"].items() if key not in keys]
        row |= {f"knob_{name}": value for name, value in row.pop("knobs").items()}
        row |= {f"checkpoint_{role}": name for role, name in row.pop("checkpoints").items()}
    base = ["cell", *LABELS, "protocol", "law", "metric", "metrics", "axes", "also", "is_lossless", "asked", "content"]
    frame = pd.DataFrame(rows, columns=None if rows else base)
    frame = frame.loc[:, [*base, *sorted(set(frame.columns) - set(base))]]
    return frame.astype({"w": "float64", "temperature": "float64", "num_draft": "int64", "is_lossless": "bool"})
