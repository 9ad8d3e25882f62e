"""The whole report of one or several results folders, written into the first."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from sdbench.metrics.recommend import recommend
from sdbench.metrics.summary import summarise
from sdbench.records import read
from sdbench.report import figures
from sdbench.report.page import write_page
from sdbench.report.style import save, styled

MARGIN = 5.0  # points of 100; used where a run recorded none


def build(folder: str | os.PathLike[str], others: Iterable[str | os.PathLike[str]] = ()) -> Path:
    """Write summary.csv, figures/ and report.html beside the records of `folder`; the path of the page."""
    home = Path(folder)
    results = [read(home), *(read(other) for other in others)]
    summaries = [summarise(one) for one in results]
    summaries[0].to_csv(home / "summary.csv", index=False)
    summary = pd.concat(summaries, ignore_index=True)
    advice = [recommend(one, float(one.config.get("margin") or MARGIN)) for one in results]
    with styled():
        for (model, task), cells in summary.groupby(["model", "task"], sort=True):
            suffix = "" if len(summary.groupby(["model", "task"])) == 1 else f"-{model}-{task}"
            for name, figure in drawn(cells).items():
                save(figure, home / "figures", f"{name}{suffix}")
    return write_page(home, results, summary, advice)


def drawn(cells: pd.DataFrame) -> dict[str, Figure]:
    """Every figure that these cells of one pair and task can fill, by file name."""
    made = {
        "pareto": figures.pareto(cells),
        "against_w": figures.against_w(cells),
        "speed_against_w": figures.speed_against_w(cells),
    }
    return {name: figure for name, figure in made.items() if figure is not None}
