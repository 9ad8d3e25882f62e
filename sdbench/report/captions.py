"""What the report makes: every figure and table by the name of its file, with a title and a sentence (captions.toml).

`figures/NAME.svg` (and .pdf, .png), or `figures/NAME-SUFFIX.svg` where the records hold several sweeps: NAME never has a
hyphen, SUFFIX tells the sweeps apart (pair, task, temperature, folder: what differs). A figure whose numbers were not
measured is not made. The order is the order of reading.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files


@dataclass(frozen=True, slots=True)
class Caption:
    """A title for a heading, and a sentence for below the figure."""

    title: str
    text: str


_TEXTS = tomllib.loads((files("sdbench.report") / "captions.toml").read_text(encoding="utf-8"))
FIGURES: Mapping[str, Caption] = {name: Caption(**fields) for name, fields in _TEXTS["figures"].items()}
TABLES: Mapping[str, Caption] = {name: Caption(**fields) for name, fields in _TEXTS["tables"].items()}


def caption_of(stem: str) -> Caption:
    """Return the caption of figures/STEM.svg; a suffix stands in the title."""
    name, _, suffix = stem.partition("-")
    caption = FIGURES[name]
    return Caption(f"{caption.title}: {suffix}", caption.text) if suffix else caption


def in_order(stems: list[str]) -> list[str]:
    """Return file stems in the order of reading, sweep by sweep within a figure."""
    order = list(FIGURES)
    return sorted(stems, key=lambda stem: (order.index(stem.partition("-")[0]), stem))
