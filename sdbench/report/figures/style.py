"""The style of all figures: colours for the colour-blind (Okabe and Ito 2008), sizes of a paper's column.

`save` writes PDF, SVG and PNG whose bytes depend on the figure only: no date, no random ids.
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
MARKS = ("o", "^", "v", "D", "P", "X")  # marks as well as colours distinguish curves
LINES = ("-", "--", ":", "-.")  # of more curves than colours
BASELINES = {
    "lossless": ("D", INK),
    "target": ("s", GREY),
    "draft": ("v", ORANGE),
    "generate": ("P", GREY),
    "assisted": ("X", GREY),
}
FORMATS = ("pdf", "svg", "png")
SMALL = 6.3  # points, for labels inside a figure
FAMILY, SMALL_FAMILY = "DejaVu Sans", "DejaVu Sans figures"
TEXT = (  # the characters that papers use
    "".join(map(chr, range(0x20, 0x7F)))
    + "±×·÷µ°²³¹½äöüÄÖÜßàâçéèêëîïôûùñáíóúåæøαβγδελμπσρτφωΔΣΩ–—‘’“”…−≤≥≈≠→←↑↓↦∞∂∑∏√∈†‡•′″ "
)
SHEET = Path(__file__).with_name("sdbench.mplstyle")


@cache
def families() -> tuple[str, ...]:
    """Return families for `font.family`: the font reduced to the characters that papers use, and the whole font.

    Every PDF embeds the glyphs it shows. Finding them parses the whole font for every figure, which takes longer than all
    drawing; a small font is parsed at once. Other characters come from the whole font, glyph by glyph.
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
    """Set the style of all figures created and saved inside; the caller's settings are restored afterwards."""
    with mpl.rc_context({"font.family": list(families())}, fname=SHEET):
        yield


def panels(
    columns: int = 1, rows: int = 1, *, width: float = COLUMN, height: float = 2.5, **options: Any
) -> tuple[Figure, list[Axes]]:
    """Return a figure and its axes in reading order; `height` is that of one row. Without pyplot there is no global state."""
    figure = Figure(figsize=(width, height * rows), layout=ConstrainedLayoutEngine(w_pad=PAD, h_pad=PAD))
    axes = figure.subplots(rows, columns, squeeze=False, **options)
    return figure, [axis for line in axes for axis in line]


def settle(figure: Figure) -> None:
    """Compute the layout once: labels are then placed in the remaining space, and three formats share one layout."""
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)
    figure.set_layout_engine(None)  # "none" would leave a placeholder that makes every format be drawn twice


def save(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write name.pdf, name.svg and name.png to `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    settle(figure)
    no_date = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {"Software": None}}
    paths = []
    for kind in FORMATS:
        data = io.BytesIO()
        figure.savefig(data, format=kind, metadata=no_date[kind])
        paths.append(write_whole(folder / f"{name}.{kind}", data.getvalue()))
    return paths
