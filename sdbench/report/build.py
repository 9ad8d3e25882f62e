"""The whole report of one or several results folders.

    results/NAME/report.html
                 summary.csv  summary.parquet  summary.md  summary.tex  scores.parquet  model-index.yaml  results.json
                                                   for a single NAME only
                 figures/FIGURE.svg .pdf .png      or FIGURE-SUFFIX if the folders hold several sweeps
                 tables/TABLE.csv                  the data of the figures, and every test of the recommendation

`worked_out` reads and decides, once; `write` draws and writes the result. The report of several folders goes to a folder named
after them. Titles and captions are in captions.toml. Files of an earlier report in the same folder are removed.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from sdbench.files import digest_of, write_whole
from sdbench.metrics.export import Metrics, export, metrics_of, metrics_table
from sdbench.metrics.recommend import Recommendation, at_speed, recommend
from sdbench.metrics.seeds import pool_seeds
from sdbench.metrics.summary import summarise
from sdbench.metrics.weigh import Margin
from sdbench.records import Results, read
from sdbench.report.captions import FIGURES, TABLES
from sdbench.report.figures import draw_figures
from sdbench.report.figures.style import FORMATS, house_style, save
from sdbench.report.frames import frames
from sdbench.report.joint import decide_jointly
from sdbench.report.page import write_page
from sdbench.report.page.verdicts import match_advice
from sdbench.report.sweep import Sweep, sweeps_of

MARGIN = 5.0  # points of 100; used if a run recorded none
LONGEST = 80  # longest name of a folder that is named after others
DRAWN = ".drawn"  # file below a run's folder that lists the records its page shows


@dataclass(frozen=True, slots=True)
class WorkedOut:
    """What was read from each folder, and all numbers and decisions computed from it."""

    results: tuple[Results, ...]
    summaries: tuple[pd.DataFrame, ...]
    advice: tuple[Recommendation, ...]
    sweeps: tuple[Sweep, ...]
    metrics: tuple[Callable[[], Metrics], ...]  # every score of each folder, computed at first use
    options: tuple[str, ...] = ()  # options of the command, such as margin=1
    # Decisions for several sweeps: seeds pooled, and one common setting if joint=true.
    together: tuple[str, ...] = ()
    num_pooled: int = 0  # decisions on pooled seeds that were tested

    @property
    def home(self) -> Path:
        """Where its report goes by default: into the folder; for several, beside the first, in a folder named after all."""
        first, *others = (folder.path for folder in self.results)
        if not others:
            return first
        name = "report-" + "+".join(folder.name for folder in self.results)
        short = name if len(name) <= LONGEST else f"{name[: LONGEST - 9]}-{digest_of(name, digits=8)}"
        return first.resolve().parent / short


class Report(NamedTuple):
    """The files of a report."""

    page: Path
    figures: tuple[Path, ...]
    tables: tuple[Path, ...]


def build(folder: str | os.PathLike[str], others: Iterable[str | os.PathLike[str]] = ()) -> Path:
    """Write the report of `folder`, with `others` beside it; return the path of the page."""
    return write(worked_out([folder, *others])).page


def worked_out(
    folders: Iterable[str | os.PathLike[str]],
    *,
    margin: Margin | None = None,
    speed: float | None = None,
    is_joint: bool = False,
) -> WorkedOut:
    """Read every folder, summarise and decide: at the margin of its last run unless one is given, or at a fixed speed."""
    results = tuple(map(read, folders))
    summaries = tuple(map(summarise, results))

    def advise(folder: Results) -> Recommendation:
        advice = recommend(folder, recorded_margin(folder) if margin is None else margin)
        if speed is None:
            return advice
        pairs = zip(advice.weighed, advice.advices, strict=True)
        return replace(advice, advices=tuple(at_speed(weighed, speed, each.margin) for weighed, each in pairs))

    advice = tuple(map(advise, results))
    options = [] if margin is None else [f"margin={option_text(margin)}"]
    options += [] if speed is None else [f"speed={speed:g}"]
    options += ["joint=true"] if is_joint else []
    metrics = tuple(cache(partial(metrics_of, folder)) for folder in results)
    sweeps = sweeps_of(results, summaries, metrics)
    advice = tuple(retitle(sweeps, results, advice))
    pooled = pool_seeds(results)
    decisions = advise(pooled).advices if pooled else ()
    together = [f"{pooled.name}: {each.text}" for each in decisions] if pooled else []
    together += [decide_jointly(advice).text] if is_joint else []
    num_pooled = sum(bool(each.tests) for each in decisions)
    return WorkedOut(results, summaries, advice, tuple(sweeps), metrics, tuple(options), tuple(together), num_pooled)


def retitle(
    sweeps: Sequence[Sweep], results: Sequence[Results], advice: Sequence[Recommendation]
) -> Iterator[Recommendation]:
    """Yield the advice with the titles of the report, which distinguish the sweeps of several folders."""
    matched = {id(each.weighed): each.sweep.title for each in match_advice(sweeps, results, advice)}
    for folder in advice:
        titles = [matched.get(id(weighed), weighed.title) for weighed in folder.weighed]
        named = list(zip(folder.advices, folder.weighed, titles, strict=True))
        advices = [replace(each, text=title + each.text.removeprefix(old.title)) for each, old, title in named]
        yield Recommendation(tuple(advices), tuple(replace(old, title=title) for _, old, title in named))


def option_text(margin: Margin) -> str:
    """Return a margin in the syntax of the command line."""
    if isinstance(margin, Mapping):
        return "{" + ", ".join(f"{task}: {points:g}" for task, points in margin.items()) + "}"
    return f"{margin:g}"


def write(work: WorkedOut, out: str | os.PathLike[str] | None = None) -> Report:
    """Write tables, figures and the page to `out` or the default folder, and delete a run's note of what its page shows."""
    home = work.home if out is None else Path(out)
    home.mkdir(parents=True, exist_ok=True)
    (home / DRAWN).unlink(missing_ok=True)
    tables = write_tables(home, work)
    figures = write_figures(home / "figures", work.sweeps)
    options = (*work.options, *([] if out is None else [f"out={os.fspath(out)}"]))
    joint = " ".join(work.together)
    page = write_page(
        home, work.results, work.sweeps, work.advice, options, joint, num_pooled=work.num_pooled, tables=tables
    )
    return Report(page, figures, tables)


def recorded_margin(results: Results) -> Margin:
    """Return the margin of the last run, in points, for all tasks or by task."""
    margin = results.config.get("margin")
    if isinstance(margin, Mapping):
        return {str(task): float(points) for task, points in margin.items()}
    return MARGIN if margin is None else float(margin)


def write_figures(folder: Path, sweeps: Sequence[Sweep]) -> tuple[Path, ...]:
    """Write every figure in every format."""
    with house_style():
        paths = [path for name, figure in draw_figures(sweeps).items() for path in save(figure, folder, name)]
    remove_old(folder, [f"{name}{tail}.{kind}" for name in FIGURES for tail in ("", "-*") for kind in FORMATS], paths)
    return tuple(paths)


def write_tables(home: Path, work: WorkedOut) -> tuple[Path, ...]:
    """Write the summary in every format if there is one folder, and below tables/ the data of the figures of all folders."""
    metrics = [scores() for scores in work.metrics]
    paths: list[Path] = []
    if len(work.results) == 1:
        paths += export(work.results[0], work.summaries[0], home, metrics=metrics[0], advice=work.advice[0])
    tables = {"metrics": pd.concat([metrics_table(*pair) for pair in zip(work.results, metrics, strict=True)])}
    tables |= frames(work.sweeps, work.advice)
    if len(work.results) > 1:
        named = zip([folder.name for folder in work.results], work.summaries, strict=True)
        together = pd.concat([summary.assign(folder=name) for name, summary in named], ignore_index=True)
        tables["together"] = together[["folder", *work.summaries[0].columns]]
    (home / "tables").mkdir(exist_ok=True)
    paths += [write_whole(home / "tables" / f"{name}.csv", frame.to_csv(index=False)) for name, frame in tables.items()]
    # An earlier report's summary goes, but not that of a results folder's records, nor files that no report wrote.
    is_of_report = (home / "report.html").is_file() and not (home / "records").is_dir()
    remove_old(home, [name for name in TABLES if name.startswith("tables/") or is_of_report], paths)
    return tuple(paths)


def remove_old(folder: Path, patterns: Iterable[str], kept: Iterable[Path]) -> None:
    """Remove files with names of a report that this report did not write, since they would show old records."""
    old = {path for pattern in patterns for path in folder.glob(pattern)}
    for path in old - set(kept):
        path.unlink(missing_ok=True)
