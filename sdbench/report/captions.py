"""The texts of the report: figures and tables by file name (captions.toml), and measures (measures.toml).

A figure is `figures/NAME.svg` (and .pdf, .png), or `figures/NAME-SUFFIX.svg` if the records hold several sweeps: NAME has no
hyphen, SUFFIX distinguishes the sweeps (pair, task, temperature, folder). A figure without measured numbers is not drawn. The
file gives the reading order. Tables take their headings from the measures, and the page prints their definitions.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files


@dataclass(frozen=True, slots=True)
class Caption:
    """A title for the heading, and a text for below the figure."""

    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Measure:
    """`kind` is how a value is written: rate, points, ratio, count, p, seconds (as ms), per_s, share (as %) or word."""

    title: str
    kind: str
    text: str
    formula: str = ""


_TEXTS, _DEFINITIONS = (
    tomllib.loads((files("sdbench.report") / f"{name}.toml").read_text(encoding="utf-8"))
    for name in ("captions", "measures")
)
FIGURES: Mapping[str, Caption] = {name: Caption(**fields) for name, fields in _TEXTS["figures"].items()}
TABLES: Mapping[str, Caption] = {name: Caption(**fields) for name, fields in _TEXTS["tables"].items()}
MEASURES: Mapping[str, Measure] = {name: Measure(**fields) for name, fields in _DEFINITIONS["measures"].items()}
WORDS: Mapping[str, str] = _DEFINITIONS["words"]
PAGE_TABLES: Mapping[str, list[str]] = _DEFINITIONS["tables"]  # title: columns
LOSSES: Mapping[str, float] = _DEFINITIONS["losses"]  # name of a range of points: its upper end
FAILURE_KINDS: Mapping[str, str] = _DEFINITIONS["failures"]  # flag of a text: its name; the first that holds counts
FORMATS: Mapping[str, tuple[str, float, int]] = _DEFINITIONS["formats"]  # kind: unit, scale, digits


def caption_of(stem: str) -> Caption:
    """Return the caption of figures/STEM.svg; a suffix is added to the title."""
    name, _, suffix = stem.partition("-")
    caption = FIGURES[name]
    return Caption(f"{caption.title}: {suffix}", caption.text) if suffix else caption


def in_order(stems: list[str]) -> list[str]:
    """Return file stems in reading order, sweep by sweep within a figure."""
    order = list(FIGURES)
    return sorted(stems, key=lambda stem: (order.index(stem.partition("-")[0]), stem))
