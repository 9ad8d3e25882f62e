"""Which examples a setting loses against lossless, and how: a histogram of paired differences, the worst ones, kinds of failure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from sdbench.metrics.cells import reference
from sdbench.metrics.degenerate import degenerate
from sdbench.metrics.quality import sign_of
from sdbench.metrics.text import format_number
from sdbench.report.page.browser import by_example
from sdbench.report.page.tables import MINUS
from sdbench.report.sweep import Sweep

EDGES = (-np.inf, -50.0, -10.0, -1e-9, 1e-9, 10.0, 50.0, np.inf)
BINS = (
    "lost 50 or more",
    "lost 10 to 50",
    "lost up to 10",
    "unchanged",
    "gained up to 10",
    "gained 10 to 50",
    "gained 50 or more",
)
MOST = 10  # examples that are listed
KINDS = {  # of a text, the first that holds
    "is_empty": "empty",
    "is_loop": "ends in a loop",
    "is_truncated": "truncated",
    "is_extraction_failed": "no result found",
}


@dataclass(frozen=True, slots=True)
class Loss:
    """An example that loses: how much, and what kind of failure it is."""

    example: str
    change: str
    kind: str


@dataclass(frozen=True, slots=True)
class LossDetail:
    """The paired differences of a setting: a bar (words, count, percent of the longest) for each range, the worst, the kinds."""

    label: str
    bars: tuple[tuple[str, int, float], ...]
    worst: tuple[Loss, ...]
    kinds: str


def losses_of(sweep: Sweep, key: str) -> LossDetail | None:
    """Return how a setting's examples differ from lossless; None where there is no lossless run or no score by example."""
    base = reference(sweep.cells, key, "lossless")
    if base is None or base == key:
        return None
    generations = sweep.results.generations
    scores = by_example(generations[generations["cell"].isin([key, base])], sweep)
    points = (sign_of(sweep.metric) * sweep.metric.scale * (scores[key] - scores[base])).dropna()
    if points.empty:
        return None
    counts, _ = np.histogram(points, EDGES)
    bars = [(text, int(count), round(100 * count / counts.max(), 1)) for text, count in zip(BINS, counts, strict=True)]
    lost = points[points < 0].sort_values(kind="stable")
    kinds = kinds_of(sweep, key, lost)
    worst = [
        Loss(example, format_number(change, 1, is_signed=True).replace("-", MINUS), kinds[example])
        for example, change in lost.head(MOST).items()
    ]
    summary = ", ".join(f"{count} {kind}" for kind, count in Counter(kinds.values()).most_common())
    return LossDetail(str(sweep.cells.at[key, "label"]), tuple(bars), tuple(worst), summary)


def kinds_of(sweep: Sweep, key: str, lost: pd.Series) -> dict[str, str]:
    """Return {example: kind of failure} of the examples that lose, from the flags of any of their texts."""
    generations = sweep.results.generations
    rows = generations[(generations["cell"] == key) & generations["example"].isin(lost.index)]
    loops = degenerate(sweep.results)
    loops = loops.loc[loops["cell"] == key, ["example", "sample", "is_loop"]]
    flags = [name for name in KINDS if name in rows or name == "is_loop"]
    raised = rows.merge(loops, on=["example", "sample"], how="left").groupby("example")[flags].any()
    other = "wrong result" if sweep.metric.unit == "share" else "lower score"
    return {str(example): _kind(raised.loc[example].to_dict(), other) for example in lost.index}


def _kind(raised: Mapping[Any, Any], other: str) -> str:
    return next((KINDS[name] for name in KINDS if raised.get(name)), other)


def check_lossless(sweep: Sweep) -> tuple[str, bool]:
    """Return whether lossless scores as the target alone does, in words, and whether the difference is beyond noise.

    Both have one distribution: a difference beyond noise is bad luck, or a fault.
    """
    rows = sweep.points[(sweep.points["verifier"] == "lossless") & sweep.points["difference_from_target"].notna()]
    parts, is_odd = [], False
    for row in rows.to_dict("records"):
        value, low, high = (row[f"difference_from_target{end}"] for end in ("", "_low", "_high"))
        texts = [format_number(number, 1, is_signed=True).replace("-", MINUS) for number in (value, low, high)]
        parts.append("{}: {} [{}, {}]".format(row["label"], *texts))
        is_odd |= not low <= 0 <= high
    if not parts:
        return "", False
    verdict = "a difference beyond noise (1 in 20 by luck)" if is_odd else "no difference is shown, as it should be"
    return f"{verdict}; {', '.join(parts)} {sweep.metric.name}", is_odd
