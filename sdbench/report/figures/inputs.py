"""Acceptance, quality and time per token against the input length, one curve per setting."""

import math
from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from sdbench.report.figures import marks
from sdbench.report.figures.style import BASELINES, CYCLE, MARKS, PAGE, panels
from sdbench.report.inputs import SETTING, InputLengths, input_lengths
from sdbench.report.sweep import Sweep

TICK_ROOM, DODGE = (
    0.22,
    0.008,
)  # distances as shares of an axis: between two length labels; between the intervals of two curves


def against_input(sweeps: Sequence[Sweep]) -> dict[str, Figure]:
    """Draw a figure for each pair and task that was run at several input lengths, by file name."""
    groups = input_lengths(sweeps)
    names = [f"inputs-{group.suffix}" if len(groups) > 1 else "inputs" for group in groups]
    repeats = [names[:index].count(name) for index, name in enumerate(names)]
    names = [f"{name}-{repeat + 1}" if repeat else name for name, repeat in zip(names, repeats, strict=True)]
    return {name: _figure(group) for name, group in zip(names, groups, strict=True)}


def _figure(group: InputLengths) -> Figure:
    metric = group.sweeps[0].metric
    scaled = {name: metric.scale * group.table[name] for name in ("quality", "quality_low", "quality_high")}
    table = group.table.assign(**scaled)
    rows = {"acceptance": "acceptance", "quality": marks.label_of(metric), "ms_per_token": "ms a token"}
    shown = {column: label for column, label in rows.items() if table[column].notna().any()}
    figure, axes = panels(len(shown), width=PAGE, height=2.2)
    (curves, left_out), lengths = _curves(table), sorted(set(table["input_tokens"].round()))
    span, ticks = lengths[-1] / lengths[0], _apart(lengths)
    for axis, (column, label) in zip(axes, shown.items(), strict=True):
        for index, curve in enumerate(marks.having(curves, column)):
            _draw(axis, curve, column, shift=span ** (DODGE * (index - (len(curves) - 1) / 2)))
        axis.set(xlabel="input (tokens)", ylabel=label, xscale="log")
        axis.set_xticks(ticks, [f"{tick:,.0f}" for tick in ticks])
        axis.xaxis.set_minor_locator(NullLocator())
        axis.margins(0.06, 0.08)
    keys = [*(curve.key(linewidth=0.9, markersize=3.5) for curve in curves), *marks.not_drawn(left_out)]
    marks.finish(figure, axes[-1], table["n"], keys)
    return figure


def _apart(lengths: Sequence[float]) -> list[float]:
    """Return the first and the last length, and those between whose labels have room on a logarithmic axis."""
    kept, span = [lengths[0], lengths[-1]], math.log(lengths[-1] / lengths[0])
    for length in lengths[1:-1]:
        if all(abs(math.log(length / other)) >= TICK_ROOM * span for other in kept):
            kept.append(length)
    return sorted(kept)


def _draw(axis: Axes, curve: marks.Curve, column: str, *, shift: float) -> None:
    """Draw a curve with its intervals, slightly shifted so that the intervals of several curves do not overlap."""
    cells = curve.cells
    x = cells["input_tokens"] * shift
    axis.plot(x, cells[column], f"{curve.mark}-", color=curve.colour, linewidth=0.9, markersize=3.5)
    axis.vlines(x, cells[f"{column}_low"], cells[f"{column}_high"], color=curve.colour, linewidth=0.9, alpha=0.6)


def _baseline_looks(names: Sequence[str]) -> list[tuple[str, str]]:
    """Return mark and colour of each baseline; a second curve of it, as lossless at another draft length, has another mark."""
    repeats = [names[:index].count(name) for index, name in enumerate(names)]
    looks = [BASELINES[name] for name in names]
    others = [mark for mark in MARKS if mark not in {mark for mark, _ in looks}]
    return [
        (others[(repeat - 1) % len(others)] if repeat else mark, colour)
        for repeat, (mark, colour) in zip(repeats, looks, strict=True)
    ]


def _curves(table: pd.DataFrame) -> tuple[list[marks.Curve], Sequence[pd.DataFrame]]:
    """Return the settings that were measured at several lengths, the baselines and as many as there are colours, and the others."""
    parts = [part for _, part in table.groupby(SETTING, sort=False, dropna=False) if len(part) > 1]
    baselines = [part for part in parts if part["verifier"].iloc[0] in BASELINES]
    swept = sorted(
        (part for part in parts if part["verifier"].iloc[0] not in BASELINES), key=lambda part: part.index[0]
    )
    shown = marks.evenly(len(swept), len(CYCLE)) if swept else []
    left_out = [part for index, part in enumerate(swept) if index not in shown]
    swept = [swept[index] for index in shown]
    looks = [*_baseline_looks([part["verifier"].iloc[0] for part in baselines]), *zip(MARKS, CYCLE, strict=True)]
    pairs = zip([*baselines, *swept], looks, strict=False)
    curves = [
        marks.Curve(str(part["label"].iloc[0]), colour, mark, part, part.iloc[:0]) for part, (mark, colour) in pairs
    ]
    return curves, left_out
