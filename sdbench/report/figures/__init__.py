"""Every figure of one sweep by its file name; the captions say what each shows.

Points that were not measured are not drawn, and a figure without points is not created. Bars and bands are 95 % intervals.
Lines join only points of one rule's curve.
"""

from collections.abc import Callable, Mapping, Sequence

from matplotlib.figure import Figure

from sdbench.report.figures.arrivals import goodput, open_load
from sdbench.report.figures.decode import divergence, positions, time_split
from sdbench.report.figures.inputs import against_input
from sdbench.report.figures.knob import against_knob, lengths, speed_against_knob
from sdbench.report.figures.planes import grids, load, pareto, pareto_speed
from sdbench.report.figures.theory import bound, laws, predicted
from sdbench.report.sweep import Sweep

_NAMED = (
    *(load, open_load, goodput, against_knob, speed_against_knob, time_split, positions, lengths, divergence),
    *(laws, bound, predicted),
)
DRAW: Mapping[str, Callable[[Sweep], Figure | None]] = {
    "pareto": pareto,
    "pareto_speed": pareto_speed,
    **{draw.__name__: draw for draw in _NAMED},
}


def draw_figures(sweeps: Sequence[Sweep]) -> dict[str, Figure]:
    """Draw every figure for which these sweeps have data, by file name; then the figures of several sweeps."""
    figures = {}
    for sweep in sweeps:
        for name, draw in DRAW.items():
            figure = draw(sweep)
            if figure is not None:
                figures[sweep.file_name(name)] = figure
    return figures | against_input(sweeps) | grids(sweeps)
