"""Quality against speed at each number of concurrent requests: where speculation no longer pays, and how leniency moves that."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from sdbench.report.figures import marks
from sdbench.report.figures.style import BASELINES, GREY, SMALL, panels, settle
from sdbench.report.sweep import Sweep

MOST = 6  # panels beside each other; more are the first and the last ones
RATE = "speedup_user"


def load(sweep: Sweep) -> Figure | None:
    """Draw a panel for each concurrency: the speed of a user over the target alone at the same concurrency."""
    table = sweep.load
    known = table[table[RATE].notna()] if len(table) else table
    numbers = sorted(set(known["concurrency"])) if len(known) else []
    if len(numbers) < 2:
        return None
    numbers = [*numbers[: MOST - 1], numbers[-1]] if len(numbers) > MOST else numbers
    figure, axes = panels(len(numbers), width=1.6 * len(numbers), height=2.0, sharex=True, sharey=True)
    for axis, number in zip(axes, numbers, strict=True):
        measured = known.loc[known["concurrency"] == number, ["cell", RATE, f"{RATE}_low", f"{RATE}_high"]]
        points = sweep.points.merge(measured, on="cell", how="inner").dropna(subset=["quality"])
        drawn = [
            (
                curve.name,
                points[points["cell"].isin(curve.cells["cell"])].sort_values("x"),
                f"{curve.mark}-",
                curve.colour,
            )
            for curve in marks.curves(sweep, "quality")
        ]
        drawn += [(name, points[points["verifier"] == name], *look) for name, look in BASELINES.items()]
        for name, cells, mark, colour in drawn:
            if len(cells):
                axis.plot(cells[RATE], cells["quality"], mark, color=colour, markersize=3, linewidth=0.8, label=name)
                marks.bars(axis, cells, RATE, "quality", colour)
        axis.axvline(1, color=GREY, linewidth=0.7, linestyle=":", zorder=1)
        axis.set_title(f"{number} at once", loc="left", fontsize=SMALL)
        axis.set_xlabel("speed-up of a user")
    axes[0].set_ylabel(marks.label_of(sweep.metric))
    axes[0].legend(loc="best")
    marks.write_n(axes[-1], pd.to_numeric(known["n"]).max())
    settle(figure)
    return figure
