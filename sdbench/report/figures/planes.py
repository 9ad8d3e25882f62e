"""Quality against acceptance and against measured speed-up: every setting, its intervals, and the front."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from sdbench.report.figures import marks
from sdbench.report.figures.labels import Label, Room
from sdbench.report.figures.style import BASELINES, GREY, PALE, SMALL, panels, settle
from sdbench.report.sweep import Sweep

X_LABELS = {
    "acceptance": "acceptance (accepted / examined)",
    "speedup": "speed-up over the target alone (measured)",
}


def pareto(sweep: Sweep) -> Figure | None:
    """Draw quality against acceptance."""
    return plane_figure(sweep, "acceptance")


def pareto_speed(sweep: Sweep) -> Figure | None:
    """Draw quality against measured speed-up."""
    return plane_figure(sweep, "speedup")


def plane_figure(sweep: Sweep, rate: str) -> Figure | None:
    if rate not in sweep.fronts:
        return None
    figure, (axis,) = panels(height=2.7)
    levels = plane(axis, sweep, rate)
    axis.set(xlabel=X_LABELS[rate], ylabel=marks.label_of(sweep.metric))
    marks.write_n(axis, sweep.points["n"].max())
    add_legend(figure, [sweep], rate, columns=2)
    settle(figure)
    label_plane(Room(axis), sweep, rate, levels)
    return figure


def plane(axis: Axes, sweep: Sweep, rate: str) -> marks.Levels:
    """Draw marks, intervals and the dominated area; return the level lines that stand for cells without this rate."""
    points = sweep.fronts[rate].points
    chances = dict(zip(points["cell"], points["probability"], strict=True))
    drawn, others = marks.curves(sweep, rate, "quality"), marks.other_curves(sweep, rate, "quality")
    for curve in others:
        curve.plot(axis, rate, "quality", markersize=3.5, zorder=2)
    for curve in drawn:
        axis.plot(curve.line[rate], curve.line["quality"], "-", color=curve.colour, linewidth=0.9, alpha=0.8)
    marked = [(curve.cells, curve.mark, curve.colour) for curve in drawn]
    marked += [(cells, *BASELINES[name]) for name, cells in baselines_of(sweep, rate).items()]
    for cells, mark, colour in marked:
        marks.bars(axis, cells, rate, "quality", colour)
        for cell in cells.to_dict("records"):
            draw_mark(axis, cell, rate, mark, colour, chances[cell["cell"]])
    axis.margins(0.08, 0.06)
    axis.autoscale_view()
    levels = marks.level_lines(axis, sweep, "quality", "target", "draft") if rate == "acceptance" else marks.Levels({})
    if rate == "speedup":
        axis.axvline(1, color=GREY, linewidth=0.7, linestyle=":", zorder=1)
    front = sweep.points[sweep.points["cell"].isin(points.loc[points["is_on_front"], "cell"])]
    shade_dominated(axis, front, rate, is_high_best=sweep.metric.best == "high")
    axis.text(0.015, 0.03, levels.far, transform=axis.transAxes, color=GREY, size=SMALL)
    return levels


def add_legend(figure: Figure, sweeps: Iterable[Sweep], rate: str, *, columns: int) -> None:
    """Name the curves below the panels, where they cover nothing; a single curve needs no name."""
    keys = {}
    for sweep in sweeps:
        drawn = marks.curves(sweep, rate, "quality")
        if len(drawn) > 1:
            others = marks.other_curves(sweep, rate, "quality")
            entries = marks.entries(drawn, others, linewidth=0.9)
            keys |= {(key.get_label(), key.get_color()): key for key in entries}
    if keys:
        marks.legend_below(figure, list(keys.values()), columns)


def baselines_of(sweep: Sweep, rate: str) -> dict[str, pd.DataFrame]:
    """Return the baselines with both coordinates."""
    known = sweep.points[sweep.points["cell"].isin(sweep.fronts[rate].points["cell"])]
    baselines = {name: known[known["verifier"] == name] for name in ("lossless", "target", "draft")}
    return {name: cells for name, cells in baselines.items() if len(cells)}


def draw_mark(axis: Axes, cell: Mapping[Any, Any], rate: str, mark: str, colour: str, chance: float) -> None:
    """Draw a mark, filled as far as the cell is sure to be on the front."""
    fill = np.asarray(to_rgb(colour)) * chance + np.ones(3) * (1 - chance) if chance == chance else (1, 1, 1)
    look: dict[str, Any] = {"mfc": tuple(fill), "mec": colour, "mew": 0.9, "markersize": 4.2, "zorder": 4}
    axis.plot(cell[rate], cell["quality"], mark, **look)


def shade_dominated(axis: Axes, front: pd.DataFrame, rate: str, *, is_high_best: bool) -> None:
    """Shade the area on the worse side of the front's steps, as far as the axes reach."""
    (left, right), (bottom, top) = axis.get_xlim(), axis.get_ylim()
    worst = bottom if is_high_best else top
    steps = front.sort_values([rate, "quality"], ascending=[False, is_high_best])
    x = np.repeat(steps[rate].to_numpy(), 2)
    y = np.concatenate([[worst], np.repeat(steps["quality"].to_numpy(), 2)[:-1]])
    outline = np.concatenate([x, [left, left]]), np.concatenate([y, [y[-1], worst]])
    axis.fill(*outline, color=PALE, alpha=0.45, linewidth=0, zorder=0)
    axis.set(xlim=(left, right), ylim=(bottom, top))


def label_plane(room: Room, sweep: Sweep, rate: str, levels: marks.Levels, *, size: float = SMALL) -> None:
    """Name the setting at every mark that has room for it; lossless once, wherever several marks are that."""
    points = sweep.fronts[rate].points
    drawn, baselines = marks.curves(sweep, rate, "quality"), baselines_of(sweep, rate)
    for curve in marks.other_curves(sweep, rate, "quality"):
        room.block_marks(curve.cells[rate], curve.cells["quality"], 2.0)
    for cells in [*(curve.cells for curve in drawn), *baselines.values()]:
        room.block_cells(cells, rate, "quality")
    for curve in drawn:
        room.block_line(curve.line[rate], curve.line["quality"])
    room.block_legend()
    for level in levels.drawn.values():
        room.block_line(room.axis.get_xlim(), [level, level])
    firsts = {name: cells.iloc[0] for name, cells in baselines.items()}
    named = [
        Label(at[rate], at["quality"], marks.NAMES.get(name, name), BASELINES[name][1], True)
        for name, at in firsts.items()
    ]
    room.add(named, size=size)
    marks.label_levels(room, levels, size=size)
    is_lossless_named = rate == "acceptance" and "lossless" in baselines
    on_front = set(points.loc[points["is_on_front"], "cell"])
    shown = on_front if len(drawn) > marks.FEW_CURVES else None
    for cells in (curve.cells for curve in marks.other_curves(sweep, rate, "quality")):
        leading = cells[cells["cell"].isin(on_front)].to_dict("records")
        room.add([Label(cell[rate], cell["quality"], cell["short"], GREY) for cell in leading], size=size)
    for curve in drawn:
        labels = marks.value_labels(curve, rate, "quality", is_lossless_named=is_lossless_named, shown=shown)
        room.add(labels, size=size)
