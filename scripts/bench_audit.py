"""Measure the cost of the audit: results/benchmarks/audit.{json,md}.

    python scripts/bench_audit.py [repeats=3] [out=results/benchmarks]

Measures the default audit as a process, including its start; in the same run the time of drawing and testing samples divided by
that of drawing them alone, as the audit records it; and the time of `--help`. Goals: 20 s on two cores, a ratio of 1.2, and 2 s.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from sdbench.words import exit_on_mistake, number, parse_words

TITLES = {
    "audit": "the default audit: seconds, start included",
    "processor": "the default audit: processor seconds",
    "testing": "its samples, tested, over drawing them alone",
    "help": "--help: seconds",
}
DEFAULTS = {"repeats": "3", "out": "results/benchmarks"}


def timed(*words: str, cwd: str) -> tuple[float, float]:
    """Return clock and processor seconds of `python -m sdbench.audit` with these arguments."""
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    root = str(Path(__file__).parents[1])
    command = [sys.executable, "-m", "sdbench.audit", *words]
    subprocess.run(command, cwd=cwd, check=True, capture_output=True, env=os.environ | {"PYTHONPATH": root})
    clock, after = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    return clock, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def once() -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        clock, processor = timed(f"out={folder}/audit", cwd=folder)
        seconds = json.loads((Path(folder) / "audit/audit.json").read_text())["seconds"]
        help_s = timed("--help", cwd=folder)[0]
    return {
        "audit": clock,
        "processor": processor,
        "testing": seconds["samples"] / seconds["drawing"],
        "help": help_s,
    }


def page(tree: dict[str, Any]) -> str:
    rows = [
        f"| {TITLES[name]} | {statistics.median(values):.2f} | {min(values):.2f} … {max(values):.2f} |"
        for name, values in tree["runs"].items()
    ]
    note = f"{tree['repeats']} repeats on {tree['cores']} cores, load {tree['load']:.1f} at the start."
    return "\n".join(["# The audit", "", note, "", "| what | median | range |", "|---|---|---|", *rows, ""])


def main(argv: Sequence[str]) -> int:
    with exit_on_mistake("bench_audit", __doc__, argv):
        given = parse_words(argv, DEFAULTS)
        repeats = int(number(given, "repeats") or int(DEFAULTS["repeats"]))
    out, load = Path(given.options.get("out", DEFAULTS["out"])), os.getloadavg()[0]
    runs = [once() for _ in range(repeats)]
    tree = {"repeats": repeats, "cores": os.cpu_count(), "load": load}
    tree["runs"] = {name: [round(run[name], 3) for run in runs] for name in TITLES}
    out.mkdir(parents=True, exist_ok=True)
    (out / "audit.json").write_text(json.dumps(tree, indent=1) + "\n")
    (out / "audit.md").write_text(page(tree))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
