"""Theory and measurement: the formulas of the static ensemble, the bound of all token-wise rules, predictions for every w."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from sdbench.metrics.columns import WEIGHT
from sdbench.metrics.theory import CONTEXTS, has_law
from sdbench.report.figures import marks
from sdbench.report.figures.knob import KnobRow, along_knob
from sdbench.report.figures.labels import Label, Room
from sdbench.report.figures.style import BASELINES, GREY, INK, PALE, panels
from sdbench.report.sweep import Sweep


def with_theory(sweep: Sweep, cells: pd.DataFrame) -> pd.DataFrame:
    """Join the cells of a sweep with the theoretical values of their measures."""
    return cells.merge(sweep.laws[["cell", "acceptance_law", "bias_law", "acceptance_bound"]], on="cell", how="left")


def theory_curves(sweep: Sweep, known: Iterable[marks.Curve], *columns: str) -> list[marks.Curve]:
    """Return those curves with all these columns, with the theoretical values of their cells."""
    joined = [replace(c, cells=with_theory(sweep, c.cells), end=with_theory(sweep, c.end)) for c in known]
    return marks.having(joined, *columns)


def laws(sweep: Sweep) -> Figure | None:
    """Draw measured acceptance and bias against the ensemble's formulas; on the diagonal both agree."""
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
            curve.plot(axis, law, name, markersize=3.4)
        lossless = with_theory(sweep, sweep.baseline("lossless")).dropna(subset=[law])
        axis.plot(lossless[law], lossless[name], mark, color=colour, markersize=3.4, zorder=2.5)
        low, high = (pick([*axis.get_xlim(), *axis.get_ylim()]) for pick in (min, max))
        axis.plot([low, high], [low, high], color=GREY, linewidth=0.7, linestyle=":", zorder=1)
        axis.set(xlim=(low, high), ylim=(low, high), aspect="equal", xlabel=formula, ylabel=f"measured {name}")
    left_out = theory_curves(sweep, marks.other_curves(sweep), "acceptance_law", "bias")
    keys = [*marks.keys_of(drawn, markersize=3.4, linestyle=""), *marks.not_drawn(left_out)]
    keys.append(marks.key("lossless", colour, mark, linestyle="", markersize=3.4))
    marks.finish(figure, axes[1], sweep.points["n"], keys)
    return figure


def bound(sweep: Sweep) -> Figure | None:
    """Draw acceptance against bias: every rule's point, and the highest acceptance of a token-wise rule there."""
    needed = ("acceptance_bound", "bias")
    drawn, others = (theory_curves(sweep, known(sweep), *needed) for known in (marks.curves, marks.other_curves))
    lossless = sweep.baseline("lossless").dropna(subset=["tv"])
    if not drawn:
        return None
    figure, (axis,) = panels(height=2.6)
    mark, colour = BASELINES["lossless"]
    for curve in [*others, *drawn, marks.Curve("lossless", colour, mark, lossless, lossless[:0])]:
        marks.bars(axis, curve.cells, "bias", "acceptance", curve.colour)
        curve.plot(axis, "bias", "acceptance", markersize=4, zorder=3)
    for curve in drawn:  # the bound at the contexts that each curve visited
        axis.plot(curve.cells["bias"], curve.cells["acceptance_bound"], "_", color=INK, markersize=6, zorder=5)
    axis.margins(0.06, 0.1)
    axis.autoscale_view()
    # One line holds for one lossless run: another drafter, or draft length, visits other contexts.
    tv = lossless["tv"] if len(lossless) else pd.concat([curve.cells["tv"].iloc[-1:] for curve in drawn])
    line, (bottom, top) = np.array(axis.get_xlim()), axis.get_ylim()
    level = 1 - float(tv.iloc[0]) + line
    if len(tv) == 1:
        axis.plot(line, level, color=GREY, linewidth=0.8, linestyle="--", zorder=1)
        axis.fill_between(line, level, top + 1, color=PALE, alpha=0.45, linewidth=0, zorder=0)
    axis.set(xlim=tuple(line), ylim=(bottom, top), xlabel="bias: TV(emitted, target) at a drafted position")
    axis.set_ylabel("acceptance")
    keys = marks.keys_of(drawn, others, linestyle="", markersize=4)
    keys.append(marks.key("bound, the point's own contexts", INK, "_", linestyle="", markersize=4))
    if len(tv) == 1:
        along = CONTEXTS if len(lossless) else "last contexts"
        keys.append(marks.key(f"bound, {along}", GREY, linewidth=0.8, linestyle="--"))
    marks.finish(figure, axis, sweep.points["n"], keys, 2)
    room = Room(axis)
    for curve in drawn:
        room.block_cells(curve.cells, "bias", "acceptance")
    if len(tv) == 1:
        room.block_line(line, level)
    at = lossless[["bias", "acceptance"]].head(1).to_numpy().tolist()
    labels = [Label(x, y, "lossless", INK, True) for x, y in at]
    for curve in drawn if len(drawn) <= marks.FEW_CURVES else drawn[-1:]:
        labels += marks.value_labels(curve, "bias", "acceptance", is_lossless_named=len(lossless) > 0)
    room.add(labels)
    return figure


def predicted(sweep: Sweep) -> Figure | None:
    """Draw the prediction from the lossless run's probabilities for every weight, with the measurement of each setting."""
    drawn = [c for c in marks.curves(sweep, "acceptance", "x") if c.knob == WEIGHT and has_law(c.cells).all()]
    labels = {"acceptance": "acceptance", "accepted_per_round": "accepted a round"}
    rows = [KnobRow(y, label, partial(draw_predicted, frame=sweep.predicted, y=y)) for y, label in labels.items()]
    is_known = bool(drawn) and len(sweep.predicted) > 0
    return along_knob(sweep, drawn, rows, height=1.7, n=sweep.points["n"]) if is_known else None


def draw_predicted(axis: Axes, drawn: Sequence[marks.Curve], *, frame: pd.DataFrame, y: str) -> list[Line2D]:
    """Draw a measure at every weight as a line, and measurements as marks."""
    for curve in drawn:
        cells, first = curve.cells, curve.cells.iloc[0]
        line = frame[(frame["drafter"] == first["drafter"]) & (frame["num_draft"] == first["num_draft"])]
        marks.band(axis, line, WEIGHT, y, GREY)
        axis.plot(line[WEIGHT], line[y], "-", color=curve.colour, linewidth=1.0)
        axis.vlines(cells["x"], cells[f"{y}_low"], cells[f"{y}_high"], color=curve.colour, linewidth=0.8)
        curve.plot(axis, "x", y, markersize=3.8, zorder=3)
    measured = marks.key("measured", GREY, "o", linestyle="", markersize=3.8)
    return [measured, marks.key(f"predicted, {CONTEXTS}", GREY, linewidth=1.0)]
