"""The whole report of one or several results folders, written into the first.

    results/NAME/report.html
                 summary.csv  summary.parquet  summary.md  summary.tex  model-index.yaml  results.json     of NAME alone
                 figures/FIGURE.svg .pdf .png      or FIGURE-SUFFIX where the folders hold several sweeps
                 tables/TABLE.csv                  what the figures draw, and every test behind the recommendation

Names, titles and captions stand in captions.py. What an earlier report left there and this one does not make is removed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from sdbench.metrics.export import export, metrics_of, metrics_table, write_whole
from sdbench.metrics.recommend import Recommendation, recommend
from sdbench.metrics.summary import summarise
from sdbench.records import Results, read
from sdbench.report.captions import FIGURES, TABLES
from sdbench.report.figures import drawn
from sdbench.report.frames import frames
from sdbench.report.numbers import Sweep, sweeps
from sdbench.report.page import write_page
from sdbench.report.style import FORMATS, save, styled

MARGIN = 5.0  # points of 100; used where a run recorded none


@dataclass(frozen=True, slots=True)
class Report:
    """What was read and worked out, and the files that say it."""

    results: tuple[Results, ...]
    summaries: tuple[pd.DataFrame, ...]
    advice: tuple[Recommendation, ...]
    page: Path
    figures: tuple[Path, ...]
    tables: tuple[Path, ...]


def build(folder: str | os.PathLike[str], others: Iterable[str | os.PathLike[str]] = ()) -> Path:
    """Write the report of `folder`, with `others` beside it; the path of the page."""
    return report(folder, others).page


def report(folder: str | os.PathLike[str], others: Iterable[str | os.PathLike[str]] = ()) -> Report:
    """Read, work out, draw and write everything."""
    home = Path(folder)
    results = tuple(read(one) for one in (home, *others))
    summaries = tuple(summarise(one) for one in results)
    advice = tuple(recommend(one, margin_of(one)) for one in results)
    found = sweeps(results, summaries)
    tables = write_tables(home, results, summaries, advice, found)
    figures = write_figures(home / "figures", found)
    page = write_page(home, results, summaries, advice)
    return Report(results, summaries, advice, page, figures, tables)


def margin_of(results: Results) -> float:
    """The loss in points that the last run called acceptable."""
    margin = results.config.get("margin")
    return MARGIN if margin is None else float(margin)


def write_figures(folder: Path, found: Sequence[Sweep]) -> tuple[Path, ...]:
    """Every figure in every format."""
    with styled():
        paths = [path for name, figure in drawn(found).items() for path in save(figure, folder, name)]
    remove_old(folder, [f"{name}{tail}.{kind}" for name in FIGURES for tail in ("", "-*") for kind in FORMATS], paths)
    return tuple(paths)


def write_tables(
    home: Path,
    results: Sequence[Results],
    summaries: Sequence[pd.DataFrame],
    advice: Sequence[Recommendation],
    found: Sequence[Sweep],
) -> tuple[Path, ...]:
    """The summary of `home` in every form, and below tables/ what the figures of all folders draw."""
    metrics = [metrics_of(one) for one in results]
    paths = export(results[0], summaries[0], home, metrics=metrics[0])
    made = {"metrics": pd.concat([metrics_table(*pair) for pair in zip(results, metrics, strict=True)])}
    made |= frames(found, advice)
    if len(results) > 1:
        parts = [one.assign(folder=each.name) for each, one in zip(results, summaries, strict=True)]
        together = pd.concat(parts, ignore_index=True)
        made["together"] = together[["folder", *summaries[0].columns]]
    (home / "tables").mkdir(exist_ok=True)
    for name, frame in made.items():
        paths.append(write_whole(home / "tables" / f"{name}.csv", frame.to_csv(index=False).encode()))
    remove_old(home, [name for name in TABLES if name.startswith("tables/")], paths)
    return tuple(paths)


def remove_old(folder: Path, patterns: Iterable[str], kept: Iterable[Path]) -> None:
    """Files of a report's own names that this report has not made: they would tell of records as they were."""
    old = {path for pattern in patterns for path in folder.glob(pattern)}
    for path in old - set(kept):
        path.unlink(missing_ok=True)
