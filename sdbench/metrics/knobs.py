"""The knob of a rule: the values of its cells as text, the position of each on it, and the other options of its curve.

The axis of a rule in a sweep is the first of its axes that has an order and several values, otherwise the first that has an order.
All other options that vary (other knobs, drafter, draft length) separate curves.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from sdbench.types import Axis

ALONG = ("knob", "value", "rank", "equals", "knobs")


def along(cells: pd.DataFrame) -> pd.DataFrame:
    """Return [ALONG] per cell: its knob, its position on it, and as text the other options of its curve; rows as in `cells`, which
    has the columns of `cells.variants_of`.
    """
    axes = {key: [Axis.from_json(axis) for axis in of_cell] for key, of_cell in cells["axes"].items()}  # as in the YAML
    rows: dict[Any, tuple[Any, ...]] = {}
    for _, group in cells.groupby(["sweep", "verifier"], sort=False):
        knob = main_knob([axes[key] for key in group.index])
        for key, cell in zip(group.index, group.to_dict("records"), strict=True):
            main = next((axis for axis in axes[key] if axis.knob == knob), None)
            along = ("", None, None, None) if main is None else (main.knob, main.value, main.rank, main.equals)
            rows[key] = (*along, _others(cell, axes[key], knob))
    frame = pd.DataFrame([rows[key] for key in cells.index], columns=list(ALONG), index=cells.index, dtype=object)
    return frame.astype({"rank": "float64"})


def main_knob(axes: Sequence[Sequence[Axis]]) -> str | None:
    """Return the knob by which a rule's cells are ordered."""
    ordered = [axis for cell_axes in axes for axis in cell_axes if axis.rank is not None]
    names = list(dict.fromkeys(axis.knob for axis in ordered))
    varying = [name for name in names if len({axis.value for axis in ordered if axis.knob == name}) > 1]
    return next(iter([*varying, *names]), None)


def _others(cell: Mapping[Any, Any], axes: Sequence[Axis], knob: str | None) -> str:
    """Return the rule's other options, and the variant of the rule, or of the draft where it decodes alone."""
    options = {axis.knob: axis.value for axis in axes}
    options |= {str(name).removeprefix("knob_"): value for name, value in cell.items() if str(name).startswith("knob_")}
    kept = {name: value for name, value in options.items() if name != knob and value is not None and value == value}
    variants = cell["rule_variant"], cell["draft_variant"] if cell["verifier"] == "draft" else ""
    return ", ".join([*(f"{name}={format_value(value)}" for name, value in kept.items()), *filter(None, variants)])


def format_value(value: object) -> str:
    """Format the value of a knob: 0.7, logit."""
    return f"{value:g}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def strict_value(values: pd.Series, ranks: pd.Series) -> float | None:
    """Return the value at rank 0 from the values and ranks of a curve's cells; None if it does not follow from them."""
    known = [
        (float(value), float(rank))
        for value, rank in zip(values, ranks, strict=True)
        if isinstance(value, int | float) and not isinstance(value, bool) and rank == rank
    ]
    at_end = [value for value, rank in known if rank == 0]
    if at_end:
        return at_end[0]
    for sign in (1, -1):
        ends = {round(value + sign * rank, 9) for value, rank in known}
        if len(known) > 1 and len(ends) == 1:
            return ends.pop()
    return None
