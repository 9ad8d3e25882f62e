"""Theory beside data: the identities of the static ensemble, the bound of all token-wise rules, predictions for every w."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sdbench.metrics.columns import WEIGHT
from sdbench.metrics.stats import Array
from sdbench.metrics.theory import CONTEXTS
from sdbench.report.figures import marks
from sdbench.report.figures.labels import Label, Room
from sdbench.report.figures.style import BASELINES, GREY, INK, PALE, SMALL, panels, settle
from sdbench.report.sweep import Sweep

RISES = (6.5, 9.0, 12.0, 15.0, 18.0, 22.0)  # points above a line


def with_theory(sweep: Sweep, cells: pd.DataFrame) -> pd.DataFrame:
    """Join cells of a sweep with what theory says beside their measures."""
    return cells.merge(sweep.laws[["cell", "acceptance_law", "bias_law", "acceptance_bound"]], on="cell", how="left")


def theory_curves(sweep: Sweep, known: Iterable[marks.Curve], *columns: str) -> list[marks.Curve]:
    """Return the curves with theory beside their cells, of those that have all these columns."""
    joined = [replace(c, cells=with_theory(sweep, c.cells), end=with_theory(sweep, c.end)) for c in known]
    return marks.having(joined, *columns)


def laws(sweep: Sweep) -> Figure | None:
    """Draw measured acceptance and bias against what the ensemble's identities say; on the diagonal both agree."""
    drawn = theory_curves(sweep, marks.curves(sweep), "acceptance_law", "bias")
    if not drawn:
        return None
    figure, axes = panels(columns=2, height=1.8)
    mark, colour = BASELINES["lossless"]
    for axis, (name, formula) in zip(axes, {"acceptance": "1 − w·E[TV]", "bias": "(1 − w)·E[TV]"}.items(), strict=True):
        law = f"{name}_law"
        for curve in drawn:
            known = curve.cells.dropna(subset=[f"{name}_low"])
            axis.vlines(known[law], known[f"{name}_low"], known[f"{name}_high"], color=curve.colour, linewidth=0.8)
            curve.plot(axis, law, name, markersize=3.4, label=curve.name)
        lossless = with_theory(sweep, sweep.baseline("lossless")).dropna(subset=[law])
        axis.plot(lossless[law], lossless[name], mark, color=colour, markersize=3.4, label="lossless", zorder=2.5)
        draw_diagonal(axis)
        axis.set(xlabel=formula, ylabel=f"measured {name}")
    handles = axes[0].get_legend_handles_labels()[0]
    for axis, part in zip(axes, (handles[:3], handles[3:]), strict=True):  # the corners that the diagonal leaves free
        if part:
            axis.legend(handles=part, loc="upper left")
    marks.write_n(axes[1], sweep.points["n"].max())
    settle(figure)
    return figure


def draw_diagonal(axis: Axes) -> None:
    """Set equal scales and draw the line where both agree."""
    ends = [*axis.get_xlim(), *axis.get_ylim()]
    low, high = min(ends), max(ends)
    axis.plot([low, high], [low, high], color=GREY, linewidth=0.7, linestyle=":", zorder=1)
    axis.set(xlim=(low, high), ylim=(low, high), aspect="equal")


def bound(sweep: Sweep) -> Figure | None:
    """Draw acceptance against bias: every rule's point, and the most that a token-wise rule could accept there."""
    needed = ("acceptance_bound", "bias")
    drawn, others = (theory_curves(sweep, known(sweep), *needed) for known in (marks.curves, marks.other_curves))
    lossless = sweep.baseline("lossless").dropna(subset=["tv"])
    if not drawn:
        return None
    figure, (axis,) = panels(height=2.6)
    draw_points(axis, drawn, others, lossless)
    tv = lossless["tv"] if len(lossless) else drawn[0].cells["tv"].iloc[-1:]
    line = np.array(axis.get_xlim())
    level = 1 - float(tv.iloc[0]) + line
    bottom, top = axis.get_ylim()
    axis.plot(line, level, color=GREY, linewidth=0.8, linestyle="--", zorder=1)
    axis.fill_between(line, level, top + 1, color=PALE, alpha=0.45, linewidth=0, zorder=0)
    axis.set(xlim=tuple(line), ylim=(bottom - 0.08 * (top - bottom), top))
    axis.set(xlabel="bias: TV(emitted, target) at a drafted position", ylabel="acceptance")
    keys = marks.entries(drawn, others, linestyle="", markersize=4) if len(drawn) > 1 else []
    keys.append(marks.key("bound at the point's own contexts", INK, "_", linestyle="", markersize=4))
    axis.legend(handles=keys, loc="lower right")
    marks.write_n(axis, sweep.points["n"].max())
    settle(figure)
    room = Room(axis)
    room.block_legend()
    for curve in drawn:
        room.block_cells(curve.cells, "bias", "acceptance")
    write_along(room, line, level, f"token-wise bound, {CONTEXTS if len(lossless) else 'last contexts'}")
    room.block_line(line, level)
    firsts = lossless.to_dict("records")[:1]
    labels = [Label(cell["bias"], cell["acceptance"], "lossless", INK, True) for cell in firsts]
    for curve in drawn if len(drawn) <= marks.FEW_CURVES else drawn[-1:]:
        labels += marks.value_labels(curve, "bias", "acceptance", is_lossless_named=len(lossless) > 0)
    room.add(labels)
    return figure


def draw_points(
    axis: Axes, drawn: Sequence[marks.Curve], others: Sequence[marks.Curve], lossless: pd.DataFrame
) -> None:
    """Draw the points of every rule, and the bound of each at the contexts it visited itself as a short dash."""
    for curve in others:
        curve.plot(axis, "bias", "acceptance", markersize=3.5, zorder=2)
    for curve in drawn:
        marks.bars(axis, curve.cells, "bias", "acceptance", curve.colour)
        curve.plot(axis, "bias", "acceptance", markersize=4, zorder=3)
    mark, colour = BASELINES["lossless"]
    axis.plot(lossless["bias"], lossless["acceptance"], mark, color=colour, markersize=4, zorder=4)
    axis.margins(0.06, 0.1)
    axis.autoscale_view()
    (left, right), (bottom, top) = axis.get_xlim(), axis.get_ylim()
    for curve in drawn:
        x, half = curve.cells["bias"], 0.018 * (right - left)
        axis.hlines(curve.cells["acceptance_bound"], x - half, x + half, color=INK, linewidth=1.0, zorder=5)
    axis.set(xlim=(left, right), ylim=(bottom, top))


def write_along(room: Room, x: Array, y: Array, text: str) -> None:
    """Write a text just above the visible part of a rising line, turned with it."""
    bottom, top = room.axis.get_ylim()
    seen = np.linspace(x[0], x[-1], 200)
    heights = np.interp(seen, x, y)
    is_seen = (heights > bottom) & (heights < top)
    seen, heights = seen[is_seen], heights[is_seen]
    if len(seen) < 2:
        return
    ends = room.to_points(seen[[0, -1]], heights[[0, -1]])
    along = ends[1] - ends[0]
    turn = float(np.degrees(np.arctan2(along[1], along[0])))
    up = np.array([-along[1], along[0]]) / np.hypot(*along)
    half = 0.5 * 0.56 * SMALL * len(text) / np.hypot(*along)
    taken = np.concatenate(room.taken) if room.taken else np.zeros((0, 2))
    # As near to the line as marks let it.
    rise = next((r for r in RISES if not _is_covered(taken, ends[0], along, up, r, half)), RISES[0])
    middle = len(seen) // 2
    look = {"rotation": turn, "rotation_mode": "anchor", "ha": "center", "annotation_clip": None}
    room.write(text, seen[middle], heights[middle], rise * up, GREY, **look)
    steps = np.linspace(0.5 - half, 0.5 + half, 60)[:, None]
    for edge in (rise - 2.5, rise + 2.5):
        room.taken.append(ends[0] + along * steps + edge * up)


def _is_covered(points: Array, start: Array, along: Array, up: Array, rise: float, half: float) -> bool:
    """Return whether any point lies in the strip of a text this high above the line."""
    share = (points - start) @ along / (along @ along)
    height = (points - start) @ up
    return bool(((np.abs(share - 0.5) < half) & (np.abs(height - rise) < 4.5)).any())


def predicted(sweep: Sweep) -> Figure | None:
    """Draw what the lossless run's probabilities say for every weight, beside what each setting measured."""
    frame, drawn = sweep.predicted, [c for c in marks.curves(sweep, "acceptance", "x") if c.knob == WEIGHT]
    if frame.empty or not drawn:
        return None
    figure, axes = panels(rows=2, height=1.7, sharex=True)
    for axis, name in zip(axes, ("acceptance", "accepted_per_round"), strict=True):
        for curve in drawn:
            cells, line = curve.cells, frame[frame["num_draft"] == curve.cells["num_draft"].iloc[0]]
            marks.band(axis, line, WEIGHT, name, GREY)
            axis.plot(line[WEIGHT], line[name], "-", color=curve.colour, linewidth=1.0)
            axis.vlines(cells["x"], cells[f"{name}_low"], cells[f"{name}_high"], color=curve.colour, linewidth=0.8)
            curve.plot(axis, "x", name, markersize=3.8, zorder=3)
    axes[0].set_ylabel("acceptance")
    axes[1].set(ylabel="accepted a round", xlabel=marks.knob_label(drawn))
    look = {"linestyle": "", "markersize": 3.8}
    shade = GREY if len(drawn) > 1 else drawn[0].colour
    keys = [curve.key(**look) for curve in drawn if len(drawn) > 1]
    keys += [marks.key("measured", shade, "o", **look), marks.key(f"predicted, {CONTEXTS}", shade, linewidth=1.0)]
    axes[0].legend(handles=keys, loc="lower left")
    marks.write_n(axes[0], sweep.points["n"].max())
    settle(figure)
    return figure
