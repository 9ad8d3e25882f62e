"""Labels beside what they name: each takes the free place nearest to its point, or stays away if there is none.

Places are worked out in points of the finished layout, so `style.settle` comes first. Widths are those of the font's
mean glyph: measuring each text would cost more than drawing it.

adjustText 1.4.0 in its place would save about a hundred lines. Of the 35 labels of four planes it left 11 on a line or a mark and
2 on one another, in 2.4 s; these places left 1 and none, in 0.06 s. So they stay.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from sdbench.report.figures.style import SMALL

Array = NDArray[np.float64]
GLYPH, LINE = 0.60, 1.05  # width of a character and height of a line, of the font's size
DIRECTIONS = ((1, 1), (-1, 1), (1, -1), (-1, -1), (1, 0), (-1, 0), (0, 1), (0, -1))
DIRECTIONS += ((0.5, 1), (0.5, -1), (-0.5, 1), (-0.5, -1))
DISTANCES = (3.0, 6.0, 10.0, 15.0, 21.0)


@dataclass(frozen=True, slots=True)
class Label:
    """A text for the point (x, y) of the data; one that must be shown is, even where it covers a line."""

    x: float
    y: float
    text: str
    colour: str
    is_needed: bool = False
    directions: Sequence[tuple[float, float]] = DIRECTIONS


@dataclass
class Room:
    """What labels of one axis must not cover: points of lines and marks, and the labels placed before. In points."""

    axis: Axes
    taken: list[Array] = field(default_factory=list)  # [N,2] each
    boxes: list[tuple[float, float, float, float]] = field(default_factory=list)

    def to_points(self, x: Iterable[float], y: Iterable[float]) -> Array:
        """[N,2] places on the page, one unit a point."""
        data = np.stack([np.asarray(list(x), np.float64), np.asarray(list(y), np.float64)], 1)
        figure = self.axis.get_figure(root=True)
        assert figure is not None
        return np.asarray(self.axis.transData.transform(data)) * 72 / figure.dpi

    def block_line(self, x: Iterable[float], y: Iterable[float]) -> None:
        """A line through these points, sampled every two points of the page."""
        ends = self.to_points(x, y)
        ends = ends[np.isfinite(ends).all(1)]
        for a, b in pairwise(ends):
            steps = max(2, int(np.hypot(*(b - a)) / 2) + 1)
            self.taken.append(a + (b - a) * np.linspace(0, 1, steps)[:, None])
        if len(ends) == 1:
            self.taken.append(ends)

    def block_marks(self, x: Iterable[float], y: Iterable[float], radius: float = 2.5) -> None:
        """Marks of this radius."""
        turns = np.linspace(0, 2 * np.pi, 8, endpoint=False)
        ring = radius * np.stack([np.cos(turns), np.sin(turns)], 1)
        for centre in self.to_points(x, y):
            self.taken.append(np.concatenate([centre + ring, centre[None]]))

    def block_legend(self) -> None:
        """The legend's box."""
        legend, figure = self.axis.get_legend(), self.axis.get_figure(root=True)
        if legend is not None and figure is not None:
            x0, y0, x1, y1 = np.asarray(legend.get_window_extent().extents) * 72 / figure.dpi
            self.boxes.append((float(x0), float(y0), float(x1), float(y1)))

    def place_one_of(self, labels: Sequence[Label], *, size: float = SMALL) -> None:
        """The first of these that finds a free place; the first at all if none does."""
        figure = self.axis.get_figure(root=True)
        assert figure is not None
        frame = np.asarray(self.axis.get_window_extent().extents) * 72 / figure.dpi
        free = [label for label in labels if self._best(replace(label, is_needed=False), size, frame) is not None]
        self.place([(free or list(labels))[0]], size=size)

    def place(self, labels: Sequence[Label], *, size: float = SMALL) -> None:
        """Each label in turn; the nearest place that covers nothing wins, a needed one takes the least bad."""
        figure = self.axis.get_figure(root=True)
        assert figure is not None
        frame = np.asarray(self.axis.get_window_extent().extents) * 72 / figure.dpi
        for label in labels:
            free = self._best(label, size, frame)
            if free is None:
                continue
            x, y, box = free
            self.boxes.append(box)
            centre = self.to_points([label.x], [label.y])[0]
            self.axis.annotate(
                label.text,
                (label.x, label.y),
                (x - centre[0], y - centre[1]),
                textcoords="offset points",
                ha="center",
                va="center",
                color=label.colour,
                size=size,
                annotation_clip=False,
            )

    def _best(
        self, label: Label, size: float, frame: Array
    ) -> tuple[float, float, tuple[float, float, float, float]] | None:
        centre = self.to_points([label.x], [label.y])[0]
        width, height = GLYPH * size * len(label.text), LINE * size
        taken = np.concatenate(self.taken) if self.taken else np.zeros((0, 2))
        best, least = None, np.inf
        for distance in DISTANCES:
            for rank, (dx, dy) in enumerate(label.directions):
                length = distance / np.hypot(dx, dy)
                x = centre[0] + dx * (length + width / 2)
                y = centre[1] + dy * (length + height / 2)
                box = (x - width / 2, y - height / 2, x + width / 2, y + height / 2)
                crossed = sum(_overlap(box, other) for other in self.boxes)
                outside = max(0, frame[0] - 2 - box[0]) + max(0, box[2] - frame[2] - 4)
                outside += max(0, frame[1] - 1 - box[1]) + max(0, box[3] - frame[3] - 1)
                covered = _inside(taken, box)
                cost = 100 * (crossed > 0) + 100 * (outside > 0) + 3 * covered + 0.1 * distance + 0.01 * rank
                if cost < least:
                    best, least = (float(x), float(y), box), cost
        return best if least < 3 or (label.is_needed and least < 100) else None


def _overlap(a: tuple[float, float, float, float], b: tuple[float, float, float, float]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _inside(points: Array, box: tuple[float, float, float, float]) -> int:
    x, y = points[:, 0], points[:, 1]
    return int(((x > box[0]) & (x < box[2]) & (y > box[1]) & (y < box[3])).sum())
