"""Pairs × tasks on one page: a small plane for each, drawn as the single figures are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sdbench.report.figures import marks
from sdbench.report.figures.labels import Room
from sdbench.report.figures.planes import X_LABELS, add_legend, label_plane, plane
from sdbench.report.figures.style import COLUMN, GREY, PAGE, panels, settle
from sdbench.report.sweep import Sweep

TINY = 5.4  # points, of labels inside a small panel
GRIDS = {"grid": "acceptance", "grid_speed": "speedup"}
Slots = Mapping[tuple[str, str], Sweep]


def grids(sweeps: Sequence[Sweep]) -> dict[str, Figure]:
    """Draw one grid of each kind for each temperature, by file name; a slot run twice goes to a second grid. None for one slot."""
    layers: dict[tuple[float, int], dict[tuple[str, str], Sweep]] = {}
    for sweep in sweeps:
        slot, repeat = (sweep.model, sweep.task), 0
        while slot in layers.get((sweep.temperature, repeat), {}):
            repeat += 1
        layers.setdefault((sweep.temperature, repeat), {})[slot] = sweep
    figures = {}
    for (temperature, repeat), slots in sorted(layers.items()):
        suffix = f"-T{temperature:g}" if len({key[0] for key in layers}) > 1 else ""
        suffix += f"-{repeat + 1}" if repeat else ""
        for name, rate in GRIDS.items():
            timed = {slot: sweep for slot, sweep in slots.items() if rate in sweep.fronts}
            if len(timed) > 1:
                figures[name + suffix] = grid(timed, rate)
    return figures


def grid(slots: Slots, rate: str) -> Figure:
    """Draw a row a pair, a column a task; a panel that was not run says so."""
    models, tasks = sorted({model for model, _ in slots}), sorted({task for _, task in slots})
    panel = [(model, task) for model in models for task in tasks]
    width = COLUMN if len(tasks) == 1 else PAGE
    figure, axes = panels(len(tasks), len(models), width=width, height=min(2.2, 0.75 * width / len(tasks)), sharex=True)
    levels: dict[tuple[str, str], marks.Levels] = {}
    for axis, slot in zip(axes, panel, strict=True):
        axis.set_title(", ".join(slot))
        if slot not in slots:
            write_not_run(axis)
            continue
        sweep = slots[slot]
        levels[slot] = plane(axis, sweep, rate)
        axis.set_ylabel(marks.label_of(sweep.metric))
        marks.write_n(axis, sweep.points["n"].max())
    for axis in axes[-len(tasks) :]:
        axis.set_xlabel(X_LABELS[rate] if len(tasks) < 3 else X_LABELS[rate].partition(" (")[0])
    add_legend(figure, slots.values(), rate, columns=2 if len(tasks) == 1 else 5)
    settle(figure)
    for axis, slot in zip(axes, panel, strict=True):
        if slot in slots:
            label_plane(Room(axis), slots[slot], rate, levels[slot], size=TINY)
    return figure


def write_not_run(axis: Axes) -> None:
    axis.text(0.5, 0.5, "not run", transform=axis.transAxes, ha="center", va="center", color=GREY)
    axis.set_yticks([])
    axis.grid(visible=False)
