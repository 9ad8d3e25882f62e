"""report.html: one self-contained file, made from a template, the summary and the figures already on disk."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

ENVIRONMENT = Environment(
    loader=PackageLoader("sdbench.report", "templates"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
)


def write_page(home: Path, results: Sequence[Any], summary: pd.DataFrame, advice: Sequence[Any]) -> Path:
    """Render the page into `home`; its figures are the SVG files below home/figures."""
    pictures = [(path.stem, inline_svg(path)) for path in sorted((home / "figures").glob("*.svg"))]
    page = ENVIRONMENT.get_template("report.html.j2").render(
        name=results[0].name,
        advice=[getattr(one, "text", str(one)) for one in advice],
        columns=list(summary.columns),
        rows=summary.to_dict("records"),
        pictures=pictures,
        problems=[problem for one in results for problem in one.problems],
        provenance=[json.dumps(one.provenance, indent=1, sort_keys=True, default=str) for one in results],
        cell=as_text,
    )
    path = home / "report.html"
    part = path.with_suffix(".part")
    part.write_text(page, encoding="utf-8")
    part.replace(path)
    return path


def inline_svg(path: Path) -> Markup:
    """The drawing without its XML head, ids made unique so that two drawings can share a page."""
    drawing = path.read_text(encoding="utf-8")
    drawing = drawing[drawing.index("<svg") :]
    drawing = re.sub(r'(\bid="|href="#|url\(#)', lambda match: f"{match[1]}{path.stem}-", drawing)
    return Markup(drawing)


def as_text(value: object) -> str:
    """A table's cell: three significant decimals for a float, nothing where nothing was measured."""
    if value is None or (isinstance(value, float) and value != value):
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
