"""What all figures share: names of metrics, a colour and a mark for each curve, intervals, reference lines, legends."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from sdbench.metrics.knobs import format_value, strict_value
from sdbench.metrics.text import NAMES, setting_of
from sdbench.metrics.weigh import SMALL as SMALL_N
from sdbench.report.figures.labels import Label, Room
from sdbench.report.figures.style import BASELINES, CYCLE, FAINT, GREY, LINES, MARKS, SMALL, settle
from sdbench.report.sweep import Sweep
from sdbench.types import Metric

MOST_LINES = 24  # intervals of a curve that are drawn as lines
FEW_CURVES = 2  # number of curves that labels distinguish; more get a legend


def label_of(metric: Metric) -> str:
    """Return a metric's name for an axis."""
    unit = " (%)" if metric.unit == "share" else ""
    return f"{metric.name}{unit}" + (", lower is better" if metric.best == "low" else "")


@dataclass(frozen=True, slots=True)
class Curve:
    """The cells of one rule, draft length and set of options along its knob, with their colour and marks.

    `end` is the lossless point where the curve ends, if it is not a cell of the curve: one row, or none.
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
        """The points that the line joins, along the knob."""
        return pd.concat([self.cells, self.end]).sort_values("x") if len(self.end) else self.cells

    def plot(self, axis: Axes, x: str, y: str, **look: Any) -> None:
        """Draw the marks of the cells."""
        look = {"marker": self.mark, "color": self.colour, "linestyle": ""} | look
        axis.plot(self.cells[x], self.cells[y], **look)

    def key(self, **look: Any) -> Line2D:
        """Return the curve's entry of a legend."""
        return key(self.name, self.colour, self.mark, **look)


def key(name: str, colour: str, mark: str = "", **look: Any) -> Line2D:
    """Return the curve's entry in a legend."""
    return Line2D([], [], color=colour, marker=mark, label=name, **look)


def looks_of(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return a colour, mark and line for each name. When colours come again, lines are dashed or dotted and marks differ."""
    rounds = [divmod(number, len(CYCLE)) for number in range(len(CYCLE) * len(LINES))]
    looks = [
        {"color": CYCLE[i], "marker": MARKS[(i + turn) % len(MARKS)], "linestyle": LINES[turn]} for turn, i in rounds
    ]
    return dict(zip(names, cycle(looks), strict=False))


def having(curves: Iterable[Curve], *columns: str) -> list[Curve]:
    """Return the curves with only the cells that have all these columns, without empty curves."""
    subset = list(columns)
    known = [
        replace(curve, cells=curve.cells.dropna(subset=subset), end=curve.end.dropna(subset=subset)) for curve in curves
    ]
    return [curve for curve in known if len(curve.cells)]


def curves(sweep: Sweep, *columns: str) -> list[Curve]:
    """Return the curves that have a colour, with the cells that have all these columns. Looks are the same in all figures."""
    looks = zip(sweep.leading, CYCLE, MARKS, strict=False)
    leading = [Curve(name, colour, mark, sweep.curves[name], sweep.strict_end(name)) for name, colour, mark in looks]
    return having(leading, *columns)


def other_curves(sweep: Sweep, *columns: str) -> list[Curve]:
    """Return the curves without a colour of their own, which a plane draws in grey behind the others."""
    others = {name: cells for name, cells in sweep.curves.items() if name not in sweep.leading}
    return having([Curve(name, FAINT, ".", cells, cells.iloc[:0]) for name, cells in others.items()], *columns)


def legend_below(figure: Figure, keys: Iterable[Line2D], most: int = 3) -> None:
    """Draw a legend below the panels, each entry once, in as many columns as fit and at most `most`."""
    once = list({(key.get_label(), key.get_color(), key.get_marker()): key for key in keys}.values())
    for columns in range(most, 0, -1) if once else ():
        legend = figure.legend(handles=once, loc="outside lower center", ncols=columns)
        if columns == 1 or legend.get_window_extent().width <= figure.bbox.width:
            width, height = figure.get_size_inches()
            figure.set_size_inches(width, height + 0.13 * -(-len(once) // columns))
            return
        legend.remove()


def finish(
    figure: Figure, axis: Axes, n: pd.Series, keys: Iterable[Line2D] = (), columns: int = 3, unit: str = ""
) -> None:
    """Write n above an axis and a legend below all, and settle the layout."""
    write_n(axis, n, unit)
    legend_below(figure, keys, columns)
    settle(figure)


def keys_of(drawn: Sequence[Curve], others: Sequence[Curve] = (), **look: Any) -> list[Line2D]:
    """Return a legend entry for each curve, and one for all others; a single curve needs none."""
    more = [key(f"{len(others)} others", FAINT, ".", linestyle="")] if others else []
    return [*(curve.key(**look) for curve in drawn), *more] if len(drawn) > 1 else []


def not_drawn(others: Sequence[Any], what: str = "") -> list[Line2D]:
    """Return a legend entry with the number of curves, or of `what`, that a figure leaves out; nothing where it leaves out none."""
    return [key(f"{len(others)} more {what}{' ' * bool(what)}not drawn", FAINT, linestyle="")] if others else []


def knob_label(drawn: Sequence[Curve]) -> str:
    """Return a knob with its lossless end for an axis: w (1 is lossless)."""
    first = drawn[0]
    cells = pd.concat([curve.cells for curve in drawn if curve.knob == first.knob])
    strict, equals = strict_value(cells["x"], cells["rank"]), first.cells["equals"].iloc[0]
    if any(not isinstance(value, int | float) for value in cells["value"]):
        return f"{first.knob}, the strictest value first"
    if strict is None:
        return first.knob
    end = f"{format_value(strict)} is {equals}" if equals else f"strictest at {format_value(strict)}"
    return f"{first.knob} ({end})"


def text_of(cell: Mapping[Any, Any], *, is_full: bool = False) -> str:
    """Return a cell's knob value, KNOB=VALUE if `is_full`, or the name of a cell without a knob."""
    if cell["x"] != cell["x"]:
        return NAMES.get(str(cell["verifier"]), str(cell["verifier"]))
    return setting_of(cell) if is_full else format_value(cell["value"])


def bars(axis: Axes, cells: pd.DataFrame, x: str, y: str, colour: str, **look: Any) -> None:
    """Draw the known intervals of both coordinates as thin lines."""
    look = {"linewidth": 0.7, "alpha": 0.5} | look
    for along, across, draw in ((x, y, axis.hlines), (y, x, axis.vlines)):
        ends = [f"{along}_low", f"{along}_high"]
        if set(ends) <= set(cells):
            known = cells.dropna(subset=ends)
            draw(known[across], *(known[end] for end in ends), color=colour, **look)


def intervals(axis: Axes, x: pd.Series, low: pd.Series, high: pd.Series, colour: str, width: float) -> None:
    """Draw vertical intervals: as lines, or as a pale band if there are too many lines to be told apart."""
    if len(x) > MOST_LINES:
        axis.fill_between(x, low, high, color=colour, alpha=0.16, linewidth=0)
    else:
        axis.vlines(x, low, high, color=colour, linewidth=width)


def band(axis: Axes, cells: pd.DataFrame, x: str, y: str, colour: str) -> None:
    """Draw an interval along a curve as a pale band."""
    if f"{y}_low" in cells:
        axis.fill_between(cells[x], cells[f"{y}_low"], cells[f"{y}_high"], color=colour, alpha=0.16, linewidth=0)


def level_lines(axis: Axes, sweep: Sweep, column: str, *names: str) -> dict[str, float]:
    """Draw dashed lines at the baselines that have this column and return them; a level far away is named above the panel.

    A baseline that exists for each draft length has no single level: the curves end in it.
    """
    bottom, top = axis.get_ylim()
    reach = 0.4 * (top - bottom)
    levels, notes = {}, list[str]()
    for name in names:
        known = sweep.baseline(name)[column].dropna().tolist()
        level = known[0] if len(known) == 1 else np.nan
        if bottom - reach < level < top + reach:
            levels[name] = level
            axis.axhline(level, color=BASELINES[name][1], linewidth=0.8, linestyle=(0, (4, 2)), zorder=1.5)
        elif level == level:
            notes.append(f"{NAMES.get(name, name)}: {level:.3g}, {'below' if level < bottom else 'above'}")
    note_above(axis, notes)
    return levels


def note_above(axis: Axes, notes: Iterable[str]) -> None:
    """Add notes to those above a panel on the left."""
    title = "; ".join(filter(None, [axis.get_title(loc="left"), *notes]))
    axis.set_title(title, loc="left", fontsize=SMALL, color=GREY)


def label_levels(room: Room, levels: Mapping[str, float], *, size: float = SMALL) -> None:
    """Label the level lines at the end that has room; without any, above the panel."""
    left, right = room.axis.get_xlim()
    inset = 0.01 * (right - left)
    for name, level in levels.items():
        spots = [(x, (side, up)) for up in (1, -1) for x, side in ((right - inset, -1), (left + inset, 1))]
        labels = [Label(x, level, NAMES.get(name, name), BASELINES[name][1], True, (way,)) for x, way in spots]
        if not room.add_first(labels, size=size):
            note_above(room.axis, [f"dashed at {level:.3g}: {NAMES.get(name, name)}"])


def write_n(axis: Axes, n: pd.Series, unit: str = "") -> None:
    """Write the number of examples (or of `unit`) of a figure's cells above it on the right, as a range where they differ."""
    known = n.dropna()
    if len(known):
        tail = f" {unit}" if unit else " is small" if known.min() < SMALL_N else ""
        counts = "–".join(f"{count:g}" for count in sorted({known.min(), known.max()}))
        axis.set_title(f"n = {counts}{tail}", loc="right", fontsize=SMALL)


def ramp(ranks: pd.Series) -> list[str]:
    """Return colours from pale to dark towards the lossless end, readable in grey and by the colour-blind."""
    known = ranks.fillna(0)
    span = max(float(known.max() - known.min()), 1e-9)
    return [str(to_hex(colormaps["viridis"](0.86 * (rank - known.min()) / span))) for rank in known]


def value_labels(
    curve: Curve, x: str, y: str, *, is_lossless_named: bool, shown: Collection[str] | None = None
) -> list[Label]:
    """Return labels for the `shown` cells, the ends of the curve first: the knob's value, with the knob at the first cell.

    A lossless end has no label if the lossless baseline has one.
    """
    cells, labels = curve.cells.to_dict("records"), []
    for index in sorted(range(len(cells)), key=lambda index: min(index, len(cells) - 1 - index)):
        cell = cells[index]
        is_named = is_lossless_named and cell["is_lossless"] and cell["rank"] == 0
        if not is_named and (shown is None or cell["cell"] in shown):
            labels.append(Label(float(cell[x]), float(cell[y]), text_of(cell, is_full=index == 0), curve.colour))
    return labels


def evenly(count: int, most: int) -> list[int]:
    """Return at most this many indices, evenly from the first to the last."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(int)).tolist()
