"""A sweep along its knob: quality, acceptance, speed, length and failures.

Rules with different knobs are drawn side by side, one column per knob, with a common scale for the measure.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from sdbench.report.figures import marks, style
from sdbench.report.figures.labels import Room
from sdbench.report.sweep import Sweep

FAILURES = {  # column: name, mark, colour
    "truncated_rate": ("cut at the length limit", "o", style.BLUE),
    "empty_rate": ("empty", "s", style.ORANGE),
    "extraction_failed_rate": ("no answer to extract", "^", style.RED),
    "prompt_cut_rate": ("prompt cut", "x", style.PURPLE),
    "loop_rate": ("ends in a loop", "D", style.GREEN),
}


@dataclass(frozen=True, slots=True)
class KnobRow:
    """A row of panels: the measure of its axis, the function that draws it and returns legend entries, and its level lines."""

    y: str
    label: str
    draw: Callable[[Axes, Sequence[marks.Curve]], list[Line2D]]
    levels: Sequence[str] = ()


def along_knob(
    sweep: Sweep, drawn: Sequence[marks.Curve], rows: Sequence[KnobRow], *, height: float, n: pd.Series, unit: str = ""
) -> Figure:
    """Draw rows of panels, one column for each knob of these curves. Names are below, and at level lines where there is room."""
    knobs = list(dict.fromkeys(curve.knob for curve in drawn))
    width = style.COLUMN if len(knobs) == 1 else style.PAGE
    figure, axes = style.panels(len(knobs), len(rows), width=width, height=height, sharex="col", sharey="row")
    panel = list(zip(axes, product(rows, ([c for c in drawn if c.knob == knob] for knob in knobs)), strict=True))
    keys = [key for axis, (row, known) in panel for key in row.draw(axis, known)]
    levels = [marks.level_lines(axis, sweep, row.y, *row.levels) for axis, (row, _) in panel]
    for axis, (_, known) in panel[-len(knobs) :]:
        axis.set_xlabel(marks.knob_label(known))
        cells = known[0].cells
        if cells["value"].map(lambda value: isinstance(value, str)).any():
            axis.set_xticks(cells["x"], cells["value"])
    for axis, row in zip(axes[:: len(knobs)], rows, strict=True):
        axis.set_ylabel(row.label)
    left_out = marks.other_curves(sweep, "x")
    marks.finish(figure, axes[len(knobs) - 1], n, [*marks.keys_of(drawn), *marks.not_drawn(left_out), *keys], unit=unit)
    for (axis, (row, known)), level in zip(panel, levels, strict=True):
        room = Room(axis)
        for curve in known if level else ():
            room.block_cells(curve.cells, "x", row.y)
            room.block_line(curve.line["x"], curve.line[row.y])
        marks.label_levels(room, level)
    return figure


def draw_along(axis: Axes, drawn: Sequence[marks.Curve], y: str) -> list[Line2D]:
    """Draw a measure against the knob: each curve with its band, joined to its lossless point."""
    mark, colour = style.BASELINES["lossless"]
    for curve in marks.having(drawn, y):
        marks.band(axis, curve.line, "x", y, curve.colour)
        axis.plot(curve.line["x"], curve.line[y], "-", color=curve.colour, zorder=3)
        curve.plot(axis, "x", y, zorder=3)
        axis.plot(curve.end["x"], curve.end[y], mark, color=colour, markersize=4, zorder=4)
    axis.margins(0.04, 0.08)
    axis.autoscale_view()
    return []


def dodged_x(curve: marks.Curve, index: int, count: int) -> pd.Series:
    """Return x slightly shifted, so that the intervals of several curves do not overlap."""
    x = curve.cells["x"]
    return x + 0.014 * max(float(x.max() - x.min()), 0.1) * (index - (count - 1) / 2)


def against_knob(sweep: Sweep) -> Figure | None:
    """Draw quality above acceptance with a common knob axis."""
    drawn = marks.curves(sweep, "acceptance", "x")
    quality = KnobRow("quality", marks.label_of(sweep.metric), partial(draw_along, y="quality"), ("target", "draft"))
    rows = [quality, KnobRow("acceptance", "acceptance", draw_acceptance, ("lossless",))]
    return along_knob(sweep, drawn, rows, height=1.75, n=sweep.points["n"]) if drawn else None


def draw_acceptance(axis: Axes, drawn: Sequence[marks.Curve]) -> list[Line2D]:
    """Draw acceptance, and its exact expectation as crosses where it is known."""
    draw_along(axis, drawn, "acceptance")
    known = marks.having(drawn, "acceptance_expected")
    look: dict[str, Any] = {"marker": "x", "color": style.INK, "markersize": 3.4, "mew": 0.8, "linestyle": ""}
    for curve in known:
        curve.plot(axis, "x", "acceptance_expected", zorder=4, **look)
    return [Line2D([], [], label="exact expectation", **look)] if known else []


def speed_against_knob(sweep: Sweep) -> Figure | None:
    """Draw measured speed-ups with intervals, modelled ones hollow; None where neither exists."""
    drawn = [c for c in marks.curves(sweep, "x") if c.cells[["speedup", "speedup_modelled"]].notna().any(axis=None)]
    row = KnobRow("speedup", "speed-up over the target alone", draw_speeds, ("lossless",))
    n, unit = sweep.points["num_timed"], "batches timed" if (sweep.batch_size or 1) > 1 else "texts timed"
    return along_knob(sweep, drawn, [row], height=2.3, n=n, unit=unit) if drawn else None


def draw_speeds(axis: Axes, drawn: Sequence[marks.Curve]) -> list[Line2D]:
    """Draw measured and modelled marks, and the line of the target alone."""
    measured, modelled = marks.having(drawn, "speedup"), marks.having(drawn, "speedup_modelled")
    for curve in modelled:
        curve.plot(axis, "x", "speedup_modelled", linestyle=":", linewidth=0.9, marker="")
        curve.plot(axis, "x", "speedup_modelled", mfc="white", mew=0.8, zorder=3)
    for index, curve in enumerate(measured):
        x, cells = dodged_x(curve, index, len(measured)), curve.cells
        axis.plot(x, cells["speedup"], curve.mark, color=curve.colour, markersize=4.5, zorder=4)
        marks.intervals(axis, x, cells["speedup_low"], cells["speedup_high"], curve.colour, 0.9)
    axis.margins(0.05, 0.08)
    axis.autoscale_view()
    axis.axhline(1, color=style.GREY, linewidth=0.7, linestyle=":", zorder=1)
    filled = [marks.key("measured", style.GREY, "o", linestyle="")] * bool(measured)
    return filled + [marks.key("modelled", style.GREY, "o", linestyle=":", mfc="white", linewidth=0.9)] * bool(modelled)


def lengths(sweep: Sweep) -> Figure | None:
    """Draw the mean length above the shares of failed answers, with a common knob axis."""
    drawn = marks.curves(sweep, "mean_tokens", "x")
    shown = [name for name in FAILURES if sweep.swept[name].fillna(0).any()]
    rows = [KnobRow("mean_tokens", "tokens an answer", partial(draw_along, y="mean_tokens"), ("target", "draft"))]
    rows += [KnobRow("", "answers (%)", partial(draw_failures, shown=shown))] * bool(shown)
    return along_knob(sweep, drawn, rows, height=1.8, n=sweep.points["n"]) if drawn else None


def draw_failures(axis: Axes, drawn: Sequence[marks.Curve], *, shown: Sequence[str]) -> list[Line2D]:
    """Draw the shares of failed answers by kind, in per cent, with Wilson's intervals."""
    has_many = len(drawn) > 1
    look: dict[str, Any] = {"markersize": 3.5, "linewidth": 1}
    for index, (name, curve) in enumerate(product(shown, drawn)):
        _, mark, colour = FAILURES[name]
        x, colour = dodged_x(curve, index, len(shown) * len(drawn)), curve.colour if has_many else colour
        low, high = (100 * curve.cells[f"{name}_{end}"] for end in ("low", "high"))
        marks.intervals(axis, x, low, high, colour, 0.8)
        axis.plot(x, 100 * curve.cells[name], "-", marker=mark, color=colour, **look)
    axis.set_ylim(bottom=0)
    looks = [FAILURES[name] for name in shown]
    return [marks.key(text, style.GREY if has_many else colour, mark, **look) for text, mark, colour in looks]
