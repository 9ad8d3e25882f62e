"""One look for all figures: colours that the colour-blind tell apart (Okabe and Ito 2008), sizes of a paper's column.

`save` writes PDF, SVG and PNG whose bytes depend on the figure alone: no date, no random ids.
"""

import atexit
import io
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from sdbench.files import write_whole

COLUMN, PAGE = 3.4, 7.0  # inches
PAD = 0.03  # inches, outside and between panels
INK, GREY, FAINT, PALE = "#222222", "#6b6b6b", "#b4b4b4", "#e3e3e3"
BLUE, ORANGE, GREEN = "#0072b2", "#e69f00", "#009e73"
RED, PURPLE, SKY = "#d55e00", "#cc79a7", "#56b4e9"
CYCLE = (BLUE, RED, GREEN, PURPLE, ORANGE, SKY)
MARKS = ("o", "^", "v", "D", "P", "X")  # with CYCLE, so that colour is never alone
BASELINES = {
    "lossless": ("D", INK),
    "target": ("s", GREY),
    "draft": ("v", ORANGE),
    "generate": ("P", GREY),
    "assisted": ("X", GREY),
}
FORMATS = ("pdf", "svg", "png")
SMALL = 6.3  # points, of labels inside a figure
FAMILY, SMALL_FAMILY = "DejaVu Sans", "DejaVu Sans figures"
TEXT = (  # the characters that papers use
    "".join(map(chr, range(0x20, 0x7F)))
    + "±×·÷µ°²³¹½äöüÄÖÜßàâçéèêëîïôûùñáíóúåæøαβγδελμπσρτφωΔΣΩ–—‘’“”…−≤≥≈≠→←↑↓↦∞∂∑∏√∈†‡•′″ "
)
SHEET = Path(__file__).with_name("sdbench.mplstyle")


@cache
def families() -> tuple[str, ...]:
    """Return families for `font.family`: the font cut down to the characters that papers use, once a process, and the whole one.

    Every PDF embeds the glyphs it shows, and to find them the whole font is taken apart anew for every figure, which takes
    longer than all drawing. From a small font it is done at once. Other characters come from the whole font, glyph by glyph.
    """
    from fontTools import subset

    folder = Path(tempfile.mkdtemp(prefix="sdbench-fonts-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    source, small = Path(mpl.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf", folder / "figures.ttf"
    options = ["--layout-features=", "--name-IDs=1,2,4,6", "--notdef-outline", "--drop-tables+=GSUB,GPOS,GDEF,FFTM"]
    subset.main([str(source), f"--text={TEXT}", f"--output-file={small}", *options])
    entry = replace(font_manager.ttfFontProperty(font_manager.get_font(small)), name=SMALL_FAMILY)
    font_manager.fontManager.ttflist.append(entry)
    return SMALL_FAMILY, FAMILY


@contextmanager
def house_style() -> Iterator[None]:
    """Figures made and saved inside look like ours; the caller's own settings come back after."""
    with mpl.rc_context({"font.family": list(families())}, fname=SHEET):
        yield


def panels(
    columns: int = 1, rows: int = 1, *, width: float = COLUMN, height: float = 2.5, **options: Any
) -> tuple[Figure, list[Axes]]:
    """A figure and its axes in reading order; `height` is one row's. No pyplot: nothing global, nothing to close."""
    figure = Figure(figsize=(width, height * rows), layout=ConstrainedLayoutEngine(w_pad=PAD, h_pad=PAD))
    axes = figure.subplots(rows, columns, squeeze=False, **options)
    return figure, [axis for line in axes for axis in line]


def settle(figure: Figure) -> None:
    """Lay out once, for good: labels are then placed in the room that is left, and three formats need one layout."""
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)
    figure.set_layout_engine(None)  # "none" would leave a place holder, for whose sake every format is drawn twice


def save(figure: Figure, folder: Path, name: str) -> list[Path]:
    """name.pdf, name.svg, name.png in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    settle(figure)
    no_date = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {"Software": None}}
    paths = []
    for kind in FORMATS:
        data = io.BytesIO()
        figure.savefig(data, format=kind, metadata=no_date[kind])
        paths.append(write_whole(folder / f"{name}.{kind}", data.getvalue()))
    return paths
