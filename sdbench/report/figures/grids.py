"""Pairs × tasks on one page: a small plane for each, drawn as the single figures are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sdbench.report.figures.labels import Room
from sdbench.report.figures.marks import Levels, label_of, say_n
from sdbench.report.figures.planes import X_LABELS, label_plane, plane
from sdbench.report.figures.style import COLUMN, GREY, PAGE, panels, settle
from sdbench.report.sweep import Sweep

TINY = 5.4  # points, of labels inside a small panel
GRIDS = {"grid": "acceptance", "grid_speed": "speedup"}
Slots = Mapping[tuple[str, str], Sweep]


def grids(sweeps: Sequence[Sweep]) -> dict[str, Figure]:
    """By file name, one of each kind for each temperature; a slot run twice goes to a second grid. None for one slot."""
    layers: dict[tuple[float, int], dict[tuple[str, str], Sweep]] = {}
    for sweep in sweeps:
        slot, temperature = (sweep.model, sweep.task), sweep.temperature
        twin = 0
        while slot in layers.get((temperature, twin), {}):
            twin += 1
        layers.setdefault((temperature, twin), {})[slot] = sweep
    figures = {}
    for (temperature, twin), slots in sorted(layers.items()):
        suffix = f"-T{temperature:g}" if len({key[0] for key in layers}) > 1 else ""
        suffix += f"-{twin + 1}" if twin else ""
        for name, rate in GRIDS.items():
            own = {slot: sweep for slot, sweep in slots.items() if rate in sweep.fronts}
            if len(own) > 1:
                figures[name + suffix] = grid(own, rate)
    return figures


def grid(slots: Slots, rate: str) -> Figure:
    """A row a pair, a column a task; what was not run says so."""
    models, tasks = (sorted({slot[place] for slot in slots}) for place in (0, 1))
    width = COLUMN if len(tasks) == 1 else PAGE
    figure, axes = panels(len(tasks), len(models), width=width, height=min(2.2, 0.75 * width / len(tasks)), sharex=True)
    levels: dict[tuple[str, str], Levels] = {}
    for axis, (model, task) in zip(axes, [(m, t) for m in models for t in tasks], strict=True):
        sweep = slots.get((model, task))
        axis.set_title(f"{model}, {task}")
        if sweep is None:
            not_run(axis)
            continue
        levels[model, task] = plane(axis, sweep, rate)
        axis.set_ylabel(label_of(sweep.metric))
        say_n(axis, sweep.points["n"].max())
    for axis in axes[-len(tasks) :]:
        axis.set_xlabel(X_LABELS[rate] if len(tasks) < 3 else X_LABELS[rate].partition(" (")[0])
    settle(figure)
    for axis, slot in zip(axes, [(m, t) for m in models for t in tasks], strict=True):
        if slot in slots:
            label_plane(Room(axis), slots[slot], rate, levels[slot], size=TINY)
    return figure


def not_run(axis: Axes) -> None:
    axis.text(0.5, 0.5, "not run", transform=axis.transAxes, ha="center", va="center", color=GREY)
    axis.set_yticks([])
    axis.grid(visible=False)
