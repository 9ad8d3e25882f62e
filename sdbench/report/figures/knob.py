"""What a sweep looks like along its knob: quality, acceptance, speed, length and truncation.

Rules with knobs of different names stand side by side, a column a knob, with one scale for what is measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from sdbench.report.figures.labels import Label, Room
from sdbench.report.figures.marks import (
    FEW_CURVES,
    Curve,
    band,
    block_bars,
    curves,
    grey_note,
    knob_label,
    knobs_of,
    label_levels,
    label_of,
    level_lines,
    say_n,
)
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

RATES = {
    "truncated_rate": "cut at the length limit",
    "empty_rate": "empty",
    "extraction_failed_rate": "no answer to extract",
    "prompt_cut_rate": "prompt cut",
    "loop_rate": "ends in a loop",
}
SHORT = dict(zip(RATES, ("cut", "empty", "without result", "with cut prompt", "ending in a loop"), strict=True))
LOOKS = dict(zip(RATES, (("o", BLUE), ("s", ORANGE), ("^", RED), ("x", PURPLE), ("D", GREEN)), strict=True))


def columns_of(drawn: Sequence[Curve], *, rows: int, height: float) -> tuple[Figure, list[Columns]]:
    """A column of panels for each knob of these curves, one below the other `rows` times."""
    knobs = knobs_of(drawn)
    width = COLUMN if len(knobs) == 1 else PAGE
    figure, axes = panels(columns=len(knobs), rows=rows, width=width, height=height, sharex="col", sharey="row")
    grid = [
        Columns(knob, [curve for curve in drawn if curve.knob == knob], axes[place :: len(knobs)])
        for place, knob in enumerate(knobs)
    ]
    for column in grid:
        column.axes[-1].set_xlabel(knob_label(column.drawn))
        if column.drawn[0].cells["value"].map(lambda value: isinstance(value, str)).any():
            cells = column.drawn[0].cells
            column.axes[-1].set_xticks(cells["x"], cells["value"])
    return figure, grid


@dataclass(frozen=True, slots=True)
class Columns:
    """The panels of one knob, from above, and its curves."""

    knob: str
    drawn: list[Curve]
    axes: list[Axes]

    def having(self, column: str) -> list[Curve]:
        """Its curves where they have this column, with only the cells that do."""
        known = [
            replace(c, cells=c.cells.dropna(subset=[column]), end=c.end.dropna(subset=[column])) for c in self.drawn
        ]
        return [curve for curve in known if len(curve.cells)]


def along(axis: Axes, drawn: Sequence[Curve], column: str, *, has_legend: bool = True) -> None:
    """One column against the knob, each curve with its band, joined to the lossless point where it ends there."""
    for curve in drawn:
        band(axis, curve.line, "x", column, curve.colour)
        axis.plot(curve.line["x"], curve.line[column], "-", color=curve.colour, zorder=3)
        axis.plot(curve.cells["x"], curve.cells[column], curve.mark, color=curve.colour, zorder=3)
        mark, colour = BASELINES["lossless"]
        axis.plot(curve.end["x"], curve.end[column], mark, color=colour, markersize=4, zorder=4)
    axis.margins(0.04, 0.08)
    axis.autoscale_view()
    if has_legend and len(drawn) > FEW_CURVES:
        axis.legend(handles=[_entry(curve) for curve in drawn], loc="best", ncols=2 if len(drawn) > 3 else 1)


def _entry(curve: Curve) -> Line2D:
    return Line2D([], [], marker=curve.mark, color=curve.colour, label=curve.name)


def dodged(curve: Curve, place: int, count: int) -> pd.Series:
    """x, a little to the side, so that the intervals of several curves do not lie on each other."""
    x = curve.cells["x"]
    return x + 0.014 * max(float(x.max() - x.min()), 0.1) * (place - (count - 1) / 2)


def name_curves(room: Room, drawn: Sequence[Curve], column: str) -> None:
    """Each of two curves' name where it is furthest from the other and has room; more have a legend."""
    for curve in drawn:
        room.block_line(curve.line["x"], curve.line[column])
        room.block_marks(curve.cells["x"], curve.cells[column])
    if len(drawn) != FEW_CURVES:
        return
    for curve in drawn:
        others = [other.cells.set_index("x")[column] for other in drawn if other is not curve]
        own = curve.cells.set_index("x")[column]
        apart = sum((own - other.reindex(own.index)).abs().fillna(0) for other in others)
        order = list(pd.Series(apart, index=own.index).sort_values(ascending=False, kind="stable").index)
        room.place_one_of([Label(float(x), float(own[x]), curve.name, curve.colour, True) for x in order])


def against_knob(sweep: Sweep) -> Figure | None:
    """Quality above acceptance, sharing the knob."""
    drawn = list(curves(sweep, "acceptance", "x"))
    if not drawn:
        return None
    figure, groups = columns_of(drawn, rows=2, height=1.75)
    shown = [(group, place, column, names) for group in groups for place, (column, names) in enumerate(AGAINST)]
    for group, place, column, _ in shown:
        along(group.axes[place], group.having(column), column, has_legend=place == 0 and group is groups[0])
    levels = {}
    for group, place, column, names in shown:
        levels[group.knob, place] = level_lines(group.axes[place], sweep, column, *names)
        grey_note(group.axes[place], levels[group.knob, place].far if group is groups[0] else "")
    for group in groups:
        cross_out(group)
    groups[0].axes[0].set_ylabel(label_of(sweep.metric))
    groups[0].axes[1].set_ylabel("acceptance")
    say_n(groups[-1].axes[0], sweep.points["n"].max())
    settle(figure)
    for group, place, column, _ in shown:
        room = Room(group.axes[place])
        room.block_legend()
        name_curves(room, drawn if len(groups) == 1 else group.drawn, column)
        if len(groups) > 1 and place == 0:
            group.axes[place].set_title(", ".join(curve.name for curve in group.drawn))
        label_levels(room, levels[group.knob, place])
    return figure


AGAINST: Sequence[tuple[str, Sequence[str]]] = (("quality", ("target", "draft")), ("acceptance", ("lossless",)))


def cross_out(group: Columns) -> None:
    """Crosses at the exact expected acceptance, where it is known."""
    known = group.having("acceptance_expected")
    look: dict[str, Any] = {"marker": "x", "color": INK, "markersize": 3.4, "mew": 0.8, "linestyle": ""}
    for curve in known:
        group.axes[1].plot(curve.cells["x"], curve.cells["acceptance_expected"], zorder=4, **look)
    if known:
        group.axes[1].legend(handles=[Line2D([], [], label="exact expectation", **look)], loc="upper right")


def speed_against_knob(sweep: Sweep) -> Figure | None:
    """Measured speed-ups with intervals, modelled ones hollow; None where neither exists."""
    drawn = [
        curve for curve in curves(sweep, "x") if curve.cells[["speedup", "speedup_modelled"]].notna().any(axis=None)
    ]
    if not drawn:
        return None
    figure, groups = columns_of(drawn, rows=1, height=2.3)
    levels = {}
    for group in groups:
        measured, modelled = group.having("speedup"), group.having("speedup_modelled")
        speeds(group.axes[0], measured, modelled)
        levels[group.knob] = level_lines(group.axes[0], sweep, "speedup", "lossless")
        group.axes[0].legend(handles=_key(measured or modelled, bool(measured), bool(modelled)), loc="upper right")
    groups[0].axes[0].set_ylabel("speed-up over the target alone")
    say_n(groups[-1].axes[0], sweep.points["num_timed"].max(), "timed (example × repeat)")
    settle(figure)
    for group in groups:
        room = Room(group.axes[0])
        room.block_legend()
        for column in ("speedup", "speedup_modelled"):
            for curve in group.having(column):
                room.block_marks(curve.cells["x"], curve.cells[column], 3.0)
                room.block_line(curve.cells["x"], curve.cells["speedup_modelled"])
                block_bars(room, curve.cells, "x", column)
        label_levels(room, levels[group.knob])
    return figure


def speeds(axis: Axes, measured: Sequence[Curve], modelled: Sequence[Curve]) -> None:
    """Marks of both kinds, and the line of the target alone."""
    for curve in modelled:
        cells = curve.cells
        axis.plot(cells["x"], cells["speedup_modelled"], ":", color=curve.colour, linewidth=0.9)
        axis.plot(cells["x"], cells["speedup_modelled"], curve.mark, mfc="white", mec=curve.colour, mew=0.8, zorder=3)
    for place, curve in enumerate(measured):
        x, cells = dodged(curve, place, len(measured)), curve.cells
        axis.plot(x, cells["speedup"], curve.mark, color=curve.colour, markersize=4.5, zorder=4)
        axis.vlines(x, cells["speedup_low"], cells["speedup_high"], color=curve.colour, linewidth=0.9)
    axis.margins(0.05, 0.08)
    axis.autoscale_view()
    axis.axhline(1, color=GREY, linewidth=0.7, linestyle=":", zorder=1)


def _key(drawn: Sequence[Curve], has_measured: bool, has_modelled: bool) -> list[Line2D]:
    """One entry a curve if there are several, then what filled and hollow marks are."""
    many = len(drawn) > 1
    keys = [Line2D([], [], linestyle="", marker=c.mark, color=c.colour, label=c.name) for c in drawn if many]
    colour = GREY if many else drawn[0].colour
    if has_measured:
        keys.append(Line2D([], [], linestyle="", marker="o", color=colour, label="measured"))
    if has_modelled:
        keys.append(
            Line2D([], [], linestyle=":", marker="o", mfc="white", color=colour, linewidth=0.9, label="modelled")
        )
    return keys


def lengths(sweep: Sweep) -> Figure | None:
    """Mean length above, and the shares of answers that went wrong below, sharing the knob."""
    drawn = list(curves(sweep, "mean_tokens", "x"))
    if not drawn:
        return None
    shown = [name for name in RATES if sweep.swept[name].fillna(0).any()]
    figure, groups = columns_of(drawn, rows=1 + bool(shown), height=1.6 if shown else 2.0)
    for group in groups:
        along(group.axes[0], group.drawn, "mean_tokens", has_legend=group is groups[0])
    levels = [level_lines(group.axes[0], sweep, "mean_tokens", "target", "draft") for group in groups]
    first = groups[0]
    grey_note(first.axes[0], levels[0].far)
    first.axes[0].set_ylabel("tokens an answer")
    say_n(groups[-1].axes[0], sweep.points["n"].max())
    for group in groups if shown else ():
        failures(group.axes[1], group.drawn, shown)
        group.axes[1].set_ylabel(group.axes[1].get_ylabel() if group is first else "")
    if not shown:
        known = [SHORT[name] for name in RATES if sweep.swept[name].notna().any()]
        words = f"answers {', '.join(known)}: none" if known else ""
        grey_note(first.axes[0], "; ".join(filter(None, [levels[0].far, words])))
    settle(figure)
    for group, level in zip(groups, levels, strict=True):
        room = Room(group.axes[0])
        name_curves(room, group.drawn, "mean_tokens")
        label_levels(room, level)
    return figure


def failures(axis: Axes, drawn: list[Curve], shown: list[str]) -> None:
    """Shares of answers that went wrong in one way or another, in percent, with Wilson's intervals."""
    many = len(drawn) > 1
    for place, (name, curve) in enumerate(product(shown, drawn)):
        mark, colour = LOOKS[name]
        x, own = dodged(curve, place, len(shown) * len(drawn)), curve.colour if many else colour
        axis.vlines(x, 100 * curve.cells[f"{name}_low"], 100 * curve.cells[f"{name}_high"], color=own, linewidth=0.8)
        axis.plot(x, 100 * curve.cells[name], "-", marker=mark, color=own, markersize=3.5, linewidth=1)
    axis.set_ylim(bottom=0)
    if len(shown) == 1:
        axis.set_ylabel(f"{RATES[shown[0]]}\n(% of answers)")
        return
    axis.set_ylabel("answers (%)")
    looks = [(RATES[name], LOOKS[name][0], GREY if many else LOOKS[name][1]) for name in shown]
    keys = [
        Line2D([], [], marker=mark, color=colour, markersize=3.5, linewidth=1, label=name)
        for name, mark, colour in looks
    ]
    axis.legend(handles=keys, loc="best")
