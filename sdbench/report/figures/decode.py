"""What happens while decoding: acceptance by position, where the time goes, when texts leave the target's greedy one."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sdbench.metrics.divergence import survival
from sdbench.report.figures.labels import Room
from sdbench.report.figures.marks import (
    NAMES,
    Curve,
    band,
    curves,
    evenly,
    knob_label,
    name_value,
    ramp,
    say_n,
    text_of,
)
from sdbench.report.figures.style import BLUE, GREY, INK, ORANGE, panels, settle
from sdbench.report.sweep import Sweep

MOST_BARS = 12  # of settings, baselines apart
MOST = 6  # lines that a panel can hold and a reader tell apart
PARTS = {"draft_s": ("draft", ORANGE), "verify_s": ("verify", BLUE), "rest_s": ("rest", GREY)}


def longest(sweep: Sweep) -> pd.DataFrame:
    """Cells of the curve with the longest drafts: the one a figure of a line a setting shows, from the strict end outwards."""
    drawn = sorted(curves(sweep, "x"), key=lambda curve: -float(curve.cells["num_draft"].iloc[0]))
    return drawn[0].cells.sort_values("rank", ascending=False) if drawn else sweep.swept.iloc[:0]


def positions(sweep: Sweep) -> Figure | None:
    """How often each slot of a draft is kept: of all drafted, and of those looked at; a line a setting."""
    cells = longest(sweep)
    cells = cells[cells["cell"].isin(sweep.positions["cell"])]
    if cells.empty:
        cells = sweep.baseline("lossless")
        cells = cells[cells["cell"].isin(sweep.positions["cell"])].iloc[:1]
    if cells.empty:
        return None
    cells = cells.iloc[evenly(len(cells), MOST)]
    figure, axes = panels(columns=2, height=2.2, sharey=True)
    colours = ramp(cells["rank"])
    for axis, name, title in zip(
        axes, ("marginal", "conditional"), ("of all drafted", "of those examined"), strict=True
    ):
        for cell, colour in zip(cells.to_dict("records"), colours, strict=True):
            own = sweep.positions[sweep.positions["cell"] == cell["cell"]]
            band(axis, own, "slot", name, colour)
            axis.plot(own["slot"], own[name], "o-", color=colour, markersize=3, linewidth=1.1)
        slots = sorted(sweep.positions.loc[sweep.positions["cell"].isin(cells["cell"]), "slot"].unique())
        axis.set(
            xticks=slots if len(slots) < 9 else slots[1::2],
            xlabel=f"slot of {int(cells['num_draft'].max())} in the draft",
            xlim=(slots[0] - 0.3, slots[-1] + 1.9),
        )
        axis.set_title(title)
    axes[0].set(ylabel="share kept", ylim=(None, 1.03))
    say_n(axes[0], sweep.points["n"].max())
    settle(figure)
    for axis, name in zip(axes, ("marginal", "conditional"), strict=True):
        label_ends(Room(axis), sweep, cells, colours, name)
    return figure


def label_ends(room: Room, sweep: Sweep, cells: pd.DataFrame, colours: list[str], name: str) -> None:
    """Each setting at the right end of its line, moved apart where lines meet."""
    labels = []
    for cell, colour in zip(cells.to_dict("records"), colours, strict=True):
        own = sweep.positions[sweep.positions["cell"] == cell["cell"]]
        room.block_line(own["slot"], own[name])
        last = own.iloc[-1]
        labels.append((float(last["slot"]), float(last[name]), text_of(cell), colour))
    has_knob = cells["x"].notna().any()
    spread_column(room, labels, prefix=f"{cells['knob'].iloc[0]} = " if has_knob else "")


def spread_column(room: Room, ends: list[tuple[float, float, str, str]], *, prefix: str) -> None:
    """Labels in a column right of the ends of lines, in their order, no two on one line; the highest begins with `prefix`."""
    if not ends:
        return
    figure = room.axis.get_figure(root=True)
    assert figure is not None
    height = float(room.axis.get_window_extent().height) * 72 / figure.dpi
    (bottom, top), least = room.axis.get_ylim(), 6.6
    points = sorted(((y - bottom) / (top - bottom) * height, x, y, text, colour) for x, y, text, colour in ends)
    places = [points[0][0]]
    for point in points[1:]:
        places.append(max(point[0], places[-1] + least))
    ceiling_of_all = height - 3
    excess = max(0.0, places[-1] - ceiling_of_all)
    for back in range(len(places) - 1, -1, -1):
        ceiling = places[back + 1] - least if back + 1 < len(places) else ceiling_of_all
        places[back] = min(places[back], ceiling) if excess else places[back]
    for place, (own, x, y, text, colour) in zip(places, points, strict=True):
        named = f"{prefix}{text}" if place == places[-1] else text
        room.axis.annotate(
            named,
            (x, y),
            (4, place - own),
            textcoords="offset points",
            va="center",
            color=colour,
            size=6.3,
            annotation_clip=False,
        )


def time_split(sweep: Sweep) -> Figure | None:
    """Milliseconds a token in draft calls, verify calls and the rest; a bar a cell."""
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
    for place, total in enumerate(left):
        axis.text(1.015, place, f"{total:.3g}", transform=axis.get_yaxis_transform(), va="center", size=6.3, color=GREY)
    # A handful of synchronised repeats can have intervals many bars long: those run out of the axes.
    axis.set_xlim(
        0, 1.12 * min(float(high.max()), 1.6 * float(left.max())) if high.notna().any() else 1.12 * float(left.max())
    )
    axis.set(yticks=range(len(cells)), yticklabels=bar_names(cells), xlabel="milliseconds a token")
    axis.set_ylim(len(cells) - 0.5, -0.5)
    axis.grid(visible=False, axis="y")
    axis.tick_params(axis="y", length=0)
    axis.legend(loc="lower left", bbox_to_anchor=(-0.01, 0.99), ncols=3, columnspacing=1, handlelength=1, borderpad=0.2)
    say_n(axis, cells["num_split"].max(), "timed")
    settle(figure)
    return figure


def bars_of(sweep: Sweep, cells: pd.DataFrame) -> pd.DataFrame:
    """Baselines, then each curve from lossless outwards, of many curves its ends and what fits between; the draft."""
    shown = [cells[cells["verifier"] == name] for name in ("target", "lossless")]
    for name in sweep.curves:
        own = cells[cells["curve"] == name].sort_values("rank")
        shown.append(own.iloc[evenly(len(own), max(2, MOST_BARS // len(sweep.curves)))])
    return pd.concat([*shown, cells[cells["verifier"] == "draft"]])


def bar_names(cells: pd.DataFrame) -> list[str]:
    """The rule's setting, or the baseline's name."""
    lengths = cells.loc[cells["num_draft"] > 0, "num_draft"].nunique()
    names = []
    for cell in cells.to_dict("records"):
        knob = name_value(cell) if cell["x"] == cell["x"] else ""
        own = NAMES.get(cell["verifier"], cell["curve"] or cell["verifier"])
        length = f"K = {cell['num_draft']}" if lengths > 1 and cell["verifier"] == "lossless" else ""
        many = cell["curve"] if knob and cells.loc[cells["x"].notna(), "curve"].nunique() > 1 else ""
        names.append(", ".join(filter(None, [many, knob] if knob else [own, length])))
    return names


def divergence(sweep: Sweep) -> Figure | None:
    """How long texts follow the target's own greedy text: above by token, below the mean length against the knob."""
    cells = longest(sweep)
    cells = cells[cells["cell"].isin(sweep.followed["cell"])]
    if cells.empty:
        return None
    figure, (top, bottom) = panels(rows=2, height=1.8)
    some = cells.iloc[evenly(len(cells), MOST)]
    lines = [survival(sweep.divergence, str(key)) for key in some["cell"]]
    last = max(float(line["token"].iloc[-1]) for line in lines)
    ends = []
    for line, cell, colour in zip(lines, some.to_dict("records"), ramp(some["rank"]), strict=True):
        x, y = (
            [*line["token"], last],
            [*(100 * line["share"]), 100 * line["share"].iloc[-1]],
        )  # what is the same stays so
        top.plot(x, y, "-", color=colour, linewidth=1.1, drawstyle="steps-post")
        ends.append((last, float(y[-1]), text_of(cell), colour))
    top.set(xlabel="tokens", ylabel="still the greedy text (%)", xlim=(0, last * 1.14), ylim=(-2, 103))
    drawn = [curve for curve in curves(sweep, "x") if curve.knob == cells["knob"].iloc[0]]
    followed(bottom, sweep, drawn, "prefix")
    bottom.set(xlabel=knob_label(drawn), ylabel="tokens before the\nfirst difference")
    say_n(top, sweep.followed["n"].max())
    settle(figure)
    spread_column(Room(top), ends, prefix=f"{cells['knob'].iloc[0]} = ")
    return figure


def followed(axis: Axes, sweep: Sweep, drawn: Sequence[Curve], column: str) -> None:
    """Each curve against its knob."""
    table = sweep.followed.set_index("cell")
    for curve in drawn:
        known = curve.cells[curve.cells["cell"].isin(table.index)]
        own = table.loc[known["cell"]].assign(x=known["x"].to_numpy())
        band(axis, own, "x", column, curve.colour)
        axis.plot(own["x"], own[column], "-", marker=curve.mark, color=curve.colour, markersize=3.2, linewidth=1.1)
    axis.set_ylim(bottom=0)
