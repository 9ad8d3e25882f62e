"""Quality against acceptance, measured speed-up or speed under load: every setting, its intervals, and the Pareto front.

One figure per sweep, and one page of pairs × tasks with small planes in the same style.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import count

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from sdbench.report.figures import marks
from sdbench.report.figures.labels import Label, Room
from sdbench.report.figures.style import BASELINES, COLUMN, FAINT, GREY, PAGE, PALE, SMALL, panels, settle
from sdbench.report.sweep import Sweep

X_LABELS = {
    "acceptance": "acceptance (accepted / examined)",
    "speedup": "speed-up over the target alone (measured)",
}

USER, MOST_PANELS = "speedup_user", 6  # most panels of a load figure; of more, the first and the last ones
TINY = 5.4  # points, for labels inside a small panel
GRIDS = {"grid": "acceptance", "grid_speed": "speedup"}


def plane_figure(sweep: Sweep, rate: str) -> Figure | None:
    """Draw quality against a rate: "acceptance" or "speedup"."""
    if rate not in sweep.fronts:
        return None
    figure, (axis,) = panels(height=2.7)
    levels = plane(axis, sweep, rate)
    axis.set(xlabel=X_LABELS[rate], ylabel=marks.label_of(sweep.metric))
    marks.finish(figure, axis, sweep.points["n"], keys_of(sweep, rate), 2)
    label_plane(Room(axis), sweep, rate, levels)
    return figure


def plane(axis: Axes, sweep: Sweep, rate: str) -> dict[str, float]:
    """Draw marks, intervals and the dominated area; return the level lines of cells without this rate."""
    points = sweep.fronts[rate].points
    chances = dict(zip(points["cell"], points["probability"], strict=True))
    drawn, others = marks.curves(sweep, rate, "quality"), marks.other_curves(sweep, rate, "quality")
    for curve in others:
        curve.plot(axis, rate, "quality", markersize=3.5, zorder=2)
    for curve in drawn:
        axis.plot(curve.line[rate], curve.line["quality"], "-", color=curve.colour, linewidth=0.9, alpha=0.8)
    marked = [(curve.cells, curve.mark, curve.colour) for curve in drawn]
    marked += baseline_marks(sweep, rate, drafter_colours(drawn))
    unjudged = {*sweep.unjudged_of(rate), *(cell for cell, chance in chances.items() if chance != chance)}
    for cells, mark, colour in marked:
        pale, judged = (cells[cells["cell"].isin(unjudged) == is_pale] for is_pale in (True, False))
        marks.bars(axis, judged, rate, "quality", colour)
        if len(pale):
            marks.bars(axis, pale, rate, "quality", FAINT)
            axis.plot(pale[rate], pale["quality"], mark, color=FAINT, markersize=3.5, zorder=3)
        for cell in judged.to_dict("records"):  # filled in proportion to the probability of being on the front
            fill = 1 - chances[cell["cell"]] * (1 - np.asarray(to_rgb(colour)))
            look = {"mfc": tuple(fill), "mec": colour, "mew": 0.9, "markersize": 4.2, "zorder": 4}
            axis.plot(cell[rate], cell["quality"], mark, **look)
    axis.margins(0.08, 0.06)
    axis.autoscale_view()
    levels = marks.level_lines(axis, sweep, "quality", "target", "draft") if rate == "acceptance" else {}
    if unjudged:
        marks.note_above(axis, ["pale: too few shared examples" + (" or timed texts" if rate == "speedup" else "")])
    if rate == "speedup":
        axis.axvline(1, color=GREY, linewidth=0.7, linestyle=":", zorder=1)
    front = sweep.points[sweep.points["cell"].isin(points.loc[points["is_on_front"], "cell"])]
    shade_dominated(axis, front, rate, is_high_best=sweep.metric.best == "high")
    return levels


def keys_of(sweep: Sweep, rate: str) -> list[Line2D]:
    """Return the legend entries for the curves of a plane."""
    drawn, others = marks.curves(sweep, rate, "quality"), marks.other_curves(sweep, rate, "quality")
    keys = marks.keys_of(drawn, others, linewidth=0.9)
    is_coloured = len(drafter_colours(drawn)) > 1 and "lossless" in baselines_of(sweep, rate)
    mark, colour = BASELINES["lossless"]
    return [*keys, marks.key("lossless", colour, mark, linestyle="", mfc="none")] if is_coloured else keys


def drafter_colours(drawn: Sequence[marks.Curve]) -> dict[str, str]:
    """Return the colour of each drafter if each has one curve and colours distinguish them; otherwise nothing."""
    colours = {str(curve.cells["drafter"].iloc[0]): curve.colour for curve in drawn}
    return colours if len(colours) == len(drawn) else {}


def baseline_marks(sweep: Sweep, rate: str, colours: Mapping[str, str]) -> list[tuple[pd.DataFrame, str, str]]:
    """Return the cells of the baselines with mark and colour; with several drafters the drafter's colour."""
    marked = []
    for name, cells in baselines_of(sweep, rate).items():
        mark, colour = BASELINES[name]
        drafters = cells["drafter"].astype(str)
        known = colours if len(colours) > 1 else {}
        marked += [(part, mark, known.get(str(drafter), colour)) for drafter, part in cells.groupby(drafters)]
    return marked


def baselines_of(sweep: Sweep, rate: str) -> dict[str, pd.DataFrame]:
    """Return the baselines with both coordinates."""
    known = sweep.points[sweep.points["cell"].isin(sweep.placed[rate])]
    baselines = {name: known[known["verifier"] == name] for name in ("lossless", "target", "draft")}
    return {name: cells for name, cells in baselines.items() if len(cells)}


def shade_dominated(axis: Axes, front: pd.DataFrame, rate: str, *, is_high_best: bool) -> None:
    """Shade the area on the worse side of the front's steps, up to the axes."""
    (left, right), (bottom, top) = axis.get_xlim(), axis.get_ylim()
    worst = bottom if is_high_best else top
    steps = front.sort_values([rate, "quality"], ascending=[False, is_high_best])
    x = np.repeat(steps[rate].to_numpy(), 2)
    y = np.concatenate([[worst], np.repeat(steps["quality"].to_numpy(), 2)[:-1]])
    outline = np.concatenate([x, [left, left]]), np.concatenate([y, [y[-1], worst]])
    axis.fill(*outline, color=PALE, alpha=0.45, linewidth=0, zorder=0)
    axis.set(xlim=(left, right), ylim=(bottom, top))


def label_plane(room: Room, sweep: Sweep, rate: str, levels: Mapping[str, float], *, size: float = SMALL) -> None:
    """Label the setting at every mark that has room for it; lossless once per drafter, even if it has several marks."""
    points = sweep.fronts[rate].points
    drawn, others = marks.curves(sweep, rate, "quality"), marks.other_curves(sweep, rate, "quality")
    baselines = baselines_of(sweep, rate)
    for curve in others:
        room.block_marks(curve.cells[rate], curve.cells["quality"], 2.0)
    for curve in drawn:
        room.block_line(curve.line[rate], curve.line["quality"])
    for cells in [*(curve.cells for curve in drawn), *baselines.values()]:
        room.block_cells(cells, rate, "quality")
    for level in levels.values():
        room.block_line(room.axis.get_xlim(), [level, level])
    for name, cells in baselines.items():
        if cells["drafter"].nunique() > 1 and len(drafter_colours(drawn)) > 1:
            continue  # their colours are those of the curves
        firsts = cells.drop_duplicates("drafter").to_dict("records")  # of several draft lengths the first
        for first in firsts:
            drafter = f" {first['drafter']}" if len(firsts) > 1 else ""
            text = f"{marks.NAMES.get(name, name)}{drafter}"
            room.add([Label(first[rate], first["quality"], text, BASELINES[name][1], True)], size=size)
    marks.label_levels(room, levels, size=size)
    is_lossless_named = rate == "acceptance" and "lossless" in baselines
    on_front = set(points.loc[points["is_on_front"], "cell"])
    shown = on_front if len(drawn) > marks.FEW_CURVES else None
    for curve in others:
        leading = curve.cells[curve.cells["cell"].isin(on_front)].to_dict("records")
        room.add([Label(cell[rate], cell["quality"], cell["short"], GREY) for cell in leading], size=size)
    for curve in drawn:
        labels = marks.value_labels(curve, rate, "quality", is_lossless_named=is_lossless_named, shown=shown)
        room.add(labels, size=size)


pareto, pareto_speed = partial(plane_figure, rate="acceptance"), partial(plane_figure, rate="speedup")


def load(sweep: Sweep) -> Figure | None:
    """Draw a panel for each concurrency: the speed of one user over the target alone at the same concurrency."""
    table = sweep.load.dropna(subset=[USER])
    if table["concurrency"].nunique() < 2:
        return None
    return level_panels(sweep, table, "concurrency", USER, "{:g} at once", "speed-up of a user", is_ratio=True)


def level_panels(
    sweep: Sweep,
    table: pd.DataFrame,
    level: str,
    rate: str,
    title: str,
    label: str,
    *,
    is_ratio: bool = False,
    unit: str = "",
) -> Figure | None:
    """Draw quality against a column of a table by cell and level, one panel per level; a ratio has a line at 1. n counts `unit`.
    Of many levels the first ones and the last one are drawn, and the legend counts the others.
    """
    known = table.dropna(subset=[rate])
    numbers = levels = sorted(set(known[level]))
    numbers = [*numbers[: MOST_PANELS - 1], numbers[-1]] if len(numbers) > MOST_PANELS else numbers
    looks = ((name, colour, mark, sweep.baseline(name)) for name, (mark, colour) in BASELINES.items())
    every = [*marks.curves(sweep), *(marks.Curve(*look, end=sweep.points[:0]) for look in looks)]
    drawn = [curve for curve in marks.having(every, "quality") if curve.cells["cell"].isin(known["cell"]).any()]
    if not drawn:
        return None
    width = 1.6 * max(len(numbers), 2)
    figure, axes = panels(len(numbers), width=width, height=2.0, sharex=True, sharey=True)
    for axis, number in zip(axes, numbers, strict=True):
        measured = known.loc[known[level] == number, ["cell", rate, f"{rate}_low", f"{rate}_high"]]
        points = sweep.points.merge(measured, on="cell", how="inner").dropna(subset=["quality"])
        for curve in drawn:
            cells = points[points["cell"].isin(curve.cells["cell"])].sort_values("x")
            line = "" if curve.name in BASELINES else "-"  # baselines of several draft lengths are no curve
            axis.plot(
                cells[rate], cells["quality"], f"{curve.mark}{line}", color=curve.colour, markersize=3, linewidth=0.8
            )
            marks.bars(axis, cells, rate, "quality", curve.colour)
        if is_ratio:
            axis.axvline(1, color=GREY, linewidth=0.7, linestyle=":", zorder=1)
        axis.set_title(title.format(number), loc="left", fontsize=SMALL)
        axis.set_xlabel(label)
    axes[0].set_ylabel(marks.label_of(sweep.metric))
    left_out = [c for c in marks.other_curves(sweep, "quality") if c.cells["cell"].isin(known["cell"]).any()]
    keys = [*(curve.key(linewidth=0.8, markersize=3) for curve in drawn), *marks.not_drawn(left_out)]
    keys += marks.not_drawn(levels[len(numbers) :], "panels")
    marks.finish(figure, axes[-1], pd.to_numeric(known["n"]), keys, unit=unit)
    return figure


def grids(sweeps: Sequence[Sweep]) -> dict[str, Figure]:
    """Draw a grid of each kind for each temperature, by file name; a second grid for pairs and tasks that were run twice. A grid
    needs two panels.
    """
    layers: dict[tuple[float, int], dict[tuple[str, str], Sweep]] = defaultdict(dict)
    for sweep in sweeps:
        slot = sweep.model, sweep.task
        repeat = next(i for i in count() if slot not in layers[sweep.temperature, i])
        layers[sweep.temperature, repeat][slot] = sweep
    figures = {}
    for (temperature, repeat), slots in sorted(layers.items()):
        suffix = f"-T{temperature:g}" if len({key[0] for key in layers}) > 1 else ""
        suffix += f"-{repeat + 1}" if repeat else ""
        for name, rate in GRIDS.items():
            timed = {slot: sweep for slot, sweep in slots.items() if rate in sweep.fronts}
            if len(timed) > 1:
                figures[name + suffix] = grid(timed, rate)
    return figures


def grid(slots: Mapping[tuple[str, str], Sweep], rate: str) -> Figure:
    """Draw one row per pair and one column per task; a panel that was not run says so."""
    models, tasks = sorted({model for model, _ in slots}), sorted({task for _, task in slots})
    panel = [(model, task) for model in models for task in tasks]
    width = COLUMN if len(tasks) == 1 else PAGE
    figure, axes = panels(len(tasks), len(models), width=width, height=min(2.2, 0.75 * width / len(tasks)), sharex=True)
    levels: dict[tuple[str, str], dict[str, float]] = {}
    for axis, slot in zip(axes, panel, strict=True):
        axis.set_title(", ".join(slot))
        if slot not in slots:
            axis.text(0.5, 0.5, "not run", transform=axis.transAxes, ha="center", va="center", color=GREY)
            axis.set_yticks([])
            axis.grid(visible=False)
            continue
        sweep = slots[slot]
        levels[slot] = plane(axis, sweep, rate)
        axis.set_ylabel(marks.label_of(sweep.metric))
        marks.write_n(axis, sweep.points["n"])
    for axis in axes[-len(tasks) :]:
        axis.set_xlabel(X_LABELS[rate] if len(tasks) < 3 else X_LABELS[rate].partition(" (")[0])
    keys = [key for sweep in slots.values() for key in keys_of(sweep, rate)]
    marks.legend_below(figure, keys, 2 if len(tasks) == 1 else 5)
    settle(figure)
    for axis, slot in zip(axes, panel, strict=True):
        if slot in slots:
            label_plane(Room(axis), slots[slot], rate, levels[slot], size=TINY)
    return figure
