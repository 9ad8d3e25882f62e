"""How cells and numbers are written: the name of a cell, the reading order, and "value [low, high]".

Terminal, page, figures, JSON, paper tables, trackers and audit all use these functions. Frames of cells are those of
`cells.table_of`, or summary.csv by cell.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from sdbench.metrics.cells import BASELINES
from sdbench.metrics.knobs import format_value, main_knob
from sdbench.metrics.stats import Estimate
from sdbench.types import Axis

NAMES = {
    "target": "target alone",
    "generate": "plain generate",
    "assisted": "assisted generate",
    "draft": "draft alone",
}
# Rules come between lossless and the draft alone, each from its lossless end outwards.
POSITIONS = {"target": 0, "generate": 1, "assisted": 2, "lossless": 3, "draft": 5}
OF_DRAFTER = ("name", "head", "length_head")  # not among its options: heads are trained for each task


def names_of(cells: pd.DataFrame, *, is_short: bool = False) -> dict[str, str]:
    """Return {cell: name}, such as "ensemble w=0.7 K=5", "lossless lookup K=5", "target alone".

    A name has the rule, its knob, those other options in which the cells of its rule differ, the drafter if there are several,
    and the draft length. `is_short` leaves out the rule and the draft length if all cells share them.
    """
    swept, drafting = cells[~cells["verifier"].isin(BASELINES)], cells[cells["num_draft"] > 0]
    has_rules = not is_short or swept["verifier"].nunique() > 1
    has_lengths = not is_short or drafting["num_draft"].nunique() > 1
    has_drafters = drafting["drafter"].nunique() > 1
    options, names = options_of(cells), {}
    for key, cell in zip(cells.index.astype(str), cells.to_dict("records"), strict=True):
        knobs = list(filter(None, [setting_of(cell), *options.get(key, [])]))
        rule = [NAMES.get(str(cell["verifier"]), str(cell["verifier"]))]
        is_named = has_rules or not knobs or cell["verifier"] in BASELINES
        drafter = [str(cell["drafter"])] if has_drafters and cell["num_draft"] > 0 else []
        length = [f"K={int(cell['num_draft'])}"] if has_lengths and cell["num_draft"] > 0 else []
        names[key] = " ".join([*(rule if is_named else []), *knobs, *drafter, *length])
    return names


def full_names_of(cells: pd.DataFrame) -> dict[str, str]:
    """Return {cell: name} with the other settings that the cell also covers: "lossless K=5, ensemble w=1"."""
    also = cells["also"].map(also_of)
    return {key: ", ".join(filter(None, [name, also[key]])) for key, name in names_of(cells).items()}


def also_of(repeated: Sequence[Mapping[str, Any]] | str | float | None) -> str:
    """Return the settings of other rules that a cell also covers, such as "ensemble w=1". In a summary this is text or missing.

    Options other than the knob are named only where settings of the same rule differ in them.
    """
    if not isinstance(repeated, Sequence) or isinstance(repeated, str):
        return repeated if isinstance(repeated, str) else ""
    settings = [(str(labels["verifier"]), [Axis.from_json(axis) for axis in labels["axes"]]) for labels in repeated]
    names: dict[str, None] = {}
    for rule, axes in settings:
        rivals = [other for name, other in settings if name == rule]
        knob = main_knob([axes])
        shown = [axis for axis in axes if axis.knob == knob or any(axis not in other for other in rivals)]
        names[" ".join([rule, *(f"{axis.knob}={format_value(axis.value)}" for axis in shown)])] = None
    return ", ".join(names)


def setting_of(cell: Mapping[Any, Any] | pd.Series) -> str:
    """Return KNOB=VALUE of a row with both columns; "" for a rule without a knob."""
    knob = cell["knob"]  # None, or NaN in a table read from a file
    return f"{knob}={format_value(cell['value'])}" if isinstance(knob, str) and knob else ""


def full_setting_of(cell: pd.Series) -> str:
    """Return rule, knobs, drafter and draft length, all of them: unlike a name, it does not leave out what the cells share.

    Files that are trained for each task are left out: with another head it is the same setting.
    """
    content = cell["content"] or {}
    heads = content.get("heads") or {}
    axes = [f"{axis['knob']}={format_value(axis['value'])}" for axis in cell["axes"] if axis["knob"] not in heads]
    variants = filter(None, (cell.get("rule_variant"), cell.get("draft_variant")))
    length = f"K={int(cell['num_draft'])}"
    return " ".join([str(cell["verifier"]), *axes, drafter_of(cell), *variants, length])


def drafter_of(cell: pd.Series) -> str:
    """Return the name of a cell's drafter with all its options."""
    drafter = (cell["content"] or {}).get("drafter") or str(cell["drafter"])
    drafter = drafter if isinstance(drafter, Mapping) else {"name": drafter}
    options = [f"{name}={format_value(value)}" for name, value in drafter.items() if name not in OF_DRAFTER]
    return " ".join([str(drafter["name"]), *options])


def curve_names(cells: pd.DataFrame) -> list[str]:
    """Return the rule, and drafter, draft length and other options if they differ within the sweep; "" for a baseline."""
    swept = cells[~cells["verifier"].isin(BASELINES)]
    has_rules, has_drafters, has_lengths = (swept[n].nunique() > 1 for n in ("verifier", "drafter", "num_draft"))
    varying, names = options_of(swept), []
    for key, cell in cells.iterrows():
        options = varying.get(str(key), [])
        rule = [str(cell["verifier"])] if has_rules or not (has_drafters or has_lengths or options) else []
        drafter = [str(cell["drafter"])] if has_drafters else []
        length = [f"K={cell['num_draft']}"] if has_lengths else []
        names.append("" if cell["verifier"] in BASELINES else " ".join([*rule, *options, *drafter, *length]))
    return names


def options_of(cells: pd.DataFrame) -> dict[str, list[str]]:
    """Return {cell: OPTION=VALUE besides its knob} of the options in which the cells of its rule differ."""
    varying: dict[str, list[str]] = {}
    for _, group in cells.groupby("verifier", sort=False):
        options = {str(key): _words_of(text) for key, text in group["knobs"].items()}
        common = set.intersection(*map(set, options.values()))
        varying |= {key: [word for word in texts if word not in common] for key, texts in options.items()}
    return varying


def _words_of(options: object) -> list[str]:
    """Return the options of a curve, which in a table read from a file may be NaN."""
    return [word for word in options.split(", ") if word] if isinstance(options, str) else []


def sort_cells(cells: pd.DataFrame, by: tuple[str, ...] = ()) -> pd.DataFrame:
    """Return the cells (with `rank`) in reading order: target, lossless, each rule from its lossless end outwards, draft.

    Of several drafters the pair's draft model comes first. `by` are columns that sort before this order.
    """
    drafters = cells["drafter"].map(lambda name: name if isinstance(name, str) and name != "model" else "")
    placed = cells.assign(_position=cells["verifier"].map(lambda name: POSITIONS.get(name, 4)), _drafter=drafters)
    order = [*by, "_position", "verifier", "knobs", "_drafter", "num_draft", "rank"]
    return placed.sort_values(order, kind="stable").drop(columns=["_position", "_drafter"])


def format_number(value: float, digits: int, *, is_signed: bool = False) -> str:
    """Return 1.24, or +1.2 if signed; a number that rounds to zero has no sign."""
    text = f"{value:{'+' if is_signed else ''}.{digits}f}"
    return text if text.strip("+-0.") else text.lstrip("+-")


def format_interval(
    estimate: Estimate, digits: int, *, scale: float = 1, is_signed: bool = False, unit: str = ""
) -> str:
    """Return "1.24 [1.18, 1.31]", the value alone if it has no limits, and "" if there is no value."""
    value, low, high = (
        format_number(scale * number, digits, is_signed=is_signed) if math.isfinite(number) else ""
        for number in (estimate.value, estimate.low, estimate.high)
    )
    return f"{value}{unit} [{low}, {high}]" if value and low and high else value and f"{value}{unit}"
