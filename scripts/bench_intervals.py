"""Processor seconds of the intervals behind a report: a ratio and a mean of every cell, where many and where few examples differ.

    python -m scripts.bench_intervals [cells=20] [n=1000] [resamples=10000] [repeats=3] [out=FILE.json]

What is aimed at: under five seconds for 20 cells of 1,000 examples, the draws of the bootstrap included.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sdbench.metrics import stats
from sdbench.metrics.stats import resample


def seconds(cells: int, n: int, resamples: int, *, is_sparse: bool) -> float:
    """Processor time of a ratio and a mean for each cell, from nothing kept."""
    rng = np.random.default_rng(0)
    share = 0.02 if is_sparse else 1.0
    examined = rng.integers(10, 100, (cells, n))
    lost = (rng.uniform(size=(cells, n)) < share) * rng.uniform(size=(cells, n))
    resample._weights.cache_clear()
    start = time.process_time()
    for counts, loss in zip(examined, lost, strict=True):
        stats.ratio_interval(counts * (1 - loss), counts, resamples=resamples, bounds=(0, 1))
        stats.mean_interval(100 * loss, resamples=resamples, bounds=(0, 100))
    return time.process_time() - start


def main(arguments: Sequence[str]) -> None:
    options = {"cells": "20", "n": "1000", "resamples": "10000", "repeats": "3", "out": ""}
    options |= dict(word.split("=", 1) for word in arguments)
    cells, n, resamples, repeats = (int(options[name]) for name in ("cells", "n", "resamples", "repeats"))
    found = {}
    for name, is_sparse in (("many differ", False), ("2 % differ", True)):
        times = [seconds(cells, n, resamples, is_sparse=is_sparse) for _ in range(repeats)]
        found[name] = {"median_s": round(statistics.median(times), 3), "most_s": round(max(times), 3)}
        print(
            f"{cells} cells of {n} examples, {resamples} resamples, {name}: {found[name]['median_s']:.2f} s", flush=True
        )
    if options["out"]:
        settings = {"cells": cells, "n": n, "resamples": resamples, "repeats": repeats}
        Path(options["out"]).write_text(json.dumps(settings | found, indent=2) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
