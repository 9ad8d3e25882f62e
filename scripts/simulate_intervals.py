"""Coverage, one-sided errors and widths of intervals for bounded, mostly equal differences, and of all kinds in use.

    python -m scripts.simulate_intervals [runs=1000] [n=60,100,200,500,1000] [out=results/statistics]

Writes means.json and means.md: every law of `interval_laws` at n = 60 … 1,000, by every method of `interval_rivals` and by
sdbench's own (`sdbench/metrics/stats/`), which mixes two of them. From n = 500 on only these and Student's t: the others are
slow, and small n is where methods differ. About six minutes on one core.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from scripts.interval_laws import BOUNDS, SIZES, Law, laws
from scripts.interval_rivals import RIVALS, Limits, bootstrap, gaffke, student_t
from sdbench.metrics.stats import resample
from sdbench.metrics.stats.honest import density

Array = NDArray[np.float64]
OWN = "sdbench"
TEST = "sdbench, as a test"  # at the level at which a recommendation asks for it
SMALL = 200  # up to here every rival is tried
PARTS = ("Student's t", "studentised bootstrap", "Gaffke")
LEVEL = 0.95
KINDS = ("dense", "skewed", "sparse", "mixed")
LISTED = (("0.02 × 25", 100), ("0.01 × 50", 200), ("0.05 × 100, samples=2", 100), ("0.05 × 100", 100))


@dataclass(frozen=True)
class Row:
    """One method on one law: how often the truth lay below and above its limits, and its width over Student's."""

    law: str
    kind: str
    n: int
    method: str
    below_low: float
    above_high: float
    width: float
    differing: float

    @property
    def coverage(self) -> float:
        return 1 - self.below_low - self.above_high


def rows_of(law: Law, n: int, runs: int) -> list[Row]:
    values = law.draw(np.random.default_rng((n, *law.name.encode())), n, runs)
    found = {name: limits(values, BOUNDS, LEVEL) for name, limits in RIVALS.items() if n <= SMALL or name in PARTS}
    found[OWN] = mixed(values, found["studentised bootstrap"], found["Gaffke"])
    level = 1 - 2 * alpha_of_tests((1 - LEVEL) / 2, n)
    found[TEST] = mixed(values, bootstrap(values, BOUNDS, level), gaffke(values, BOUNDS, level))
    usual = np.subtract(*student_t(values, BOUNDS, LEVEL)[::-1])
    return [judged(law, n, name, limits, usual, float((values != 0).sum(0).mean())) for name, limits in found.items()]


def alpha_of_tests(alpha: float, n: int) -> float:
    """What a recommendation that promises alpha asks of an interval: less, by an amount that vanishes with n."""
    return alpha * (1 - min(3 / n**0.5, 0.75))


def mixed(values: Array, dense: Limits, honest: Limits) -> Limits:
    """What `mean_limits` does, from its two parts: worked out once, for they stand in the comparison too."""
    share = density(values)
    low, high = (share * a + (1 - share) * b for a, b in zip(dense, honest, strict=True))
    return low, high


def judged(law: Law, n: int, method: str, limits: Limits, usual: Array, differing: float) -> Row:
    slack = 1e-9
    below, above = (limits[0] > law.mean + slack).mean(), (limits[1] < law.mean - slack).mean()
    has_width = usual > 0
    width = float(np.median((limits[1] - limits[0])[has_width] / usual[has_width])) if has_width.any() else float("nan")
    return Row(law.name, law.kind, n, method, float(below), float(above), round(width, 3), round(differing, 1))


def to_markdown(rows: Sequence[Row], runs: int) -> str:
    error = 100 * (0.025 * 0.975 / runs) ** 0.5
    sizes = ", ".join(str(n) for n in sorted({row.n for row in rows}))
    lines = [
        "# Intervals of the mean of bounded differences",
        "",
        f"Made by `python -m scripts.simulate_intervals runs={runs} n={sizes.replace(' ', '')}`.",
        "Scores lie between 0 and 100, so differences between −100 and 100. Level 95 %, so 2.5 % on each side.",
        f"{runs:,} runs of every law at each n of {sizes}; standard error of a share of 2.5 %: {error:.2f} points.",
        f"Above n = {SMALL} only {', '.join(PARTS)} and sdbench's own.",
        "",
        "*Unsafe*: the largest share of runs, over laws and n, in which the lower limit lay above the true difference. With the",
        "true loss at the margin, that is the share of false recommendations.",
        "*Width*: median of the distance between the limits over that of Student's.",
        f"*{TEST}*: at the level at which a recommendation asks for it, a little above 95 %.",
        "",
    ]
    for kind in KINDS:
        lines += by_method(kind, [row for row in rows if row.kind == kind])
    return "\n".join([*lines, *at_the_margin(rows), *by_law(rows)]) + "\n"


def by_method(kind: str, rows: Sequence[Row]) -> list[str]:
    head = ["method", "unsafe, largest", "coverage, smallest", "largest", "width, median", "largest"]
    lines = [f"## {kind.capitalize()}", "", *heading(head)]
    for method in (*RIVALS, OWN, TEST):
        own = [row for row in rows if row.method == method]
        covers, widths = [row.coverage for row in own], [row.width for row in own if row.width == row.width]
        cells = [f"{max(row.below_low for row in own):.1%}", f"{min(covers):.1%}", f"{max(covers):.1%}"]
        lines.append(f"| {method} | {' | '.join(cells)} | {np.median(widths):.2f} | {max(widths):.2f} |")
    return [*lines, ""]


def at_the_margin(rows: Sequence[Row]) -> list[str]:
    names = (*RIVALS, OWN, TEST)
    lines = ["## At the margin", "", "The true loss is the margin; share of runs that call it safe.", ""]
    lines += heading(["law", "n", *names])
    for law, n in LISTED:
        own = {row.method: row for row in rows if (row.law, row.n) == (law, n)}
        if own:
            lines.append(f"| {law} | {n} | " + " | ".join(f"{own[name].below_low:.1%}" for name in names) + " |")
    return [*lines, ""]


def by_law(rows: Sequence[Row]) -> list[str]:
    lines = [
        "## sdbench's, law by law",
        "",
        *heading(["law", "n", "differ", "unsafe", "as a test", "coverage", "width"]),
    ]
    tests = {(row.law, row.n): row.below_low for row in rows if row.method == TEST}
    return lines + [
        f"| {row.law} | {row.n} | {row.differing:.0f} | {row.below_low:.1%} | {tests[row.law, row.n]:.1%} "
        f"| {row.coverage:.1%} | {row.width:.2f} |"
        for row in rows
        if row.method == OWN
    ]


def heading(names: Sequence[str]) -> list[str]:
    return ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]


def main(arguments: Sequence[str]) -> None:
    sizes = ",".join(str(n) for n in SIZES)
    options = {"runs": "1000", "n": sizes, "out": "results/statistics"} | dict(word.split("=", 1) for word in arguments)
    runs, out = int(options["runs"]), Path(options["out"])
    resample.ONE_THREAD = 10**8  # many columns at once: a product of a few rows would read them all again
    rows = []
    for n in map(int, options["n"].split(",")):
        for law in laws():
            rows += rows_of(law, n, runs)
        out.mkdir(parents=True, exist_ok=True)
        lines = ",\n".join(json.dumps(asdict(row), ensure_ascii=False) for row in rows)
        (out / "means.json").write_text(f"[\n{lines}\n]\n")
        (out / "means.md").write_text(to_markdown(rows, runs))
        print(f"n={n} done", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
