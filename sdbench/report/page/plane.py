"""The speed–quality plane of the first screen: lossless, the lenient settings, and the margin as a band.

Drawn by hand and not by matplotlib, because the page moves the band and the marks with the margin. Coordinates are in units of
the drawing. Speed is measured where it was, else modelled (hollow); where neither is known, tokens a round stand in and the
axis names them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from sdbench.metrics.safety import Comparison
from sdbench.metrics.stats import NAN
from sdbench.metrics.text import format_number
from sdbench.metrics.weigh import Weighed
from sdbench.report.page.tables import MINUS
from sdbench.report.sweep import Sweep

WIDTH, HEIGHT = 560, 380
LEFT, RIGHT, TOP, BOTTOM = 60, 18, 18, 50
AXES = {
    "speedup": "speed-up over the target alone",
    "tokens_per_round": "tokens a round (no speed was measured)",
}
DEPTH = 4.0  # margins below lossless that are always in sight


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaneMark:
    """A setting at (x, y); `low`, `high` are ends of its speed's interval, `worst` is the limit of its loss."""

    key: str
    label: str
    words: str
    x: float
    y: float
    low: float
    high: float
    worst: float
    is_lossless: bool
    is_best: bool  # of the lossless ones the fastest, which alone is named
    is_measured: bool
    is_below: bool  # its loss is beyond the drawing: the mark stands at its foot
    is_left: bool  # its label stands to the left


@dataclass(frozen=True, slots=True, kw_only=True)
class Plane:
    """Everything drawn; `per_point` is the height of a point of loss, `zero` where lossless lies, `depth` points below it."""

    marks: tuple[PlaneMark, ...]
    ticks_x: tuple[tuple[float, str], ...]
    ticks_y: tuple[tuple[float, str], ...]
    label_x: str
    label_y: str
    zero: float
    per_point: float
    depth: float
    has_modelled: bool
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    right: int = WIDTH - RIGHT
    top: int = TOP
    bottom: int = HEIGHT - BOTTOM


@dataclass(frozen=True, slots=True)
class _Ruler:
    """Data on [low, high] to the drawing's [start, end]."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        share = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 1)

    def ticks(self, num: int = 5) -> list[float]:
        """Return round numbers inside."""
        raw = (self.high - self.low) / num
        size = 10 ** math.floor(math.log10(raw))
        step = next(size * k for k in (1, 2, 2.5, 5, 10) if size * k >= raw)
        first = math.ceil(self.low / step - 1e-9)
        return [round(step * i, 10) for i in range(first, math.floor(self.high / step + 1e-9) + 1)]


def plane_of(sweep: Sweep, weighed: Weighed, margin: float) -> Plane | None:
    """Return the plane of a sweep; None where it has no compared setting to show."""
    compared = {test.cell: test for curve in weighed.curves for test in curve}
    speeds = speeds_of(sweep.rows.loc[[key for key in (*compared, *weighed.lossless) if key in sweep.rows.index]])
    shown = [compared[key] for key in speeds.index if key in compared]
    if not shown:
        return None
    unit = "×" if "speedup" in speeds.attrs["column"] else ""
    low, high = float(speeds[["value", "low"]].min(axis=None)), float(speeds[["value", "high"]].max(axis=None))
    pad = 0.07 * (high - low) or 0.05 * abs(high) or 1.0
    x = _Ruler(low - pad, high + pad, LEFT, WIDTH - RIGHT)
    depth, highest = depth_of(shown, margin), max(0.0, *(test.change for test in compared.values()))
    y = _Ruler(-depth, highest + 0.12 * (depth + highest), HEIGHT - BOTTOM, TOP)
    lossless = speeds.loc[[key for key in speeds.index if key not in compared], "value"]
    best = lossless.idxmax() if len(lossless) else None
    marks = [
        _mark(str(key), sweep.cells.loc[str(key)], speed, compared.get(str(key)), x, y, unit, is_best=key == best)
        for key, speed in speeds.iterrows()
    ]
    return Plane(
        marks=tuple(marks),
        ticks_x=tuple((x.at(tick), f"{tick:g}{unit}") for tick in x.ticks()),
        ticks_y=tuple((y.at(tick), f"{tick:+g}".replace("-", MINUS) if tick else "0") for tick in y.ticks()),
        label_x=AXES[speeds.attrs["column"]],
        label_y=f"points of {weighed.metric.name} against lossless",
        zero=y.at(0.0),
        per_point=(HEIGHT - BOTTOM - TOP) / (y.high - y.low),
        depth=depth,
        has_modelled=not speeds["is_measured"].all(),
    )


def speeds_of(rows: pd.DataFrame) -> pd.DataFrame:
    """Return what stands along the axis of each cell that has it: `value`, `low`, `high`, `is_measured`."""
    known = (
        rows[["speedup", "speedup_low", "speedup_high"]].astype("float64").set_axis(["value", "low", "high"], axis=1)
    )
    frame = known.assign(is_measured=known["value"].notna())
    frame["value"] = frame["value"].fillna(rows["speedup_modelled"].astype("float64"))
    column = "speedup"
    if frame["value"].isna().all():
        column = "tokens_per_round"
        frame = frame.assign(value=rows[column].astype("float64"), is_measured=True)
    frame = frame.dropna(subset=["value"])
    frame.attrs["column"] = column
    return frame


def depth_of(compared: Sequence[Comparison], margin: float) -> float:
    """Return how many points below lossless are shown: several margins, and what the settings nearest to it lose at worst."""
    losses = sorted(-end for test in compared for end in (test.worst, test.change) if end < 0)
    margin = 0.0 if math.isnan(margin) else margin
    near = losses[len(losses) // 2] if losses else 0.0
    far = max(losses, default=0.0)
    return max(min(max(DEPTH * margin, 1.15 * near), 1.1 * far), 1.5 * margin, 0.1)


def _mark(
    key: str,
    cell: pd.Series,
    speed: pd.Series,
    test: Comparison | None,
    x: _Ruler,
    y: _Ruler,
    unit: str,
    *,
    is_best: bool,
) -> PlaneMark:
    change, worst = (0.0, NAN) if test is None else (test.change, test.worst)
    words = f"{cell['label']}: {speed['value']:.2f}{unit}{'' if speed['is_measured'] else ' (modelled)'}"
    if test is not None:
        losses = (format_number(points, 1, is_signed=True) for points in (change, worst))
        words += ", {} points, at worst {}".format(*losses).replace("-", MINUS)
    low, high = (speed["value"] if math.isnan(speed[end]) else speed[end] for end in ("low", "high"))
    return PlaneMark(
        key=key,
        label=cell["short"],
        words=words,
        x=x.at(speed["value"]),
        y=y.at(change),
        low=x.at(low),
        high=x.at(high),
        worst=y.at(change if math.isnan(worst) else worst),
        is_lossless=test is None,
        is_best=is_best,
        is_measured=bool(speed["is_measured"]),
        is_below=change < y.low,
        # Lossless is the slowest, nearly always.
        is_left=test is None or x.at(speed["value"]) > LEFT + 0.62 * (WIDTH - LEFT - RIGHT),
    )
