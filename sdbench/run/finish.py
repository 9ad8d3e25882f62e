"""What a run leaves and says at its end: summary.csv, a table, the recommendation, the report. All from the records."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from sdbench.config import Run
from sdbench.records import Results, read
from sdbench.run.table import labels, print_table
from sdbench.run.track import track
from sdbench.trackers import Findings

if TYPE_CHECKING:
    from sdbench.run.cells import Point


def finish(run: Run, points: Sequence[Point], failed: Mapping[str, str]) -> None:
    """Says what came out, cell by cell, then has it drawn; failed cells are named."""
    from sdbench.metrics.recommend import recommend
    from sdbench.metrics.summary import summarise
    from sdbench.report import build

    results, cells = read(run.folder), [point.cell for point in points]
    frame, summary = summarise(results), run.folder / "summary.csv"
    frame.to_csv(summary, index=False)
    print_table(run, cells, frame)
    advice = recommend(results, run.margin).text
    print(advice)
    print_problems(results, {name: failed[key] for key, name in labels(cells).items() if key in failed})
    sys.stdout.flush()
    page = build(run.folder)
    figures = sorted((run.folder / "figures").glob("pareto*.png"))[:1]
    for name, path in (
        ("records", run.folder),
        ("summary", summary),
        *(("figure", figure) for figure in figures),
        ("report", page),
    ):
        print(f"{name + ':':<9}{path}")
    track(run, Findings(run.folder, results.config, frame, advice))


def print_problems(results: Results, failed: Mapping[str, str]) -> None:
    """What failed in this run by its name, then what else the reader found; the reason of a failure once."""
    for name, message in failed.items():
        print(f"sdbench: failed: {name}: {message}", file=sys.stderr)
    said = set(failed.values())
    for problem in results.problems:
        if problem.message not in said:
            said.add(problem.message)
            print(f"sdbench: {problem.kind}: {problem.name}: {problem.message}", file=sys.stderr)
