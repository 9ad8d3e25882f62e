"""Figures inside the page: the SVG files without their headers, with unique ids, for light and dark pages.

A drawing is scaled to the page, is one image to a screen reader, and follows the page's theme: each colour has a counterpart of
the same hue with the same contrast on dark paper.
"""

import colorsys
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from markupsafe import Markup, escape

from sdbench.metrics.text import format_interval
from sdbench.report.captions import FIGURES, caption_of, in_order
from sdbench.report.figures.knob import FAILURES
from sdbench.report.sweep import PLANES, Sweep

CROSSES = "Small crosses are the exact expected acceptance."
WIDE = 330  # wider drawings, in points, are not shrunk to the width of a phone
_IDS = re.compile(r'(\bid="|href="#|url\(#)')
_COLOURS = re.compile(r"(fill|stroke|stop-color): (#[0-9a-fA-F]{6})\b")
_LONG = re.compile(r"(-?\d+\.\d\d)\d+")
_COORDINATES = re.compile(r'\b(d|x|y|x1|x2|y1|y2)="([^"]*)"')


class Drawing(NamedTuple):
    """A figure: its file name, title and text, the SVG, and whether it is a wide one."""

    name: str
    title: str
    text: str
    svg: Markup
    is_wide: bool

    @property
    def num_bytes(self) -> int:
        return len(self.svg.encode())


def drawings_of(folder: Path, sweeps: Sequence[Sweep] = ()) -> list[Drawing]:
    """Return every SVG of `folder` in reading order; what a sweep adds to a caption is shown below the figure."""
    notes = {
        sweep.file_name(name): note for sweep in sweeps for name, note_of in NOTES.items() if (note := note_of(sweep))
    }
    stems = in_order([path.stem for path in folder.glob("*.svg") if path.stem.partition("-")[0] in FIGURES])
    drawings = [drawing_of(folder / f"{stem}.svg") for stem in stems]
    return [each._replace(text=" ".join(filter(None, [each.text, notes.get(each.name)]))) for each in drawings]


def area_of(sweep: Sweep, rate: str) -> str:
    """Return the hypervolume as text, with the bias that was subtracted; "" without one."""
    front = sweep.fronts.get(rate)
    if front is None or sweep.worst is None:
        return ""
    area, bias, scale, plane = front.hypervolume, front.bias, sweep.metric.scale, PLANES[rate]
    less = f"; {scale * bias:.1f} was taken off, since the luckiest of several settings looks better than it is"
    return f"Dominated area, {plane} × points: {format_interval(area, 1, scale=scale)}{less if bias == bias else ''}."


def none_failed(sweep: Sweep) -> str:
    """Return which failures of answers were counted and never occurred; "" if the figure shows some."""
    counted = {name: text for name, (text, *_) in FAILURES.items() if sweep.swept[name].notna().any()}
    if not counted or sweep.swept[list(counted)].fillna(0).any(axis=None):
        return ""
    return f"No answer in these settings is counted as: {', '.join(counted.values())}."


NOTES: Mapping[str, Callable[[Sweep], str]] = {
    "pareto": lambda sweep: area_of(sweep, "acceptance"),
    "pareto_speed": lambda sweep: area_of(sweep, "speedup"),
    "against_knob": lambda sweep: CROSSES if sweep.swept["acceptance_expected"].notna().any() else "",
    "lengths": none_failed,
}


def drawing_of(path: Path) -> Drawing:
    """Return an SVG file as part of the page."""
    caption = caption_of(path.stem)
    source = path.read_text(encoding="utf-8")
    source = source[source.index("<svg") :]
    source = re.sub(r"<(metadata|style)\b.*?</\1>\s*|<!--.*?-->\s*", "", source, flags=re.DOTALL)
    source = _IDS.sub(lambda match: f"{match[1]}{path.stem}-", source)
    # Two decimals of a point are finer than any screen.
    source = _COORDINATES.sub(lambda match: _LONG.sub(r"\1", match[0]), source)
    source = _COLOURS.sub(lambda match: declare_colour(match[1], match[2]), source)
    source = re.sub(r">\s*\n\s*<", ">\n<", source)
    width = float(re.findall(r'viewBox="0 0 ([\d.]+) ', source)[0])
    head, rest = source.split(">", 1)
    head = re.sub(r' (width|height)="[^"]*"', "", head.removeprefix("<svg"))
    label = escape(f"{caption.title}. {caption.text}")
    svg = Markup(f'<svg style="--width: {width:g}" role="img" aria-label="{label}"{head}>{rest}')
    return Drawing(path.stem, caption.title, caption.text, svg, width > WIDE)


def declare_colour(name: str, colour: str) -> str:
    """Return a declaration for light pages, then one for both themes that old browsers skip. White is the colour of the page."""
    if colour.lower() == "#ffffff":
        return f"{name}: {colour}; {name}: var(--paper)"
    return f"{name}: {colour}; {name}: light-dark({colour}, {dark_of(colour)})"


def dark_of(colour: str) -> str:
    """Return a colour's counterpart on dark paper: greys are inverted, colours keep their hue and become lighter."""
    red, green, blue = (int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5))
    hue, light, full = colorsys.rgb_to_hls(red, green, blue)
    light = 1 - 0.86 * light if full < 0.1 else max(light, 0.6)
    return "#" + "".join(f"{round(255 * part):02x}" for part in colorsys.hls_to_rgb(hue, light, 0.8 * full))
