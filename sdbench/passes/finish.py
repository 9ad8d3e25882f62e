"""The end of a run: summary.csv, a table, the recommendation and the report, all from the records."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sdbench import __version__
from sdbench.config import Run
from sdbench.files import digest_of, write_whole
from sdbench.passes.table import names_of_cells, print_table
from sdbench.passes.track import track
from sdbench.records import Results
from sdbench.records.claims import jobs_at_work
from sdbench.trackers import Findings

if TYPE_CHECKING:
    from sdbench.prepare.cells import Point
    from sdbench.report.sweep import Sweep


def finish(run: Run, points: Sequence[Point], failed: Mapping[str, str], config: Mapping[str, Any]) -> None:
    """Print and draw the results of each cell and list the failed cells. A tracker gets `config`, this run's configuration."""
    from sdbench.report import worked_out, write
    from sdbench.report.build import DRAWN
    from sdbench.report.page.facts import warning_lines

    content = _content(run)  # before the records are read: what another job adds from here on is not on this page
    outcome, cells = worked_out([run.folder], margin=run.margin), [point.cell for point in points]
    results, frame, summary = outcome.results[0], outcome.summaries[0], run.folder / "summary.csv"
    write_whole(summary, frame.to_csv(index=False))  # whole: jobs that share a folder may end together
    print_table(run, cells, frame)
    advice = outcome.advice[0].text
    print(advice)
    sweeps = [sweep for sweep in outcome.sweeps if any(cell.key in sweep.cells.index for cell in cells)]
    for line in warning_lines(sweeps, has_texts=False):
        print(line)
    print_equal_texts(sweeps)
    print_open_load(sweeps, {cell.key for cell in cells})
    print_problems(results, {name: failed[key] for key, name in names_of_cells(cells).items() if key in failed})
    sys.stdout.flush()
    page = run.folder / "report.html"
    if run.report and not is_drawn(run, content):
        page = write(outcome).page
        write_whole(run.folder / DRAWN, content)
        while (newer := _content(run)) != content and not jobs_at_work(run.folder / "claims"):
            content = newer  # a job that ended meanwhile may have drawn a newer page, and this one has replaced it
            page = write(worked_out([run.folder], margin=run.margin)).page
            write_whole(run.folder / DRAWN, content)
    has_page = is_drawn(run, content)
    figures = sorted((run.folder / "figures").glob("pareto*.png"))[:1] if has_page else []
    for name, path in (
        ("records", run.folder),
        ("summary", summary),
        *(("figure", figure) for figure in figures),
        *([("report", page)] if has_page else []),
    ):
        print(f"{name + ':':<9}{path}")
    suffixes = {str(key): sweep.suffix for sweep in outcome.sweeps for key in sweep.cells.index}
    track(run, Findings(run.folder, config, frame, advice, has_page=has_page, sweeps=suffixes))


def print_equal_texts(sweeps: Sequence[Sweep]) -> None:
    """Print in how many texts at T = 0 lossless equals the target alone; a difference that cannot be rounding is an error."""
    compared = [each for sweep in sweeps for each in sweep.equal_texts]
    names: dict[str, list[str]] = {}  # by the text that follows the name
    for each in compared:
        if not each.is_fault:
            names.setdefault(each.text.removeprefix(each.name), []).append(each.name)
    for words, same in names.items():
        print(f"{', '.join(same)}{words}" if len(same) == 1 else f"{', '.join(same)}: each{words}")
    for each in compared:
        if each.is_fault:
            print(f"sdbench: FAULT: {each.text}", file=sys.stderr)


def print_open_load(sweeps: Sequence[Sweep], keys: set[str]) -> None:
    """Print the open-loop results of these cells, if there are any."""
    from sdbench.metrics.load_sentences import sentences

    for sweep in sweeps:
        table = sweep.open_load
        for line in sentences(table[table["cell"].isin(keys)], sweep.cells, sweep.slo):
            print(line)


def is_drawn(run: Run, content: str) -> bool:
    """Return whether the page shows exactly these records."""
    from sdbench.report.build import DRAWN

    note = run.folder / DRAWN
    return (run.folder / "report.html").is_file() and note.is_file() and note.read_text() == content


def _content(run: Run) -> str:
    """Return a hash of what a page shows. Parts never change, so their names suffice; files of cells can change."""
    paths = sorted(path for path in (run.folder / "records").iterdir() if not path.name.startswith("run-"))
    names = [path.name for path in paths]
    names += [path.read_text("utf-8") for path in paths if path.name.startswith("cell-")]
    bounds = [f"{dict(run.timing.slo)}"] if run.timing is not None and run.timing.slo else []
    return digest_of("\n".join([__version__, f"{run.margin}", *bounds, *names]), digits=64)


def print_problems(results: Results, failed: Mapping[str, str]) -> None:
    """Print the failures of this run, each reason once, then other problems of the records."""
    for name, message in failed.items():
        print(f"sdbench: failed: {name}: {message}", file=sys.stderr)
    printed = set(failed.values())
    for problem in results.problems:
        if problem.message not in printed:
            printed.add(problem.message)
            print(f"sdbench: {problem.kind}: {problem.name}: {problem.message}", file=sys.stderr)
