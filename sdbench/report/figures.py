"""Figures of one sweep, each a function of the summary: rows are cells, columns those of summary.csv.

A point that was not measured is not drawn. Bars are 95 % intervals. Nothing is joined that is not one rule's curve.
"""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sdbench.report.style import BASELINES, CYCLE, GREY, INK, PAGE, panels

NAMES = {
    "strict": "accuracy (strict)",
    "flexible": "accuracy (flexible)",
    "numeric": "accuracy (numeric)",
    "pass@1": "pass@1",
    "rougeL": "ROUGE-L",
    "rougeLsum": "ROUGE-Lsum",
    "rouge1": "ROUGE-1",
    "rouge2": "ROUGE-2",
    "bleu": "BLEU",
    "chrf2": "chrF2",
}
OFFSETS = {"lossless": (5, 3), "target": (5, -9), "draft": (5, -2), "generate": (5, 3)}


def label_of(metric: str) -> str:
    return NAMES.get(metric, metric)


def curves(summary: pd.DataFrame, column: str) -> Iterator[tuple[str, str, pd.DataFrame]]:
    """(name, colour, cells along the knob) of every rule and draft length that has a knob and this column."""
    swept = summary[~summary["verifier"].isin(list(BASELINES)) & summary[column].notna()]
    groups = list(swept.groupby(["verifier", "num_draft"], sort=True))
    has_lengths, has_rules = swept["num_draft"].nunique() > 1, swept["verifier"].nunique() > 1
    for index, ((verifier, num_draft), cells) in enumerate(groups):
        parts = [str(verifier)] * (has_rules or not has_lengths) + [f"K={num_draft}"] * has_lengths
        yield ", ".join(parts), CYCLE[index % len(CYCLE)], cells.sort_values("w")


def bars(axis: Axes, cells: pd.DataFrame, x: str, y: str, colour: str) -> None:
    """Intervals of both coordinates, as thin lines, where they are known."""
    for _, cell in cells.iterrows():
        for along, across, draw in ((x, y, axis.hlines), (y, x, axis.vlines)):
            low, high = cell.get(f"{along}_low"), cell.get(f"{along}_high")
            if pd.notna(low) and pd.notna(high):
                draw(cell[across], low, high, color=colour, linewidth=0.8, alpha=0.55)


def plane(axis: Axes, summary: pd.DataFrame, x: str, y: str = "quality") -> None:
    """Every rule's curve and the baselines in the plane of two measured columns."""
    for name, colour, cells in curves(summary, x):
        bars(axis, cells, x, y, colour)
        axis.plot(cells[x], cells[y], "o-", color=colour, label=name, zorder=3)
        is_named = (summary["verifier"] == "lossless").any()  # w = 1 lies under it
        for step, (_, cell) in enumerate(cells.iterrows()):
            if pd.notna(cell["w"]) and (len(cells) < 7 or step % 2 == 0) and not (is_named and cell["w"] == 1):
                axis.annotate(
                    f"w={cell['w']:g}", (cell[x], cell[y]), (4, 4), textcoords="offset points", color=colour, size=6
                )
    for name, (marker, colour) in BASELINES.items():
        cells = summary[(summary["verifier"] == name) & summary[x].notna()]
        for _, cell in cells.iterrows():
            bars(axis, cells, x, y, colour)
            axis.plot(cell[x], cell[y], marker, color=colour, zorder=4)
            axis.annotate(name, (cell[x], cell[y]), OFFSETS[name], textcoords="offset points", color=colour, size=6.5)
    axis.margins(0.1, 0.1)


def pareto(summary: pd.DataFrame) -> Figure:
    """Quality against acceptance, and against measured speed-up where there is one."""
    has_speed = bool(summary["speedup"].notna().any())
    figure, axes = panels(1 + has_speed, width=PAGE if has_speed else PAGE / 1.7, height=3.0)
    metric = label_of(str(summary["metric"].iloc[0]))
    plane(axes[0], summary[summary["verifier"] != "target"], "acceptance")
    axes[0].set(xlabel="acceptance (accepted / examined)", ylabel=metric, title="Quality against acceptance")
    if has_speed:
        plane(axes[1], summary, "speedup")
        axes[1].set(xlabel="speed-up over the target alone (measured)", ylabel=metric, title="Quality against speed")
        axes[1].axvline(1, color=GREY, linewidth=0.8, linestyle=":")
    if summary["num_draft"].nunique() > 2 or len(list(curves(summary, "acceptance"))) > 1:
        axes[0].legend()
    return figure


def along_w(axis: Axes, summary: pd.DataFrame, column: str, *, baselines: tuple[str, ...] = ()) -> None:
    """One column against the weight, with its band; baselines as horizontal lines."""
    for name, colour, cells in curves(summary, column):
        cells = cells[cells["w"].notna()]
        if f"{column}_low" in cells:
            axis.fill_between(
                cells["w"], cells[f"{column}_low"], cells[f"{column}_high"], color=colour, alpha=0.15, linewidth=0
            )
        axis.plot(cells["w"], cells[column], "o-", color=colour, label=name)
    for name in baselines:
        for _, cell in summary[(summary["verifier"] == name) & summary[column].notna()].iterrows():
            colour = BASELINES[name][1]
            axis.axhline(cell[column], color=colour, linewidth=0.9, linestyle="--")
            axis.annotate(name, (0, cell[column]), (2, 2), textcoords="offset points", color=colour, size=6.5)
    axis.set_xlabel("w, the weight of the target")


def against_w(summary: pd.DataFrame) -> Figure:
    """Quality and acceptance against w; the law 1 − w·E[TV] beside the measured acceptance."""
    figure, axes = panels(2, width=PAGE)
    metric = label_of(str(summary["metric"].iloc[0]))
    along_w(axes[0], summary, "quality", baselines=("target", "draft"))
    axes[0].set(ylabel=metric, title="Quality")
    along_w(axes[1], summary, "acceptance", baselines=("lossless",))
    for _, _, cells in curves(summary, "acceptance_expected"):
        axes[1].plot(cells["w"], cells["acceptance_expected"], "x", color=INK, markersize=4, label="exact expectation")
    axes[1].set(ylabel="acceptance", title="Acceptance")
    axes[1].legend()
    return figure


def speed_against_w(summary: pd.DataFrame) -> Figure | None:
    """Measured speed-ups with intervals, modelled ones as hollow marks; None where neither exists."""
    if not summary["speedup"].notna().any():
        return None
    figure, axes = panels()
    along_w(axes[0], summary, "speedup", baselines=("lossless",))
    if "speedup_modelled" in summary:
        for _, colour, cells in curves(summary, "speedup_modelled"):
            axes[0].plot(
                cells["w"], cells["speedup_modelled"], "o", mfc="none", color=colour, markersize=6, label="modelled"
            )
    axes[0].axhline(1, color=GREY, linewidth=0.8, linestyle=":")
    axes[0].set(ylabel="speed-up over the target alone", title="Speed")
    axes[0].legend()
    return figure
