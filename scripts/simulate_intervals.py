"""Coverage, one-sided errors and widths of intervals for bounded differences, most of them 0, and of all intervals in use.

    python scripts/simulate_intervals.py [runs=1000] [n=60,100,200,500,1000] [out=results/statistics]

Writes means.json and means.md: every distribution of `interval_laws` at n = 60 … 1,000, by every method of `interval_rivals` and by
sdbench's own (`sdbench/metrics/stats/`), which combines two of them. A recommendation is tested by Gaffke's limit alone. From
n = 500 on only these two and Student's t are computed, because the others are slow, and methods differ mainly at small n.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from numpy.typing import NDArray

from scripts.interval_laws import BOUNDS, SIZES, Law, laws
from scripts.interval_rivals import RIVALS, Limits, student_t
from sdbench.metrics.stats import resample
from sdbench.metrics.stats.conservative import density
from sdbench.words import exit_on_mistake, parse_words

Array = NDArray[np.float64]
OWN = "sdbench"
TEST = "Gaffke"  # the limit with which a recommendation is tested
SMALL = 200  # largest n at which every method is computed
DEFAULTS = {"runs": "1000", "n": ",".join(map(str, SIZES)), "out": "results/statistics"}
PARTS = ("Student's t", "studentised bootstrap", TEST)
LEVEL = 0.95
KINDS = ("dense", "skewed", "sparse", "mixed")
LISTED = (("0.02 × 25", 100), ("0.01 × 50", 200), ("0.05 × 100, samples=2", 100), ("0.05 × 100", 100))
LISTED += tuple(
    (f"{law} + normal {spread}", 60) for law, spread in (("0.01 × 50", 0.2), ("0.02 × 25", 1), ("0.05 × 50", 1))
)


@dataclass(frozen=True)
class Row:
    """A method on a distribution: how often the truth was below and above its limits, and its width divided by Student's."""

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
    ends = {name: limits(values, BOUNDS, LEVEL) for name, limits in RIVALS.items() if n <= SMALL or name in PARTS}
    ends[OWN] = mixed(values, ends["studentised bootstrap"], ends[TEST])
    usual = np.subtract(*ends["Student's t"][::-1])
    differing = float((values != 0).sum(0).mean())
    return [judged(law, n, name, limits, usual, differing) for name, limits in ends.items()]


def mixed(values: Array, dense: Limits, honest: Limits) -> Limits:
    """Return what `mean_limits` returns, from its two parts. These are passed in because they are also compared separately."""
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
        f"Written by `python -m scripts.simulate_intervals runs={runs} n={sizes.replace(' ', '')}`.",
        "Scores lie between 0 and 100, so differences between −100 and 100. Level 95 %, so 2.5 % on each side.",
        f"{runs:,} runs of every law at each n of {sizes}; standard error of a share of 2.5 %: {error:.2f} points.",
        f"Above n = {SMALL} only {', '.join(PARTS)} and sdbench's own; a row holds every n its method was tried at.",
        "",
        "*Unsafe*: the largest share of runs, over laws and n, in which the lower limit lay above the true difference. With the",
        "true loss at the margin, that is the share of false recommendations.",
        "*Width*: median of the distance between the limits over that of Student's.",
        f"*{OWN}*: the intervals of tables and figures. *{TEST}*: also the limit by which a setting is called safe.",
        "",
    ]
    for kind in KINDS:
        lines += by_method(kind, [row for row in rows if row.kind == kind])
    return "\n".join([*lines, *at_the_margin(rows), *least_reach(), *by_law(rows)]) + "\n"


def by_method(kind: str, rows: Sequence[Row]) -> list[str]:
    head = ["method", "unsafe, largest", "coverage, smallest", "largest", "width, median", "largest"]
    lines = [f"## {kind.capitalize()}", "", *heading(head)]
    for method in (*RIVALS, OWN):
        chosen = [row for row in rows if row.method == method]
        if not chosen:  # this method is computed only at small n
            continue
        covers, widths = [row.coverage for row in chosen], [row.width for row in chosen if row.width == row.width]
        cells = [f"{max(row.below_low for row in chosen):.1%}", f"{min(covers):.1%}", f"{max(covers):.1%}"]
        lines.append(f"| {method} | {' | '.join(cells)} | {np.median(widths):.2f} | {max(widths):.2f} |")
    return [*lines, ""]


def at_the_margin(rows: Sequence[Row]) -> list[str]:
    names = (*RIVALS, OWN)
    lines = ["## At the margin", "", "The true loss is the margin; share of runs that call it safe.", ""]
    lines += heading(["law", "n", *names])
    for law, n in LISTED:
        by_name = {row.method: row for row in rows if (row.law, row.n) == (law, n)}
        if by_name:
            lines.append(f"| {law} | {n} | " + " | ".join(f"{by_name[name].below_low:.1%}" for name in names) + " |")
    return [*lines, ""]


def least_reach() -> list[str]:
    """Return the page's section on the least width that any valid method has on dense data, with Student's and Gaffke's widths."""
    lines = [
        "## What no method can do",
        "",
        "Take two distributions: dense differences with any spread and mean 0, and the same with a share π of losses of −100.",
        "None of n examples shows such a loss with probability (1 − π)ⁿ, and then both look the same. A lower limit above",
        "−100·π is wrong for the second, which 2.5 % of samples may be. So with (1 − π)ⁿ = 5 % it must lie below −100·π in",
        "half of the samples of the first, however dense: about 3.0/n of the bound. Gaffke's limit comes near that, and no",
        "much narrower one is valid. So the intervals of tables and figures cover losses like those observed, and safety is",
        "decided by Gaffke's limit.",
        "",
        "Median distance of the lower limit from the mean, in points; differences normal around 0:",
        "",
        *heading(["n", "sd", "Student's t", "least of any valid method", "Gaffke"]),
    ]
    for n in SIZES:
        least = -BOUNDS[0] * (1 - (1 - LEVEL) ** (1 / n))
        for spread in (1.0, 10.0):
            values = np.random.default_rng(n).normal(0, spread, (n, 200))
            usual, honest = (
                np.median(values.mean(0) - limits(values, BOUNDS, LEVEL)[0]) for limits in (student_t, RIVALS[TEST])
            )
            lines.append(f"| {n} | {spread:g} | {usual:.2f} | {max(least, usual):.2f} | {honest:.2f} |")
    return [*lines, ""]


def by_law(rows: Sequence[Row]) -> list[str]:
    lines = [
        "## sdbench's intervals, by distribution",
        "",
        *heading(["law", "n", "differ", "unsafe", "unsafe as a test", "coverage", "width"]),
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
    with exit_on_mistake("simulate_intervals", __doc__, arguments):
        options = DEFAULTS | dict(parse_words(arguments, DEFAULTS).options)
        runs, out, sizes = int(options["runs"]), Path(options["out"]), [int(n) for n in options["n"].split(",")]
    resample.ONE_THREAD = 10**8  # many columns at once, because each product of a few rows would read all of them again
    rows = []
    for n in sizes:
        for law in laws():
            rows += rows_of(law, n, runs)
        page, lines = to_markdown(rows, runs), ",\n".join(json.dumps(asdict(row), ensure_ascii=False) for row in rows)
        out.mkdir(parents=True, exist_ok=True)
        (out / "means.json").write_text(f"[\n{lines}\n]\n")
        (out / "means.md").write_text(page)
        print(f"n={n} done", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
