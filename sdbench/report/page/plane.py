"""The plane of speed and quality at the top of the page: lossless, the lenient settings, and the margin as a band.

It is not drawn by matplotlib, because the page moves the band and the marks with the margin. Coordinates are in units of the
drawing. Speed is measured, otherwise modelled (hollow); if neither is known, the axis shows tokens per round and says so.
"""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.ticker import MaxNLocator

from sdbench.metrics.safety import Comparison
from sdbench.metrics.weigh import Weighed
from sdbench.report.page.tables import MINUS, format_signed
from sdbench.report.sweep import Sweep

WIDTH, HEIGHT = 560, 380
FRAME = {"left": 60, "right": WIDTH - 18, "top": 18, "bottom": HEIGHT - 50, "width": WIDTH, "height": HEIGHT}
AXES = {
    "speedup": "speed-up over the target alone",
    "tokens_per_round": "tokens a round (no speed was measured)",
}
DEPTH = 4.0  # margins below lossless that are always shown


def plane_of(sweep: Sweep, weighed: Weighed, margin: float) -> dict[str, Any] | None:
    """Return the data for the template; None if no compared setting has a speed.

    `marks`: one setting each at (x, y); `low` and `high` the ends of its speed's interval, `worst` the limit of its loss,
    `is_best` the fastest lossless one, `is_below` whether its loss is below the drawing, so that the mark is at the bottom.
    `per_point` is the height of a point of loss, `zero` the position of lossless, `depth` how many points below it are shown.
    """
    tests = {test.cell: test for curve in weighed.curves for test in curve}
    marks, column = marks_of(sweep, weighed, tests)
    if marks["is_lossless"].all():
        return None
    unit = "×" if column == "speedup" else ""
    low, high = float(marks[["value", "low"]].min(axis=None)), float(marks[["value", "high"]].max(axis=None))
    pad = 0.07 * (high - low) or 0.05 * abs(high) or 1.0
    depth = depth_of([tests[str(key)] for key in marks.index[~marks["is_lossless"]]], margin)
    highest = max(0.0, *(test.change for test in tests.values()))
    span_x, span_y = (low - pad, high + pad), (-depth, highest + 0.12 * (depth + highest))
    x = partial(np.interp, xp=span_x, fp=(FRAME["left"], FRAME["right"]))
    y = partial(np.interp, xp=span_y, fp=(FRAME["bottom"], FRAME["top"]))
    marks = marks.assign(
        key=marks.index,
        x=x(marks["value"]).round(1),
        low=x(marks["low"].fillna(marks["value"])).round(1),
        high=x(marks["high"].fillna(marks["value"])).round(1),
        y=y(marks["change"]).round(1),
        worst=y(marks["limit"].fillna(marks["change"])).round(1),
        is_below=marks["change"] < -depth,
    )
    # The label of lossless is on the left, since it is nearly always the slowest.
    marks["is_left"] = marks["is_lossless"] | (marks["x"] > FRAME["left"] + 0.62 * (FRAME["right"] - FRAME["left"]))
    return {
        "marks": marks.to_dict("records"),
        "ticks_x": [(round(float(x(tick)), 1), f"{tick:g}{unit}") for tick in _ticks(span_x)],
        "ticks_y": [(round(float(y(t)), 1), f"{t:+g}".replace("-", MINUS) if t else "0") for t in _ticks(span_y)],
        "label_x": AXES[column],
        "label_y": f"points of {weighed.metric.name} against lossless",
        "zero": round(float(y(0.0)), 1),
        "per_point": (FRAME["bottom"] - FRAME["top"]) / (span_y[1] - span_y[0]),
        "depth": depth,
        "has_modelled": not marks["is_measured"].all(),
        **FRAME,
    }


def marks_of(sweep: Sweep, weighed: Weighed, tests: Mapping[str, Comparison]) -> tuple[pd.DataFrame, str]:
    """Return every compared and every lossless setting that has a speed, with its loss, and the column of the speeds."""
    marks, column = speeds_of(sweep.rows.loc[[key for key in (*tests, *weighed.lossless) if key in sweep.rows.index]])
    losses = {key: (test.change, test.worst) for key, test in tests.items()}
    ends = pd.DataFrame([losses.get(str(key), (0.0, 0.0)) for key in marks.index], marks.index, ["change", "limit"])
    marks = marks.join(ends).assign(label=sweep.cells["short"], is_lossless=~marks.index.isin(list(tests)))
    unit = "×" if column == "speedup" else ""
    marks["words"] = [_words(str(sweep.cells.at[key, "label"]), row, unit) for key, row in marks.iterrows()]
    marks["is_best"] = marks["is_lossless"] & (marks["value"] == marks["value"].where(marks["is_lossless"]).max())
    return marks, column


def _ticks(span: tuple[float, float]) -> list[float]:
    """Return round numbers within the range."""
    ticks = MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]).tick_values(*span)
    return [float(tick) for tick in np.round(ticks, 10) if span[0] <= tick <= span[1]]


def _words(label: str, mark: pd.Series, unit: str) -> str:
    """Return a mark's text for screen readers: the setting's speed, and its loss if it is compared."""
    words = f"{label}: {mark['value']:.2f}{unit}{'' if mark['is_measured'] else ' (modelled)'}"
    loss = f", {format_signed(mark['change'])} points, at worst {format_signed(mark['limit'])}"
    return words if mark["is_lossless"] else words + loss


def speeds_of(rows: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """Return the speed of each cell that has one (`value`, `low`, `high`, `is_measured`), and its column."""
    names = {"speedup": "value", "speedup_low": "low", "speedup_high": "high"}
    frame = rows[list(names)].astype("float64").rename(columns=names)
    frame["is_measured"] = frame["value"].notna()
    frame["value"] = frame["value"].fillna(rows["speedup_modelled"].astype("float64"))
    column = "speedup" if frame["value"].notna().any() else "tokens_per_round"
    if column != "speedup":
        frame = frame.assign(value=rows[column].astype("float64"), is_measured=True)
    return frame.dropna(subset=["value"]), column


def depth_of(compared: Sequence[Comparison], margin: float) -> float:
    """Return how many points below lossless are shown: several margins, and the limits of the settings nearest to it."""
    losses = sorted(-end for test in compared for end in (test.worst, test.change) if end < 0)
    margin = 0.0 if math.isnan(margin) else margin
    near = losses[len(losses) // 2] if losses else 0.0
    far = max(losses, default=0.0)
    return max(min(max(DEPTH * margin, 1.15 * near), 1.1 * far), 1.5 * margin, 0.1)
