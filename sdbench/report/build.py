"""The whole report of one or several results folders.

    results/NAME/report.html
                 summary.csv  summary.parquet  summary.md  summary.tex  model-index.yaml  results.json     of NAME alone
                 figures/FIGURE.svg .pdf .png      or FIGURE-SUFFIX where the folders hold several sweeps
                 tables/TABLE.csv                  what the figures draw, and every test behind the recommendation

`worked_out` reads and decides, once; `write` draws and writes what it found. A report of several folders goes to a place of its
own, named after them. Names, titles and captions stand in captions.py. What an earlier report left there is removed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

import pandas as pd

from sdbench.files import write_whole
from sdbench.metrics.export import Metrics, export, metrics_of, metrics_table
from sdbench.metrics.fixed_speed import at_speed
from sdbench.metrics.recommend import Recommendation, recommend
from sdbench.metrics.summary import summarise
from sdbench.metrics.weigh import Margin
from sdbench.records import Results, read
from sdbench.report.captions import FIGURES, TABLES
from sdbench.report.figures import draw_figures
from sdbench.report.figures.style import FORMATS, save, styled
from sdbench.report.frames import frames
from sdbench.report.page import write_page
from sdbench.report.sweep import Sweep, sweeps_of

MARGIN = 5.0  # points of 100; used where a run recorded none
LONGEST = 80  # letters of a folder that is named after others


@dataclass(frozen=True, slots=True)
class WorkedOut:
    """What was read of each folder, and every number and decision made of it."""

    results: tuple[Results, ...]
    summaries: tuple[pd.DataFrame, ...]
    advice: tuple[Recommendation, ...]
    sweeps: tuple[Sweep, ...]
    metrics: tuple[Callable[[], Metrics], ...]  # every score of each folder, worked out when first asked for
    options: tuple[str, ...] = ()  # what it was asked, as words of the command

    @property
    def home(self) -> Path:
        """Where its report goes unless told otherwise: into its folder; of several, beside the first and named after all."""
        first = self.results[0].path
        if len(self.results) == 1:
            return first
        return first.resolve().parent / ("report-" + "+".join(one.name for one in self.results))[:LONGEST]


@dataclass(frozen=True, slots=True)
class Report:
    """The files that say it."""

    page: Path
    figures: tuple[Path, ...]
    tables: tuple[Path, ...]


def build(folder: str | os.PathLike[str], others: Iterable[str | os.PathLike[str]] = ()) -> Path:
    """Write the report of `folder`, with `others` beside it; the path of the page."""
    return write(worked_out([folder, *others])).page


def worked_out(
    folders: Iterable[str | os.PathLike[str]], *, margin: Margin | None = None, speed: float | None = None
) -> WorkedOut:
    """Read every folder, summarise and decide: at the margin of its own last run unless one is given, or at a fixed speed."""
    results = tuple(read(one) for one in folders)
    summaries = tuple(summarise(one) for one in results)
    advice = tuple(recommend(one, recorded_margin(one) if margin is None else margin) for one in results)
    if speed is not None:
        advice = tuple(replace(one, advices=tuple(at_speed(each, speed) for each in one.weighed)) for one in advice)
    asked = {"margin": margin, "speed": speed}
    options = tuple(f"{name}={_written(value)}" for name, value in asked.items() if value is not None)
    metrics = tuple(cache(partial(metrics_of, one)) for one in results)
    return WorkedOut(results, summaries, advice, tuple(sweeps_of(results, summaries, metrics)), metrics, options)


def _written(value: Margin) -> str:
    """As the command line takes it."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{task}: {points:g}" for task, points in value.items()) + "}"
    return f"{value:g}"


def write(work: WorkedOut, out: str | os.PathLike[str] | None = None) -> Report:
    """Tables, figures and the page, in `out` or where they belong."""
    home = work.home if out is None else Path(out)
    home.mkdir(parents=True, exist_ok=True)
    tables = write_tables(home, work)
    figures = write_figures(home / "figures", work.sweeps)
    options = (*work.options, *([] if out is None else [f"out={os.fspath(out)}"]))
    return Report(write_page(home, work.results, work.sweeps, work.advice, options), figures, tables)


def recorded_margin(results: Results) -> Margin:
    """The loss in points that the last run called acceptable, for all tasks or by task."""
    margin = results.config.get("margin")
    if isinstance(margin, Mapping):
        return {str(task): float(points) for task, points in margin.items()}
    return MARGIN if margin is None else float(margin)


def write_figures(folder: Path, sweeps: Sequence[Sweep]) -> tuple[Path, ...]:
    """Every figure in every format."""
    with styled():
        paths = [path for name, figure in draw_figures(sweeps).items() for path in save(figure, folder, name)]
    remove_old(folder, [f"{name}{tail}.{kind}" for name in FIGURES for tail in ("", "-*") for kind in FORMATS], paths)
    return tuple(paths)


def write_tables(home: Path, work: WorkedOut) -> tuple[Path, ...]:
    """The summary in every form where there is one folder, and below tables/ what the figures of all folders draw."""
    metrics = [scores() for scores in work.metrics]
    paths: list[Path] = []
    if len(work.results) == 1:
        paths += export(work.results[0], work.summaries[0], home, metrics=metrics[0], advice=work.advice[0])
    made = {"metrics": pd.concat([metrics_table(*pair) for pair in zip(work.results, metrics, strict=True)])}
    made |= frames(work.sweeps, work.advice)
    if len(work.results) > 1:
        parts = [one.assign(folder=each.name) for each, one in zip(work.results, work.summaries, strict=True)]
        together = pd.concat(parts, ignore_index=True)
        made["together"] = together[["folder", *work.summaries[0].columns]]
    (home / "tables").mkdir(exist_ok=True)
    for name, frame in made.items():
        paths.append(write_whole(home / "tables" / f"{name}.csv", frame.to_csv(index=False)))
    remove_old(home, [name for name in TABLES if name.startswith("tables/")], paths)
    return tuple(paths)


def remove_old(folder: Path, patterns: Iterable[str], kept: Iterable[Path]) -> None:
    """Files of a report's own names that this report has not made: they would tell of records as they were."""
    old = {path for pattern in patterns for path in folder.glob(pattern)}
    for path in old - set(kept):
        path.unlink(missing_ok=True)
