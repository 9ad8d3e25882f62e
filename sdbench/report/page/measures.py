"""Every measure of the page: its name among the columns of summary.csv, its title, unit and definition (templates/measures.toml).

The tables take their headings from here and the page prints the definitions, so that no number stands without its meaning.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files


@dataclass(frozen=True, slots=True)
class Measure:
    """`kind` is how a value is written: rate, points, ratio, count, p, seconds (as ms), per_s, share (as %) or word."""

    title: str
    kind: str
    text: str
    formula: str = ""


_DEFINITIONS = tomllib.loads((files("sdbench.report.page") / "templates" / "measures.toml").read_text(encoding="utf-8"))
MEASURES: Mapping[str, Measure] = {name: Measure(**fields) for name, fields in _DEFINITIONS["measures"].items()}
WORDS: Mapping[str, str] = _DEFINITIONS["words"]
