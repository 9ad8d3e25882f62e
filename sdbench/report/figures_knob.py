"""What a sweep looks like along its knob: quality, acceptance, speed, length and truncation against w."""

from __future__ import annotations

from itertools import product

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from sdbench.report.labels import Label, Room
from sdbench.report.marks import (
    FEW_CURVES,
    KNOB,
    Curve,
    band,
    block_bars,
    curves,
    grey_note,
    label_levels,
    label_of,
    level_lines,
    say_n,
)
from sdbench.report.numbers import Sweep
from sdbench.report.style import BLUE, GREY, INK, ORANGE, PURPLE, RED, panels, settle

RATES = {
    "truncated_rate": "cut at the length limit",
    "empty_rate": "empty",
    "extraction_failed_rate": "no answer to extract",
    "prompt_cut_rate": "prompt cut",
}
SHORT = dict(zip(RATES, ("cut", "empty", "without result", "with cut prompt"), strict=True))
LOOKS = dict(zip(RATES, (("o", BLUE), ("s", ORANGE), ("^", RED), ("x", PURPLE)), strict=True))


def along(axis: Axes, sweep: Sweep, column: str, *, has_legend: bool = True) -> list[Curve]:
    """One column against w, each curve with its band."""
    drawn = list(curves(sweep, column, "w"))
    for curve in drawn:
        band(axis, curve.cells, "w", column, curve.colour)
        axis.plot(curve.cells["w"], curve.cells[column], "-", marker=curve.mark, color=curve.colour, zorder=3)
    axis.margins(0.04, 0.08)
    axis.autoscale_view()
    if has_legend and len(drawn) > FEW_CURVES:
        axis.legend(handles=[_entry(curve) for curve in drawn], loc="best", ncols=2 if len(drawn) > 3 else 1)
    return drawn


def _entry(curve: Curve) -> Line2D:
    return Line2D([], [], marker=curve.mark, color=curve.colour, label=curve.name)


def dodged(curve: Curve, place: int, count: int) -> pd.Series:
    """w, a little to the side, so that the intervals of several curves do not lie on each other."""
    w = curve.cells["w"]
    return w + 0.014 * max(float(w.max() - w.min()), 0.1) * (place - (count - 1) / 2)


def name_curves(room: Room, drawn: list[Curve], column: str) -> None:
    """Each of two curves' name where it is furthest from the other and has room; more have a legend."""
    for curve in drawn:
        room.block_line(curve.cells["w"], curve.cells[column])
        room.block_marks(curve.cells["w"], curve.cells[column])
    if len(drawn) != FEW_CURVES:
        return
    for curve in drawn:
        others = [other.cells.set_index("w")[column] for other in drawn if other is not curve]
        own = curve.cells.set_index("w")[column]
        apart = sum((own - other.reindex(own.index)).abs().fillna(0) for other in others)
        order = list(pd.Series(apart, index=own.index).sort_values(ascending=False, kind="stable").index)
        room.place_one_of([Label(float(w), float(own[w]), curve.name, curve.colour, True) for w in order])


def against_w(sweep: Sweep) -> Figure | None:
    """Quality above acceptance, sharing w."""
    if not list(curves(sweep, "acceptance", "w")):
        return None
    figure, (top, bottom) = panels(rows=2, height=1.75, sharex=True)
    rooms = []
    for axis, column, names in ((top, "quality", ("target", "draft")), (bottom, "acceptance", ("lossless",))):
        drawn = along(axis, sweep, column, has_legend=axis is top)
        levels = level_lines(axis, sweep, column, *names)
        grey_note(axis, levels.far)
        rooms.append((Room(axis), drawn, column, levels))
    crosses = False
    for curve in curves(sweep, "acceptance_expected", "w"):
        bottom.plot(
            curve.cells["w"], curve.cells["acceptance_expected"], "x", color=INK, markersize=3.4, mew=0.8, zorder=4
        )
        crosses = True
    top.set_ylabel(label_of(sweep.metric))
    bottom.set(ylabel="acceptance", xlabel=KNOB)
    say_n(top, sweep.cells["n"].max())
    if crosses:
        mark = Line2D([], [], linestyle="", marker="x", color=INK, markersize=3.4, mew=0.8, label="exact expectation")
        bottom.legend(handles=[mark], loc="upper right")
    settle(figure)
    for room, drawn, column, levels in rooms:
        room.block_legend()
        name_curves(room, drawn, column)
        label_levels(room, levels)
    return figure


def speed_against_w(sweep: Sweep) -> Figure | None:
    """Measured speed-ups with intervals, modelled ones hollow; None where neither exists."""
    measured, modelled = list(curves(sweep, "speedup", "w")), list(curves(sweep, "speedup_modelled", "w"))
    if not measured and not modelled:
        return None
    figure, (axis,) = panels(height=2.3)
    for curve in modelled:
        cells = curve.cells
        axis.plot(cells["w"], cells["speedup_modelled"], ":", color=curve.colour, linewidth=0.9)
        axis.plot(cells["w"], cells["speedup_modelled"], curve.mark, mfc="white", mec=curve.colour, mew=0.8, zorder=3)
    for place, curve in enumerate(measured):
        x, cells = dodged(curve, place, len(measured)), curve.cells
        axis.plot(x, cells["speedup"], curve.mark, color=curve.colour, markersize=4.5, zorder=4)
        axis.vlines(x, cells["speedup_low"], cells["speedup_high"], color=curve.colour, linewidth=0.9)
    axis.margins(0.05, 0.08)
    axis.autoscale_view()
    levels = level_lines(axis, sweep, "speedup", "lossless")
    axis.axhline(1, color=GREY, linewidth=0.7, linestyle=":", zorder=1)
    axis.set(xlabel=KNOB, ylabel="speed-up over the target alone")
    say_n(axis, sweep.cells["num_timed"].max(), "timed (example × repeat)")
    axis.legend(handles=_key(measured or modelled, bool(measured), bool(modelled)), loc="upper right")
    settle(figure)
    room = Room(axis)
    room.block_legend()
    for drawn, column in ((measured, "speedup"), (modelled, "speedup_modelled")):
        for curve in drawn:
            room.block_marks(curve.cells["w"], curve.cells[column], 3.0)
            room.block_line(curve.cells["w"], curve.cells["speedup_modelled"])
            block_bars(room, curve.cells, "w", column)
    label_levels(room, levels)
    return figure


def _key(drawn: list[Curve], has_measured: bool, has_modelled: bool) -> list[Line2D]:
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
    """Mean length above, and the shares of answers that went wrong below, sharing w."""
    if not list(curves(sweep, "mean_tokens", "w")):
        return None
    shown = [name for name in RATES if sweep.swept[name].fillna(0).any()]
    figure, axes = panels(rows=1 + bool(shown), height=1.6 if shown else 2.0, sharex=True)
    drawn = along(axes[0], sweep, "mean_tokens")
    levels = level_lines(axes[0], sweep, "mean_tokens", "target", "draft")
    grey_note(axes[0], levels.far)
    axes[0].set_ylabel("tokens an answer")
    axes[-1].set_xlabel(KNOB)
    say_n(axes[0], sweep.cells["n"].max())
    if shown:
        failures(axes[1], drawn, shown)
    else:
        known = [SHORT[name] for name in RATES if sweep.swept[name].notna().any()]
        words = f"answers {', '.join(known)}: none" if known else ""
        grey_note(axes[0], "; ".join(filter(None, [levels.far, words])))
    settle(figure)
    room = Room(axes[0])
    name_curves(room, drawn, "mean_tokens")
    label_levels(room, levels)
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
