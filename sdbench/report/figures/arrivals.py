"""Requests that arrive at a rate: latency against the rate, one curve per setting, and quality against goodput."""

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from sdbench.metrics.open_load import of_newest_pass
from sdbench.report.figures import marks
from sdbench.report.figures.planes import level_panels
from sdbench.report.figures.style import BASELINES, CYCLE, MARKS, PAGE, panels
from sdbench.report.sweep import Sweep

PANELS = {
    "ttft": "to the first token",
    "cached_ttft": "to the first token, cached",
    "tpot": "between tokens",
    "itl": "between chunks",
    "e2el": "whole answer",
}


def open_load(sweep: Sweep) -> Figure | None:
    """Draw medians and 99th percentiles of latency against the arrival rate, of the newest pass; None for fewer than two rates."""
    table = of_newest_pass(sweep.open_load)
    if not len(table) or table["rate"].nunique() < 2:
        return None
    curves = _curves(sweep, table)
    known = {name: title for name, title in PANELS.items() if table[f"{name}_p50_s"].notna().any()}
    figure, axes = panels(len(known), width=PAGE, height=2.0, sharex=True)
    for axis, (name, title) in zip(axes, known.items(), strict=True):
        for curve in curves:
            median, tail = f"{name}_p50_s", f"{name}_p99_s"
            marks.band(axis, curve.cells, "rate", median, curve.colour)
            look = {"color": curve.colour, "linewidth": 0.9}
            axis.plot(curve.cells["rate"], curve.cells[median], "-", **look)
            axis.plot(curve.cells["rate"], curve.cells[tail], ":", **look)
            for is_saturated, part in curve.cells.groupby(curve.cells["is_saturated"].astype(bool)):
                face = curve.colour if is_saturated else "white"
                axis.plot(part["rate"], part[median], curve.mark, color=curve.colour, mfc=face, markersize=3.5)
        axis.set(title=title, xlabel="arrivals (requests/s)", yscale="log")
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.yaxis.set_major_formatter(lambda seconds, _: f"{seconds:g}")
        axis.yaxis.set_minor_locator(NullLocator())
    axes[0].set_ylabel("seconds")
    keys = [curve.key(linewidth=0.9, markersize=3.5) for curve in curves]
    marks.finish(figure, axes[-1], table["n"], keys, unit="requests")
    return figure


def _curves(sweep: Sweep, table: pd.DataFrame) -> list[marks.Curve]:
    """Return the timed cells in reading order, each with its rows of the table by rate."""
    timed = sweep.cells[sweep.cells.index.isin(table["cell"])]
    swept = [str(key) for key, name in timed["verifier"].items() if name not in BASELINES]
    colours = CYCLE if len(swept) <= len(CYCLE) else marks.ramp(pd.Series(range(len(swept))))
    looks = {key: (MARKS[i % len(MARKS)], colours[i]) for i, key in enumerate(swept)}
    curves = []
    for key, cell in timed.iterrows():
        mark, colour = looks.get(str(key)) or BASELINES[str(cell["verifier"])]
        rows = table[table["cell"] == key].sort_values("rate")
        curves.append(marks.Curve(str(cell["label"]), colour, mark, rows, rows.iloc[:0]))
    return curves


def goodput(sweep: Sweep) -> Figure | None:
    """Draw quality against goodput, one panel per arrival rate; None without bounds."""
    if not sweep.slo:
        return None
    return level_panels(
        sweep,
        of_newest_pass(sweep.open_load),
        "rate",
        "goodput",
        "{:g} requests/s",
        "goodput (requests/s)",
        unit="requests",
    )
