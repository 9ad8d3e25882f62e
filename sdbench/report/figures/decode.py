"""Figures about decoding: acceptance by position, the split of the time, and when texts differ from the target's greedy text."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from sdbench.metrics.divergence import survival
from sdbench.report.figures import marks
from sdbench.report.figures.knob import draw_along
from sdbench.report.figures.labels import Room
from sdbench.report.figures.style import BLUE, GREY, INK, ORANGE, SMALL, panels
from sdbench.report.sweep import Sweep

MOST_BARS = 12  # settings, without baselines
MOST = 6  # most lines in a panel
LABEL_HEIGHT = 6.6  # points
PARTS = {"draft_s": ("draft", ORANGE), "verify_s": ("verify", BLUE), "rest_s": ("rest", GREY)}
SHARES = {"marginal": "of all drafted", "conditional": "of those examined"}


def longest_curve(sweep: Sweep) -> pd.DataFrame:
    """Return the cells of the curve with the longest drafts, from its lossless end outwards."""
    drawn = max(marks.curves(sweep, "x"), key=lambda curve: float(curve.cells["num_draft"].iloc[0]), default=None)
    return sweep.swept.iloc[:0] if drawn is None else drawn.cells.sort_values("rank", ascending=False)


def name_of_curve(sweep: Sweep, cells: pd.DataFrame) -> str:
    """Return the name of the curve that these cells are of; "" where it is the only one."""
    return str(cells["curve"].iloc[0]) if len(sweep.curves) > 1 else ""


def positions(sweep: Sweep) -> Figure | None:
    """Draw how often each slot of a draft is kept, out of all drafted and of the examined ones; one line per setting."""
    known = set(sweep.positions["cell"])
    curve, lossless = longest_curve(sweep), sweep.baseline("lossless")
    cells = curve[curve["cell"].isin(known)]
    cells = cells if len(cells) else lossless[lossless["cell"].isin(known)][:1]
    if cells.empty:
        return None
    cells = cells.iloc[marks.evenly(len(cells), MOST)]
    lines = [
        (sweep.positions[sweep.positions["cell"] == cell["cell"]], marks.text_of(cell), colour)
        for cell, colour in zip(cells.to_dict("records"), marks.ramp(cells["rank"]), strict=True)
    ]
    figure, axes = panels(columns=2, height=2.2, sharey=True)
    slots = sorted({slot for line, *_ in lines for slot in line["slot"]})
    for axis, (name, title) in zip(axes, SHARES.items(), strict=True):
        for line, _, colour in lines:
            marks.band(axis, line, "slot", name, colour)
            axis.plot(line["slot"], line[name], "o-", color=colour, markersize=3, linewidth=1.1)
        axis.set(xticks=slots if len(slots) < 9 else slots[1::2], xlim=(slots[0] - 0.3, slots[-1] + 1.9))
        axis.set_xlabel(f"slot of {int(cells['num_draft'].max())} in the draft")
        axis.set_title(title)
    axes[0].set(ylabel="share kept", ylim=(None, 1.03))
    if name := name_of_curve(sweep, cells):
        figure.suptitle(name, fontsize=SMALL)
    marks.finish(figure, axes[0], sweep.points["n"])
    prefix = f"{cells['knob'].iloc[0]}=" if cells["x"].notna().any() else ""
    for axis, name in zip(axes, SHARES, strict=True):
        label_ends(Room(axis), [(*line[["slot", name]].iloc[-1], *look) for line, *look in lines], prefix=prefix)
    return figure


def label_ends(room: Room, ends: Sequence[tuple[Any, ...]], *, prefix: str) -> None:
    """Write labels in a column to the right of the line ends (x, y, text, colour), spread apart; `prefix` precedes the highest."""
    ordered = sorted(ends, key=lambda end: end[1])
    heights = room.to_points([end[0] for end in ordered], [end[1] for end in ordered])[:, 1]
    steps = LABEL_HEIGHT * np.arange(len(ordered))
    spots = np.maximum.accumulate(heights - steps) + steps  # upwards: each a label's height above the one below
    spots = np.minimum(spots, room.frame[3] - 3 - steps[::-1])  # downwards: below the top of the frame
    for index, ((x, y, text, colour), up) in enumerate(zip(ordered, spots - heights, strict=True)):
        room.write(text if index < len(ordered) - 1 else f"{prefix}{text}", x, y, (4, up), colour)


def time_split(sweep: Sweep) -> Figure | None:
    """Draw milliseconds per token in draft calls, verify calls and the rest; one bar per cell."""
    cells = sweep.points[sweep.points["verify_s"].notna()]
    if cells.empty:
        return None
    cells = bars_of(sweep, cells)
    figure, (axis,) = panels(height=0.75 + 0.19 * len(cells))
    left = pd.Series(0.0, index=cells.index)
    for column, (_, colour) in PARTS.items():
        width = 1e3 * cells[column].fillna(0)
        axis.barh(range(len(cells)), width, left=left, color=colour, height=0.68, zorder=3)
        left = left + width
    low, high = 1e3 * cells["split_s_low"], 1e3 * cells["split_s_high"]
    axis.hlines(range(len(cells)), low, high, color=INK, linewidth=0.7, zorder=4)
    for row, total in enumerate(left):
        axis.text(1.015, row, f"{total:.3g}", transform=axis.get_yaxis_transform(), va="center", size=SMALL, color=GREY)
    # A few synchronised repeats can have intervals many bars long, which are cut off at the axes.
    longest = float(left.max())
    axis.set_xlim(0, 1.12 * (min(float(high.max()), 1.6 * longest) if high.notna().any() else longest))
    axis.set(yticks=range(len(cells)), yticklabels=cells["short"], xlabel="milliseconds a token")
    axis.set_ylim(len(cells) - 0.5, -0.5)
    axis.grid(visible=False, axis="y")
    axis.tick_params(axis="y", length=0)
    keys = [marks.key(name, colour, "s", linestyle="") for name, colour in PARTS.values()]
    marks.finish(figure, axis, cells["num_split"], keys, unit="texts timed")
    return figure


def bars_of(sweep: Sweep, cells: pd.DataFrame) -> pd.DataFrame:
    """Return the baselines, the ends of each curve and what fits between them, from lossless outwards, and the draft."""
    shown = [cells[cells["verifier"] == name] for name in ("target", "lossless")]
    for name in sweep.curves:
        curve = cells[cells["curve"] == name].sort_values("rank")
        shown.append(curve.iloc[marks.evenly(len(curve), max(2, MOST_BARS // len(sweep.curves)))])
    return pd.concat([*shown, cells[cells["verifier"] == "draft"]])


def divergence(sweep: Sweep) -> Figure | None:
    """Draw how many tokens texts share with the target's greedy text: by token above, the mean against the knob below."""
    cells = longest_curve(sweep)
    cells = cells[cells["cell"].isin(sweep.followed["cell"])]
    if cells.empty:
        return None
    figure, (top, bottom) = panels(rows=2, height=1.8)
    some = cells.iloc[marks.evenly(len(cells), MOST)]
    lines = [survival(sweep.divergence, str(key)) for key in some["cell"]]
    last = max(float(line["token"].iloc[-1]) for line in lines)
    ends = []
    for line, cell, colour in zip(lines, some.to_dict("records"), marks.ramp(some["rank"]), strict=True):
        x, y = [*line["token"], last], [*(100 * line["share"]), 100 * line["share"].iloc[-1]]  # what is equal stays so
        top.plot(x, y, "-", color=colour, linewidth=1.1, drawstyle="steps-post")
        ends.append((last, float(y[-1]), marks.text_of(cell), colour))
    top.set(xlabel="tokens", ylabel="still the greedy text (%)", xlim=(0, last * 1.14), ylim=(-2, 103))
    if name := name_of_curve(sweep, cells):
        marks.note_above(top, [name])
    drawn = [curve for curve in marks.curves(sweep, "x") if curve.knob == cells["knob"].iloc[0]]
    measured = [c.cells.merge(sweep.followed.drop(columns="n"), on="cell") for c in drawn]
    means = [replace(c, cells=cells, end=cells[:0]) for c, cells in zip(drawn, measured, strict=True)]
    draw_along(bottom, means, "prefix")
    bottom.set_ylim(bottom=0)
    bottom.set(xlabel=marks.knob_label(drawn), ylabel="tokens before the\nfirst difference")
    left_out = [curve for curve in marks.other_curves(sweep, "x") if curve.knob == cells["knob"].iloc[0]]
    marks.finish(figure, top, sweep.followed["n"], [*marks.keys_of(drawn), *marks.not_drawn(left_out)])
    label_ends(Room(top), ends, prefix=f"{cells['knob'].iloc[0]}=")
    return figure
