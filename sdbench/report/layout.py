"""Room for a figure's axes: a column's labels as wide as they are, a row's as high, the rest shared equally.

Matplotlib's constrained layout measures all labels several times over, which is most of the time a small figure takes;
here it is once, with axes about as large as they will be.
"""

from __future__ import annotations

from collections import defaultdict

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import LayoutEngine

PAD = 0.03  # inches, outside
GAP = 0.09  # inches, between the labels of neighbours
FIRST = {"left": 0.16, "right": 0.98, "bottom": 0.17, "top": 0.92, "wspace": 0.35, "hspace": 0.25}


class Fitted(LayoutEngine):
    """Axes of one regular grid, each in one cell of it."""

    _adjust_compatible = True
    _colorbar_gridspec = True

    def execute(self, fig: Figure) -> None:  # type: ignore[override]
        """Measure once, then place every axes."""
        fig.subplots_adjust(**FIRST)
        axes = [axis for axis in fig.axes if axis.get_subplotspec() is not None]
        width, height = fig.get_size_inches()
        sides: dict[tuple[str, int], float] = defaultdict(float)  # (side, column or row): inches of labels
        cells = {axis: _cell(axis) for axis in axes}
        for axis, (row, column) in cells.items():
            for side, inches in zip(("left", "bottom", "right", "top"), _overhang(fig, axis), strict=True):
                key = (side, column if side in ("left", "right") else row)
                sides[key] = max(sides[key], inches)
        rows, columns = 1 + max(row for row, _ in cells.values()), 1 + max(column for _, column in cells.values())
        labels_x = sum(sides[side, i] for side in ("left", "right") for i in range(columns))
        labels_y = sum(sides[side, i] for side in ("bottom", "top") for i in range(rows))
        wide = (width - labels_x - 2 * PAD - GAP * (columns - 1)) / columns
        high = (height - labels_y - 2 * PAD - GAP * (rows - 1)) / rows
        for axis, (row, column) in cells.items():
            x = (
                PAD
                + column * (wide + GAP)
                + sum(sides["left", i] + sides["right", i] for i in range(column))
                + sides["left", column]
            )
            above = sum(sides["top", i] + sides["bottom", i] for i in range(row)) + sides["top", row]
            y = height - PAD - row * (high + GAP) - above - high
            axis.set_position((x / width, y / height, wide / width, high / height))


def _cell(axis: Axes) -> tuple[int, int]:
    spec = axis.get_subplotspec()
    assert spec is not None
    return spec.rowspan.start, spec.colspan.start


def _overhang(figure: Figure, axis: Axes) -> tuple[float, float, float, float]:
    """How far labels stand out of the axes: left, bottom, right, top, in inches."""
    whole, box = axis.get_tightbbox(for_layout_only=True), axis.get_window_extent()
    assert whole is not None
    lengths = (box.x0 - whole.x0, box.y0 - whole.y0, whole.x1 - box.x1, whole.y1 - box.y1)
    left, bottom, right, top = (max(0.0, float(length)) / figure.dpi for length in lengths)
    return left, bottom, right, top
