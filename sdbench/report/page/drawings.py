"""Figures inside the page: the SVG of the figures' folder without its head, with names of its own, light and dark.

A drawing is scaled to the page, is one image to a reader of the screen, and takes part in the page's theme: each colour
gets a counterpart of the same hue that is as far from dark paper as it was from white.
"""

from __future__ import annotations

import colorsys
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from markupsafe import Markup, escape

from sdbench.report.captions import caption_of, in_order
from sdbench.report.sweep import Sweep

RATES = {"pareto": "acceptance", "pareto_speed": "speedup"}  # figures with a dominated area
WIDE = 330  # points from which a drawing is not squeezed to the width of a phone
_IDS = re.compile(r'(\bid="|href="#|url\(#)')
_COLOURS = re.compile(r"(fill|stroke|stop-color): (#[0-9a-fA-F]{6})\b")
_LONG = re.compile(r"(-?\d+\.\d\d)\d+")
_COORDINATES = re.compile(r'\b(d|x|y|x1|x2|y1|y2)="([^"]*)"')


@dataclass(frozen=True, slots=True)
class Drawing:
    """One figure: the name of its file, what stands over and under it, the drawing, and whether it is a wide one."""

    name: str
    title: str
    text: str
    svg: Markup
    is_wide: bool

    @property
    def num_bytes(self) -> int:
        return len(self.svg.encode())


def drawings_of(folder: Path, sweeps: Sequence[Sweep] = ()) -> list[Drawing]:
    """Every SVG of `folder` in the order of reading; the dominated areas of the sweeps are said below theirs."""
    paths = {path.stem: path for path in sorted(folder.glob("*.svg"))}
    areas = {
        name + f"-{sweep.suffix}" * bool(sweep.suffix): area_of(sweep, rate)
        for sweep in sweeps
        for name, rate in RATES.items()
    }
    drawings = [drawing_of(paths[stem]) for stem in in_order(list(paths))]
    return [replace(one, text=" ".join(filter(None, [one.text, areas.get(one.name)]))) for one in drawings]


def area_of(sweep: Sweep, rate: str) -> str:
    """The hypervolume in words, with the bias that was taken off it; nothing where it has none."""
    area, bias = sweep.volumes.get((rate, "all"), (None, 0.0))
    if area is None:
        return ""
    value, low, high, off = (sweep.metric.scale * number for number in (area.value, area.low, area.high, bias))
    limits = f" [{low:.1f}, {high:.1f}]" if low == low else ""
    less = (
        f"; {off:.1f} was taken off, by which the luckiest of several settings look better than they are"
        if off == off
        else ""
    )
    return (
        f"Dominated area, {'acceptance' if rate == 'acceptance' else 'speed-up'} × points: {value:.1f}{limits}{less}."
    )


def drawing_of(path: Path) -> Drawing:
    """One file as it stands in the page."""
    caption = caption_of(path.stem)
    source = path.read_text(encoding="utf-8")
    source = source[source.index("<svg") :]
    source = re.sub(r"<(metadata|style)\b.*?</\1>\s*|<!--.*?-->\s*", "", source, flags=re.DOTALL)
    source = _IDS.sub(lambda match: f"{match[1]}{path.stem}-", source)
    source = _COORDINATES.sub(_shortened, source)
    source = _COLOURS.sub(lambda match: themed(match[1], match[2]), source)
    source = re.sub(r">\s*\n\s*<", ">\n<", source)
    width = float(re.findall(r'viewBox="0 0 ([\d.]+) ', source)[0])
    head = f'<svg role="img" aria-label="{escape(f"{caption.title}. {caption.text}")}"'
    svg = re.sub(r'^<svg\b(.*?) width="[^"]*"', lambda match: head + match[1], source, count=1, flags=re.DOTALL)
    svg = re.sub(r'^(<svg\b[^>]*?) height="[^"]*"', r"\1", svg, count=1, flags=re.DOTALL)
    svg = re.sub(r"^<svg\b", f'<svg style="--width: {width:g}"', svg, count=1)
    return Drawing(path.stem, caption.title, caption.text, Markup(svg), width > WIDE)


def _shortened(match: re.Match[str]) -> str:
    """Two decimals of a point are finer than any screen."""
    return f'{match[1]}="{_LONG.sub(lambda number: number[1], match[2])}"'


def themed(name: str, colour: str) -> str:
    """A declaration for light pages, and after it one for both that old browsers skip; white is the page's paper."""
    if colour.lower() == "#ffffff":
        return f"{name}: {colour}; {name}: var(--paper)"
    return f"{name}: {colour}; {name}: light-dark({colour}, {dark_of(colour)})"


def dark_of(colour: str) -> str:
    """The counterpart on dark paper: greys change places, colours keep their hue and become lighter."""
    red, green, blue = (int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5))
    hue, light, full = colorsys.rgb_to_hls(red, green, blue)
    light = 1 - 0.86 * light if full < 0.1 else max(light, 0.6)
    return "#" + "".join(f"{round(255 * part):02x}" for part in colorsys.hls_to_rgb(hue, light, 0.8 * full))
