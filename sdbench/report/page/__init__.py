"""report.html: one self-contained file built from templates, the summary, the records and the figures.

Script and style are inside the page. A content security policy forbids any other script and every connection, so that texts
written by a model can neither run nor send anything. The same records give the same bytes.
"""

import base64
import hashlib
import shlex
from collections.abc import Collection, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from sdbench.files import write_whole
from sdbench.metrics.cells import BASELINES
from sdbench.metrics.recommend import Recommendation
from sdbench.records import Results
from sdbench.report.captions import MEASURES, TABLES, WORDS
from sdbench.report.page.browser import Browser, browse, script_json
from sdbench.report.page.drawings import Drawing, drawings_of
from sdbench.report.page.facts import facts_of, failures_of, merge_warnings, runs_of, warnings_of
from sdbench.report.page.tables import tables_of
from sdbench.report.page.verdicts import card_of, match_advice, with_minus
from sdbench.report.sweep import Sweep

ROOM = 10**7 - 5 * 10**5  # bytes of a page without the list of examples
FIGURES_ROOM = 4 * 10**6
SCRIPTS = ("theme.js", "tables.js", "tokens.js", "texts.js", "decide.js", "browser.js")
TEMPLATES = Path(__file__).parent / "templates"


def environment_of(folder: Path, **options: Any) -> Environment:
    """Return the templates of a folder. An undefined name is an error, and a line with only a statement leaves no blank line."""
    loader = FileSystemLoader(folder)
    return Environment(loader=loader, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, **options)


ENVIRONMENT = environment_of(TEMPLATES, autoescape=True)


def write_page(
    home: Path,
    results: Sequence[Results],
    sweeps: Sequence[Sweep],
    advice: Sequence[Recommendation],
    options: Sequence[str] = (),
    joint: str = "",
    *,
    num_pooled: int = 0,
    tables: Collection[Path] = (),
) -> Path:
    """Render the page into `home`; its figures are the SVG files below home/figures.

    `options` are those of the command, `joint` is the text of the decisions for several sweeps together, `num_pooled` of which are
    of pooled seeds and tested, `tables` are the files that the page lists.
    """
    advised = match_advice(sweeps, results, advice)
    drawings, missing = split_by_room(drawings_of(home / "figures", sweeps), FIGURES_ROOM)
    pairs = [(sweep.model, sweep.task) for sweep in sweeps]
    cells: dict[str, str | None] = dict.fromkeys(sweep.title for sweep in sweeps)
    cells |= {each.sweep.title: each.advice.cell for each in reversed(advised)}
    context: dict[str, Any] = {
        "title": " on ".join(", ".join(dict.fromkeys(names)) for names in zip(*pairs, strict=True))
        or ", ".join(folder.name for folder in results),
        "answers": [card_of(each, index, sweeps) for index, each in enumerate(advised)],
        "sweeps": [
            {"title": sweep.title, "facts": facts_of(sweep), "tables": tables_of(sweep, cells[sweep.title])}
            for sweep in sweeps
        ],
        "failures": failures_of(results, sweeps),
        "warnings": merge_warnings({sweep.title: warnings_of(sweep) for sweep in sweeps}),
        "drawings": drawings,
        "missing": missing,
        "joint": with_minus(joint),
        "num_pooled": num_pooled,
        "runs": runs_of(results),
        "files": [(name, caption) for name, caption in TABLES.items() if home / name in tables],
        "rebuild": " ".join(["python -m sdbench.report", *map(folder_of, results), *map(shlex.quote, options)]),
        **fixed_parts(),
    }
    compared = {sweep.title: first_compared(sweep, cells[sweep.title]) for sweep in sweeps}
    browser = browse(sweeps, compared, room=ROOM - len(render(context, Browser())))
    return write_whole(home / "report.html", render(context, browser))


def fixed_parts(scripts: Sequence[str] = SCRIPTS) -> dict[str, Any]:
    """Return what is the same on every page: style, scripts, the content security policy, the definitions."""
    early, script = source_of("early.js"), "".join(map(source_of, scripts))
    script = f'(() => {{\n"use strict";\n{script}}})();\n'
    parts = {"style": source_of("page.css") + source_of("browser.css"), "early": early, "script": script}
    marked = {name: Markup(text) for name, text in parts.items()}
    hashes = [base64.b64encode(hashlib.sha256(part.encode()).digest()).decode() for part in (early, script)]
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes)
    policy = f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
    return {**marked, "policy": policy, "measures": MEASURES, "words": WORDS}


def folder_of(results: Results) -> str:
    """Return the folder as its run names it, so that the command works from the directory of the run."""
    return shlex.quote(f"{results.config.get('results') or 'results'}/{results.name}")


def render(context: dict[str, Any], browser: Browser) -> bytes:
    """Return the page with this browser. Lone surrogates in texts cannot be encoded in UTF-8 and become question marks."""
    data = Markup(script_json({"groups": browser.groups, "chunks": browser.chunks}))
    page = ENVIRONMENT.get_template("report.html.j2").render(**context, data=data, notes=browser.notes)
    return page.encode("utf-8", "replace")


def render_page(template: str, context: dict[str, Any], scripts: Sequence[str]) -> bytes:
    """Return a page without an example browser, from a template and these scripts."""
    page = ENVIRONMENT.get_template(template).render(**context, **fixed_parts(scripts))
    return page.encode("utf-8", "replace")


def first_compared(sweep: Sweep, advised: str | None) -> list[str]:
    """Return the cells that are shown side by side at first: lossless, the recommended or the middle one, the most lenient."""
    cells = sweep.cells
    lossless, swept = cells.index[cells["verifier"] == "lossless"], cells.index[~cells["verifier"].isin(BASELINES)]
    middle = [advised] if advised is not None else swept[len(swept) // 2 :][:1]
    return list(dict.fromkeys([*lossless[:1], *middle, *swept[-1:]]))


def split_by_room(drawings: Sequence[Drawing], room: int) -> tuple[list[Drawing], list[str]]:
    """Return the drawings that fit, and the names of the others, which are only linked as files."""
    count = sum(size <= room for size in accumulate(drawing.num_bytes for drawing in drawings))
    return list(drawings[:count]), [drawing.name for drawing in drawings[count:]]


def source_of(name: str) -> str:
    """Return the content of a script or style file."""
    return (TEMPLATES / name).read_text(encoding="utf-8")
