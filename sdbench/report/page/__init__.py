"""report.html: one file that needs nothing else, made from templates, the summary, the records and the figures on disk.

Its script and style stand inside it; a content security policy forbids any other script and every connection, so that
texts written by a model can neither run nor send anything. The same records give the same bytes.
"""

from __future__ import annotations

import base64
import hashlib
import shlex
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from sdbench.files import write_whole
from sdbench.metrics.cells import BASELINES
from sdbench.metrics.recommend import Recommendation
from sdbench.records import Results
from sdbench.report.captions import TABLES
from sdbench.report.page.browser import Browser, browse, script_json
from sdbench.report.page.drawings import Drawing, drawings_of
from sdbench.report.page.facts import facts_of, failures_of, merge_warnings, runs_of, warnings_of
from sdbench.report.page.measures import MEASURES, WORDS
from sdbench.report.page.tables import tables_of
from sdbench.report.page.verdicts import advised_cell, card_of, match_advice, with_minus
from sdbench.report.sweep import Sweep, heading

ROOM = 10**7 - 5 * 10**5  # bytes of a page, less what the list of examples takes
FIGURES_ROOM = 4 * 10**6
SCRIPTS = ("theme.js", "tables.js", "tokens.js", "texts.js", "decide.js", "browser.js")
ENVIRONMENT = Environment(
    loader=PackageLoader("sdbench.report.page", "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def write_page(
    home: Path,
    results: Sequence[Results],
    sweeps: Sequence[Sweep],
    advice: Sequence[Recommendation],
    options: Sequence[str] = (),
    joint: str = "",
) -> Path:
    """Render the page into `home`; its figures are the SVG files below home/figures.

    `options` are those of the command that made it, `joint` is the decision for all sweeps together.
    """
    advised = match_advice(sweeps, results, advice)
    drawings, missing = split_by_room(drawings_of(home / "figures", sweeps), FIGURES_ROOM)
    cells = {sweep.title: advised_cell(sweep, advised) for sweep in sweeps}
    context: dict[str, Any] = {
        "title": heading(sweeps) if sweeps else ", ".join(folder.name for folder in results),
        "answers": [
            card_of(each, index, [id(s) for s in sweeps].index(id(each.sweep))) for index, each in enumerate(advised)
        ],
        "sweeps": [
            {"title": sweep.title, "facts": facts_of(sweep), "tables": tables_of(sweep, cells[sweep.title])}
            for sweep in sweeps
        ],
        "failures": failures_of(results, sweeps),
        "warnings": merge_warnings({sweep.title: warnings_of(sweep) for sweep in sweeps}),
        "drawings": drawings,
        "missing": missing,
        "joint": with_minus(joint),
        "runs": runs_of(results),
        "files": [(name, caption) for name, caption in TABLES.items() if (home / name).is_file()],
        "rebuild": " ".join(["python -m sdbench.report", *map(folder_of, results), *map(shlex.quote, options)]),
        **fixed_parts(),
    }
    compared = {sweep.title: first_compared(sweep, cells[sweep.title]) for sweep in sweeps}
    browser = browse(sweeps, compared, room=ROOM - len(render(context, Browser())))
    return write_whole(home / "report.html", render(context, browser))


def fixed_parts() -> dict[str, Any]:
    """Return what every page holds: style, scripts and their policy, and the definitions."""
    early, script = source_of("early.js"), "".join(map(source_of, SCRIPTS))
    script = f'(() => {{\n"use strict";\n{script}}})();\n'
    parts = {"style": source_of("page.css") + source_of("browser.css"), "early": early, "script": script}
    marked = {name: Markup(text) for name, text in parts.items()}
    return {**marked, "policy": policy_of([early, script]), "measures": MEASURES, "words": WORDS}


def folder_of(results: Results) -> str:
    """Return the folder as its run names it, so that the command works from where the run was started."""
    return shlex.quote(f"{results.config.get('results') or 'results'}/{results.name}")


def render(context: dict[str, Any], browser: Browser) -> bytes:
    """Return the page with this browser in it. A lone surrogate of a foreign text has no UTF-8: it becomes a question mark."""
    data = Markup(script_json({"groups": browser.groups, "chunks": browser.chunks}))
    page = ENVIRONMENT.get_template("report.html.j2").render(**context, data=data, notes=browser.notes)
    return page.encode("utf-8", "replace")


def first_compared(sweep: Sweep, advised: str | None) -> list[str]:
    """Return the cells that are shown side by side at first: lossless, the recommended or the middle one, the most lenient."""
    cells = sweep.cells
    lossless, swept = cells.index[cells["verifier"] == "lossless"], cells.index[~cells["verifier"].isin(BASELINES)]
    middle = [advised] if advised is not None else swept[len(swept) // 2 :][:1]
    return list(dict.fromkeys([*lossless[:1], *middle, *swept[-1:]]))


def split_by_room(drawings: Sequence[Drawing], room: int) -> tuple[list[Drawing], list[str]]:
    """Return the drawings that fit, and the names of those that do not: they are beside the page all the same."""
    kept: list[Drawing] = []
    missing: list[str] = []
    for drawing in drawings:
        room -= drawing.num_bytes
        if room >= 0:
            kept.append(drawing)
        else:
            missing.append(drawing.name)
    return kept, missing


def source_of(name: str) -> str:
    """Return a script or style as it stands in the file."""
    return (files("sdbench.report.page") / "templates" / name).read_text(encoding="utf-8")


def policy_of(scripts: Sequence[str]) -> str:
    """Return the policy under which only these scripts run, nothing is loaded and no connection is made."""
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes)
    return f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
