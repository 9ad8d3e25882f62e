"""What all figures draw alike: names of metrics, a colour and a mark for each curve, intervals, reference lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.lines import Line2D

from sdbench.metrics.cells import format_value, strict_value
from sdbench.metrics.weigh import SMALL as SMALL_N
from sdbench.report.figures.labels import Label, Room
from sdbench.report.figures.style import BASELINES, CYCLE, FAINT, GREY, MARKS, SMALL
from sdbench.report.sweep import NAMES, Sweep
from sdbench.types import Metric

FEW_CURVES = 2  # curves that labels can tell apart; more have a legend


def label_of(metric: Metric) -> str:
    """A metric as an axis names it."""
    unit = " (%)" if metric.unit == "share" else ""
    return f"{metric.name}{unit}" + (", lower is better" if metric.best == "low" else "")


@dataclass(frozen=True, slots=True)
class Curve:
    """The cells of one rule, draft length and set of options, along its knob, and how they look.

    `end` is the lossless point where the curve's strict end is lossless and no cell of its own: one row, or none.
    """

    name: str
    colour: str
    mark: str
    cells: pd.DataFrame
    end: pd.DataFrame

    @property
    def knob(self) -> str:
        return str(self.cells["knob"].iloc[0])

    @property
    def line(self) -> pd.DataFrame:
        """What is joined by a line, along the knob."""
        return pd.concat([self.cells, self.end]).sort_values("x") if len(self.end) else self.cells


def curves(sweep: Sweep, *columns: str) -> Iterator[Curve]:
    """Curves with the cells that have all these columns; a curve keeps its look from figure to figure.

    Of more than have a colour each, those that lead.
    """
    for name, colour, mark in zip(sweep.leading, CYCLE, MARKS, strict=False):
        known = sweep.curves[name].dropna(subset=list(columns))
        if len(known):
            yield Curve(name, colour, mark, known, sweep.strict_end(name).dropna(subset=list(columns)))


def other_curves(sweep: Sweep, *columns: str) -> list[Curve]:
    """The curves that do not lead, all alike: what a plane shows behind those that do."""
    others = {
        name: cells.dropna(subset=list(columns)) for name, cells in sweep.curves.items() if name not in sweep.leading
    }
    return [Curve(name, FAINT, ".", cells, cells.iloc[:0]) for name, cells in others.items() if len(cells)]


def entries(drawn: Sequence[Curve], others: Sequence[Curve], **look: Any) -> list[Line2D]:
    """Of a legend: a line for each curve, and one for all others."""
    lines = [Line2D([], [], color=c.colour, marker=c.mark, label=c.name, **look) for c in drawn]
    if others:
        lines.append(Line2D([], [], linestyle="", color=FAINT, marker=".", label=f"{len(others)} others"))
    return lines


def knobs_of(drawn: Sequence[Curve]) -> list[str]:
    """The knobs of these curves, in their order: one axis each."""
    return list(dict.fromkeys(curve.knob for curve in drawn))


def knob_label(drawn: Sequence[Curve]) -> str:
    """A knob as an axis names it, with its strict end: w (1 is lossless)."""
    first = drawn[0]
    cells = pd.concat([curve.cells for curve in drawn if curve.knob == first.knob])
    strict, equals = strict_value(cells["x"], cells["rank"]), first.cells["equals"].iloc[0]
    if any(not isinstance(value, int | float) for value in cells["value"]):
        return f"{first.knob}, from its strict end"
    if strict is None:
        return first.knob
    end = f"{format_value(strict)} is {equals}" if equals else f"strict at {format_value(strict)}"
    return f"{first.knob} ({end})"


def text_of(cell: Mapping[Any, Any]) -> str:
    """A cell's value on its knob, or the name of a cell without one."""
    return (
        format_value(cell["value"])
        if cell["x"] == cell["x"]
        else NAMES.get(str(cell["verifier"]), str(cell["verifier"]))
    )


def name_value(cell: Mapping[Any, Any]) -> str:
    """KNOB = VALUE, or the name of a cell without a knob."""
    return f"{cell['knob']} = {format_value(cell['value'])}" if cell["x"] == cell["x"] else text_of(cell)


def bars(axis: Axes, cells: pd.DataFrame, x: str, y: str, colour: str) -> None:
    """Intervals of both coordinates, as thin lines, where they are known."""
    for along, across, draw in ((x, y, axis.hlines), (y, x, axis.vlines)):
        low, high = cells.get(f"{along}_low"), cells.get(f"{along}_high")
        if low is not None and high is not None:
            known = cells[low.notna() & high.notna()]
            draw(known[across], known[f"{along}_low"], known[f"{along}_high"], color=colour, linewidth=0.7, alpha=0.5)


def block_bars(room: Room, cells: pd.DataFrame, x: str, y: str) -> None:
    """Keeps labels off the intervals."""
    for cell in cells.to_dict("records"):
        for along, across in ((x, y), (y, x)):
            ends = [cell.get(f"{along}_{end}", np.nan) for end in ("low", "high")]
            places = {along: ends, across: [cell[across]] * 2}
            room.block_line(places[x], places[y])


def band(axis: Axes, cells: pd.DataFrame, x: str, y: str, colour: str) -> None:
    """An interval along a curve, as a pale band."""
    if f"{y}_low" in cells:
        axis.fill_between(cells[x], cells[f"{y}_low"], cells[f"{y}_high"], color=colour, alpha=0.16, linewidth=0)


@dataclass(frozen=True, slots=True)
class Levels:
    """Where dashed lines were drawn, by baseline, and in words those that are too far off to draw."""

    drawn: Mapping[str, float]
    far: str = ""


def level_lines(axis: Axes, sweep: Sweep, column: str, *names: str) -> Levels:
    """Dashed lines at the baselines that have this column; one far off is told, not drawn.

    A baseline that there is for each draft length has no one level: the curves end in it.
    """
    bottom, top = axis.get_ylim()
    reach = 0.4 * (top - bottom)
    levels, far = {}, []
    for name in names:
        known = sweep.baseline(name).dropna(subset=[column])
        level = float(known[column].iloc[0]) if len(known) == 1 else np.nan
        if bottom - reach < level < top + reach:
            levels[name] = level
            axis.axhline(level, color=BASELINES[name][1], linewidth=0.8, linestyle=(0, (4, 2)), zorder=1.5)
        elif level == level:
            far.append(f"{NAMES[name]}: {level:.3g}, {'below' if level < bottom else 'above'}")
    return Levels(levels, "; ".join(far))


def label_levels(room: Room, levels: Levels, *, size: float = SMALL) -> None:
    """The names of level lines, at the end that has room."""
    left, right = room.axis.get_xlim()
    inset = 0.01 * (right - left)
    for name, level in levels.drawn.items():
        ends = [(right - inset, -1), (left + inset, 1)]
        room.place_one_of(
            [
                Label(x, level, NAMES[name], BASELINES[name][1], True, ((side, up),))
                for up in (1, -1)
                for x, side in ends
            ],
            size=size,
        )


def say_n(axis: Axes, n: float, unit: str = "") -> None:
    """How many examples (or what `unit` says) stand behind a figure, above it on the right."""
    if n == n:
        tail = f" {unit}" if unit else " is small" if n < SMALL_N else ""
        axis.set_title(f"n = {n:g}{tail}", loc="right", fontsize=6.3)


def ramp(ranks: pd.Series) -> list[str]:
    """Colours from pale to dark towards the strict end: readable without colour, and by the colour-blind."""
    known = ranks.fillna(0)
    span = max(float(known.max() - known.min()), 1e-9)
    return [str(to_hex(colormaps["viridis"](0.86 * (rank - known.min()) / span))) for rank in known]


def knob_labels(curve: Curve, x: str, y: str, texts: list[str]) -> list[Label]:
    """A label a cell, those at the ends of the curve first."""
    cells = curve.cells
    order = sorted(range(len(cells)), key=lambda place: min(place, len(cells) - 1 - place))
    xs, ys = cells[x].to_numpy(), cells[y].to_numpy()
    return [Label(float(xs[i]), float(ys[i]), texts[i], curve.colour) for i in order if texts[i]]


def evenly(count: int, most: int) -> list[int]:
    """At most this many places, evenly from the first to the last."""
    if count <= most:
        return list(range(count))
    return sorted({round(place * (count - 1) / (most - 1)) for place in range(most)})


def grey_note(axis: Axes, text: str) -> None:
    """A remark in small print, above the axes on the left."""
    axis.set_title(text, loc="left", fontsize=6.3, color=GREY)
