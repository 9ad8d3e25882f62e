"""The marks of the paper's figures: filled and with intervals for what we measured, hollow for what was published."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sdbench.metrics.legacy import WEIGHT
from sdbench.report.figures.style import GREEN, GREY, ORANGE, PURPLE, SKY
from sdbench.report.paper.published import METHODS, SOURCES, doubtful

SOURCE_COLOURS = {"readme": PURPLE, "logs": GREEN, "issue": ORANGE, "digest": SKY}
METHOD_MARKS = {"sd": "D", "sd-finetuned": "s", "static": "o", "diversed": "*", "target": "_", "draft": "v"}
UNDEFINED = "What their acceptance counts is not defined: it cannot be compared with ours along its axis."
HEAD = "head trained on "


def panel_title(axis: Axes, text: str) -> None:
    """A title with room for a command below it."""
    axis.set_title(text, pad=9)


def unfilled(axis: Axes, command: str) -> None:
    """What to run so that this panel fills, above it: inside it would lie on the published points."""
    lines = ["not measured:", *textwrap.wrap(command, 34, break_long_words=False, break_on_hyphens=False)]
    axis.set_title(axis.get_title(loc="left"), loc="left", pad=5 + 7.5 * len(lines))
    look: dict[str, Any] = {"va": "bottom", "color": GREY, "size": 6, "family": "DejaVu Sans Mono"}
    text = axis.text(0, 1.02, " \\\n ".join(lines), transform=axis.transAxes, **look)
    text.set_in_layout(False)  # its room is the title's pad; its width must not shrink the panels


def bars(axis: Axes, own: pd.DataFrame, x: str, y: str, colour: str, *, x_scale: float = 1, y_scale: float = 1) -> None:
    """95 % intervals as thin lines, in each direction that has one."""
    for _, cell in own.iterrows():
        at_x, at_y = x_scale * cell[x], y_scale * cell[y]
        for name, scale, at, draw in ((x, x_scale, at_y, axis.hlines), (y, y_scale, at_x, axis.vlines)):
            if f"{name}_low" in cell and cell[f"{name}_low"] == cell[f"{name}_low"]:
                low, high = scale * cell[f"{name}_low"], scale * cell[f"{name}_high"]
                draw(at, low, high, color=colour, linewidth=0.8, alpha=0.55)


def widen(axis: Axes, *, least_x: float = 0) -> None:
    """At least a quarter of the values' size, so that a small difference looks small; nothing beyond 0 and 100."""
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


def level(axis: Axes, height: float, name: str, style: str) -> None:
    """A model alone: it accepts nothing, so a line across."""
    axis.axhline(height, color=GREY, linewidth=0.8, linestyle=style, label=name, zorder=1)


def theirs(axis: Axes, rows: pd.DataFrame, x: str, y: str) -> None:
    """Published points: hollow, coloured by source, never a broken run; one source's own sweep over a knob is dotted."""
    rows = rows[~doubtful(rows, "broken") & rows[x].notna() & rows[y].notna()]
    scale = {name: 100 if name == "acceptance" else 1 for name in (x, y)}
    for (source, method), part in rows.groupby(["source", "method"], sort=True):
        part = part.sort_values([WEIGHT, x])
        xs, ys, mark = scale[x] * part[x], scale[y] * part[y], METHOD_MARKS[str(method)]
        is_sweep = len(part) > 2
        axis.plot(
            xs,
            ys,
            marker=mark,
            linestyle=":" if is_sweep else "",
            color=SOURCE_COLOURS[str(source)],
            mfc="none",
            markersize=6 if mark == "*" else 4.5,
            linewidth=0.8,
            label=f"published: {METHODS[str(method)]}, {SOURCES[str(source)]}",
            zorder=2,
        )
        for at_x, at_y, text in zip(xs, ys, part["note"], strict=True):
            if text.startswith(HEAD):
                said = f"head: {text.removeprefix(HEAD)}"
                colour = SOURCE_COLOURS[str(source)]
                look: dict[str, Any] = {"textcoords": "offset points", "size": 5.5, "ha": "right", "va": "center"}
                axis.annotate(said, (at_x, at_y), (-5, 0), color=colour, **look)


def legend(figure: Figure, axes: Sequence[Axes], text: str, published: pd.DataFrame) -> None:
    """Below the panels: what is ours, what is theirs, why they are apart; then each mark once."""
    handles = {}
    for axis in axes:
        for handle, name in zip(*axis.get_legend_handles_labels(), strict=True):
            handles.setdefault(name, handle)
    ordered = sorted(handles, key=lambda name: name.startswith("published"))
    if len(published):
        text += f"\nHollow marks: published, joined to nothing of ours. {UNDEFINED}"
    figure.set_layout_engine("constrained")  # it leaves room for what stands outside the panels
    rows = -(-len(ordered) // 2)
    width, height = figure.get_size_inches()
    figure.set_size_inches(width, height + 0.11 * (text.count("\n") + 1) + 0.13 * rows)
    made = figure.legend(
        [handles[name] for name in ordered],
        ordered,
        loc="outside lower left",
        ncols=2,
        fontsize=6,
        title=text,
        title_fontsize=6,
        alignment="left",
    )
    made.get_title().set_color(GREY)
