"""Labels in figures: each is placed at the free spot nearest to its point, or left out if there is none.

Spots are computed in points of the final layout, so `style.settle` comes first. Widths come from the font's mean glyph width,
because measuring each text would take longer than drawing it.

adjustText 1.4.0 would replace about a hundred lines. Of the 35 labels of four planes it left 11 on a line or a mark and 2 on
one another, in 2.4 s; this search left 1 and none, in 0.06 s.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, product
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from numpy.typing import ArrayLike

from sdbench.metrics.stats import Array
from sdbench.report.figures.style import SMALL

GLYPH, LINE = 0.60, 1.05  # width of a character and height of a line, of the font's size
DIRECTIONS = ((1, 1), (-1, 1), (1, -1), (-1, -1), (1, 0), (-1, 0), (0, 1), (0, -1))
DIRECTIONS += ((0.5, 1), (0.5, -1), (-0.5, 1), (-0.5, -1))
DISTANCES = (3.0, 6.0, 10.0, 15.0, 21.0)


class Label(NamedTuple):
    """A text for the point (x, y) of the data; if it must be shown, it may cover a line."""

    x: float
    y: float
    text: str
    colour: str
    is_needed: bool = False
    directions: Sequence[tuple[float, float]] = DIRECTIONS


@dataclass
class Room:
    """What labels of one axis must not cover: points of lines and marks, and earlier labels. In points."""

    axis: Axes
    taken: list[Array] = field(default_factory=list)  # [N,2] each
    boxes: list[Array] = field(default_factory=list)  # [4] each: left, bottom, right, top

    def in_points(self, pixels: ArrayLike) -> Array:
        """Convert display coordinates to points of the page."""
        figure = self.axis.get_figure(root=True)
        assert figure is not None
        return np.asarray(pixels, dtype=np.float64) * 72 / figure.dpi

    def to_points(self, x: Iterable[float], y: Iterable[float]) -> Array:
        """Return [N,2]: the positions of data on the page."""
        data = np.stack([np.asarray(list(x), np.float64), np.asarray(list(y), np.float64)], 1)
        return self.in_points(self.axis.transData.transform(data))

    @property
    def frame(self) -> Array:
        """[4] the box of the axis: left, bottom, right, top."""
        return self.in_points(self.axis.get_window_extent().extents)

    def block_line(self, x: Iterable[float], y: Iterable[float]) -> None:
        """Block a line through these points, sampled every two points of the page."""
        ends = self.to_points(x, y)
        ends = ends[np.isfinite(ends).all(1)]
        for a, b in pairwise(ends):
            self.taken.append(np.linspace(a, b, max(2, int(np.hypot(*(b - a)) / 2) + 1)))

    def block_marks(self, x: Iterable[float], y: Iterable[float], radius: float = 2.5) -> None:
        """Block marks of this radius."""
        turns = np.linspace(0, 2 * np.pi, 8, endpoint=False)
        disc = radius * np.stack([np.append(np.cos(turns), 0), np.append(np.sin(turns), 0)], 1)
        self.taken.append((self.to_points(x, y)[:, None] + disc).reshape(-1, 2))

    def block_cells(self, cells: pd.DataFrame, x: str, y: str, radius: float = 3.0) -> None:
        """Block the marks of cells and their intervals in both directions."""
        self.block_marks(cells[x], cells[y], radius)
        for cell in cells.to_dict("records"):
            for along, across in ((x, y), (y, x)):
                limits = [cell.get(f"{along}_{end}", np.nan) for end in ("low", "high")]
                ends = {along: limits, across: [cell[across]] * 2}
                self.block_line(ends[x], ends[y])

    def write(self, text: str, x: float, y: float, offset: Iterable[float], colour: str, **look: Any) -> None:
        """Write a text at this distance in points from the point (x, y) of the data."""
        right, up = offset
        look = {"va": "center", "annotation_clip": False, "color": colour, "size": SMALL} | look
        self.axis.annotate(text, (x, y), (right, up), textcoords="offset points", **look)

    def add_first(self, labels: Sequence[Label], *, size: float = SMALL) -> bool:
        """Place the first of these labels that has a free spot, or else the very first label; False if that has no spot at all."""
        free = [label for label in labels if self._best(label._replace(is_needed=False), size) is not None]
        return self.add([(free or list(labels))[0]], size=size) > 0

    def add(self, labels: Iterable[Label], *, size: float = SMALL) -> int:
        """Place each label in turn at the nearest spot that covers nothing; one that must be shown takes the least bad spot.

        Return how many were placed.
        """
        before = len(self.boxes)
        for label in labels:
            box = self._best(label, size)
            if box is not None:
                self.boxes.append(box)
                offset = (box[:2] + box[2:]) / 2 - self.to_points([label.x], [label.y])[0]
                self.write(label.text, label.x, label.y, offset, label.colour, size=size, ha="center")
        return len(self.boxes) - before

    def _best(self, label: Label, size: float) -> Array | None:
        """Return the box of the best spot; None if there is none."""
        centre, frame = self.to_points([label.x], [label.y])[0], self.frame + np.array([-2, -1, 4, 1])
        half = np.array([GLYPH * size * len(label.text), LINE * size]) / 2
        taken = np.concatenate(self.taken) if self.taken else np.zeros((0, 2))
        best, least = None, np.inf
        for distance, (rank, way) in product(DISTANCES, enumerate(np.asarray(label.directions))):
            spot = centre + way * (distance / np.hypot(*way) + half)
            low, high = spot - half, spot + half
            is_crossed = any((low < other[2:]).all() and (other[:2] < high).all() for other in self.boxes)
            is_outside = (low < frame[:2]).any() or (high > frame[2:]).any()
            covered = int(((taken > low) & (taken < high)).all(1).sum())
            cost = 100 * is_crossed + 100 * is_outside + 3 * covered + 0.1 * distance + 0.01 * rank
            if cost < least:
                best, least = np.concatenate([low, high]), cost
        return best if least < 3 or (label.is_needed and least < 100) else None
