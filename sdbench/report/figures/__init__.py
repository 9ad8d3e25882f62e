"""Every figure of one sweep by the name of its file; captions.py says what each shows.

A point that was not measured is not drawn, and a figure without points is not made. Bars and bands are 95 % intervals.
Nothing is joined that is not one rule's curve.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from matplotlib.figure import Figure

from sdbench.report.figures.decode import divergence, positions, time_split
from sdbench.report.figures.grids import grids
from sdbench.report.figures.knob import against_knob, lengths, speed_against_knob
from sdbench.report.figures.load import load
from sdbench.report.figures.planes import pareto, pareto_speed
from sdbench.report.figures.theory import bound, laws, predicted
from sdbench.report.sweep import Sweep

DRAWN: Mapping[str, Callable[[Sweep], Figure | None]] = {
    "pareto": pareto,
    "pareto_speed": pareto_speed,
    "load": load,
    "against_knob": against_knob,
    "speed_against_knob": speed_against_knob,
    "time_split": time_split,
    "positions": positions,
    "lengths": lengths,
    "divergence": divergence,
    "laws": laws,
    "bound": bound,
    "predicted": predicted,
}


def drawn(sweeps: Sequence[Sweep]) -> dict[str, Figure]:
    """Every figure that these sweeps can fill, by the name of its file; those of single sweeps first, then the grids."""
    figures = {}
    for sweep in sweeps:
        for name, draw in DRAWN.items():
            figure = draw(sweep)
            if figure is not None:
                figures[f"{name}-{sweep.suffix}" if sweep.suffix else name] = figure
    return figures | grids(sweeps)
