"""Quality against acceptance and against measured speed-up: every setting, its intervals, and the front."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from sdbench.report.figures.labels import Label, Room
from sdbench.report.figures.marks import (
    FEW_CURVES,
    NAMES,
    Curve,
    Levels,
    bars,
    block_bars,
    curves,
    entries,
    knob_labels,
    label_levels,
    label_of,
    level_lines,
    name_value,
    other_curves,
    say_n,
    text_of,
)
from sdbench.report.figures.style import BASELINES, GREY, PALE, SMALL, panels, settle
from sdbench.report.sweep import Sweep

X_LABELS = {
    "acceptance": "acceptance (accepted / examined)",
    "speedup": "speed-up over the target alone (measured)",
}


def pareto(sweep: Sweep) -> Figure | None:
    """Quality against acceptance."""
    return plane_figure(sweep, "acceptance")


def pareto_speed(sweep: Sweep) -> Figure | None:
    """Quality against measured speed-up."""
    return plane_figure(sweep, "speedup")


def plane_figure(sweep: Sweep, rate: str) -> Figure | None:
    if rate not in sweep.fronts:
        return None
    figure, (axis,) = panels(height=2.7)
    levels = plane(axis, sweep, rate)
    axis.set(xlabel=X_LABELS[rate], ylabel=label_of(sweep.metric))
    say_n(axis, sweep.points["n"].max())
    settle(figure)
    label_plane(Room(axis), sweep, rate, levels)
    return figure


def plane(axis: Axes, sweep: Sweep, rate: str) -> Levels:
    """Marks, intervals and the dominated area; where the level lines are that stand for cells without this rate."""
    points = sweep.fronts[rate].points
    chances = dict(zip(points["cell"], points["probability"], strict=True))
    drawn, others = list(curves(sweep, rate, "quality")), other_curves(sweep, rate, "quality")
    for curve in others:
        axis.plot(curve.cells[rate], curve.cells["quality"], curve.mark, color=curve.colour, markersize=3.5, zorder=2)
    for curve in drawn:
        axis.plot(curve.line[rate], curve.line["quality"], "-", color=curve.colour, linewidth=0.9, alpha=0.8)
        bars(axis, curve.cells, rate, "quality", curve.colour)
        for cell in curve.cells.to_dict("records"):
            draw_mark(axis, cell, rate, curve.mark, curve.colour, chances[cell["cell"]])
    for name, cells in baselines_of(sweep, rate).items():
        mark, colour = BASELINES[name]
        bars(axis, cells, rate, "quality", colour)
        for cell in cells.to_dict("records"):
            draw_mark(axis, cell, rate, mark, colour, chances[cell["cell"]])
    axis.margins(0.08, 0.06)
    axis.autoscale_view()
    levels = level_lines(axis, sweep, "quality", "target", "draft") if rate == "acceptance" else Levels({})
    if rate == "speedup":
        axis.axvline(1, color=GREY, linewidth=0.7, linestyle=":", zorder=1)
    shown = sweep.points[sweep.points["cell"].isin(points.loc[points["is_on_front"], "cell"])]
    shade_dominated(axis, shown, rate, is_high_best=sweep.metric.best == "high")
    corner = axis.text(0.015, 0.03, levels.far, transform=axis.transAxes, color=GREY, size=SMALL)
    if len(drawn) > 1:  # the corner that a trade-off leaves empty
        handles = entries(drawn, others, linewidth=0.9)
        bottom, top = axis.get_ylim()
        draft = (
            sweep.baseline("draft")["quality"].dropna()
            if rate == "speedup"
            else pd.Series([*levels.drawn.values()][1:])
        )
        lowest = (
            0.08 if corner.get_text() else (float(draft.max()) - bottom) / (top - bottom) + 0.03 * (rate == "speedup")
        )
        axis.legend(handles=handles, loc="lower left", bbox_to_anchor=(0, lowest if lowest < 0.3 else 0))
    return levels


def baselines_of(sweep: Sweep, rate: str) -> dict[str, pd.DataFrame]:
    """Baselines with both coordinates; lossless only where no setting of the curves is lossless itself."""
    baselines = {}
    for name in ("lossless", "target", "draft"):
        cells = sweep.baseline(name)
        cells = cells[cells["cell"].isin(sweep.fronts[rate].points["cell"])]
        if len(cells):
            baselines[name] = cells
    return baselines


def draw_mark(axis: Axes, cell: dict[object, Any], rate: str, mark: str, colour: str, chance: float) -> None:
    """Filled as far as the cell is sure to be on the front."""
    fill = np.asarray(to_rgb(colour)) * chance + np.ones(3) * (1 - chance) if chance == chance else (1, 1, 1)
    axis.plot(
        cell[rate],
        cell["quality"],
        mark,
        mfc=tuple(fill),
        mec=colour,
        mew=0.9,
        markersize=4.2,
        zorder=4,  # type: ignore[arg-type]
    )


def shade_dominated(axis: Axes, front: pd.DataFrame, rate: str, *, is_high_best: bool) -> None:
    """The area on the worse side of the front's steps, as far as the axes reach."""
    (left, right), (bottom, top) = axis.get_xlim(), axis.get_ylim()
    worst = bottom if is_high_best else top
    steps = front.sort_values([rate, "quality"], ascending=[False, is_high_best])
    x = np.repeat(steps[rate].to_numpy(), 2)
    y = np.concatenate([[worst], np.repeat(steps["quality"].to_numpy(), 2)[:-1]])
    axis.fill(
        np.concatenate([x, [left, left]]),
        np.concatenate([y, [y[-1], worst]]),
        color=PALE,
        alpha=0.45,
        linewidth=0,
        zorder=0,
    )
    axis.set(xlim=(left, right), ylim=(bottom, top))


def label_plane(room: Room, sweep: Sweep, rate: str, levels: Levels, *, size: float = SMALL) -> None:
    """The setting at every mark that has room for it; lossless once, wherever several marks are that."""
    points = sweep.fronts[rate].points
    drawn = list(curves(sweep, rate, "quality"))
    others = baselines_of(sweep, rate)
    for curve in other_curves(sweep, rate, "quality"):
        room.block_marks(curve.cells[rate], curve.cells["quality"], 2.0)
    for cells in [*(curve.cells for curve in drawn), *others.values()]:
        room.block_marks(cells[rate], cells["quality"], 3.0)
        block_bars(room, cells, rate, "quality")
    for curve in drawn:
        room.block_line(curve.line[rate], curve.line["quality"])
    left, right = room.axis.get_xlim()
    room.block_legend()
    for level in levels.drawn.values():
        room.block_line([left, right], [level, level])
    labels = [
        Label(
            float(cell[rate]),
            float(cell["quality"]),
            NAMES[name],
            BASELINES[name][1],
            True,
        )
        for name, cells in others.items()
        for cell in cells.to_dict("records")[:1]
    ]
    room.place(labels, size=size)
    label_levels(room, levels, size=size)
    is_lossless_named = rate == "acceptance" and "lossless" in others
    labels = []
    best = set(points.loc[points["is_on_front"], "cell"]) if len(drawn) > FEW_CURVES else set(points["cell"])
    for curve in drawn:
        texts = texts_of(curve, is_lossless_named=is_lossless_named)
        texts = [text if cell in best else "" for text, cell in zip(texts, curve.cells["cell"], strict=True)]
        labels += knob_labels(curve, rate, "quality", texts)
    room.place(labels, size=size)


def texts_of(curve: Curve, *, is_lossless_named: bool) -> list[str]:
    """Each value, in words at the first cell; nothing at a strict end on which a named lossless mark lies."""
    cells = curve.cells.to_dict("records")
    texts = ["" if is_lossless_named and cell["is_lossless"] and cell["rank"] == 0 else text_of(cell) for cell in cells]
    return [name_value(cells[0]) if texts[0] else "", *texts[1:]]
