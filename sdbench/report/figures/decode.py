"""What happens while decoding: acceptance by position, where the time goes, when texts leave the target's greedy one."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sdbench.metrics.divergence import survival
from sdbench.report.figures import marks
from sdbench.report.figures.labels import Room
from sdbench.report.figures.style import BLUE, GREY, INK, ORANGE, SMALL, panels, settle
from sdbench.report.sweep import Sweep

MOST_BARS = 12  # of settings, baselines apart
MOST = 6  # lines that a panel can hold and a reader tell apart
LABEL_HEIGHT = 6.6  # points
PARTS = {"draft_s": ("draft", ORANGE), "verify_s": ("verify", BLUE), "rest_s": ("rest", GREY)}
SHARES = {"marginal": "of all drafted", "conditional": "of those examined"}


def longest_curve(sweep: Sweep) -> pd.DataFrame:
    """Return the cells of the curve with the longest drafts, from its lossless end outwards."""
    drawn = max(marks.curves(sweep, "x"), key=lambda curve: float(curve.cells["num_draft"].iloc[0]), default=None)
    return sweep.swept.iloc[:0] if drawn is None else drawn.cells.sort_values("rank", ascending=False)


def positions(sweep: Sweep) -> Figure | None:
    """Draw how often each slot of a draft is kept: of all drafted, and of those examined; a line a setting."""
    measured = [
        cells[cells["cell"].isin(sweep.positions["cell"])]
        for cells in (longest_curve(sweep), sweep.baseline("lossless"))
    ]
    cells = measured[0] if len(measured[0]) else measured[1].iloc[:1]
    if cells.empty:
        return None
    cells = cells.iloc[marks.evenly(len(cells), MOST)]
    lines = {str(key): sweep.positions[sweep.positions["cell"] == key] for key in cells["cell"]}
    colours = dict(zip(lines, marks.ramp(cells["rank"]), strict=True))
    figure, axes = panels(columns=2, height=2.2, sharey=True)
    slots = sorted(set(pd.concat(lines.values())["slot"]))
    for axis, (name, title) in zip(axes, SHARES.items(), strict=True):
        for key, line in lines.items():
            marks.band(axis, line, "slot", name, colours[key])
            axis.plot(line["slot"], line[name], "o-", color=colours[key], markersize=3, linewidth=1.1)
        axis.set(xticks=slots if len(slots) < 9 else slots[1::2], xlim=(slots[0] - 0.3, slots[-1] + 1.9))
        axis.set_xlabel(f"slot of {int(cells['num_draft'].max())} in the draft")
        axis.set_title(title)
    axes[0].set(ylabel="share kept", ylim=(None, 1.03))
    marks.write_n(axes[0], sweep.points["n"].max())
    settle(figure)
    texts = dict(zip(lines, map(marks.text_of, cells.to_dict("records")), strict=True))
    prefix = f"{cells['knob'].iloc[0]}=" if cells["x"].notna().any() else ""
    for axis, name in zip(axes, SHARES, strict=True):
        room, ends = Room(axis), []
        for key, line in lines.items():
            room.block_line(line["slot"], line[name])
            ends.append((float(line["slot"].iloc[-1]), float(line[name].iloc[-1]), texts[key], colours[key]))
        label_ends(room, ends, prefix=prefix)
    return figure


def label_ends(room: Room, ends: list[tuple[float, float, str, str]], *, prefix: str) -> None:
    """Write labels in a column right of the ends of lines, in their order, apart; the highest begins with `prefix`."""
    bottom, top = room.axis.get_ylim()
    height = float(room.frame[3] - room.frame[1])
    ordered = sorted(((y - bottom) / (top - bottom) * height, x, y, text, colour) for x, y, text, colour in ends)
    spots = push_down(push_up([end[0] for end in ordered]), height - 3)
    for index, (spot, (level, x, y, text, colour)) in enumerate(zip(spots, ordered, strict=True)):
        is_highest = index == len(ordered) - 1
        room.write(f"{prefix}{text}" if is_highest else text, x, y, (4, spot - level), colour)


def push_up(heights: list[float]) -> list[float]:
    """Move ascending heights up until each is a label's height above the one below it."""
    moved = heights[:1]
    for height in heights[1:]:
        moved.append(max(height, moved[-1] + LABEL_HEIGHT))
    return moved


def push_down(heights: list[float], ceiling: float) -> list[float]:
    """Move ascending heights down below the ceiling, from the top, as far as each has to."""
    moved: list[float] = []
    for height in reversed(heights):
        moved.append(min(height, moved[-1] - LABEL_HEIGHT if moved else ceiling))
    return moved[::-1]


def time_split(sweep: Sweep) -> Figure | None:
    """Draw milliseconds a token in draft calls, verify calls and the rest; a bar a cell."""
    cells = sweep.points[sweep.points["verify_s"].notna()]
    if cells.empty:
        return None
    cells = bars_of(sweep, cells)
    figure, (axis,) = panels(height=0.75 + 0.19 * len(cells))
    left = pd.Series(0.0, index=cells.index)
    for column, (name, colour) in PARTS.items():
        width = 1e3 * cells[column].fillna(0)
        axis.barh(range(len(cells)), width, left=left, color=colour, height=0.68, label=name, zorder=3)
        left = left + width
    low, high = 1e3 * cells["split_s_low"], 1e3 * cells["split_s_high"]
    axis.hlines(range(len(cells)), low, high, color=INK, linewidth=0.7, zorder=4)
    for row, total in enumerate(left):
        axis.text(1.015, row, f"{total:.3g}", transform=axis.get_yaxis_transform(), va="center", size=SMALL, color=GREY)
    # A handful of synchronised repeats can have intervals many bars long: those run out of the axes.
    longest = float(left.max())
    axis.set_xlim(0, 1.12 * (min(float(high.max()), 1.6 * longest) if high.notna().any() else longest))
    axis.set(yticks=range(len(cells)), yticklabels=cells["short"], xlabel="milliseconds a token")
    axis.set_ylim(len(cells) - 0.5, -0.5)
    axis.grid(visible=False, axis="y")
    axis.tick_params(axis="y", length=0)
    axis.legend(loc="lower left", bbox_to_anchor=(-0.01, 0.99), ncols=3, columnspacing=1, handlelength=1, borderpad=0.2)
    marks.write_n(axis, cells["num_split"].max(), "texts timed")
    settle(figure)
    return figure


def bars_of(sweep: Sweep, cells: pd.DataFrame) -> pd.DataFrame:
    """Return the baselines, of each curve its ends and what fits between, from lossless outwards, and the draft."""
    shown = [cells[cells["verifier"] == name] for name in ("target", "lossless")]
    for name in sweep.curves:
        curve = cells[cells["curve"] == name].sort_values("rank")
        shown.append(curve.iloc[marks.evenly(len(curve), max(2, MOST_BARS // len(sweep.curves)))])
    return pd.concat([*shown, cells[cells["verifier"] == "draft"]])


def divergence(sweep: Sweep) -> Figure | None:
    """Draw how long texts follow the target's own greedy text: above by token, below the mean length against the knob."""
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
    drawn = [curve for curve in marks.curves(sweep, "x") if curve.knob == cells["knob"].iloc[0]]
    draw_followed(bottom, sweep, drawn)
    bottom.set(xlabel=marks.knob_label(drawn), ylabel="tokens before the\nfirst difference")
    marks.write_n(top, sweep.followed["n"].max())
    settle(figure)
    label_ends(Room(top), ends, prefix=f"{cells['knob'].iloc[0]}=")
    return figure


def draw_followed(axis: Axes, sweep: Sweep, drawn: Sequence[marks.Curve]) -> None:
    """Draw the mean number of tokens before the first difference of each curve against its knob."""
    for curve in drawn:
        line = curve.cells[["cell", "x"]].merge(sweep.followed, on="cell")
        marks.band(axis, line, "x", "prefix", curve.colour)
        axis.plot(line["x"], line["prefix"], "-", marker=curve.mark, color=curve.colour, markersize=3.2, linewidth=1.1)
    axis.set_ylim(bottom=0)
