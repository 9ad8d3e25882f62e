"""Measure the seconds of the intervals and of the whole report of a large run, on synthetic records.

    python scripts/bench_report.py [n=1000] [resamples=10000] [repeats=3] [out=results/benchmarks]

The records have 20 cells of one pair and task: two draft lengths with lossless and eight weights at each, the target alone, and the
draft alone. Writes report.json and report.md. Goals, in processor seconds: under 5 s for 10,000 resamples of 1,000 examples × 20
cells, with a ratio and a mean of each, and under 15 s for the report. Wall-clock seconds and the machine's load are also reported.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from sdbench.metrics import stats
from sdbench.metrics.stats import resample
from sdbench.report.build import worked_out, write
from sdbench.words import exit_on_mistake, parse_words
from tests.records.synthetic import write_synthetic

CELLS = 20
WS = (0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.9)
TITLES = {
    "many_differ": "intervals, many examples differ",
    "few_differ": "intervals, 2 % of the examples differ",
    "decided": "report: read, summarised and decided",
    "drawn": "report: figures, tables and page",
    "report": "report, in all",
}


def intervals(n: int, resamples: int, *, share: float) -> None:
    """Compute a ratio and a mean of each cell without any cache; a `share` of the examples differs."""
    rng = np.random.default_rng(0)
    resample._weights.cache_clear()
    for counts in rng.integers(10, 100, (CELLS, n)):
        lost = (rng.uniform(size=n) < share) * rng.uniform(size=n)
        stats.ratio_interval(counts * (1 - lost), counts, resamples=resamples, bounds=(0, 1))
        stats.mean_interval(100 * lost, resamples=resamples, bounds=(0, 100))


def timed(call: Callable[[], Any]) -> tuple[float, float, Any]:
    """Return processor and clock seconds of a call, and its result."""
    clock, processor = time.perf_counter(), time.process_time()
    value = call()
    return time.process_time() - processor, time.perf_counter() - clock, value


def once(folder: Path, n: int, resamples: int) -> dict[str, tuple[float, float]]:
    """Run every step once; return processor and clock seconds."""
    seconds: dict[str, tuple[float, float]] = {}
    seconds["many_differ"] = timed(lambda: intervals(n, resamples, share=1.0))[:2]
    seconds["few_differ"] = timed(lambda: intervals(n, resamples, share=0.02))[:2]
    resample._weights.cache_clear()
    *decided, work = timed(lambda: worked_out([folder]))
    *drawn, _ = timed(lambda: write(work))
    seconds["decided"], seconds["drawn"] = (decided[0], decided[1]), (drawn[0], drawn[1])
    seconds["report"] = (decided[0] + drawn[0], decided[1] + drawn[1])
    return seconds


def measured(n: int, resamples: int, repeats: int) -> dict[str, Any]:
    """Return the medians of all repeats, with the size of the records and the machine's load at the measurement."""
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as home:
        shape = {"tasks": ("xsum-tiny",), "ws": WS, "num_drafts": (3, 5), "timing_examples": 30}
        folder = write_synthetic(Path(home) / "run", n=n, **shape)
        runs = [once(folder, n, resamples) for _ in range(repeats)]
    seconds = {
        name: {
            "processor_s": round(statistics.median(run[name][0] for run in runs), 2),
            "clock_s": round(statistics.median(run[name][1] for run in runs), 2),
        }
        for name in TITLES
    }
    shape = {"cells": CELLS, "n": n, "resamples": resamples, "repeats": repeats}
    return shape | {"load": [round(load, 1), round(os.getloadavg()[0], 1)], "seconds": seconds}


def to_markdown(figures: dict[str, Any]) -> str:
    before, after = figures["load"]
    lines = [
        "# What a report costs",
        "",
        f"Written by `python -m scripts.bench_report n={figures['n']} resamples={figures['resamples']} "
        f"repeats={figures['repeats']}`.",
        f"{figures['cells']} cells of {figures['n']:,} examples, {figures['resamples']:,} resamples, one thread, medians of "
        f"{figures['repeats']} repeats.",
        f"Load of the machine before and after: {before:g} and {after:g}; above 2, others on the same cores slowed it.",
        "",
        "| what | processor seconds | clock seconds |",
        "|---|---|---|",
    ]
    for name, one in figures["seconds"].items():
        lines.append(f"| {TITLES[name]} | {one['processor_s']:.2f} | {one['clock_s']:.2f} |")
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str]) -> None:
    options = {"n": "1000", "resamples": "10000", "repeats": "3", "out": "results/benchmarks"}
    with exit_on_mistake("bench_report", __doc__, argv):
        options |= parse_words(argv, options).options
    figures = measured(*(int(options[name]) for name in ("n", "resamples", "repeats")))
    out = Path(options["out"])
    out.mkdir(parents=True, exist_ok=True)
    (out / "report.json").write_text(json.dumps(figures, indent=1) + "\n")
    (out / "report.md").write_text(to_markdown(figures))
    print(to_markdown(figures))


if __name__ == "__main__":
    main(sys.argv[1:])
