"""What a sweep looks like along its knob: quality, acceptance, speed, length and truncation.

Rules with knobs of different names stand side by side, a column a knob, with one scale for what is measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from sdbench.report.figures import marks
from sdbench.report.figures.labels import Label, Room
from sdbench.report.figures.style import (
    BASELINES,
    BLUE,
    COLUMN,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PAGE,
    PURPLE,
    RED,
    panels,
    settle,
)
from sdbench.report.sweep import Sweep

FAILURES = {  # column: what is counted, mark, colour
    "truncated_rate": ("cut at the length limit", "o", BLUE),
    "empty_rate": ("empty", "s", ORANGE),
    "extraction_failed_rate": ("no answer to extract", "^", RED),
    "prompt_cut_rate": ("prompt cut", "x", PURPLE),
    "loop_rate": ("ends in a loop", "D", GREEN),
}
AGAINST: Sequence[tuple[str, Sequence[str]]] = (("quality", ("target", "draft")), ("acceptance", ("lossless",)))


@dataclass(frozen=True, slots=True)
class KnobColumn:
    """The panels of one knob, from above, and its curves."""

    knob: str
    drawn: list[marks.Curve]
    axes: list[Axes]

    def room(self, row: int = 0) -> Room:
        """Return the room for labels in a panel, its legend blocked."""
        room = Room(self.axes[row])
        room.block_legend()
        return room


def columns_of(drawn: Sequence[marks.Curve], *, rows: int, height: float) -> tuple[Figure, list[KnobColumn]]:
    """Make a column of panels for each knob of these curves, one below the other `rows` times."""
    knobs = marks.knobs_of(drawn)
    width = COLUMN if len(knobs) == 1 else PAGE
    figure, axes = panels(columns=len(knobs), rows=rows, width=width, height=height, sharex="col", sharey="row")
    columns = [
        KnobColumn(knob, [curve for curve in drawn if curve.knob == knob], axes[index :: len(knobs)])
        for index, knob in enumerate(knobs)
    ]
    for column in columns:
        column.axes[-1].set_xlabel(marks.knob_label(column.drawn))
        cells = column.drawn[0].cells
        if cells["value"].map(lambda value: isinstance(value, str)).any():
            column.axes[-1].set_xticks(cells["x"], cells["value"])
    return figure, columns


def draw_along(axis: Axes, drawn: Sequence[marks.Curve], y: str) -> None:
    """Draw a measure against the knob, each curve with its band, joined to the lossless point where it ends there."""
    mark, colour = BASELINES["lossless"]
    for curve in drawn:
        marks.band(axis, curve.line, "x", y, curve.colour)
        axis.plot(curve.line["x"], curve.line[y], "-", color=curve.colour, zorder=3)
        curve.plot(axis, "x", y, zorder=3)
        axis.plot(curve.end["x"], curve.end[y], mark, color=colour, markersize=4, zorder=4)
    axis.margins(0.04, 0.08)
    axis.autoscale_view()


def name_below(figure: Figure, drawn: Sequence[marks.Curve]) -> None:
    """Name more curves than labels can tell apart in a legend below the panels."""
    if len(drawn) > marks.FEW_CURVES:
        marks.legend_below(figure, [curve.key() for curve in drawn], 3)


def dodged_x(curve: marks.Curve, index: int, count: int) -> pd.Series:
    """Return x, a little to the side, so that the intervals of several curves do not lie on each other."""
    x = curve.cells["x"]
    return x + 0.014 * max(float(x.max() - x.min()), 0.1) * (index - (count - 1) / 2)


def name_curves(room: Room, drawn: Sequence[marks.Curve], y: str) -> None:
    """Name each of two curves where it is furthest from the other and has room; more have a legend."""
    for curve in drawn:
        room.block_line(curve.line["x"], curve.line[y])
        room.block_marks(curve.cells["x"], curve.cells[y])
    if len(drawn) != marks.FEW_CURVES:
        return
    values = [curve.cells.set_index("x")[y] for curve in drawn]
    for curve, height, other in zip(drawn, values, values[::-1], strict=True):
        apart = (height - other.reindex(height.index)).abs().fillna(0).sort_values(ascending=False, kind="stable")
        labels = [Label(float(x), float(height[x]), curve.name, curve.colour, True) for x in apart.index]
        room.add_first(labels)


def against_knob(sweep: Sweep) -> Figure | None:
    """Draw quality above acceptance, sharing the knob."""
    drawn = marks.curves(sweep, "acceptance", "x")
    if not drawn:
        return None
    figure, columns = columns_of(drawn, rows=2, height=1.75)
    panel = [(column, row, *measure) for column in columns for row, measure in enumerate(AGAINST)]
    for column, row, y, _ in panel:
        draw_along(column.axes[row], marks.having(column.drawn, y), y)
    levels = {}
    for column, row, y, names in panel:
        levels[column.knob, row] = marks.level_lines(column.axes[row], sweep, y, *names)
        marks.write_note(column.axes[row], levels[column.knob, row].far if column is columns[0] else "")
    for column in columns:
        draw_expectation(column)
    columns[0].axes[0].set_ylabel(marks.label_of(sweep.metric))
    columns[0].axes[1].set_ylabel("acceptance")
    marks.write_n(columns[-1].axes[0], sweep.points["n"].max())
    name_below(figure, drawn)
    settle(figure)
    for column, row, y, _ in panel:
        room = column.room(row)
        name_curves(room, drawn if len(columns) == 1 else column.drawn, y)
        if len(columns) > 1 and row == 0:
            column.axes[row].set_title(", ".join(curve.name for curve in column.drawn))
        marks.label_levels(room, levels[column.knob, row])
    return figure


def draw_expectation(column: KnobColumn) -> None:
    """Draw crosses at the exact expected acceptance, where it is known."""
    known = marks.having(column.drawn, "acceptance_expected")
    look: dict[str, Any] = {"marker": "x", "color": INK, "markersize": 3.4, "mew": 0.8, "linestyle": ""}
    for curve in known:
        curve.plot(column.axes[1], "x", "acceptance_expected", zorder=4, **look)
    if known:
        column.axes[1].legend(handles=[Line2D([], [], label="exact expectation", **look)], loc="upper right")


def speed_against_knob(sweep: Sweep) -> Figure | None:
    """Draw measured speed-ups with intervals, modelled ones hollow; None where neither exists."""
    drawn = [c for c in marks.curves(sweep, "x") if c.cells[["speedup", "speedup_modelled"]].notna().any(axis=None)]
    if not drawn:
        return None
    figure, columns = columns_of(drawn, rows=1, height=2.3)
    levels = {}
    for column in columns:
        measured, modelled = marks.having(column.drawn, "speedup"), marks.having(column.drawn, "speedup_modelled")
        draw_speeds(column.axes[0], measured, modelled)
        levels[column.knob] = marks.level_lines(column.axes[0], sweep, "speedup", "lossless")
        column.axes[0].legend(handles=_speed_keys(column.drawn, bool(measured), bool(modelled)), loc="upper right")
    columns[0].axes[0].set_ylabel("speed-up over the target alone")
    marks.write_n(columns[-1].axes[0], sweep.points["num_timed"].max(), "texts timed")
    if len(drawn) > 1:
        marks.legend_below(figure, [curve.key(linestyle="") for curve in drawn], 3)
    settle(figure)
    for column in columns:
        room = column.room()
        for y in ("speedup", "speedup_modelled"):
            for curve in marks.having(column.drawn, y):
                room.block_cells(curve.cells, "x", y)
                room.block_line(curve.cells["x"], curve.cells["speedup_modelled"])
        marks.label_levels(room, levels[column.knob])
    return figure


def draw_speeds(axis: Axes, measured: Sequence[marks.Curve], modelled: Sequence[marks.Curve]) -> None:
    """Draw marks of both kinds, and the line of the target alone."""
    for curve in modelled:
        curve.plot(axis, "x", "speedup_modelled", linestyle=":", linewidth=0.9, marker="")
        curve.plot(axis, "x", "speedup_modelled", mfc="white", mew=0.8, zorder=3)
    for index, curve in enumerate(measured):
        x, cells = dodged_x(curve, index, len(measured)), curve.cells
        axis.plot(x, cells["speedup"], curve.mark, color=curve.colour, markersize=4.5, zorder=4)
        axis.vlines(x, cells["speedup_low"], cells["speedup_high"], color=curve.colour, linewidth=0.9)
    axis.margins(0.05, 0.08)
    axis.autoscale_view()
    axis.axhline(1, color=GREY, linewidth=0.7, linestyle=":", zorder=1)


def _speed_keys(drawn: Sequence[marks.Curve], has_measured: bool, has_modelled: bool) -> list[Line2D]:
    """Return what filled and hollow marks are."""
    colour = GREY if len(drawn) > 1 else drawn[0].colour
    measured = [marks.key("measured", colour, "o", linestyle="")] * has_measured
    modelled = [marks.key("modelled", colour, "o", linestyle=":", mfc="white", linewidth=0.9)] * has_modelled
    return measured + modelled


def lengths(sweep: Sweep) -> Figure | None:
    """Draw mean length above, and the shares of answers that went wrong below, sharing the knob."""
    drawn = marks.curves(sweep, "mean_tokens", "x")
    if not drawn:
        return None
    shown = [name for name in FAILURES if sweep.swept[name].fillna(0).any()]
    figure, columns = columns_of(drawn, rows=1 + bool(shown), height=1.6 if shown else 2.0)
    for column in columns:
        draw_along(column.axes[0], column.drawn, "mean_tokens")
    levels = [marks.level_lines(column.axes[0], sweep, "mean_tokens", "target", "draft") for column in columns]
    marks.write_note(columns[0].axes[0], levels[0].far)
    columns[0].axes[0].set_ylabel("tokens an answer")
    marks.write_n(columns[-1].axes[0], sweep.points["n"].max())
    for column in columns if shown else ():
        draw_failures(column.axes[1], column.drawn, shown)
        if column is not columns[0]:
            column.axes[1].set_ylabel("")
    name_below(figure, drawn)
    settle(figure)
    for column, level in zip(columns, levels, strict=True):
        room = column.room()
        name_curves(room, column.drawn, "mean_tokens")
        marks.label_levels(room, level)
    return figure


def draw_failures(axis: Axes, drawn: list[marks.Curve], shown: list[str]) -> None:
    """Draw the shares of answers that went wrong in one way or another, in percent, with Wilson's intervals."""
    has_many = len(drawn) > 1
    look: dict[str, Any] = {"markersize": 3.5, "linewidth": 1}
    for index, (name, curve) in enumerate(product(shown, drawn)):
        _, mark, colour = FAILURES[name]
        x, colour = dodged_x(curve, index, len(shown) * len(drawn)), curve.colour if has_many else colour
        axis.vlines(x, 100 * curve.cells[f"{name}_low"], 100 * curve.cells[f"{name}_high"], color=colour, linewidth=0.8)
        axis.plot(x, 100 * curve.cells[name], "-", marker=mark, color=colour, **look)
    axis.set_ylim(bottom=0)
    if len(shown) == 1:
        axis.set_ylabel(f"{FAILURES[shown[0]][0]}\n(% of answers)")
        return
    axis.set_ylabel("answers (%)")
    looks = [FAILURES[name] for name in shown]
    axis.legend(
        handles=[marks.key(text, GREY if has_many else colour, mark, **look) for text, mark, colour in looks],
        loc="best",
    )
