"""Theory beside data: the laws of the static ensemble, the bound of all token-wise rules, predictions for every w."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from sdbench.metrics.legacy import WEIGHT
from sdbench.metrics.theory import CONTEXTS
from sdbench.report.figures.labels import Label, Room
from sdbench.report.figures.marks import (
    FEW_CURVES,
    Curve,
    band,
    bars,
    block_bars,
    curves,
    entries,
    knob_label,
    knob_labels,
    name_value,
    other_curves,
    say_n,
    text_of,
)
from sdbench.report.figures.style import BASELINES, GREY, INK, PALE, SMALL, panels, settle
from sdbench.report.sweep import Sweep

Array = NDArray[np.float64]
RISES = (6.5, 9.0, 12.0, 15.0, 18.0, 22.0)  # points above a line


def with_laws(sweep: Sweep, cells: pd.DataFrame) -> pd.DataFrame:
    """Cells of a sweep with what the laws say beside their measures."""
    return cells.merge(sweep.laws[["cell", "acceptance_law", "bias_law", "acceptance_bound"]], on="cell", how="left")


def lawful(sweep: Sweep, found: Iterable[Curve], *columns: str) -> list[Curve]:
    """Curves with the laws beside their cells, of those that have all these columns."""
    known = [replace(c, cells=with_laws(sweep, c.cells).dropna(subset=list(columns))) for c in found]
    return [curve for curve in known if len(curve.cells)]


def laws(sweep: Sweep) -> Figure | None:
    """Measured acceptance and bias against the ensemble's laws of them; on the diagonal both agree."""
    drawn = lawful(sweep, curves(sweep), "acceptance_law", "bias")
    if not drawn:
        return None
    figure, axes = panels(columns=2, height=1.8)
    titles = {"acceptance": "1 − w·E[TV]", "bias": "(1 − w)·E[TV]"}
    for axis, (name, law) in zip(axes, titles.items(), strict=True):
        for curve in drawn:
            known = curve.cells.dropna(subset=[f"{name}_low"])
            axis.vlines(
                known[f"{name}_law"], known[f"{name}_low"], known[f"{name}_high"], color=curve.colour, linewidth=0.8
            )
            axis.plot(
                curve.cells[f"{name}_law"],
                curve.cells[name],
                curve.mark,
                color=curve.colour,
                markersize=3.4,
                label=curve.name,
            )
        mark, colour = BASELINES["lossless"]
        lossless = with_laws(sweep, sweep.baseline("lossless")).dropna(subset=[f"{name}_law"])
        axis.plot(
            lossless[f"{name}_law"], lossless[name], mark, color=colour, markersize=3.4, label="lossless", zorder=2.5
        )
        diagonal(axis)
        axis.set(xlabel=law, ylabel=f"measured {name}")
    entries = list(zip(*axes[0].get_legend_handles_labels(), strict=True))
    for axis, part in zip(axes, (entries[:3], entries[3:]), strict=True):  # the corners that the diagonal leaves free
        if part:
            axis.legend(*zip(*part, strict=True), loc="upper left")
    say_n(axes[1], sweep.points["n"].max())
    settle(figure)
    return figure


def diagonal(axis: Axes) -> None:
    """Equal scales and the line where both agree."""
    low = min(axis.get_xlim()[0], axis.get_ylim()[0])
    high = max(axis.get_xlim()[1], axis.get_ylim()[1])
    axis.plot([low, high], [low, high], color=GREY, linewidth=0.7, linestyle=":", zorder=1)
    axis.set(xlim=(low, high), ylim=(low, high), aspect="equal")


def bound(sweep: Sweep) -> Figure | None:
    """Acceptance against bias: every rule's point, and the most that a token-wise rule could accept there."""
    drawn, others = (lawful(sweep, found(sweep), "acceptance_bound", "bias") for found in (curves, other_curves))
    lossless = sweep.baseline("lossless").dropna(subset=["tv"])
    if not drawn:
        return None
    figure, (axis,) = panels(height=2.6)
    for curve in others:
        axis.plot(
            curve.cells["bias"], curve.cells["acceptance"], curve.mark, color=curve.colour, markersize=3.5, zorder=2
        )
    for curve in drawn:
        bars(axis, curve.cells, "bias", "acceptance", curve.colour)
        axis.plot(
            curve.cells["bias"], curve.cells["acceptance"], curve.mark, color=curve.colour, markersize=4, zorder=3
        )
    mark, colour = BASELINES["lossless"]
    axis.plot(lossless["bias"], lossless["acceptance"], mark, color=colour, markersize=4, zorder=4)
    axis.margins(0.06, 0.1)
    axis.autoscale_view()
    (left, right), (bottom, top) = axis.get_xlim(), axis.get_ylim()
    for curve in drawn:
        x, half = curve.cells["bias"], 0.018 * (right - left)
        axis.hlines(curve.cells["acceptance_bound"], x - half, x + half, color=INK, linewidth=1.0, zorder=5)
    tv = lossless["tv"] if len(lossless) else drawn[0].cells["tv"].iloc[-1:]
    line = np.array([left, right])
    level = 1 - float(tv.iloc[0]) + line
    axis.plot(line, level, color=GREY, linewidth=0.8, linestyle="--", zorder=1)
    axis.fill_between(line, level, top + 1, color=PALE, alpha=0.45, linewidth=0, zorder=0)
    axis.set(xlim=(left, right), ylim=(bottom - 0.08 * (top - bottom), top))
    axis.set(xlabel="bias: TV(emitted, target) at a drafted position", ylabel="acceptance")
    keys = entries(drawn, others, linestyle="", markersize=4) if len(drawn) > 1 else []
    axis.legend(handles=[*keys, _mark("bound at the point's own contexts", "_", INK)], loc="lower right")
    say_n(axis, sweep.points["n"].max())
    settle(figure)
    room = Room(axis)
    room.block_legend()
    for curve in drawn:
        room.block_marks(curve.cells["bias"], curve.cells["acceptance"], 3)
        block_bars(room, curve.cells, "bias", "acceptance")
    write_along(room, line, level, f"token-wise bound, {CONTEXTS if len(lossless) else 'last contexts'}")
    room.block_line(line, level)
    labels = [
        Label(float(c["bias"]), float(c["acceptance"]), "lossless", INK, True) for c in lossless.to_dict("records")[:1]
    ]
    for curve in drawn if len(drawn) <= FEW_CURVES else drawn[-1:]:
        labels += knob_labels(curve, "bias", "acceptance", texts_of(curve, has_lossless=len(lossless) > 0))
    room.place(labels)
    return figure


def _mark(name: str, mark: str, colour: str) -> Line2D:
    return Line2D([], [], linestyle="", marker=mark, color=colour, markersize=4, label=name)


def write_along(room: Room, x: Array, y: Array, text: str) -> None:
    """A text just above the visible part of a rising line, turned with it."""
    bottom, top = room.axis.get_ylim()
    seen = np.linspace(x[0], x[-1], 200)
    heights = np.interp(seen, x, y)
    seen, heights = seen[(heights > bottom) & (heights < top)], heights[(heights > bottom) & (heights < top)]
    if len(seen) < 2:
        return
    ends = room.to_points(seen[[0, -1]], heights[[0, -1]])
    along = ends[1] - ends[0]
    turn = float(np.degrees(np.arctan2(along[1], along[0])))
    up = np.array([-along[1], along[0]]) / np.hypot(*along)
    half = 0.5 * 0.56 * SMALL * len(text) / np.hypot(*along)
    steps = np.linspace(0.5 - half, 0.5 + half, 60)[:, None]
    taken = np.concatenate(room.taken) if room.taken else np.zeros((0, 2))
    # As near to the line as marks let it.
    rise = next((r for r in RISES if not _is_covered(taken, ends[0], along, up, r, half)), RISES[0])
    middle = len(seen) // 2
    room.axis.annotate(
        text,
        (seen[middle], heights[middle]),
        tuple(rise * up),
        textcoords="offset points",
        rotation=turn,
        rotation_mode="anchor",
        ha="center",
        va="center",
        color=GREY,
        size=SMALL,
    )
    for edge in (rise - 2.5, rise + 2.5):
        room.taken.append(ends[0] + along * steps + edge * up)


def _is_covered(points: Array, start: Array, along: Array, up: Array, rise: float, half: float) -> bool:
    """Whether any point lies in the strip of a text this high above the line."""
    place = (points - start) @ along / (along @ along)
    height = (points - start) @ up
    return bool(((np.abs(place - 0.5) < half) & (np.abs(height - rise) < 4.5)).any())


def texts_of(curve: Curve, *, has_lossless: bool) -> list[str]:
    """Each value, in words at the first cell; nothing at the strict end where lossless is named."""
    cells = curve.cells.to_dict("records")
    texts = ["" if has_lossless and cell["rank"] == 0 else text_of(cell) for cell in cells]
    return [name_value(cells[0]) if texts[0] else "", *texts[1:]]


def predicted(sweep: Sweep) -> Figure | None:
    """What the lossless run's probabilities say for every weight, beside what each setting measured."""
    frame, drawn = sweep.predicted, [c for c in curves(sweep, "acceptance", "x") if c.knob == WEIGHT]
    if frame.empty or not drawn:
        return None
    figure, axes = panels(rows=2, height=1.7, sharex=True)
    for axis, name in zip(axes, ("acceptance", "accepted_per_round"), strict=True):
        for curve in drawn:
            own = frame[frame["num_draft"] == curve.cells["num_draft"].iloc[0]]
            band(axis, own, WEIGHT, name, GREY)
            axis.plot(own[WEIGHT], own[name], "-", color=curve.colour, linewidth=1.0)
            cells = curve.cells
            axis.vlines(cells["x"], cells[f"{name}_low"], cells[f"{name}_high"], color=curve.colour, linewidth=0.8)
            axis.plot(
                cells["x"], cells[name], curve.mark, color=curve.colour, markersize=3.8, label=curve.name, zorder=3
            )
    axes[0].set_ylabel("acceptance")
    axes[1].set(ylabel="accepted a round", xlabel=knob_label(drawn))
    many = len(drawn) > 1
    keys = [
        Line2D([], [], linestyle="", marker=c.mark, color=c.colour, markersize=3.8, label=c.name) for c in drawn if many
    ]
    shade = GREY if many else drawn[0].colour
    keys.append(Line2D([], [], linestyle="", marker="o", color=shade, markersize=3.8, label="measured"))
    keys.append(Line2D([], [], color=shade, linewidth=1.0, label=f"predicted, {CONTEXTS}"))
    axes[0].legend(handles=keys, loc="lower left")
    say_n(axes[0], sweep.points["n"].max())
    settle(figure)
    return figure
