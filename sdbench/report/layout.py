"""Room for a figure's axes: a column's labels as wide as they are, a row's as high, the rest shared equally.

Matplotlib's constrained layout measures all labels several times over, which is most of the time a small figure takes;
here it is twice, and once more where the first guess of the axes' size had other ticks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import LayoutEngine

PAD = 0.03  # inches, outside
GAP = 0.09  # inches, between the labels of neighbours
FIRST = {"left": 0.16, "right": 0.98, "bottom": 0.17, "top": 0.92, "wspace": 0.35, "hspace": 0.25}
TRIES = 3
Cells = Mapping[Axes, tuple[int, int]]  # row, column
Sides = dict[tuple[str, int], float]  # (side, column or row): inches


class Fitted(LayoutEngine):
    """Axes of one regular grid, each in one cell of it."""

    _adjust_compatible = True
    _colorbar_gridspec = True

    def execute(self, fig: Figure) -> None:  # type: ignore[override]
        """Measure and place until every label has room: axes of another size may have other ticks, with wider labels."""
        fig.subplots_adjust(**FIRST)
        cells = {axis: _cell(axis) for axis in fig.axes if axis.get_subplotspec() is not None}
        given: Sides = {}
        for _ in range(TRIES):
            sides = _sides(fig, cells)
            if all(inches <= given.get(side, -1.0) + PAD / 2 for side, inches in sides.items()):
                return
            given = {side: max(inches, given.get(side, 0.0)) for side, inches in sides.items()}
            _place(fig, cells, given)


def _sides(fig: Figure, cells: Cells) -> Sides:
    """Inches of labels on each side of each column and row."""
    sides: Sides = defaultdict(float)
    for axis, (row, column) in cells.items():
        for side, inches in zip(("left", "bottom", "right", "top"), _overhang(fig, axis), strict=True):
            key = (side, column if side in ("left", "right") else row)
            sides[key] = max(sides[key], inches)
    return dict(sides)


def _place(fig: Figure, cells: Cells, sides: Sides) -> None:
    """What the labels leave, in equal parts."""
    width, height = fig.get_size_inches()
    rows, columns = 1 + max(row for row, _ in cells.values()), 1 + max(column for _, column in cells.values())
    labels_x = sum(sides[side, i] for side in ("left", "right") for i in range(columns))
    labels_y = sum(sides[side, i] for side in ("bottom", "top") for i in range(rows))
    wide = (width - labels_x - 2 * PAD - GAP * (columns - 1)) / columns
    high = (height - labels_y - 2 * PAD - GAP * (rows - 1)) / rows
    for axis, (row, column) in cells.items():
        before = sum(sides["left", i] + sides["right", i] for i in range(column)) + sides["left", column]
        above = sum(sides["top", i] + sides["bottom", i] for i in range(row)) + sides["top", row]
        x = PAD + column * (wide + GAP) + before
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
