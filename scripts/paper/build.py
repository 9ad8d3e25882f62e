"""The tables and figures of DIVERSED (arXiv:2604.07622) from records, with the published numbers.

`build_paper(folders, out)` writes table1–3 in Markdown, LaTeX and CSV, the acceptance–quality curves, the sensitivity to the
draft length, the sweep at T = 0, a list of what is missing with its commands, and paper.md, which shows all of it. The same
records give the same bytes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from scripts.paper import plots, tables
from scripts.paper.cells import ALL, TABLES, TEXTS, Exhibit, Missing, missing
from scripts.paper.numbers import measure_cells, read_published
from sdbench.records import Results, read
from sdbench.report.figures.style import house_style, save

FIGURES: Mapping[str, str] = TEXTS["figures"]


def build_paper(folders: Iterable[str | os.PathLike[str]], out: str | os.PathLike[str], **options: Any) -> list[Path]:
    """Write every table and figure to `out`; return the paths."""
    results = [read(folder) for folder in folders_of(folders)]
    home = Path(out)
    home.mkdir(parents=True, exist_ok=True)
    cells, published, configs = measure_cells(results, **options), read_published(), configs_of(results)
    lacking = [gap for exhibit in ALL for gap in missing(exhibit, cells, configs)]
    texts = {name: text for exhibit in TABLES for name, text in table_files(exhibit, cells, published).items()}
    frame = pd.DataFrame(lacking, columns=list(Missing._fields)).rename(columns={"exhibit": "asked"})
    texts["missing.csv"] = frame.to_csv(index=False)
    shown = [(each.title, texts[f"{each.name}.md"], tables.notes(each, published, cells)) for each in TABLES]
    page = tables.TEMPLATES.get_template("paper.md.j2")
    texts["paper.md"] = page.render(tables=shown, figures=FIGURES, lacking=lacking)
    for name, text in texts.items():
        (home / name).write_text(text, encoding="utf-8")
    with house_style():
        drawn = {f"curve_{exhibit.name}": plots.curve(exhibit, cells, published, configs) for exhibit in TABLES}
        drawn["draft_length"] = plots.draft_length(cells, published, configs)
        drawn["seed"] = plots.seed(cells, published, configs)
        saved = [path for name in FIGURES for path in save(drawn[name], home, name)]
    return [*(home / name for name in texts), *saved]


def folders_of(paths: Iterable[str | os.PathLike[str]]) -> list[Path]:
    """Return results folders as they are; for any other folder, the results folders directly below it."""
    folders: dict[Path, Path] = {}
    for path in map(Path, paths):
        pattern = "records" if (path / "records").is_dir() else "*/records"
        inside = sorted(records.parent for records in path.glob(pattern) if records.is_dir())
        if not inside:
            raise ValueError(f"{path} is not a results folder and has none in it: there is no records/")
        folders |= {folder.resolve(): folder for folder in inside}
    return list(folders.values())


def configs_of(results: Sequence[Results]) -> dict[str, dict[str, Any]]:
    """Return the last resolved configuration of each pair."""
    configs = (config for folder in results for config in folder.configs.values())
    return {str(each["model"].get("name")): each for each in configs if isinstance(each.get("model"), dict)}


def table_files(exhibit: Exhibit, cells: pd.DataFrame, published: pd.DataFrame) -> dict[str, str]:
    """Return a table in Markdown, LaTeX and CSV by the name of its file."""
    parts = tables.measured_entries(exhibit, cells), tables.published_entries(exhibit, published)
    texts = {f"{exhibit.name}.{form}": tables.render_table(form, exhibit, *parts) for form in ("md", "tex")}
    return texts | {f"{exhibit.name}.csv": tables.long_form(exhibit, cells).to_csv(index=False)}
