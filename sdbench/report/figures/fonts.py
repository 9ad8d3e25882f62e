"""The figures' font cut down to the characters that papers use, once a process.

Every PDF embeds the glyphs it shows, and to find them the whole font is taken apart anew for every figure, which takes
longer than all drawing. From a small font it is done at once. Other characters come from the whole font, glyph by glyph.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path

import matplotlib as mpl
from matplotlib import font_manager

FAMILY = "DejaVu Sans"
SMALL_FAMILY = "DejaVu Sans figures"
TEXT = (
    "".join(map(chr, range(0x20, 0x7F)))
    + "±×·÷µ°²³¹½äöüÄÖÜßàâçéèêëîïôûùñáíóúåæøαβγδελμπσρτφωΔΣΩ–—‘’“”…−≤≥≈≠→←↑↓↦∞∂∑∏√∈†‡•′″ "
)


@cache
def families() -> tuple[str, ...]:
    """Font families for `font.family`, the small one first; made where it is asked for first."""
    from fontTools import subset
    from fontTools.ttLib import TTFont

    source = Path(mpl.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"
    options = subset.Options(layout_features=[], name_IDs=[1, 2, 4, 6], notdef_outline=True, recalc_timestamp=False)
    options.drop_tables += ["GSUB", "GPOS", "GDEF", "FFTM"]
    with TTFont(source, lazy=True, recalcTimestamp=False) as font:
        cutter = subset.Subsetter(options)
        cutter.populate(text=TEXT)
        cutter.subset(font)
        for record in font["name"].names:  # type: ignore[attr-defined]
            if record.nameID in (1, 4):
                record.string = SMALL_FAMILY
        folder = Path(tempfile.mkdtemp(prefix="sdbench-fonts-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        font.save(folder / "figures.ttf")
    font_manager.fontManager.addfont(folder / "figures.ttf")
    return SMALL_FAMILY, FAMILY
