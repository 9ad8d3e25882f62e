"""The marks of the paper's figures: filled and with intervals for what we measured, hollow for what was published."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sdbench.metrics.columns import WEIGHT
from sdbench.report.figures.marks import bars
from sdbench.report.figures.style import GREEN, GREY, ORANGE, PURPLE, SKY
from sdbench.report.paper.published import METHODS, SOURCES, doubtful

SOURCE_COLOURS = {"readme": PURPLE, "logs": GREEN, "issue": ORANGE, "digest": SKY}
METHOD_MARKS = {"sd": "D", "sd-finetuned": "s", "static": "o", "diversed": "*", "target": "_", "draft": "v"}
UNDEFINED = "What their acceptance counts is not defined: it cannot be compared with ours along its axis."
HEAD = "head trained on "
BARS = {"linewidth": 0.8, "alpha": 0.55}


def in_percent(cells: pd.DataFrame) -> pd.DataFrame:
    """Return measured or published rows with their rates in percent, as the figures show them."""
    rates = [name for name in cells if str(name).startswith(("acceptance", "block_acceptance"))]
    return cells.assign(**{str(name): 100 * cells[name] for name in rates})


def write_title(axis: Axes, text: str) -> None:
    """Write a title with room for a command below it."""
    axis.set_title(text, pad=9)


def write_missing(axis: Axes, command: str) -> None:
    """Write above a panel what to run to fill it: inside, it would lie on the published points."""
    lines = ["not measured:", *textwrap.wrap(command, 34, break_long_words=False, break_on_hyphens=False)]
    axis.set_title(axis.get_title(loc="left"), loc="left", pad=5 + 7.5 * len(lines))
    look: dict[str, Any] = {"va": "bottom", "color": GREY, "size": 6, "family": "DejaVu Sans Mono"}
    text = axis.text(0, 1.02, " \\\n ".join(lines), transform=axis.transAxes, **look)
    text.set_in_layout(False)  # its room is the title's pad; its width must not shrink the panels


def draw_row(axis: Axes, cell: pd.Series, x: str, y: str, colour: str, mark: str, name: str) -> None:
    """Draw a measured setting: a filled mark with its intervals."""
    bars(axis, cell.to_frame().T.infer_objects(), x, y, colour, **BARS)
    size = 7 if mark == "*" else 4.5
    axis.plot(cell[x], cell[y], mark, color=colour, linestyle="", markersize=size, label=name, zorder=4)


def widen(axis: Axes, *, least_x: float = 0) -> None:
    """Widen an axis to a quarter of the values' size, so that a small difference looks small; nothing beyond 0 and 100."""
    if not axis.has_data():
        axis.set(xticks=[], yticks=[])
        return
    low, high = axis.get_ylim()
    room = max(0.25 * (abs(low) + abs(high)) / 2 - (high - low), 0.15 * (high - low)) / 2
    edge = 0.04 * (high - low + 2 * room)  # a mark at 0 or 100 stays whole
    axis.set_ylim(max(low - room, -edge), min(high + room, 100 + edge))
    left, right = axis.get_xlim()
    room = max(least_x - (right - left), 0) / 2
    axis.set_xlim(left - room, right + room)


def draw_level(axis: Axes, height: float, name: str, style: str) -> None:
    """Draw a model alone: it accepts nothing, so a line across."""
    axis.axhline(height, color=GREY, linewidth=0.8, linestyle=style, label=name, zorder=1)


def draw_published(axis: Axes, rows: pd.DataFrame, x: str, y: str) -> None:
    """Draw published points hollow, coloured by source, never a broken run; a source's own sweep over a knob is dotted."""
    rows = in_percent(rows[~doubtful(rows, "broken") & rows[x].notna() & rows[y].notna()])
    for (source, method), part in rows.groupby(["source", "method"], sort=True):
        part = part.sort_values([WEIGHT, x])
        colour, mark = SOURCE_COLOURS[str(source)], METHOD_MARKS[str(method)]
        look: dict[str, Any] = {"marker": mark, "color": colour, "mfc": "none", "linewidth": 0.8, "zorder": 2}
        look |= {"linestyle": ":" if len(part) > 2 else "", "markersize": 6 if mark == "*" else 4.5}
        axis.plot(part[x], part[y], label=f"published: {METHODS[str(method)]}, {SOURCES[str(source)]}", **look)
        for at_x, at_y, text in zip(part[x], part[y], part["note"], strict=True):
            if text.startswith(HEAD):
                look = {"textcoords": "offset points", "size": 5.5, "ha": "right", "va": "center", "color": colour}
                axis.annotate(f"head: {text.removeprefix(HEAD)}", (at_x, at_y), (-5, 0), **look)


def legend(figure: Figure, axes: Sequence[Axes], text: str, published: pd.DataFrame) -> None:
    """Write below the panels what is measured, what is published and why they stand apart; then each mark once."""
    handles = {}
    for axis in axes:
        for handle, name in zip(*axis.get_legend_handles_labels(), strict=True):
            handles.setdefault(name, handle)
    ordered = sorted(handles, key=lambda name: name.startswith("published"))
    if len(published):
        text += f"\nHollow marks: published, joined to none of ours. {UNDEFINED}"
    figure.set_layout_engine("constrained")  # it leaves room for what stands outside the panels
    rows = -(-len(ordered) // 2)
    width, height = figure.get_size_inches()
    figure.set_size_inches(width, height + 0.11 * (text.count("\n") + 1) + 0.13 * rows)
    box = figure.legend(
        [handles[name] for name in ordered],
        ordered,
        loc="outside lower left",
        ncols=2,
        fontsize=6,
        title=text,
        title_fontsize=6,
        alignment="left",
    )
    box.get_title().set_color(GREY)
