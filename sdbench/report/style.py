"""One look for all figures: colours that the colour-blind tell apart (Okabe and Ito 2008), sizes of a paper's column.

`save` writes PDF, SVG and PNG whose bytes depend on the figure alone: no date, no random ids.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

COLUMN, PAGE = 3.4, 7.0  # inches
INK, GREY, PALE = "#222222", "#767676", "#dddddd"
BLUE, ORANGE, GREEN, RED, PURPLE, SKY, YELLOW = (
    "#0072b2",
    "#e69f00",
    "#009e73",
    "#d55e00",
    "#cc79a7",
    "#56b4e9",
    "#f0e442",
)
CYCLE = (BLUE, RED, GREEN, PURPLE, ORANGE, SKY)
BASELINES = {"lossless": ("D", INK), "target": ("s", GREY), "draft": ("v", ORANGE), "generate": ("P", GREY)}
FORMATS = ("pdf", "svg", "png")

_RC: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 7.5,
    "axes.titlesize": 8,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 7.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.6,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": PALE,
    "grid.linewidth": 0.5,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 7,
    "lines.linewidth": 1.3,
    "lines.markersize": 4,
    "errorbar.capsize": 0,
    "figure.dpi": 100,
    "savefig.dpi": 200,
    "figure.constrained_layout.use": True,
    "pdf.fonttype": 42,
    "svg.fonttype": "path",
    "svg.hashsalt": "sdbench",
}


@contextmanager
def styled() -> Iterator[None]:
    """Figures made and saved inside look like ours; the caller's own settings come back after."""
    with mpl.rc_context(_RC):
        yield


def panels(columns: int = 1, rows: int = 1, *, width: float = COLUMN, height: float = 2.5) -> tuple[Figure, list[Axes]]:
    """A figure and its axes in reading order; `height` is one row's. No pyplot: nothing global, nothing to close."""
    figure = Figure(figsize=(width, height * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    return figure, [axis for line in axes for axis in line]


def save(figure: Figure, folder: Path, name: str) -> list[Path]:
    """name.pdf, name.svg, name.png in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    no_date = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {"Software": None}}
    paths = [folder / f"{name}.{kind}" for kind in FORMATS]
    for path, kind in zip(paths, FORMATS, strict=True):
        figure.savefig(path, format=kind, metadata=no_date[kind])
    return paths
