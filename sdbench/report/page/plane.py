"""The speed–quality plane of the first screen: lossless, the lenient settings, and the margin as a band.

A drawing by hand and not by matplotlib, because the page moves its band and marks as the margin is moved. Places are in units of
the drawing. Speed is measured where it was, else modelled (hollow); where neither is known, tokens a round stand in and say so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sdbench.metrics.safety import Comparison
from sdbench.metrics.weigh import Weighed
from sdbench.report.sweep import Sweep

WIDTH, HEIGHT = 560, 380
LEFT, RIGHT, TOP, BOTTOM = 60, 18, 18, 50
AXES = {
    "speedup": "speed-up over the target alone",
    "tokens_per_round": "tokens a round (no speed was measured)",
}
DEPTH = 4.0  # margins below lossless that are always in sight


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
class Plane:
    """Everything drawn; `per_point` is the height of one point of loss, `zero` where lossless lies, `depth` points below it."""

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
        share = (value - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 1)

    def ticks(self, num: int = 5) -> list[float]:
        """Round numbers inside."""
        raw = (self.high - self.low) / num
        size = 10 ** math.floor(math.log10(raw))
        step = next(size * k for k in (1, 2, 2.5, 5, 10) if size * k >= raw)
        first = math.ceil(self.low / step - 1e-9)
        return [round(step * i, 10) for i in range(first, math.floor(self.high / step + 1e-9) + 1)]


def plane_of(sweep: Sweep, weighed: Weighed, margin: float) -> Plane | None:
    """The plane of one sweep; None where nothing can be placed in it."""
    compared = {one.cell: one for curve in weighed.curves for one in curve}
    lossless = [key for key in weighed.lossless if key in sweep.rows.index]
    rows = {key: sweep.rows.loc[key].to_dict() for key in (*compared, *lossless) if key in sweep.rows.index}
    column = "speedup" if any(_speed(row)[0] == _speed(row)[0] for row in rows.values()) else "tokens_per_round"
    places = {key: _speed(row) if column == "speedup" else _rounds(row) for key, row in rows.items()}
    places = {key: place for key, place in places.items() if place[0] == place[0]}
    if not any(key in compared for key in places):
        return None
    ends = [end for value, low, high, _ in places.values() for end in (value, low, high) if end == end]
    x = _scale(min(ends), max(ends), LEFT, WIDTH - RIGHT, share=0.07)
    deep = depth_of([compared[key] for key in places if key in compared], margin)
    most = max(0.0, *(one.change for one in compared.values()))
    y = _Ruler(-deep, most + 0.12 * (deep + most), HEIGHT - BOTTOM, TOP)
    best = max((key for key in lossless if key in places), key=lambda key: places[key][0], default=None)
    marks = [_mark(sweep, key, places[key], compared.get(key), x, y, is_best=key == best) for key in places]
    return Plane(
        tuple(marks),
        tuple((x.at(tick), f"{tick:g}×" if column == "speedup" else f"{tick:g}") for tick in x.ticks()),
        tuple((y.at(tick), f"{tick:+g}".replace("-", "−") if tick else "0") for tick in y.ticks()),
        AXES[column],
        f"points of {weighed.metric.name} against lossless",
        y.at(0.0),
        (HEIGHT - BOTTOM - TOP) / (y.high - y.low),
        deep,
        any(not mark.is_measured for mark in marks),
    )


def depth_of(compared: Sequence[Comparison], margin: float) -> float:
    """How many points below lossless are shown: several margins, and what the settings nearest to it lose at worst."""
    losses = sorted(-end for one in compared for end in (one.worst, one.change) if end == end and end < 0)
    margin = margin if margin == margin else 0.0
    near = losses[len(losses) // 2] if losses else 0.0
    far = max(losses, default=0.0)
    return max(min(max(DEPTH * margin, 1.15 * near), 1.1 * far), 1.5 * margin, 0.1)


def _scale(low: float, high: float, start: float, end: float, *, share: float) -> _Ruler:
    pad = share * (high - low) or 0.05 * abs(high) or 1.0
    return _Ruler(low - pad, high + pad, start, end)


def _speed(row: Mapping[Any, Any]) -> tuple[float, float, float, bool]:
    """Value, limits and whether it was measured."""
    measured = [float(row[f"speedup{end}"]) for end in ("", "_low", "_high")]
    if measured[0] == measured[0]:
        return measured[0], measured[1], measured[2], True
    return float(row["speedup_modelled"]), math.nan, math.nan, False


def _rounds(row: Mapping[Any, Any]) -> tuple[float, float, float, bool]:
    return float(row["tokens_per_round"]), math.nan, math.nan, False


def _mark(
    sweep: Sweep,
    key: str,
    place: tuple[float, float, float, bool],
    one: Comparison | None,
    x: _Ruler,
    y: _Ruler,
    *,
    is_best: bool,
) -> PlaneMark:
    value, low, high, is_measured = place
    change, worst = (0.0, math.nan) if one is None else (one.change, one.worst)
    label = str(sweep.cells.at[key, "label"])
    words = f"{label}: {value:.2f}{'×' if is_measured else ' (modelled)'}"
    words += "" if one is None else f", {change:+.1f} points, at worst {worst:+.1f}".replace("-", "−")
    known = [x.at(end) if end == end else x.at(value) for end in (low, high)]
    bottom = max(worst, y.low) if worst == worst else change
    return PlaneMark(
        key,
        label,
        words,
        x.at(value),
        y.at(max(change, y.low)),
        known[0],
        known[1],
        y.at(max(bottom, y.low)),
        one is None,
        is_best,
        is_measured,
        change < y.low,
        one is None or x.at(value) > LEFT + 0.62 * (WIDTH - LEFT - RIGHT),  # lossless is the slowest, nearly always
    )
