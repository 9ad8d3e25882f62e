"""The tables and figures of DIVERSED (arXiv:2604.07622) from records: what our runs cover, beside what was published.

`build_paper(folders, out)` writes table1–3 in Markdown, LaTeX and CSV, the acceptance–quality curves, the sensitivity to the
draft length, the sweep at T = 0, a list of what is missing with its commands, and paper.md, which shows all of it. The same
records give the same bytes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from sdbench.records import Results, read
from sdbench.report.figures.style import save, styled
from sdbench.report.paper import plots, tables
from sdbench.report.paper.cells import ALL, TABLES, Exhibit, Missing, missing
from sdbench.report.paper.numbers import measured
from sdbench.report.paper.published import read_published

FIGURES = {
    "curve_table1": "Quality against acceptance at T = 1",
    "curve_table2": "Quality against acceptance at T = 0.1",
    "curve_table3": "Quality against acceptance, the tasks of Table 3",
    "draft_length": "Sensitivity to the draft length",
    "seed": "CNN/DM at T = 0 over w",
}
INTRODUCTION = """\
# The tables and figures of DIVERSED that these records cover

Measured numbers come from the records alone, each with its 95 % interval by example. Published numbers stand apart, marked by
source: what their acceptance rate counts is not defined, so they are never joined to ours. Doubts about them are listed in
`sdbench/report/paper/published/README.md`. Static ensembles v = w·p + (1 − w)·q stand beside the paper's own rows: the learned
head that `sdbench.train ensemble` trains, and lossless speculation with a draft that `sdbench.train draft` distils.
"""
TRAINED_FIRST = (
    "A command that needs a head or a draft which is not trained yet prints the training's command and ends.\n"
)


def build_paper(folders: Iterable[str | os.PathLike[str]], out: str | os.PathLike[str], **options: Any) -> list[Path]:
    """Write every table and figure to `out`; return the paths."""
    results = [read(folder) for folder in folders_of(folders)]
    home = Path(out)
    home.mkdir(parents=True, exist_ok=True)
    cells, published = measured(results, **options), read_published()
    lacking = [gap for exhibit in ALL for gap in missing(exhibit, cells, configs_of(results))]
    texts = {name: text for exhibit in TABLES for name, text in table_files(exhibit, cells, published).items()}
    frame = pd.DataFrame(lacking, columns=list(Missing.__slots__)).rename(columns={"exhibit": "asked"})
    texts["missing.csv"] = frame.to_csv(index=False)
    texts["paper.md"] = page(cells, published, lacking)
    for name, text in texts.items():
        (home / name).write_text(text, encoding="utf-8")
    with styled():
        drawn = {f"curve_{exhibit.name}": plots.curve(exhibit, cells, published) for exhibit in TABLES}
        drawn |= {"draft_length": plots.draft_length(cells, published), "seed": plots.seed(cells, published)}
        saved = [path for name in FIGURES for path in save(drawn[name], home, name)]
    return [*(home / name for name in texts), *saved]


def folders_of(paths: Iterable[str | os.PathLike[str]]) -> list[Path]:
    """Return results folders as they are; of any other folder the results folders right below it."""
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
    configs = [
        config for folder in results for config in folder.configs.values() if isinstance(config.get("model"), dict)
    ]
    return {str(config["model"].get("name")): config for config in configs}


def table_files(exhibit: Exhibit, cells: pd.DataFrame, published: pd.DataFrame) -> dict[str, str]:
    """Return a table in Markdown, LaTeX and CSV by the name of its file."""
    parts = tables.measured_entries(exhibit, cells), tables.published_entries(exhibit, published)
    return {
        f"{exhibit.name}.md": tables.to_markdown(exhibit, *parts),
        f"{exhibit.name}.tex": tables.to_latex(exhibit, *parts),
        f"{exhibit.name}.csv": tables.long_form(exhibit, cells).to_csv(index=False),
    }


def page(cells: pd.DataFrame, published: pd.DataFrame, lacking: Sequence[Missing]) -> str:
    """Return paper.md: tables with their notes, figures, and what to run for the rest."""
    parts = [INTRODUCTION]
    for exhibit in TABLES:
        table = table_files(exhibit, cells, published)[f"{exhibit.name}.md"]
        notes = "\n".join(f"- {note}" for note in tables.notes(exhibit, published, cells))
        parts.append(f"## {exhibit.title}\n\n{table}\n{notes}\n")
    parts += ["## Figures\n", *(f"### {title}\n\n![{title}]({name}.svg)\n" for name, title in FIGURES.items())]
    rows = [f"| {gap.exhibit} | {gap.model} | {gap.task} | {len(gap.settings)} | `{gap.command}` |" for gap in lacking]
    head = [
        "## Not measured yet\n",
        TRAINED_FIRST,
        "| for | pair | task | settings | command |",
        "|---|---|---|---:|---|",
    ]
    parts.append("\n".join([*head, *rows]) if rows else "Nothing is missing.")
    return "\n".join(parts) + "\n"
